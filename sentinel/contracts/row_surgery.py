"""Row surgery: a container that is cut, joined, put in another order, filled up or repeated, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sentinel.contracts.contract import Choose, Input, Observed, rule
from sentinel.values.literals import from_array

#: What a row of a container holds: its number, tokens, weights and flags, and what is no tensor.
LAYOUTS: Mapping[str, Any] = {
    "number": {"kind": "tensor", "dtype": "int64", "shape": []},
    "tokens": {"kind": "tensor", "dtype": "int64", "shape": [2]},
    "weights": {"kind": "tensor", "dtype": "float32", "shape": [2]},
    "flags": {"kind": "tensor", "dtype": "bool", "shape": [2, 3]},
    "label": {"kind": "text"},
    "prompt": {"kind": "list"},
}


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``parts``, from a field to its column each, and ``metas``, what each has as a whole."""
    outputs = call(**inputs)
    parts, metas = list(outputs["parts"]), list(outputs["metas"])
    return {**rows_of(inputs["fields"], parts), "meta_kept": all(dict(meta) == dict(inputs["meta"]) for meta in metas)}


def rows_of(given: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Which rows the parts hold, by the field ``number``, and whether everything else of each row stands beside it."""
    import torch

    places = {int(number): place for place, number in enumerate(given["number"])}
    rows, dropped, intact = [], set(), 0
    dtype_changed, shape_changed = set(), set()
    for part in parts:
        numbers = [places.get(int(number), -1) for number in part["number"]]
        rows += numbers
        for name, column in given.items():
            if name not in part:
                dropped.add(name)
                continue
            found = part[name]
            if isinstance(column, torch.Tensor):
                dtype_changed |= {name} if found.dtype != column.dtype else set()
                shape_changed |= {name} if found.shape[1:] != column.shape[1:] else set()
            intact += sum(place >= 0 and _same(column[place], entry) for place, entry in zip(numbers, found))
    return {
        "rows": torch.tensor(rows, dtype=torch.int64),
        "sizes": torch.tensor([len(part["number"]) for part in parts], dtype=torch.int64),
        "intact": intact,
        "dropped": sorted(dropped),
        "dtype_changed": sorted(dtype_changed),
        "shape_changed": sorted(shape_changed),
    }


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.shape == other.shape and torch.equal(one, other)
    return isinstance(one, list) == isinstance(other, list) and bool(np.array_equal(one, other))


def taken(fields: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """These rows of a container, in this order."""
    import torch

    return {
        name: column[list(places)] if isinstance(column, torch.Tensor) else [column[place] for place in places]
        for name, column in fields.items()
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = [taken(inputs["fields"], places) for places in _places(inputs)]
    return {"parts": parts, "metas": [inputs["meta"]] * len(parts)}


def _places(inputs: Mapping[str, Any]) -> list[list[int]]:
    """The rows of each part that comes out."""
    count, rows = inputs["count"], list(range(len(inputs["fields"]["number"])))
    surgeries: Mapping[str, Callable[[], list[list[int]]]] = {
        "cut": lambda: [part.tolist() for part in np.array_split(rows, count)],
        "split": lambda: [rows[start : start + count] for start in range(0, len(rows), count)],
        "join": lambda: [rows],
        "reorder": lambda: [list(inputs["order"])],
        "fill": lambda: [[place % len(rows) for place in range(math.ceil(len(rows) / count) * count)]],
        "shorten": lambda: [rows[: len(rows) - count]],
        "repeat": lambda: [[place for place in rows for _ in range(count)]],
        "tile": lambda: [rows * count],
        "repeat_each": lambda: [[place for place, times in zip(rows, inputs["sizes"]) for _ in range(times)]],
    }
    return surgeries[inputs["surgery"]]()


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Rows that all differ, as many as the surgery can be done to."""
    count = inputs["count"]
    if inputs["surgery"] == "cut":
        rows = count * choose.one_of((2, 1, 3)) + inputs["remainder"] * choose.integer(0, count - 1)
    elif inputs["surgery"] == "shorten":
        rows = count + choose.integer(1, 3)
    else:
        rows = choose.one_of((3, 1, 2, 4, 5))
    inputs["fields"] = drawn_fields(inputs["layouts"], rows, choose)
    inputs["order"] = choose.permutation(rows)[::-1]
    if inputs["surgery"] == "repeat_each":
        inputs["sizes"] = choose.integers(rows, 1, 3)
    else:
        first = choose.integer(1, rows)
        inputs["sizes"] = [first, rows - first] if first < rows else [rows]
    return inputs


def drawn_fields(layouts: Mapping[str, Any], rows: int, choose: Choose) -> dict[str, Any]:
    """A column of each layout; no entry of a row is equal to another row's, as far as the dtype goes."""
    return {name: _column(layout, rows, choose) for name, layout in layouts.items()}


def _column(layout: Mapping[str, Any], rows: int, choose: Choose) -> Any:
    if layout["kind"] == "text":
        return [chr(97 + row) for row in range(rows)]
    if layout["kind"] == "tensor":
        shape = [rows, *layout["shape"]]
        numbers = 10 + np.arange(math.prod(shape)).reshape(shape)
        return from_array(numbers % 2 if layout["dtype"] == "bool" else numbers, layout["dtype"])
    lengths = choose.integers(rows, 1, 3)
    if layout["kind"] == "list":
        return [[10 * row + token for token in range(length)] for row, length in enumerate(lengths)]
    shapes = [[*layout["shape"], length] for length in lengths]
    entries = (100 * row + np.arange(math.prod(shape)).reshape(shape) for row, shape in enumerate(shapes))
    return [from_array(entry, "int64") for entry in entries]


ROW_SURGERY = rule(
    name="row_surgery",
    summary="a container of rows that is cut, joined, put in another order, filled up or repeated",
    source=(
        "indexing of rows, as numpy and torch define it (array_split, concatenate, take, repeat, tile): "
        "a row is one thing in all fields, and what belongs to the whole container goes with each part"
    ),
    inputs=(
        Input(
            "surgery",
            "string",
            "cut (into count parts, the first ones longer where it does not come out even), split (into parts of count "
            "rows), join (containers of sizes rows), reorder (to order), fill (up to a multiple of count rows, with "
            "the rows again from the first), shorten (by the last count rows), repeat (each row count times), tile "
            "(all rows count times), repeat_each (row n sizes[n] times)",
            choices=("split", "cut", "join", "reorder", "fill", "shorten", "repeat", "tile", "repeat_each"),
        ),
        Input("count", "integer", "what the surgery counts", default=2, choices=(2, 1, 3, 4)),
        Input("remainder", "integer", "1 where a cut need not come out even", default=0, choices=(0, 1)),
        Input(
            "meta", "mapping", "what belongs to the whole container", default={"temperature": 0.5, "split": ["train"]}
        ),
        Input(
            "layouts",
            "mapping",
            "what a search makes fields of: field -> kind (text; list: of tokens; tensor: of a dtype, each row of this "
            "shape; ragged: each row of this shape and a length of its own); number is one number a row",
            default=LAYOUTS,
        ),
        Input("fields", "any", "field -> column: a tensor [rows, ...], or a list of one entry a row", choices=({},)),
        Input("order", "any", "a permutation of the rows", default=(), choices=((),)),
        Input("sizes", "any", "rows of each container that is joined, or how often each row is repeated", default=()),
    ),
    observes=(
        Observed("rows", "which row each row is that comes out, one part after the other", ("rows",)),
        Observed("sizes", "how many rows each part has", ("parts",)),
        Observed("intact", "how many fields of all rows that come out are those of the row"),
        Observed("meta_kept", "whether each part has what belongs to the whole container"),
        Observed("dropped", "fields that some part has no more"),
        Observed("dtype_changed", "fields whose dtype is another one"),
        Observed("shape_changed", "fields whose shape behind the rows is another one"),
    ),
    measure=_measure,
    oracle=_oracle,
    laws=("the_oracle_agrees", "fields_survive_surgery", "nothing_else_is_touched"),
    arrange=_arrange,
)
