"""Surgery: what is done to rows and columns of a batch, and must leave each what it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sentinel.contracts.contract import REQUIRED, Choose, Contract, Input, Observed, dialect, drawn, rule
from sentinel.values.lazy import torch
from sentinel.values.literals import Tensor, from_array

# -- row surgery -------------------------------------------------------------------------------------------------------


#: What a row of a container holds: its number, tokens, weights and flags, and what is no tensor.
LAYOUTS: Mapping[str, Any] = {
    "number": {"kind": "tensor", "dtype": "int64", "shape": []},
    "tokens": {"kind": "tensor", "dtype": "int64", "shape": [2]},
    "weights": {"kind": "tensor", "dtype": "float32", "shape": [2]},
    "flags": {"kind": "tensor", "dtype": "bool", "shape": [2, 3]},
    "label": {"kind": "text"},
    "prompt": {"kind": "list"},
}


def _measure_row_surgery(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``parts``, from a field to its column each, and ``metas``, what each has as a whole."""
    outputs = call(**inputs)
    parts, metas = list(outputs["parts"]), list(outputs["metas"])
    return {**rows_of(inputs["fields"], parts), "meta_kept": all(dict(meta) == dict(inputs["meta"]) for meta in metas)}


def rows_of(fields: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tell which rows the parts hold, by the field ``number``, and whether all else of each row stands beside it."""
    places = {int(number): place for place, number in enumerate(fields["number"])}
    rows, dropped, intact = [], set(), 0
    dtype_changed, shape_changed = set(), set()
    for part in parts:
        numbers = [places.get(int(number), -1) for number in part["number"]]
        rows += numbers
        for name, column in fields.items():
            if name not in part:
                dropped.add(name)
                continue
            output = part[name]
            if isinstance(column, torch.Tensor):
                dtype_changed |= {name} if output.dtype != column.dtype else set()
                shape_changed |= {name} if output.shape[1:] != column.shape[1:] else set()
            intact += sum(place >= 0 and _same_entry(column[place], entry) for place, entry in zip(numbers, output))
    return {
        "rows": torch.tensor(rows, dtype=torch.int64),
        "sizes": torch.tensor([len(part["number"]) for part in parts], dtype=torch.int64),
        "intact": intact,
        "dropped": sorted(dropped),
        "dtype_changed": sorted(dtype_changed),
        "shape_changed": sorted(shape_changed),
    }


def _same_entry(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.shape == other.shape and torch.equal(one, other)
    return isinstance(one, list) == isinstance(other, list) and bool(np.array_equal(one, other))


def taken(fields: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """Take these rows of a container, in this order."""
    return {
        name: column[list(places)] if isinstance(column, torch.Tensor) else [column[place] for place in places]
        for name, column in fields.items()
    }


def _oracle_row_surgery(inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = [taken(inputs["fields"], places) for places in _places(inputs)]
    return {"parts": parts, "metas": [inputs["meta"]] * len(parts)}


def _places(inputs: Mapping[str, Any]) -> list[list[int]]:
    """List the rows of each part that comes out."""
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


def _arrange_row_surgery(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw rows that all differ, as many as the surgery can be done to."""
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
    """Draw a column of each layout; no entry of a row is equal to another row's, as far as the dtype goes."""
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
        drawn(
            "surgery",
            "cut (into count parts, the first ones longer where it does not come out even), split (into parts of count "
            "rows), join (containers of sizes rows), reorder (to order), fill (up to a multiple of count rows, with "
            "the rows again from the first), shorten (by the last count rows), repeat (each row count times), tile "
            "(all rows count times), repeat_each (row n sizes[n] times)",
            ("split", "cut", "join", "reorder", "fill", "shorten", "repeat", "tile", "repeat_each"),
            REQUIRED,
        ),
        drawn("count", "what the surgery counts", (2, 1, 3, 4)),
        drawn("remainder", "1 where a cut need not come out even", (0, 1)),
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
    measure=_measure_row_surgery,
    oracle=_oracle_row_surgery,
    laws=("the_oracle_agrees", "fields_survive_surgery", "nothing_else_is_touched"),
    arrange=_arrange_row_surgery,
)


# -- minibatch iteration -----------------------------------------------------------------------------------------------


def _measure_minibatch_iteration(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``parts``: the minibatches of all epochs, each a mapping from a field to its column."""
    observation = rows_of(inputs["fields"], list(call(**inputs)["parts"]))
    rows, size, epochs = observation.pop("rows"), len(inputs["fields"]["number"]), inputs["epochs"]
    every = torch.arange(size).repeat(epochs)
    times = torch.zeros(epochs, size, dtype=torch.int64)
    if len(rows) == len(every) and bool((rows >= 0).all()):
        times = torch.stack([torch.bincount(order, minlength=size) for order in rows.reshape(epochs, size)])
    return {**observation, "times": times, "in_order": inputs["shuffle"] or torch.equal(rows, every)}


def _oracle_minibatch_iteration(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Each epoch is a permutation of the rows: the identity, or any other where they are shuffled."""
    size, rows = inputs["minibatch_size"], list(range(len(inputs["fields"]["number"])))
    starts = range(0, len(rows), size)
    return {"parts": [taken(inputs["fields"], rows[at : at + size]) for _ in range(inputs["epochs"]) for at in starts]}


def _arrange_minibatch_iteration(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw as many rows as come out even."""
    rows = inputs["minibatch_size"] * choose.one_of((2, 1, 3))
    inputs["fields"] = drawn_fields(inputs["layouts"], rows, choose)
    return inputs


MINIBATCH_ITERATION = rule(
    name="minibatch_iteration",
    summary="the rows of a batch in minibatches, epoch after epoch",
    source=(
        "PPO (arXiv:1707.06347, algorithm 1) optimises its surrogate on the whole batch for K epochs in minibatches: "
        "each row once an epoch; an order that is drawn is drawn from the seed alone"
    ),
    inputs=(
        drawn("minibatch_size", "rows of a minibatch", (2, 1, 3), REQUIRED),
        drawn("epochs", "how often the batch is gone through", (2, 1, 3), REQUIRED),
        drawn("shuffle", "whether each epoch has an order of its own", (False, True)),
        drawn("seed", "of the order", (0, 1, 7)),
        Input("layouts", "mapping", "what a search makes fields of, as in row_surgery", default=LAYOUTS),
        Input("fields", "any", "field -> column: a tensor [rows, ...], or a list of one entry a row", choices=({},)),
    ),
    observes=(
        Observed("times", "how often each row comes in each epoch", ("epochs", "rows")),
        Observed("sizes", "how many rows each minibatch has", ("minibatches",)),
        Observed("in_order", "whether rows that are not shuffled come in their order"),
        Observed("intact", "how many fields of all rows that come out are those of the row"),
        Observed("dropped", "fields that some minibatch has no more"),
        Observed("dtype_changed", "fields whose dtype is another one"),
        Observed("shape_changed", "fields whose shape behind the rows is another one"),
    ),
    measure=_measure_minibatch_iteration,
    oracle=_oracle_minibatch_iteration,
    laws=("the_oracle_agrees", "fields_survive_surgery", "nothing_else_is_touched"),
    arrange=_arrange_minibatch_iteration,
)


# -- batch surgery -----------------------------------------------------------------------------------------------------


def _present(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields that are there; None is how the frameworks write a field that is not."""
    return {name: rows[name] for name in sorted(rows.keys()) if rows[name] is not None}


def _measure_batch_surgery(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the rows that the surgery made with rows of the batch that went in, field by field."""
    outputs = call(**inputs)
    real, made = _present(outputs["real_rows"]), _present(outputs["made_rows"])
    both = [name for name in real if name in made]
    return {
        "fields": list(made),
        "dropped": [name for name in real if name not in made],
        "dtype_changed": [name for name in both if made[name].dtype != real[name].dtype],
        "shape_changed": [name for name in both if made[name].shape[1:] != real[name].shape[1:]],
        "counted_tokens": float(outputs["loss_mask"].sum()),
    }


def _oracle_batch_surgery(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One made-up row: every field of the real rows, of their dtype and shape; zeros, so that it counts for nothing."""
    real = {**inputs["fields"], **inputs["optional_fields"]}
    made = {name: torch.zeros_like(value[:1]) for name, value in _present(real).items()}
    return {"real_rows": real, "made_rows": made, "loss_mask": torch.zeros(1)}


def _arrange_batch_surgery(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Make a batch of the layouts: every field that batches always have, and any of the others."""
    rows, response = choose.integer(1, 3), choose.integer(1, 4)
    sizes = {"batch": rows, "response": response, "length": response + choose.integer(1, 2)}
    for layouts, fields in (("layouts", "fields"), ("optional_layouts", "optional_fields")):
        chosen = inputs[layouts]
        if fields == "optional_fields":
            chosen = {name: layout for name, layout in chosen.items() if choose.integer(0, 1)}
        inputs[fields] = {name: _batch_field(layout, sizes, choose) for name, layout in chosen.items()}
    return inputs


def _batch_field(layout: Mapping[str, Any], sizes: dict[str, int], choose: Choose) -> Tensor:
    """Fill a mask with ones; in any other field no two places hold the same number, as far as its dtype goes."""
    for axis in layout["shape"]:
        if axis not in sizes:
            sizes[axis] = choose.integer(1, 2)
    shape = [sizes[axis] for axis in layout["shape"]]
    distinct = 2 if layout["dtype"] == "bool" else 128
    numbers = np.ones(shape) if layout.get("mask") else np.arange(math.prod(shape)).reshape(shape) % distinct
    return from_array(numbers.astype(np.float64), layout["dtype"])


BATCH_SURGERY = Contract(
    name="batch_surgery",
    summary="rows that are made to fill up a training batch, beside the real ones",
    source=(
        "a worker treats every microbatch alike, so a made-up row must have each field "
        "that real rows have, and no weight"
    ),
    inputs=(
        Input("fields", "any", "field name, as the framework calls it -> tensor [batch, ...]", choices=({},)),
        Input("optional_fields", "any", "further fields that this batch carries", default={}, choices=({},)),
        Input(
            "layouts",
            "mapping",
            "what a search makes fields of: name of a field that every batch has -> dtype, shape (batch, response for "
            "response tokens, length for all tokens, or another axis) and, for a mask, mask: true",
            default={},
        ),
        Input("optional_layouts", "mapping", "the same, of the fields that a batch may lack", default={}),
        drawn("max_tokens_per_microbatch", "token budget of one microbatch", (8, 4, 100), REQUIRED),
    ),
    observes=(
        Observed("fields", "the fields that the made-up rows carry"),
        Observed("dropped", "fields of the real rows that the made-up rows lack"),
        Observed("dtype_changed", "fields whose dtype is another one on the made-up rows"),
        Observed("shape_changed", "fields whose shape behind the batch dimension is another one"),
        Observed("counted_tokens", "sum of the made-up rows' loss mask"),
    ),
    measure=_measure_batch_surgery,
    oracle=_oracle_batch_surgery,
    law="fields_survive_surgery",
    laws=("fields_survive_surgery", "the_oracle_agrees"),
    arrange=_arrange_batch_surgery,
)


# -- column padding ----------------------------------------------------------------------------------------------------


_DTYPES = ("float32", "int64", "bool", "float64", "int32")


def _measure_column_padding(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    padded = call(**inputs)["padded"]
    return {
        "padded": padded,
        "dtype": str(padded.dtype).removeprefix("torch."),
        "dtype_kept": padded.dtype == inputs["values"].dtype,
    }


def _oracle_column_padding(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The values, and beside them as many columns of the padding value as they lack; of one dtype. What is cut off is
    at the side where padding would stand."""
    values = inputs["values"]
    missing = max(inputs["length"] - values.shape[1], 0)
    beside = (missing, 0) if inputs["side"] == "left" else (0, missing)
    # Padding a boolean goes through integers, so that torch takes the value as it would for any other dtype.
    wide = torch.nn.functional.pad(values.to(torch.float64), beside, value=float(inputs["pad_value"]))
    if inputs["longer"] == "cut":
        wide = wide[:, -inputs["length"] :] if inputs["side"] == "left" else wide[:, : inputs["length"]]
    return {"padded": wide.to(values.dtype)}


def _arrange_column_padding(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw a matrix of any dtype; booleans are filled up with false."""
    dtype = choose.one_of(_DTYPES)
    shape = (choose.integer(1, 2), choose.integer(1, 4))
    numbers = np.arange(shape[0] * shape[1]).reshape(shape) % (2 if dtype == "bool" else 100)
    inputs["values"] = from_array(numbers, dtype)
    if dtype == "bool":
        inputs["pad_value"] = 0
    return inputs


COLUMN_PADDING = rule(
    name="column_padding",
    summary="rows that are filled up to a length with a value",
    source="padding adds columns and nothing else: values, order and dtype stay",
    inputs=(
        Input("values", "any", "tensor [rows, columns] of any dtype", choices=((),)),
        drawn("length", "columns that there are to be at least", (4, 2, 6), REQUIRED),
        drawn("pad_value", "what the new columns hold", (0, 7), REQUIRED, kind="number"),
        drawn("side", "where they stand: right or left", ("right", "left")),
        dialect("longer", "kept", "rows that are longer: kept, or cut to the length"),
    ),
    observes=(
        Observed("padded", "the values with the new columns", ("rows", "columns")),
        Observed("dtype_kept", "whether it has the dtype of the values"),
        Observed("dtype", "the dtype that it has", role="other"),
    ),
    measure=_measure_column_padding,
    oracle=_oracle_column_padding,
    arrange=_arrange_column_padding,
)


# -- collation ---------------------------------------------------------------------------------------------------------


def _measure_collation(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``samples``: each as it is read out of the batch, field by field."""
    samples = inputs["samples"]
    outputs = list(call(**inputs)["samples"])
    fields = sorted(samples[0])
    pairs = list(zip(samples, outputs))
    return {
        "count": len(outputs),
        "dropped": [name for name in fields if any(name not in after for _, after in pairs)],
        "altered": [
            name
            for name in fields
            if any(name in after and not _same_value(before[name], after[name]) for before, after in pairs)
        ],
        "intact": sum(
            name in after and _same_value(before[name], after[name]) for before, after in pairs for name in fields
        ),
    }


def _same_value(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        return bool(one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other))
    return bool(one == other)


def _oracle_collation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What went in."""
    return {"samples": inputs["samples"]}


def _arrange_collation(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw samples of the layouts, of lengths of their own; nothing in one is equal to anything in another."""
    lengths = [choose.integer(1, 4) for _ in range(choose.integer(1, 3))]
    inputs["samples"] = [
        {name: _sample_field(layout, row, tokens) for name, layout in inputs["layouts"].items()}
        for row, tokens in enumerate(lengths)
    ]
    return inputs


def _sample_field(layout: Mapping[str, Any], row: int, tokens: int) -> Any:
    if layout["kind"] == "text":
        return chr(97 + row) * tokens
    shape = [tokens if axis == "tokens" else axis for axis in layout["shape"]]
    return from_array(100 * row + np.arange(math.prod(shape)).reshape(shape), layout["dtype"])


COLLATION = rule(
    name="collation",
    summary="samples that become one batch",
    source="a batch is its samples side by side: what is read out of it for a sample is what the sample had",
    inputs=(
        Input("samples", "any", "field -> value, for each sample", choices=([],)),
        Input(
            "layouts",
            "mapping",
            "what a search makes samples of: field -> kind (text, tensor) and, of a tensor, dtype and shape "
            "(sizes, or tokens: a length that every sample has of its own)",
            default={},
        ),
    ),
    observes=(
        Observed("count", "how many samples come out"),
        Observed("dropped", "fields that some sample has no more"),
        Observed("altered", "fields that come out of some sample otherwise than they went in"),
        Observed("intact", "how many fields of all samples come out as they went in"),
    ),
    measure=_measure_collation,
    oracle=_oracle_collation,
    law="fields_survive_surgery",
    laws=("fields_survive_surgery", "the_oracle_agrees", "nothing_else_is_touched"),
    arrange=_arrange_collation,
)
