import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from contract_kit import Oracle, measured

from sentinel.recipes.catalog import bundled_catalog

Grid = list[list[float]]

#: Rows of 2 and 4 tokens, the ratio 1 everywhere: the gradient of a token's loss is minus its advantage.
UNEVEN: dict[str, Any] = {
    "log_probs": [[-1.0] * 4] * 2,
    "old_log_probs": [[-1.0] * 4] * 2,
    "advantages": [[1.0] * 4, [-2.0] * 4],
    "response_mask": [[1, 1, 0, 0], [1, 1, 1, 1]],
}

#: Every way to cut two rows.
CUTS: list[dict[str, Any]] = [{}, {"micro_batch_size": 1}, {"max_tokens_per_microbatch": 8}, {"dp_size": 2}]


@pytest.fixture
def oracle(oracle: Oracle) -> Oracle:
    """Return a function that computes the contract's float64 reference."""
    return partial(oracle, "policy_update")


def near(grid: Grid) -> list[Any]:
    return [pytest.approx(row, rel=1e-9, abs=1e-12) for row in grid]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(
    ("mode", "gradient", "pg_loss"),
    [
        ("token-mean", [[-1 / 6, -1 / 6, 0, 0], [2 / 6] * 4], (-2 + 8) / 6),
        ("seq-mean-token-mean", [[-1 / 4, -1 / 4, 0, 0], [2 / 8] * 4], (-1 + 2) / 2),
        ("seq-mean-token-sum", [[-1 / 2, -1 / 2, 0, 0], [2 / 2] * 4], (-2 + 8) / 2),
        ("seq-mean-token-sum-norm", [[-1 / 8, -1 / 8, 0, 0], [2 / 8] * 4], (-2 + 8) / 8),
        ("token-sum", [[-1.0, -1.0, 0, 0], [2.0] * 4], -2.0 + 8.0),
    ],
)
def test_the_gradient_does_not_depend_on_the_split(mode, gradient, pg_loss, cut, oracle):
    seen = oracle(**UNEVEN, loss_agg_mode=mode, **cut)
    assert seen["gradient"] == near(gradient)
    assert seen["pg_loss"] == pytest.approx(pg_loss)
    assert seen["kl_loss"] is None


def test_each_mini_batch_is_a_separate_step(oracle):
    seen = oracle(**UNEVEN, mini_batch_size=1)
    assert seen["gradient"] == near([[-1 / 2, -1 / 2, 0, 0], [2 / 4] * 4])
    assert seen["pg_loss"] == pytest.approx((-1 + 2) / 2)


CLIPPED: dict[str, Any] = {
    "log_probs": [[-1.0, -0.5], [-2.0, -0.25]],
    "old_log_probs": [[-1.5, -0.25], [-2.1, -9.0]],
    "ref_log_probs": [[-0.75, -1.5], [-2.5, -8.0]],
    "advantages": [[1.0, 0.5], [-2.0, 3.0]],
    "response_mask": [[1, 1], [1, 0]],
}


#: For the reference's log-prob minus the policy's: the estimate, and its derivative by the policy's.
ESTIMATES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "k1": (lambda delta: -delta, lambda delta: 1.0),
    "abs": (abs, lambda delta: -math.copysign(1.0, delta)),
    "k2": (lambda delta: delta**2 / 2, lambda delta: -delta),
    "k3": (lambda delta: math.exp(delta) - 1 - delta, lambda delta: 1 - math.exp(delta)),
}


@pytest.mark.parametrize("estimator", ESTIMATES)
def test_an_update_clips_ratios_and_adds_the_kl_term(estimator, oracle):
    """The ratios are e^0.5, which is clipped, e^-0.25 and e^0.1. The fourth token is invalid."""
    estimate, slope = ESTIMATES[estimator]
    losses, slopes = [-1.2, -math.exp(-0.25) / 2, 2 * math.exp(0.1)], [0.0, -math.exp(-0.25) / 2, 2 * math.exp(0.1)]
    deltas = [0.25, -1.0, -0.5]
    seen = oracle(**CLIPPED, kl_estimator=estimator, kl_coef=0.5)
    first, second, third = ((own + 0.5 * slope(delta)) / 3 for own, delta in zip(slopes, deltas))
    assert seen["gradient"] == near([[first, second], [third, 0.0]])
    assert (seen["pg_loss"], seen["kl_loss"]) == (
        pytest.approx(sum(losses) / 3),
        pytest.approx(sum(map(estimate, deltas)) / 3),
    )


def test_without_a_reference_there_is_no_kl_term(oracle):
    assert oracle(**UNEVEN, kl_coef=0.5) == oracle(**UNEVEN)


#: Entropies of 1 in the first row and of 4 in the second, which weigh less in a mean over rows.
ENTROPIES: dict[str, Any] = {"entropies": [[1.0, 1.0, 9.0, 9.0], [4.0] * 4], "entropy_coef": 0.5}


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(
    ("mode", "of_entropy", "gradient", "entropy"),
    [
        ("token-mean", None, [[-1 / 12, -1 / 12, 0, 0], [-1 / 12] * 4], (2 + 16) / 6),
        ("seq-mean-token-mean", None, [[-1 / 8, -1 / 8, 0, 0], [-1 / 16] * 4], (1 + 4) / 2),
        ("seq-mean-token-mean", "token-mean", [[-1 / 12, -1 / 12, 0, 0], [-1 / 12] * 4], (2 + 16) / 6),
        ("token-sum", None, [[-1 / 2, -1 / 2, 0, 0], [-1 / 2] * 4], 2 + 16),
    ],
)
def test_the_entropy_term_does_not_depend_on_the_split(mode, of_entropy, gradient, entropy, cut, oracle):
    seen = oracle(**UNEVEN, **ENTROPIES, loss_agg_mode=mode, entropy_agg_mode=of_entropy, **cut)
    assert seen["entropy_gradient"] == near(gradient)
    assert seen["entropy"] == pytest.approx(entropy)
    assert seen["gradient"] == oracle(**UNEVEN, loss_agg_mode=mode, **cut)["gradient"]


def test_an_update_without_entropies_reports_none(oracle):
    assert {"entropy", "entropy_gradient"}.isdisjoint(oracle(**UNEVEN))


#: Two prompts whose responses are not adjacent.
SCORED: dict[str, Any] = {
    "log_probs": torch.full((4, 2), -1.0, dtype=torch.float64),
    "old_log_probs": torch.full((4, 2), -1.0, dtype=torch.float64),
    "response_mask": torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]),
    "rewards": torch.tensor([1.0, 0.0, 0.0, 4.0], dtype=torch.float64),
    "group": ["p", "q", "p", "q"],
}
ROWS = {"number": torch.arange(4), "weights": torch.arange(12.0).reshape(4, 3), "label": list("abcd")}


def stepped(*stages, **more):
    """Return the observation of a driver whose batch has these parts after each boundary."""
    by_definition = bundled_catalog().contracts["training_step"].oracle
    return measured(
        "training_step", lambda **inputs: {**by_definition(inputs), "stages": stages, "rows": ROWS}, **SCORED, **more
    )


def part(*numbers, **fields):
    rows = list(numbers)
    columns = {
        "number": torch.tensor(rows),
        "weights": ROWS["weights"][rows],
        "label": [ROWS["label"][n] for n in rows],
    }
    return {**columns, **fields}


def test_a_response_is_trained_on_its_reward_minus_the_prompts_mean():
    seen = stepped()
    assert seen["gradient"] == near([[-0.5 / 7] * 2, [2 / 7, 0], [0.5 / 7] * 2, [-2 / 7] * 2])
    assert stepped(dp_size=2, micro_batch_size=1) == seen


def test_complete_rows_are_not_reported_as_lost():
    assert stepped(("balance", [part(2, 0, 3, 1)]), ("cut", [part(2, 0), part(3, 1)]))["lost_at"] == 0
    narrower = part(2, 0, 3, 1, weights=torch.nn.functional.pad(ROWS["weights"][[2, 0, 3, 1]], (0, 2)))
    assert stepped(("padded", [narrower]))["lost_at"] == 0


@pytest.mark.parametrize(
    "broken",
    [
        [part(2, 0, 3, 1, label=list("abcd"))],
        [part(2, 0, 3, 1, weights=ROWS["weights"])],
        [part(2, 0, 3)],
        [part(2, 0), part(0, 1)],
    ],
    ids=["labels stay", "weights stay", "a row is dropped", "a row comes twice"],
)
def test_the_first_boundary_that_loses_a_row_is_named(broken):
    seen = stepped(("balance", [part(2, 0, 3, 1)]), ("cut", broken), ("loss", broken))
    assert (seen["lost_at"], seen["lost_by"]) == (2, "cut")


#: Two rows; the last token of the first is padding.
PASS: dict[str, Any] = {
    "log_probs": torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]),
    "entropies": torch.tensor([[0.5, 1.0], [1.5, 2.0]]),
    "response_mask": torch.tensor([[1, 0], [1, 1]]),
}


def passed(log_probs: Any, entropy: Any) -> dict[str, Any]:
    return measured("recomputed_log_probs", lambda **_: {"log_probs": log_probs, "entropy": entropy}, **PASS)


def test_recomputed_rows_are_in_the_order_of_the_batch():
    log_probs, entropies = PASS["log_probs"], PASS["entropies"]
    right = passed(log_probs, entropies)
    assert right == {"log_probs": [[-1.0, 0.0], [-3.0, -4.0]], "entropy": [[0.5, 0.0], [1.5, 2.0]], "rows": 2}
    assert passed(log_probs, entropies.flip(0))["entropy"] == [[1.5, 0.0], [0.5, 1.0]]
    assert passed(log_probs, None)["entropy"] is None


def test_padding_rows_are_ignored_and_missing_rows_detected():
    log_probs, entropies = PASS["log_probs"], PASS["entropies"]
    assert passed(torch.cat((log_probs, log_probs[:1])), entropies)["rows"] == 3
    less = passed(log_probs[:1], entropies)
    assert (less["rows"], math.isnan(less["log_probs"][1][0])) == (1, True)
