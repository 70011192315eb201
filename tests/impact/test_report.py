"""Numbers on a scenario, what is said of them, and of learning curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from impact_kit import float64

from sentinel.impact.report import Curves
from sentinel.impact.scenario import Row, compare, sentence
from sentinel.recipes.catalog import bundled_catalog

_NAN, _INF = float("nan"), float("inf")
_CONTRACT = bundled_catalog().contracts["loss_aggregation"]


def _compare(base: Any, head: Any, key: str = "per_token_gradient", reference: bool = False) -> list[Row]:
    return compare(_CONTRACT, {"": {key: base}}, {"": {key: head}}, reference)


def test_a_gradient_has_an_angle_and_a_ratio_of_norms() -> None:
    [row] = _compare(float64([[0.5, 0.5], [0.5, 0.5]]), float64([[0.5, 0.0], [0.5, 0.0]]))
    assert row.angle == pytest.approx(45)
    assert row.ratio == pytest.approx(2**0.5)
    assert (row.is_gradient, row.same, row.largest, row.relative) == (True, False, 0.5, 1.0)
    assert sentence([row]) == "per_token_gradient is off by 45.00°, and 1.41 times as long as head's"


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        (float64([_NAN, 1]), float64([0, 1]), "x has numbers that are not finite: 1 of 2 at base, 0 of 2 at head"),
        (float64([1, 2]), float64([1]), "x is float64[2] at base, float64[1] at head"),
        (None, float64([1]), "x is absent at base, float64[1] at head"),
        (float64([6, 2]), float64([1, 2]), "x differs by up to 5.00, 2.50 times head's largest number"),
        ({"a": [1, True]}, {"a": [1, False]}, "x.a differs by up to 1.00, 1.00 times head's largest number"),
        ([float64([1]), "word"], [float64([0]), "other"], "x.0 differs by up to 1.00"),
        (1.0 + 1e-7, 1.0, "no number differs"),
        ("word", "other", "no number differs"),
    ],
)
def test_what_is_said_of_a_pair(base: Any, head: Any, said: str) -> None:
    assert sentence(_compare(base, head, "x")) == said


def test_a_reference_has_its_own_dtype_and_need_not_have_everything() -> None:
    from sentinel.values.literals import tensor

    single = tensor([1.0], "float32")
    assert sentence(_compare(single, float64([1.0]), reference=True)) == "no number differs"
    assert sentence(_compare(single, float64([1.0]))) == "per_token_gradient is float32[1] at base, float64[1] at head"
    assert _compare(single, None, reference=True) == []


def _curves(base: Any, head: Any, gradients: Any = (1.0, 1.0, 0.0, 1.0)) -> Curves:
    """:param base: rewards, a list a seed; ``head`` likewise.
    :param gradients: norms of base and head, angle and ratio, at every step of every seed."""
    both = np.stack([np.array(base, dtype=float).T, np.array(head, dtype=float).T], -1)
    return Curves(np.concatenate([both, np.broadcast_to(np.array(gradients), (*both.shape[:2], 4))], -1))  # type: ignore[arg-type]


def test_ranges_that_overlap_are_not_visible() -> None:
    curves = _curves([[0.1, 0.5], [0.1, 0.8]], [[0.1, 0.7], [0.1, 0.9]], (2.0, 1.0, 10.0, 2.0))
    assert (curves.visible, curves.sentence) == ("", "no visible effect on learning")
    assert curves.rows == [
        ("final reward (last tenth)", "0.65 (0.50 to 0.80)", "0.80 (0.70 to 0.90)"),
        ("reward over all steps", "0.38 (0.30 to 0.45)", "0.45 (0.40 to 0.50)"),
        ("seeds that stopped", "0", "0"),
        ("gradients not finite", "0", "0"),
        ("gradients zero", "0", "0"),
        ("gradients that differ", "4 of 4", ""),
        ("angle between these, degrees", "10.00 (10.00 to 10.00)", ""),
        ("norm, base / head", "2.00 (2.00 to 2.00)", ""),
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_ranges_apart_are_visible_either_way(swapped: bool) -> None:
    low, high = [[0.1, 0.2], [0.1, 0.3]], [[0.1, 0.7], [0.1, 0.9]]
    assert (_curves(high, low) if swapped else _curves(low, high)).visible == "final"


def test_what_is_slower_and_ends_alike_is_visible_while_it_learns() -> None:
    curves = _curves([[0.1, 0.1, 0.9], [0.1, 0.1, 0.8]], [[0.5, 0.6, 0.85], [0.5, 0.6, 0.9]])
    assert (curves.visible, curves.sentence) == ("speed", "visible: the ranges of the rewards do not overlap")


def test_a_seed_that_stops_does_not_count_in_the_rewards() -> None:
    curves = _curves([[0.1, _NAN], [0.2, 0.4]], [[0.1, 0.4], [0.2, 0.5]])
    assert curves.sentence == "visible: learning stops in 1 of 2 seeds at base, in 0 of 2 seeds at head"
    assert curves.rows[0] == ("final reward (last tenth)", "0.40 (0.40 to 0.40)", "0.45 (0.40 to 0.50)")
    assert curves.rows[2] == ("seeds that stopped", "1, from step 2", "0")


@pytest.mark.parametrize(
    ("gradients", "differ"),
    [
        ((1.0, 1.0, 1e-5, 1 + 1e-7), 0),  # rounding
        ((1.0, 1.0, 0.1, 1.0), 2),
        ((2.0, 1.0, 0.0, 2.0), 2),
        ((0.0, 1.0, _NAN, _NAN), 2),
        ((0.0, 0.0, _NAN, _NAN), 0),
        ((_INF, 1.0, _NAN, _NAN), 2),
        ((_INF, _INF, _NAN, _NAN), 0),
        ((_NAN, _NAN, _NAN, _NAN), 0),  # head has stopped
    ],
)
def test_which_gradients_differ(gradients: tuple[float, ...], differ: int) -> None:
    curves = _curves([[0.1], [0.2]], [[0.1], [0.2]], gradients)
    assert curves.differs.sum() == differ
    assert curves.rows[3][1] == str(2 * (gradients[0] == _INF))
    assert curves.rows[4][1] == str(2 * (gradients[0] == 0))
