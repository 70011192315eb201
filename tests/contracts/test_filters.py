from typing import Any

import numpy
import pytest
import torch
from contract_kit import measured

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import DoesNotApply
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import Tensor, tensor


def _group(rewards: list[float], group: str, **more: Any) -> dict[str, Any]:
    return {"rewards": torch.tensor(rewards, dtype=torch.float64), "group": list(group), **more}


@pytest.mark.parametrize(
    ("rewards", "group", "dialects", "kept"),
    [
        ([1, 0, 1, 1], "ppqq", {}, [1, 1, 0, 0]),
        ([1, 1, 0, 1], "pqpq", {}, [1, 0, 1, 0]),
        ([0.1, 0.1, 0.1], "ppp", {}, [0, 0, 0]),
        ([0, 0, 0], "pqr", {}, [0, 0, 0]),
        ([1, 0, 2], "ppq", {"group_of_one": "kept"}, [1, 1, 1]),
        ([1, 1, 0, 0], "ppqq", {"none_left": "all"}, [1, 1, 1, 1]),
        ([1, 1, 0, 1], "ppqq", {"none_left": "all"}, [0, 0, 1, 1]),
    ],
)
def test_groups_with_equal_rewards_are_dropped(rewards, group, dialects, kept):
    assert measured("group_filter", **_group(rewards, group, **dialects)) == {"kept": kept, "intact": True}


def _rows_alone(rewards: Any, group: Any, **_: Any) -> dict[str, Any]:
    numbers = [row for row, reward in enumerate(rewards.tolist()) if reward > 0]
    return {"numbers": numbers, "rewards": rewards[numbers].tolist()}


def _by_a_mean_that_rounds(rewards: Any, group: Any, **_: Any) -> dict[str, Any]:
    """Filter groups wrongly: compare the standard deviation with 0, although the mean in it is rounded."""
    numbers = list(range(len(rewards))) if numpy.std(rewards.numpy()) > 0 else []
    return {"numbers": numbers, "rewards": rewards[numbers].tolist()}


def _mixed(rewards: Any, group: Any, **_: Any) -> dict[str, Any]:
    """Return the right rows, but with the rewards of the first rows."""
    return {"numbers": [2, 3], "rewards": rewards[:2].tolist()}


def test_rewards_may_be_returned_in_single_precision():
    def rounded(rewards: Any, group: Any, **_: Any) -> dict[str, Any]:
        return {"numbers": [0, 1], "rewards": rewards[:2].float().tolist()}

    assert measured("group_filter", rounded, **_group([0.7, 1], "pp")) == {"kept": [1, 1], "intact": True}


@pytest.mark.parametrize(
    ("twin", "given", "seen"),
    [
        (_rows_alone, _group([1, 0, 1, 1], "ppqq"), {"kept": [1, 0, 1, 1], "intact": True}),
        (_by_a_mean_that_rounds, _group([0.1] * 3, "ppp"), {"kept": [1, 1, 1], "intact": True}),
        (_mixed, _group([1, 1, 0, 1], "ppqq"), {"kept": [0, 0, 1, 1], "intact": False}),
    ],
)
def test_a_broken_group_filter_is_detected(twin, given, seen):
    assert measured("group_filter", twin, **given) == seen
    assert measured("group_filter", **given) != seen


@pytest.mark.parametrize(("chosen", "rewards"), [(0, [1.0, 2.0, 3.0, 3.0]), (2, [1.0, 2.0, 3.0, 4.0])])
def test_drawn_scenarios_have_groups_with_equal_rewards(chosen, rewards):
    arrange = bundled_catalog().contracts["group_filter"].arrange
    drawn = {"rewards": tensor([1.0, 2.0, 3.0, 4.0], "float64"), "group": list("ppqq"), "group_layout": "any"}
    made = arrange(drawn, Choices(bytes([chosen])))["rewards"]
    assert isinstance(made, Tensor)
    assert made.nested() == rewards


def test_prompts_of_medium_difficulty_are_kept():
    given = {"rewards": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0]), "group": list("ppqqrr"), "low": 0.1}
    assert measured("difficulty_filter", **given, high=0.9) == {"kept": [1, 1, 0, 0, 0, 0]}
    assert measured("difficulty_filter", **given, high=1.5) == {"kept": [1, 1, 1, 1, 0, 0]}
    # The bounds are exclusive.
    assert measured("difficulty_filter", **{**given, "low": 0.5}, high=0.9) == {"kept": [0] * 6}


def test_a_threshold_on_single_responses_is_detected():
    def alone(rewards: Any, low: float, **_: Any) -> dict[str, Any]:
        return {"kept": (rewards > low).double()}

    given: dict[str, Any] = {"rewards": torch.tensor([1.0, 0.0]), "group": ["p", "p"], "low": 0.1, "high": 0.9}
    assert measured("difficulty_filter", alone, **given) == {"kept": [1, 0]}
    assert measured("difficulty_filter", **given) == {"kept": [1, 1]}


def test_a_response_that_fills_all_columns_counts_as_truncated():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert measured("overlong_filter", response_mask=mask) == {"kept": [[0, 0, 0], [1, 1, 0]], "kept_outside": 0}


@pytest.mark.parametrize(
    ("twin", "seen"),
    [
        (lambda response_mask: {"kept": response_mask}, {"kept": [[1, 1, 1], [1, 1, 0]], "kept_outside": 0}),
        (lambda response_mask: {"kept": 1 - response_mask}, {"kept": [[0, 0, 0], [0, 0, 1]], "kept_outside": 1}),
    ],
    ids=["nothing is left out", "the wrong way round"],
)
def test_a_filter_that_keeps_truncated_responses_is_detected(twin, seen):
    assert measured("overlong_filter", twin, response_mask=torch.tensor([[1, 1, 1], [1, 1, 0]])) == seen


#: Squared log-ratios 4, 0.25, 0 and 1. The last token is invalid.
MOVED: dict[str, Any] = {
    "behaviour_log_probs": torch.tensor([[-1.0, -1.5], [-1.0, -2.0]], dtype=torch.float64),
    "proximal_log_probs": torch.tensor([[-3.0, -1.0], [-1.0, -1.0]], dtype=torch.float64),
    "response_mask": torch.tensor([[True, True], [True, False]]),
}


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [
        (2.0, [[1, 1], [1, 0]]),  # (4 + 0.25 + 0) / 3 = 1.42
        (1.4, [[0, 1], [1, 0]]),  # (0.25 + 0) / 2 = 0.125
        (0.1, [[0, 0], [1, 0]]),
    ],
)
def test_the_fewest_tokens_with_the_largest_ratios_are_masked(threshold, kept):
    seen = measured("second_moment_mask", **MOVED, threshold=threshold)
    assert seen == {"kept": kept, "kept_count": sum(map(sum, kept)), "kept_outside": 0}


@pytest.mark.parametrize(("none_left", "count"), [("none", 0), ("closest", 1)])
def test_all_tokens_can_be_masked(none_left, count):
    mask = torch.tensor([[True, True], [False, False]])
    seen = measured("second_moment_mask", **{**MOVED, "response_mask": mask}, threshold=0.04, none_left=none_left)
    assert seen["kept"] == [[0, count], [0, 0]]


def test_a_tie_at_the_threshold_has_no_definition():
    tied = {**MOVED, "behaviour_log_probs": torch.tensor([[-1.0, -3.0], [-1.0, -2.0]], dtype=torch.float64)}
    with pytest.raises(DoesNotApply):
        measured("second_moment_mask", **tied, threshold=2.5)


def test_a_threshold_on_single_tokens_is_detected():
    def alone(behaviour_log_probs: Any, proximal_log_probs: Any, response_mask: Any, threshold: float, **_: Any) -> Any:
        moments = (behaviour_log_probs - proximal_log_probs).square()
        return {"kept": (moments < threshold).double()}

    seen = measured("second_moment_mask", alone, **MOVED, threshold=2.0)
    assert (seen["kept_count"], seen["kept_outside"]) == (2, 1)
    assert measured("second_moment_mask", **MOVED, threshold=2.0)["kept_count"] == 3
