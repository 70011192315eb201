"""verl #6452: the numbers of the report, to four digits, are what the recipes say (and so what their pins give)."""

from __future__ import annotations

from typing import Any

import pytest
from shipped import RECIPES

from sentinel.recipes import Expected
from sentinel.values.literals import Tensor

BASE, HEAD = "f7d10f3dcb1127e60fc2d55da572a4b8783a5fc8", "265c9248757b0f54219a039d3bb2f562e0029634"

#: What each estimator gives the first token of rows 1 to 5, where the rejected row 0 has reward 0, reward 10, and
#: where it is removed (which is what is right).
NO_STD = ("0.25 -0.75 1.25 -1 1", "-2.25 -3.25 -1.25 -1 1", "0 -1 1 -1 1")
WHITENED = (
    "0.1019 -0.9575 1.1613 -1.2224 0.8964",
    "-0.653 -1.4075 0.1016 0.2902 1.7993",
    "0 -1.0954 1.0954 -1.0954 1.0954",
)
RLOO = ("0.3333 -1 1.6667 -2 2", "-3 -4.3333 -1.6667 -2 2", "0 -1.5 1.5 -2 2")
REPORTED = {
    "VERL-REJECTED-ROW-GRPO": (
        "0.2611 -0.7833 1.3056 -0.7071 0.7071",
        "-0.492 -0.7106 -0.2733 -0.7071 0.7071",
        "0 -1 1 -0.7071 0.7071",
    ),
    "VERL-REJECTED-ROW-GRPO-NO-STD": NO_STD,
    "VERL-REJECTED-ROW-GRPO-VECTORIZED": NO_STD,
    "VERL-REJECTED-ROW-GRPO-PASSK": ("0 0 1 0 2", "0 0 0 0 2", "0 0 1 0 2"),
    "VERL-REJECTED-ROW-REINFORCE-PP-BASELINE": WHITENED,
    "VERL-REJECTED-ROW-GDPO": WHITENED,
    "VERL-REJECTED-ROW-RLOO": RLOO,
    "VERL-REJECTED-ROW-RLOO-VECTORIZED": RLOO,
    "VERL-REJECTED-ROW-GPG": (
        "0.375 -1.125 1.875 -1.5 1.5",
        "-2.7 -3.9 -1.5 -1.2 1.2",
        "0 -1.25 1.25 -1.25 1.25",
    ),
}
VARIANTS = ("reward_0", "reward_10", "row_removed")


@pytest.mark.parametrize("bug_id", REPORTED)
def test_the_recipe_says_the_reported_numbers(bug_id: str) -> None:
    recipe, reported = RECIPES[bug_id], [_numbers(text) for text in REPORTED[bug_id]]
    unpatched = [_first_tokens(recipe.expected_unpatched[f"{variant}.advantages"]) for variant in VARIANTS]
    fixed = [_first_tokens(recipe.expected_fixed[f"{variant}.advantages"]) for variant in VARIANTS]
    assert (unpatched, fixed) == (reported, [reported[2]] * 3)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split()]


def _first_tokens(value: Any) -> list[float]:
    """Of rows 1 to 5, or of all where row 0 is removed."""
    if isinstance(value, Expected):
        value = value.value
    rows = value.nested() if isinstance(value, Tensor) else value
    return [round(row[0], 4) for row in rows[-5:]]
