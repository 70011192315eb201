import math
from functools import partial
from typing import Any

import pytest
from contract_kit import Oracle

#: Rows of 1 and 2 valid tokens, whose ratios are 1, so that the gradient of a token's loss is minus its advantage.
UNEVEN: dict[str, Any] = {
    "log_probs": [[-1.0, -5.0], [-2.0, -0.5]],
    "old_log_probs": [[-1.0, -7.0], [-2.0, -0.5]],
    "advantages": [[3.0, 9.0], [-1.0, 0.5]],
    "response_mask": [[1, 0], [1, 1]],
}
#: The weights of each term, of which masked tokens have none.
TERMS: dict[str, Any] = {
    "policy_weights": [[0.5, 4.0], [1.0, 0.0]],
    "supervised_weights": [[0.0, 4.0], [2.0, 1.0]],
    "distill_weights": [[0.0, 4.0], [0.0, 3.0]],
    "teacher_log_probs": [[-9.0, -9.0], [-9.0, -0.25]],
}


@pytest.fixture
def oracle(oracle: Oracle) -> Oracle:
    """Return a function that computes the contract's float64 reference."""
    return partial(oracle, "loop_update")


def near(grid: list[list[float]]) -> list[Any]:
    return [pytest.approx(row, rel=1e-9, abs=1e-12) for row in grid]


@pytest.mark.parametrize(
    "cut", [{}, {"micro_batch_size": 1}, {"max_tokens_per_microbatch": 8}, {"dp_size": 2}], ids=str
)
def test_a_step_averages_the_loss_over_tokens(cut, oracle):
    seen = oracle(**UNEVEN, **cut)
    assert seen["gradient"] == near([[-1.0, 0.0], [1 / 3, -0.5 / 3]])
    assert seen["loss"] == pytest.approx((-3.0 + 1.0 - 0.5) / 3)
    assert (seen["grad_norm"], seen["entropy"], seen["validation_loss"], seen["old_kl"]) == (None, None, None, 0.0)


def test_each_term_is_averaged_over_its_own_tokens(oracle):
    seen = oracle(**UNEVEN, **TERMS)
    distilled = 3 * -0.25  # one token, which the teacher finds more likely by a quarter
    assert seen["gradient"] == near([[-3.0 * 0.5 / 2, 0.0], [1.0 / 2 - 2.0 / 2, -1.0 / 2 + distilled]])
    assert seen["loss"] == pytest.approx((-1.5 + 1.0) / 2 + (4.0 + 0.5) / 2 + distilled)


def test_the_kl_term_and_the_logged_kl_use_the_policy_that_sampled(oracle):
    seen = oracle(**{**UNEVEN, "old_log_probs": [[-1.5, -7.0], [-2.0, -0.5]]}, kl_coef=2.0, eps_clip_high=9.0)
    assert seen["loss"] == pytest.approx((-3.0 * math.exp(0.5) + 1.0 - 0.5 + 0.5**2) / 3)
    assert seen["old_kl"] == pytest.approx((math.exp(0.5) - 1 - 0.5) / 3)


def test_distilled_tokens_outside_the_trust_region_only_keep_the_penalty(oracle):
    """The first token has become less likely by e^-0.1 - e^-1; its squared log-ratio is 0.81."""
    one = {"log_probs": [[-1.0]], "old_log_probs": [[-0.1]], "advantages": [[0.0]], "response_mask": [[1]]}
    terms = {"policy_weights": [[0.0]], "distill_weights": [[1.0]], "teacher_log_probs": [[-3.0]]}
    seen = oracle(**one, **terms, distill_trust=0.2, distill_kl_coef=0.5)
    assert (seen["loss"], seen["gradient"]) == (pytest.approx(0.25 * 0.81), near([[0.5 * -0.9]]))
    assert oracle(**one, **terms)["loss"] == pytest.approx(2.0 * math.exp(-0.9))


@pytest.mark.parametrize(("of", "logged"), [("own", (0.25 + 0.625 + 1) / 3), ("next", (0.625 + 1 + 1) / 3)])
def test_the_rate_of_a_warm_up_multiplies_each_step(of, logged, oracle):
    seen = oracle(**UNEVEN, steps=3, warmup_steps=2, logged_rate_of=of)
    assert seen["rates"] == [0.25, 0.625, 1.0]
    assert seen["gradient"] == near([[-1.875, 0.0], [1.875 / 3, -1.875 * 0.5 / 3]])
    assert seen["logged_rate"] == pytest.approx(logged)


def test_the_rate_falls_to_the_lowest_in_the_last_step(oracle):
    assert oracle(**UNEVEN, steps=6, warmup_steps=1, decay_steps=3)["rates"] == [0.25, 1.0, 1.0, 1.0, 0.625, 0.25]
    resumed = oracle(**UNEVEN, steps=4, warmup_steps=2, decay_steps=2, resumes_after=1, logged_rate_of="next")
    assert (resumed["rates"], resumed["logged_rate"]) == ([0.625, 1.0, 0.25], pytest.approx((1 + 0.25 + 0.25) / 3))


def test_a_gradient_is_cut_to_the_largest_norm(oracle):
    norm = math.sqrt(1 + 1 / 9 + 0.25 / 9)
    seen = oracle(**UNEVEN, max_norm=0.25)
    assert seen["gradient"] == near([[-0.25 / norm, 0.0], [0.25 / norm / 3, -0.125 / norm / 3]])
    assert seen["grad_norm"] == pytest.approx(norm)
    assert oracle(**UNEVEN, max_norm=9.0)["gradient"] == oracle(**UNEVEN)["gradient"]


def test_entropy_and_validation_are_means_over_valid_tokens(oracle):
    seen = oracle(**UNEVEN, entropies=[[0.5, 9.0], [1.0, 3.0]], validates=True)
    assert (seen["entropy"], seen["validation_loss"]) == (pytest.approx(1.5), pytest.approx(3.5 / 3))
