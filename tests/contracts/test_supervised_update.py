import math
from functools import partial
from typing import Any

import pytest
from contract_kit import Oracle

#: Rows with 1 and 3 trained tokens; other values have no meaning.
UNEVEN: dict[str, Any] = {
    "log_probs": [[-5.0, -1.0, math.nan], [-2.0, -0.5, -4.0]],
    "output_after": [-50.0, math.inf],
    "response_mask": [[0, 1, 0], [1, 1, 1]],
}


@pytest.fixture
def oracle(oracle: Oracle) -> Oracle:
    """Return a function that computes the contract's float64 reference."""
    return partial(oracle, "supervised_update")


CUTS: list[dict[str, Any]] = [{}, {"micro_batch_size": 1}, {"max_tokens_per_microbatch": 8}, {"dp_size": 2}]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_every_trained_token_has_the_same_weight(cut, oracle):
    assert oracle(**UNEVEN, **cut) == {
        "loss": (1.0 + 2.0 + 0.5 + 4.0) / 4,
        "gradient": [[0.0, -1 / 4, 0.0], [-1 / 4, -1 / 4, -1 / 4]],
        "gradient_after": [0.0, 0.0],
    }


@pytest.mark.parametrize(("dialect", "count"), [("absent", 4), ("counted", 6)])
def test_nothing_predicts_the_first_token(dialect, count, oracle):
    seen = oracle(**UNEVEN, first_counts=True, first_token=dialect)
    assert seen["loss"] == pytest.approx(7.5 / count)
    assert seen["gradient"][0] == [0.0, pytest.approx(-1 / count), 0.0]
    assert seen["gradient_after"] == [0.0, 0.0]


def test_a_batch_without_trained_tokens_has_loss_zero(oracle):
    seen = oracle(**{**UNEVEN, "response_mask": [[0, 0, 0], [0, 0, 0]]})
    assert (seen["loss"], seen["gradient"]) == (0.0, [[0.0] * 3] * 2)
