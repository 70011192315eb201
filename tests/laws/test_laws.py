"""Each law holds for a right function, and is broken by a wrong one."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.fields_survive_surgery import fields_survive_surgery
from sentinel.laws.law import Case
from sentinel.laws.masked_values import masked_values_have_no_influence
from sentinel.laws.oracle import the_oracle_agrees
from sentinel.laws.rejected_rows import a_rejected_row_is_an_absent_row, rejected_rows
from sentinel.laws.sequence_decisions import a_sequence_decision_is_one_decision
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import Tensor, tensor

Array = npt.NDArray[Any]


def literal(array: Array, dtype: str = "float32") -> Tensor:
    return tensor(array.tolist(), dtype)


@st.composite
def masks(draw: st.DrawFn, rows: int = 4, columns: int = 3) -> Array:
    cells = st.lists(st.integers(0, 1), min_size=columns, max_size=columns)
    return np.array(draw(st.lists(cells, min_size=2, max_size=rows)))


def gradient_case(gradient: Array, mask: Array) -> Case:
    inputs = {"": {"response_mask": literal(mask, "int64")}}
    return Case(inputs, {"": {"per_token_gradient": literal(gradient)}})


@pytest.mark.parametrize("value", [1e-30, -1.0, float("nan"), float("inf")])
def test_one_masked_gradient_is_enough(value):
    gradient = np.array([[1.0, 0.0], [0.5, value]])
    (violation,) = masked_values_have_no_influence(gradient_case(gradient, np.array([[1, 0], [1, 0]])))
    assert "the masked token [1, 1]" in violation.detail
    assert violation.demanded.nested() == [[1.0, 0.0], [0.5, 0.0]]


def test_a_violation_names_its_variant():
    inputs = {name: {"response_mask": tensor([[1, 0]], "int64")} for name in ("clean", "dirty")}
    seen = {
        "clean": {"per_token_gradient": tensor([[1.0, 0.0]], "float32")},
        "dirty": {"per_token_gradient": tensor([[1.0, 1.0]], "float32")},
    }
    (violation,) = masked_values_have_no_influence(Case(inputs, seen))
    assert violation.key == "dirty.per_token_gradient"


GroupAdvantage = Callable[[Array, Array, list[str]], Array]


def right_twin(scores: Array, mask: Array, group: list[str]) -> Array:
    return _centred(scores, mask, group, mask.any(axis=-1))


def broken_twin(scores: Array, mask: Array, group: list[str]) -> Array:
    return _centred(scores, mask, group, np.ones(len(group), dtype=bool))


def _centred(scores: Array, mask: Array, group: list[str], counts: Array) -> Array:
    centred = np.zeros(len(group))
    for name in set(group):
        rows = [row for row, other in enumerate(group) if other == name and counts[row]]
        centred[rows] = scores[rows] - (scores[rows].mean() if rows else 0)
    return centred[:, None] * mask


def rejection_case(estimator: GroupAdvantage, mask: Array, scores: Array, group: list[str], other: float) -> Case:
    """The scores, with another reward on each rejected row, and without the rejected rows."""
    kept = mask.any(axis=-1)
    variants = {
        "as_it_is": (scores, mask, group),
        "other_reward": (np.where(kept, scores, other), mask, group),
        "removed": (scores[kept], mask[kept], [name for name, keep in zip(group, kept, strict=True) if keep]),
    }
    inputs: dict[str, Mapping[str, Any]] = {}
    observation = {}
    for name, (points, masked, names) in variants.items():
        rewards = points[:, None] * np.array([0, 0, 1])
        inputs[name] = {
            "token_level_rewards": literal(rewards),
            "response_mask": literal(masked, "int64"),
            "group": names,
            "norm_by_std": None,
        }
        observation[name] = {"advantages": literal(estimator(points, masked, names)), "count": len(names)}
    return Case(inputs, observation)


@pytest.mark.slow
@given(masks(), st.data())
def test_rejected_rows_in_group_statistics(mask, data):
    rows = len(mask)
    kept = mask.any(axis=-1)
    assume(kept.any() and not kept.all())
    scores = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=rows, max_size=rows)), dtype=float)
    group = data.draw(st.lists(st.sampled_from("pq"), min_size=rows, max_size=rows))
    assert a_rejected_row_is_an_absent_row(rejection_case(right_twin, mask, scores, group, 100.0)) == []
    leaks = any(name == group[row] and kept[row] for name, keep in zip(group, kept, strict=True) if not keep
                for row in range(rows))  # fmt: skip
    violations = a_rejected_row_is_an_absent_row(rejection_case(broken_twin, mask, scores, group, 100.0))
    assert bool(violations) is leaks
    assert all("accepted rows differ" in item.detail for item in violations)


def two_variants(first: Mapping[str, Any], second: Mapping[str, Any], **observed: Any) -> Case:
    values = observed or {"advantages": tensor([[0.0], [1.0]], "float32")}
    return Case({"a": first, "b": second}, {"a": values, "b": values})


MASKED: dict[str, Any] = {"response_mask": tensor([[0], [1]], "int64"), "group": ["p", "p"]}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (Case({"": MASKED}, {"": {}}), "has only one"),
        (two_variants({"group": []}, {"group": []}), "no mask"),
        (two_variants(*[{"response_mask": tensor([[1], [1]], "int64")}] * 2), "no variant has a rejected row"),
        (two_variants(MASKED, {**MASKED, "group": ["p", "q"]}), "differ in accepted rows too (group)"),
        (two_variants({**MASKED, "epsilon": 1}, {**MASKED, "epsilon": 2}), "differ in accepted rows too (epsilon)"),
        (two_variants(MASKED, MASKED, loss=1.0), "nothing"),
        (two_variants(MASKED, MASKED, loss=tensor(1.0, "float32")), "nothing"),
        (two_variants(MASKED, MASKED, flat=tensor([1.0, 2.0, 3.0], "float32")), "nothing"),
    ],
    ids=["one variant", "no mask", "none rejected", "other group", "other option", "number", "scalar", "flattened"],
)
def test_the_law_of_rejected_rows_does_not_apply_without_them(case, said):
    with pytest.raises(DoesNotApply) as raised:
        a_rejected_row_is_an_absent_row(case)
    assert said in str(raised.value)


def test_rows_without_eos_are_rejected_when_their_reward_is_masked():
    inputs = {
        "loss_mask": tensor([[0, 1, 0], [0, 1, 1]], "bool"),
        "attention_mask": tensor([[1, 1, 0], [1, 1, 1]], "int64"),
    }
    assert rejected_rows(inputs).tolist() == [False, False]
    assert rejected_rows({**inputs, "mask_no_eos_with_zero": True}).tolist() == [False, True]


def decision_case(decision: Array, valid: Array) -> Case:
    return Case({"": {"response_mask": literal(valid, "int64")}}, {"": {"opsm_mask": literal(decision)}})


@given(masks(), st.data())
def test_one_decision_for_each_sequence(valid, data):
    rows, columns = valid.shape
    of_sequences = np.array(data.draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)))
    assert a_sequence_decision_is_one_decision(decision_case(np.repeat(of_sequences[:, None], columns, 1), valid)) == []
    # The sign of each token decides. Alternating signs split every sequence with two adjacent valid tokens.
    of_tokens = np.tile(np.arange(columns) % 2, (rows, 1))
    split = any(len({int(v) for v in of_tokens[row][valid[row] != 0]}) > 1 for row in range(rows))
    violations = a_sequence_decision_is_one_decision(decision_case(of_tokens, valid))
    assert bool(violations) is split
    if violations:
        demanded = violations[0].demanded.array()
        assert a_sequence_decision_is_one_decision(decision_case(demanded, valid)) == []


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=4), st.integers(0, 3))
def test_a_value_near_the_oracles_obeys_and_a_distant_one_does_not(values, place):
    reference = {"": {"loss": tensor(values, "float64")}}
    near = {"": {"loss": tensor([value * (1 + 1e-7) for value in values], "float32")}}
    assert the_oracle_agrees(Case({"": {}}, near, reference)) == []
    place %= len(values)
    beside = [value + (1.0 if index == place else 0.0) for index, value in enumerate(values)]
    (violation,) = the_oracle_agrees(Case({"": {}}, {"": {"loss": tensor(beside, "float32")}}, reference))
    assert violation.key == "loss"


def test_a_key_that_only_the_oracle_has_is_a_violation():
    reference = {"v": {"loss": tensor(1.0, "float64"), "count": 3}}
    (violation,) = the_oracle_agrees(Case({"v": {}}, {"v": {"count": 3}}, reference))
    assert violation.key == "v.loss"


@pytest.mark.parametrize("loss", ["dropped", "shape_changed", "dtype_changed"])
def test_a_lost_field_is_named(loss):
    nothing: dict[str, list[str]] = {"dropped": [], "shape_changed": [], "dtype_changed": []}
    assert fields_survive_surgery(Case({"": {}}, {"": nothing})) == []
    (violation,) = fields_survive_surgery(Case({"": {}}, {"": {**nothing, loss: ["rollout_logprobs"]}}))
    assert violation.key == loss
    assert "rollout_logprobs" in violation.detail


@pytest.mark.parametrize("name", sorted(bundled_catalog().laws))
def test_every_law_does_not_apply_without_data(name):
    empty = Case({"": {}}, {"": {}}, {"": {}})
    with pytest.raises(DoesNotApply):
        bundled_catalog().laws[name].check(empty)


@pytest.mark.parametrize("name", sorted(bundled_catalog().laws))
def test_every_law_has_the_name_of_its_function(name):
    law = bundled_catalog().laws[name]
    assert law.check.__name__ == name
    assert law.statement
    assert law.check.__doc__
    assert "Catches" in law.check.__doc__
