"""Differences between two revisions are judged by how much each violates a relation between outputs."""

from typing import Any

import pytest

from sentinel.comparing.observations import SIDES, numbers_stay, split_by_finiteness, violations_ahead
from sentinel.deciding.law_session import Trial
from sentinel.laws.effects import nothing_else_is_touched
from sentinel.laws.law import Case, Law
from sentinel.laws.parts import parts_add_up
from sentinel.laws.row_order import order_does_not_matter
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import tensor

MASK = tensor([[1, 1], [1, 1]], "int64")
ORDERS = {"baseline": [[1.0, 2.0], [3.0, 4.0]], "permuted": [[3.0, 4.0], [1.0, 2.0]]}
ROWS = {
    name: {"loss_mat": tensor(rows, "float32"), "response_mask": MASK, "loss_agg_mode": "token-mean"}
    for name, rows in ORDERS.items()
}
HALF = {"response_mask": tensor([[1, 1]], "int64")}
PARTS = {"baseline": ROWS["baseline"]} | {
    f"part_{number}": {**ROWS["baseline"], **HALF, "loss_mat": tensor([row], "float32")}
    for number, row in enumerate(ORDERS["baseline"], 1)
}


def trial(law: Law, inputs: dict[str, Any], losses: list[float], **effects: Any) -> Trial:
    observation = {name: {"loss": loss} for name, loss in zip(inputs, losses)}
    watched = {"baseline": effects} if effects else {}
    case = Case(inputs, observation, None, bundled_catalog().contracts["loss_aggregation"], watched)
    return Trial(inputs, case, tuple(law.violations(case)))


@pytest.mark.parametrize(
    ("law", "inputs", "nearer", "further"),
    [
        (order_does_not_matter, ROWS, [2.5, 2.6], [2.5, 2.7]),
        (parts_add_up, PARTS, [2.5, 1.25, 1.35], [2.5, 1.25, 1.45]),
    ],
)
def test_a_larger_violation_of_a_relation_is_worse(law, inputs, nearer, further):
    one, other = trial(law, inputs, nearer), trial(law, inputs, further)
    [worse] = violations_ahead(other, one)
    assert worse.detail.endswith("; off by 0.2 at this revision, by 0.1 at the other")
    assert violations_ahead(one, other) == violations_ahead(one, one) == ()


def test_changing_one_more_argument_is_worse():
    inputs = {"baseline": ROWS["baseline"]}
    one, other = (trial(nothing_else_is_touched, inputs, [2.5], mutated=names) for names in (["a"], ["a", "b"]))
    [worse] = violations_ahead(other, one)
    assert worse.observed == ["b"]
    assert violations_ahead(one, other) == ()


def test_a_result_that_the_mask_does_not_fit_is_compared_as_a_whole():
    """A result with padding rows has more rows than the mask."""
    contract = bundled_catalog().contracts["masked_statistics"]
    inputs = {"values": tensor([[1.0, 2.0], [3.0, 4.0]], "float32"), "response_mask": tensor([[1, 0], [1, 1]], "int64")}
    whitened = {side: tensor([[0.0, 1.0], [0.0, last], [0.0, 0.0]], "float32") for side, last in zip(SIDES, (2, 3))}
    observed = {side: {"whitened": value} for side, value in whitened.items()}
    case = Case(dict.fromkeys(SIDES, inputs), observed, None, contract, {})
    assert [(each.key, each.symptom) for each in numbers_stay(case)] == [("whitened", "value")]
    assert {key: flags for key, *flags in split_by_finiteness(case)}["whitened"] == [True, False]
