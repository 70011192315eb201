"""Equality of observations: the error bound, infinities, and the positions that count."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from law_kit import CONTRACT, batch

from sentinel.contracts.contract import DoesNotApply, Observed, knob
from sentinel.contracts.distillation import DISTILLATION_LOSS
from sentinel.laws.agreement import EPSILON, LARGEST, Match, Scale, difference, disagreements, same, scale_of
from sentinel.laws.law import Case
from sentinel.values.literals import tensor

UNIT = Scale(count=1, condition=1.0, magnitude=1.0, inputs=1.0, dtype="float32")


def numbers(*values: float) -> Any:
    return np.array(values, dtype=np.float64)


@given(st.permutations(range(24)), st.lists(st.floats(-100, 100, width=32), min_size=24, max_size=24))
def test_a_sum_in_another_order_is_within_the_bound(order, values):
    inputs = {"scores": tensor([values], "float32"), "response_mask": tensor([[1] * 24], "int64")}
    case = Case({"": inputs}, {"": {}}, contract=CONTRACT)
    one = np.array(values, dtype=np.float32)
    sums = [one.sum(), one[order].sum(), np.cumsum(one)[-1]]
    bound = scale_of(case, [inputs], []).bound("float32")
    assert max(sums) - min(sums) <= bound
    assert bound <= 24 * 24 * max(map(abs, values)) * EPSILON["float32"]


@given(st.floats(-80, 80, width=32), st.floats(-1e-6, 1e-6))
def test_the_bound_grows_with_the_exponentiated_magnitude(log_ratio, rounding):
    off = log_ratio * (1 + rounding * EPSILON["float32"] / 1e-6 / 2)
    scale = Scale(1, max(abs(log_ratio), 1.0), math.exp(log_ratio), 1.0, "float32")
    assert abs(math.exp(off) - math.exp(log_ratio)) <= scale.bound("float32")


def test_the_bound_uses_the_coarsest_dtype():
    inputs = batch([[1.0, 2.0]], [[1, 1]], "p", "bfloat16")
    case = Case({"": inputs}, {"": {}}, contract=CONTRACT)
    scale = scale_of(case, [inputs], [{"loss": tensor(1.0, "float32")}])
    assert scale.dtype == "bfloat16"
    assert scale.bound("float32") == scale.bound("bfloat16")
    assert scale.bound("int64") == scale.bound("bool") == 0


def test_masked_numbers_do_not_widen_the_bound():
    inputs = batch([[1.0, 1e6]], [[1, 0]], "p")
    assert scale_of(Case({"": inputs}, {"": {}}, contract=CONTRACT), [inputs], []).magnitude == 1.0


def test_zero_logits_still_have_intermediate_logarithms():
    """The logarithm of a mixture is rounded, so a divergence that should be 0 may differ slightly."""
    inputs = {name: tensor([[[0.0]]], "float32") for name in ("logits", "teacher_logits")}
    case = Case({"": inputs}, {"": {}}, contract=DISTILLATION_LOSS)
    assert scale_of(case, [inputs], [{"loss": 0.0}]).bound("float32") >= EPSILON["float32"]
    assert scale_of(replace(case, contract=CONTRACT), [inputs], [{"loss": 0.0}]).magnitude == 0


@pytest.mark.parametrize(
    ("observed", "demanded", "symptom"),
    [
        (1.0, 1.0, None),
        (1.0 + 1e-7, 1.0, None),
        (1.001, 1.0, "value"),
        (math.nan, 1.0, "non-finite"),
        (math.inf, 1.0, "non-finite"),
        (1.0, math.nan, None),
        (math.inf, math.nan, None),
        (math.inf, 1e39, None),
        (0.0, 1e39, "value"),
    ],
)
def test_differences_have_a_place_and_a_symptom(observed, demanded, symptom):
    found = difference(numbers(0, observed), numbers(0, demanded), "float32", UNIT)
    assert (found and found.symptom) == symptom
    if found:
        assert found.place == (1,)
        assert found.text.startswith("element [1]: expected")


def test_only_counted_positions_are_compared():
    assert difference(numbers(1, 5), numbers(1, 2), "float32", UNIT, np.array([True, False])) is None
    assert difference(numbers(1, 5), numbers(1, 2), "float32", UNIT, np.array([False, True])) is not None


def test_a_changed_shape_is_a_separate_difference():
    found = difference(numbers(1), numbers(1, 2), "float32", UNIT)
    assert found.symptom == "shape"


def test_integers_agree_exactly():
    assert difference(numbers(2**40), numbers(2**40), "int64", UNIT) is None
    assert difference(numbers(2**40), numbers(2**40 + 1), "int64", UNIT) is not None


def test_an_infinity_is_accepted_when_sums_of_that_size_overflow():
    eight = replace(UNIT, count=8)
    assert eight.limit("float32") == LARGEST["float32"] / 8
    assert replace(eight, dtype="float16").limit("float32") == LARGEST["float16"] / 8
    assert replace(eight, dtype="float16", inputs=100.0).limit("float32") == 0.0
    assert eight.limit("int64") == math.inf


def case(first: dict[str, Any], second: dict[str, Any], oracle: Any = None) -> Case:
    inputs = batch([[1.0, 2.0], [3.0, 4.0]], [[1, 0], [1, 1]], "pq")
    return Case({"baseline": inputs, "other": inputs}, {"baseline": first, "other": second}, oracle, CONTRACT)


def advantages(values: list[list[float]], dtype: str = "float32") -> dict[str, Any]:
    return {"advantages": tensor(values, dtype)}


def test_masked_tokens_are_not_compared():
    one = advantages([[1.0, 7.0], [1.0, 1.0]])
    assert same(case(one, advantages([[1.0, 8.0], [1.0, 1.0]])), "baseline", "other") == []
    (violation,) = same(case(one, advantages([[1.0, 7.0], [1.0, 2.0]])), "baseline", "other", prefix="so: ")
    assert violation.key == "other.advantages"
    assert violation.detail.startswith("so: element [1, 1]: 1.0 in 'baseline', 2.0 in 'other'")
    assert violation.demanded is None  # they disagree, and neither is known to be right


def test_matching_rows_and_columns_are_compared():
    swapped = case(advantages([[1.0, 0.0], [2.0, 3.0]]), advantages([[3.0, 2.0], [0.0, 1.0]]))
    reverse = (np.array([0, 1]), np.array([1, 0]))
    assert same(swapped, "baseline", "other", Match(rows=reverse, columns=reverse)) == []
    assert same(swapped, "baseline", "other", Match(rows=reverse)) != []


def test_missing_and_uncompared_values_are_skipped():
    one, other = {**advantages([[1.0, 0.0], [1.0, 1.0]]), "note": 1, "loss": None}, {"note": 2, "loss": 1.0}
    with pytest.raises(DoesNotApply, match="nothing"):
        same(case(one, other), "baseline", "other")


@pytest.mark.parametrize(("moved", "violations"), [(0.0, 1), (1.0, None), (1e-7, 1)])
def test_values_that_change_by_definition_are_not_compared(moved, violations):
    oracle = {"baseline": {"loss": 1.0}, "other": {"loss": 1.0 + moved}}
    asked = case({"loss": 1.0}, {"loss": 2.0}, oracle)
    if violations is None:
        with pytest.raises(DoesNotApply):
            same(asked, "baseline", "other")
    else:
        assert len(same(asked, "baseline", "other")) == violations


def test_a_scalar_may_have_a_dimension_of_one():
    assert same(case({"loss": tensor([1.0], "float32")}, {"loss": tensor(1.0, "float32")}), "baseline", "other") == []


def beside(observed: Any, demanded: Any) -> Case:
    inputs = batch([[1.0, 2.0]], [[1, 0]], "p")
    return Case({"": inputs}, {"": observed}, {"": demanded}, CONTRACT)


def test_a_key_missing_on_both_sides_is_skipped():
    for observed, demanded in (
        ({"share": None}, {"share": 1.0}),
        ({"share": 1.0}, {"share": None}),
        ({}, {"share": 1}),
    ):
        with pytest.raises(DoesNotApply):
            disagreements(beside(observed, demanded), ("metric",))
    (violation,) = disagreements(beside({"share": 0.5}, {"share": 1.0}), ("metric",))
    assert (violation.key, violation.observed, violation.demanded) == ("share", 0.5, 1.0)


def test_the_effect_of_each_option_is_a_separate_symptom():
    names = ("top_p", "seed")
    asked = replace(
        CONTRACT,
        inputs=(*CONTRACT.inputs, *(knob(name, "an option", (1.0, 2.0)) for name in names)),
        observes=(*CONTRACT.observes, *(Observed(name, "what is asked for") for name in names)),
    )
    case = replace(
        beside({"top_p": 1.0, "seed": 1.0, "loss": 1.0}, dict.fromkeys((*names, "loss"), 2.0)), contract=asked
    )
    assert {item.key: item.symptom for item in disagreements(case, ("output",))} == {
        "top_p": "top_p", "seed": "seed", "loss": "value",
    }  # fmt: skip


def test_the_contracts_roles_select_the_compared_keys():
    assert {item.role for item in CONTRACT.observes} == {"output", "gradient", "metric", "decision", "other"}
    assert Observed("x", "y").role == "output"
    with pytest.raises(DoesNotApply):
        disagreements(beside({"note": 1.0}, {"note": 2.0}), ("output", "gradient"))
