"""Numbers on a scenario at base beside head."""

from typing import Any

import pytest
from impact_kit import float64

from sentinel.impact import Impact, Row, Side, compare
from sentinel.recipes.catalog import bundled_catalog

_NAN = float("nan")
_CONTRACT = bundled_catalog().contracts["loss_aggregation"]


def _compare(base: Any, head: Any, key: str = "per_token_gradient", reference: bool = False) -> list[Row]:
    return compare(_CONTRACT, {"": {key: base}}, {"": {key: head}}, reference)


def _summary(rows: list[Row]) -> str:
    side = Side("git:x", "x", "", "", {})
    return Impact(None, side, side, rows).summary  # type: ignore[arg-type]


def test_a_gradient_has_an_angle_and_a_ratio_of_norms():
    [row] = _compare(float64([[0.5, 0.5], [0.5, 0.5]]), float64([[0.5, 0.0], [0.5, 0.0]]))
    assert row.angle == pytest.approx(45)
    assert row.ratio == pytest.approx(2**0.5)
    assert (row.is_gradient, row.same, row.largest, row.relative) == (True, False, 0.5, 1.0)
    assert _summary([row]).startswith(
        "output per_token_gradient, is float64[2, 2], angle 45.00°, norm, base / head 1.41"
    )


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        (float64([_NAN, 1]), float64([0, 1]), "relative 0.00, not finite 1 / 0"),
        (float64([1, 2]), float64([1]), "is float64[2] / float64[1]"),
        (None, float64([1]), "is absent / float64[1]"),
        (float64([6, 2]), float64([1, 2]), "largest difference 5.00, relative 2.50"),
        ({"a": [1, True]}, {"a": [1, False]}, "output x.a, is float64[2]"),
        ([float64([1]), "word"], [float64([0]), "other"], "output x.0, is float64[1]"),
        (1.0 + 1e-7, 1.0, "no number differs"),
        ("word", "other", "no number differs"),
    ],
)
def test_what_is_said_of_a_pair(base, head, said):
    assert said in _summary(_compare(base, head, "x"))


def test_a_reference_has_its_own_dtype_and_need_not_have_everything():
    from sentinel.values.literals import tensor

    single = tensor([1.0], "float32")
    assert _summary(_compare(single, float64([1.0]), reference=True)) == "no number differs"
    assert "is float32[1] / float64[1]" in _summary(_compare(single, float64([1.0])))
    assert _compare(single, None, reference=True) == []
