"""Words follow the numbers, and the rule that they state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sentinel.impact.effects import Effect, effect, words
from sentinel.impact.training import Moment


def _effect(base: Sequence[Sequence[float | None]], head: Sequence[Sequence[float | None]], **more: object) -> Effect:
    """From curves, a list a seed."""
    what = {"compared": True, "angle": 0.0, "ratio": 1.0, **more}
    steps = range(len(base[0]))
    return effect([[Moment(b[n], h[n], **what) for b, h in zip(base, head)] for n in steps])  # type: ignore[arg-type]


def test_ranges_that_overlap_are_not_visible() -> None:
    found = _effect([[0.1, 0.5], [0.1, 0.8]], [[0.1, 0.7], [0.1, 0.9]], angle=10.0, ratio=2.0, same=False)
    assert not found.visible
    assert words(found) == [
        "no visible effect on learning: final reward 0.65 (0.50 to 0.80) at base, 0.80 (0.70 to 0.90) at head; base "
        "ends lower in 2 of 2 seeds, higher in 0",
        "the gradient differs at 4 of 4 steps (all seeds): there it is off by 10.00° (10.00° to 10.00°), and its norm "
        "is 2.00 (2.00 to 2.00) times head's; medians, with lowest and highest",
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_ranges_apart_are_visible_either_way(swapped: bool) -> None:
    low, high = [[0.1, 0.2], [0.1, 0.3]], [[0.1, 0.7], [0.1, 0.9]]
    found = _effect(high, low, same=False) if swapped else _effect(low, high, same=False)
    assert found.visible == "final"
    assert words(found)[0].startswith("visible: final reward 0.")


def test_what_is_slower_and_ends_alike_is_visible_while_it_learns() -> None:
    found = _effect([[0.1, 0.1, 0.9], [0.1, 0.1, 0.8]], [[0.5, 0.6, 0.85], [0.5, 0.6, 0.9]], same=False)
    assert found.visible == "speed"
    assert words(found)[0].startswith("visible while it learns: reward over all steps 0.35")


def test_one_seed_that_stops_is_told_and_its_curve_does_not_count() -> None:
    found = _effect([[0.1, None], [0.2, 0.4]], [[0.1, 0.4], [0.2, 0.5]])
    assert found.visible == "stopped"
    assert words(found)[:3] == [
        "at base the policy stops learning at step 2 in 1 of 2 seeds: its parameters are NaN",
        "at base it goes on in the others: final reward 0.40 (0.40 to 0.40)",
        "at head it goes on: final reward 0.45 (0.40 to 0.50)",
    ]


def test_both_that_stop_are_no_visible_effect() -> None:
    found = _effect([[0.1, None], [None, None]], [[0.1, None], [0.1, None]])
    assert not found.visible
    told = words(found)
    assert told[0].startswith("at base the policy stops learning at steps 1 to 2 in 2 of 2 seeds")
    assert "no visible effect: it stops at both" in told


def test_rounding_is_no_difference() -> None:
    found = _effect([[0.1], [0.2]], [[0.1], [0.2]], angle=1e-5, ratio=1 + 1e-7, same=False)
    assert found.differing == 0
    assert words(found)[-1] == "the gradient is the same at every step, but for rounding"


def test_a_constant_factor_is_told_as_one() -> None:
    found = _effect([[0.1], [0.2]], [[0.1], [0.2]], angle=1e-6, ratio=2.0, same=False)
    assert words(found)[-1].startswith("only its length is another: Adam divides that out")


def test_a_gradient_that_is_zero_on_one_side_is_told() -> None:
    curves = [[0.1], [0.2]]
    found = _effect(curves, curves, angle=None, ratio=None, same=False, zero="base")
    assert found.differing == 2
    assert words(found)[1:] == ["base's gradient is 0 at 2 of 2 steps at which the other's is not"]


def test_what_is_not_finite_is_told() -> None:
    curves = [[0.1], [0.2]]
    found = _effect(curves, curves, angle=None, ratio=None, same=False, base_finite=False, base_output_finite=False)
    assert words(found)[1:] == [
        "base's gradient is not finite at 2 of 2 steps: a trainer that skips such steps loses these",
        "what the boundary returns at base is not finite at 2 of 2 steps",
    ]
