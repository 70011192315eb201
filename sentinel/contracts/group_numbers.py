"""Group numbers: labels of groups, of whatever kind, as places of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule
from sentinel.values.literals import Array

#: Three labels of each kind, as batches carry them: (values, numpy dtype).
_LABELS = (
    (("p", "q", "r"), "object"),
    ((0, 1, 2), "int64"),
    ((7, 100, 3), "int64"),
    ((-5, 3, 0), "int64"),
    ((2.0, 5.0, -1.0), "float64"),
    (("7", "100", "3"), "object"),
)


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    numbers = call(**inputs)["numbers"]
    return {
        "numbers": numbers,
        "alike": numbers[:, None] == numbers[None, :],
        "lowest": int(numbers.min()),
        "highest": int(numbers.max()),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers in the order of the first row of each group; which group has which number is nobody's meaning."""
    import torch

    known: dict[Any, int] = {}
    return {"numbers": torch.tensor([known.setdefault(label, len(known)) for label in inputs["labels"].tolist()])}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    pool, dtype = choose.one_of(_LABELS)
    rows = [choose.integer(0, 2) for _ in range(choose.integer(1, 5))]
    inputs["labels"] = Array(tuple(pool[row] for row in rows), dtype)
    return inputs


GROUP_NUMBERS = rule(
    name="group_numbers",
    summary="the numbers 0 to G-1 of the G groups that rows belong to",
    source="a label is a name: rows are of one group where their labels are equal, and of no other",
    inputs=(Input("labels", "any", "label of each row's group: a numpy array", choices=((),)),),
    observes=(
        Observed("numbers", "number of each row's group", role="other"),
        Observed("alike", "whether two rows have one number", ("rows", "rows")),
        Observed("lowest", "the lowest number"),
        Observed("highest", "the highest number, one less than there are groups"),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
