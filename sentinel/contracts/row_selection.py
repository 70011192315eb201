"""Row selection: some rows of a container, by their numbers or by a mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule
from sentinel.values.literals import tensor


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns the two columns of the container that comes out."""
    outputs = call(**{**inputs, "chosen": _as(inputs["chosen"], inputs["chosen_as"])})
    numbers, labels = outputs["numbers"], list(outputs["labels"])
    known = dict(zip(inputs["numbers"].tolist(), inputs["labels"]))
    right = [known.get(number) for number in numbers.tolist()]
    return {"numbers": numbers, "labels": labels, "aligned": right == labels}


def _as(chosen: Any, kind: str) -> Any:
    import numpy
    import torch

    made: Mapping[str, Callable[[Any], Any]] = {"list": list, "array": numpy.array, "tensor": torch.tensor}
    return made[kind](chosen)


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A mask names the rows where it is true, numbers name rows in the order that they stand in."""
    chosen = inputs["chosen"].tolist() if inputs["chosen_as"] != "list" else inputs["chosen"]
    places = [place for place, flag in enumerate(chosen) if flag] if isinstance(chosen[0], bool) else chosen
    return {"numbers": inputs["numbers"][places], "labels": [inputs["labels"][place] for place in places]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Rows that all differ, and at least one of them chosen: by a mask, or by numbers in any order, perhaps twice."""
    rows = choose.integer(2, 5)
    inputs["numbers"] = tensor([10 + row for row in range(rows)], "int64")
    inputs["labels"] = [f"row {row}" for row in range(rows)]
    if choose.integer(0, 1):
        mask = [bool(choose.integer(0, 1)) for _ in range(rows)]
        mask[choose.integer(0, rows - 1)] = True
        inputs["chosen"] = mask
    else:
        inputs["chosen"] = [choose.integer(0, rows - 1) for _ in range(choose.integer(1, rows))]
    return inputs


ROW_SELECTION = rule(
    name="row_selection",
    summary="the rows of a container that are chosen, by their numbers or by a mask",
    source="indexing by integers and by booleans, as numpy and torch define it",
    inputs=(
        Input("numbers", "any", "a column of numbers: tensor [rows]", choices=((),)),
        Input("labels", "any", "a column of strings, one a row", default=()),
        Input("chosen", "any", "numbers of rows, or a boolean for each row", choices=((),)),
        Input("chosen_as", "string", "what holds them", default="list", choices=("list", "array", "tensor")),
    ),
    observes=(
        Observed("numbers", "the numbers of the rows that come out", ("chosen",)),
        Observed("labels", "their labels", role="other"),
        Observed("aligned", "whether each label stands beside its own row's number"),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
