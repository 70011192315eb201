import math
from functools import partial
from typing import Any

import pytest
from contract_kit import Oracle, scenario

from sentinel.contracts.choices import Choices
from sentinel.recipes.catalog import bundled_catalog

LN2, LN3 = math.log(2), math.log(3)

#: Odds of 1 to 3 and of 2 to 1, then an invalid token.
TWO_TOKENS: dict[str, Any] = {
    "logits": [[[0.0, LN3], [LN2, 0.0], [math.inf, math.nan]]],
    "token_ids": [[1, 1, 0]],
    "response_mask": [[1.0, 1.0, 0.0]],
}


@pytest.fixture
def oracle(oracle: Oracle) -> Oracle:
    """Return a function that computes the contract's float64 reference."""
    return partial(oracle, "token_log_probs")


def near(value: Any) -> Any:
    return [near(row) for row in value] if isinstance(value[0], list) else pytest.approx(value, rel=1e-9, abs=1e-12)


def test_log_probs_equal_hand_computed_ones(oracle):
    seen = oracle(**TWO_TOKENS)
    assert seen["log_probs"] == near([[math.log(3 / 4), math.log(1 / 3), 0.0]])
    first = -(math.log(1 / 4) / 4 + math.log(3 / 4) * 3 / 4)
    second = -(math.log(2 / 3) * 2 / 3 + math.log(1 / 3) / 3)
    assert seen["entropy"] == near([[first, second, 0.0]])
    # 1 for the token minus its probability; 0 at invalid tokens.
    assert seen["logits_gradient"][0][:2] == near([[-1 / 4, 1 / 4], [-2 / 3, 2 / 3]])


def test_a_temperature_of_a_half_squares_the_odds(oracle):
    seen = oracle(**TWO_TOKENS, temperature=0.5)
    assert seen["log_probs"] == near([[math.log(9 / 10), math.log(1 / 5), 0.0]])


def test_a_greedy_rollout_has_the_log_probs_of_the_distribution(oracle):
    assert oracle(**TWO_TOKENS, temperature=0.0)["log_probs"] == near(oracle(**TWO_TOKENS)["log_probs"])


def test_the_entropy_may_be_that_of_the_unscaled_distribution(oracle):
    cold = oracle(**TWO_TOKENS, temperature=0.5, entropy_of="model")
    assert cold["entropy"] == near(oracle(**TWO_TOKENS)["entropy"])
    assert cold["entropy"] != near(oracle(**TWO_TOKENS, temperature=0.5)["entropy"])


def test_no_entropy_is_observed_when_none_is_requested(oracle):
    assert oracle(**TWO_TOKENS, with_entropy=False)["entropy"] is None


def test_positions_have_distinct_distributions_and_tokens(oracle):
    logits = [[[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]], [[-2.0, 1.0, 0.0], [0.0, 0.125, 3.0]]]
    tokens = [[2, 0], [1, 2]]
    seen = oracle(logits=logits, token_ids=tokens, temperature=2.0)["log_probs"]
    assert seen == near(
        [
            [-math.log(sum(math.exp((z - of[token]) / 2) for z in of)) for of, token in zip(*row)]
            for row in zip(logits, tokens)
        ]
    )


def test_missing_token_ids_are_derived_from_positions():
    filled = scenario("token_log_probs", logits=[[[0.0, 1.0]] * 3] * 2)
    assert filled["token_ids"].nested() == [[0, 1, 0]] * 2
    assert filled["response_mask"].nested() == [[1.0] * 3] * 2


def test_drawn_tokens_are_in_the_vocabulary():
    contract = bundled_catalog().contracts["token_log_probs"]
    drawn = contract.arrange(scenario("token_log_probs", logits=[[[0.0, 1.0, 2.0]] * 2]), Choices(b"\2\2"))
    assert (drawn["token_ids"].nested(), drawn["token_ids"].dtype) == ([[2, 2]], "int64")
