"""Define contracts of operations that rearrange a batch's rows and columns without changing their contents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import CONTEXT_PARALLEL
from sentinel.contracts.contract import REQUIRED, Choose, Contract, Input, Observed, dialect, drawn, rule
from sentinel.values.lazy import torch
from sentinel.values.literals import Tensor, from_array

# -- row surgery -------------------------------------------------------------------------------------------------------


#: Fields of a container's rows: the row number, tokens, weights, flags, and values that are not tensors.
LAYOUTS: Mapping[str, Any] = {
    "number": {"kind": "tensor", "dtype": "int64", "shape": []},
    "tokens": {"kind": "tensor", "dtype": "int64", "shape": [2]},
    "weights": {"kind": "tensor", "dtype": "float32", "shape": [2]},
    "flags": {"kind": "tensor", "dtype": "bool", "shape": [2, 3]},
    "label": {"kind": "text"},
    "prompt": {"kind": "list"},
}


def _measure_row_surgery(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the rows and the metadata of each part that an operation returns."""
    outputs = call(**inputs)
    parts, metas = list(outputs["parts"]), list(outputs["metas"])
    return {**rows_of(inputs["fields"], parts), "meta_kept": all(dict(meta) == dict(inputs["meta"]) for meta in metas)}


def rows_of(fields: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Identify the rows of each part by the field ``number``, and compare their fields with the original ``fields``."""
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
    """Return the rows of a container at ``places``, in the order of ``places``."""
    return {
        name: column[list(places)] if isinstance(column, torch.Tensor) else [column[place] for place in places]
        for name, column in fields.items()
    }


def _oracle_row_surgery(inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = [taken(inputs["fields"], places) for places in _places(inputs)]
    return {"parts": parts, "metas": [inputs["meta"]] * len(parts)}


def _places(inputs: Mapping[str, Any]) -> list[list[int]]:
    """Return, for each part that the operation must return, the original numbers of its rows."""
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
    """Draw distinct rows, as many as the operation accepts."""
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
    """Draw one column for each field of ``layouts``. Rows have distinct entries, as far as the dtype allows."""
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
    summary="a container of rows that is split, joined, reordered, filled up or repeated",
    source=(
        "indexing of rows, as numpy and torch define it (array_split, concatenate, take, repeat, tile): "
        "a row stays together in all fields, and every part has the container's metadata"
    ),
    inputs=(
        drawn(
            "surgery",
            "cut (into count parts, the first ones longer if the division is not even), split (into parts of count "
            "rows), join (containers of sizes rows), reorder (to order), fill (up to a multiple of count rows, with "
            "the rows again from the first), shorten (by the last count rows), repeat (each row count times), tile "
            "(all rows count times), repeat_each (row n sizes[n] times)",
            ("split", "cut", "join", "reorder", "fill", "shorten", "repeat", "tile", "repeat_each"),
            REQUIRED,
        ),
        drawn("count", "count of the operation", (2, 1, 3, 4)),
        drawn("remainder", "1 if a cut may be uneven", (0, 1)),
        Input("meta", "mapping", "metadata of the container", default={"temperature": 0.5, "split": ["train"]}),
        Input(
            "layouts",
            "mapping",
            "layout of the fields that a search draws: field -> kind (text; list of tokens; tensor with a dtype and a "
            "shape per row; ragged: each row with its own length); number is one number per row",
            default=LAYOUTS,
        ),
        Input(
            "fields", "any", "field -> column: a tensor [rows, ...], or a list with one entry per row", choices=({},)
        ),
        Input("order", "any", "a permutation of the rows", default=(), choices=((),)),
        Input("sizes", "any", "rows of each joined container, or number of repetitions of each row", default=()),
    ),
    observes=(
        Observed("rows", "original number of each resulting row, part after part", ("rows",)),
        Observed("sizes", "number of rows of each part", ("parts",)),
        Observed("intact", "number of unchanged field values, over all resulting rows"),
        Observed("meta_kept", "whether each part has the container's metadata"),
        Observed("dropped", "fields that a part lacks"),
        Observed("dtype_changed", "fields with a changed dtype"),
        Observed("shape_changed", "fields with a changed shape per row"),
    ),
    measure=_measure_row_surgery,
    oracle=_oracle_row_surgery,
    laws=("the_oracle_agrees", "fields_survive_surgery", "nothing_else_is_touched"),
    arrange=_arrange_row_surgery,
)


# -- minibatch iteration -----------------------------------------------------------------------------------------------


def _measure_minibatch_iteration(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    observation = rows_of(inputs["fields"], list(call(**inputs)["parts"]))
    rows, size, epochs = observation.pop("rows"), len(inputs["fields"]["number"]), inputs["epochs"]
    every = torch.arange(size).repeat(epochs)
    times = torch.zeros(epochs, size, dtype=torch.int64)
    if len(rows) == len(every) and bool((rows >= 0).all()):
        times = torch.stack([torch.bincount(order, minlength=size) for order in rows.reshape(epochs, size)])
    return {**observation, "times": times, "in_order": inputs["shuffle"] or torch.equal(rows, every)}


def _oracle_minibatch_iteration(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return minibatches of all rows in order, epoch after epoch. If rows are shuffled, any order is accepted."""
    size, rows = inputs["minibatch_size"], list(range(len(inputs["fields"]["number"])))
    starts = range(0, len(rows), size)
    return {"parts": [taken(inputs["fields"], rows[at : at + size]) for _ in range(inputs["epochs"]) for at in starts]}


def _arrange_minibatch_iteration(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    rows = inputs["minibatch_size"] * choose.one_of((2, 1, 3))
    inputs["fields"] = drawn_fields(inputs["layouts"], rows, choose)
    return inputs


MINIBATCH_ITERATION = rule(
    name="minibatch_iteration",
    summary="the rows of a batch in minibatches over several epochs",
    source=(
        "PPO (arXiv:1707.06347, algorithm 1) optimises its surrogate on the whole batch for K epochs in minibatches: "
        "each row once per epoch; a random order depends on the seed only"
    ),
    inputs=(
        drawn("minibatch_size", "rows per minibatch", (2, 1, 3), REQUIRED),
        drawn("epochs", "number of epochs", (2, 1, 3), REQUIRED),
        drawn("shuffle", "whether each epoch has its own order", (False, True)),
        drawn("seed", "seed of the order", (0, 1, 7)),
        Input("layouts", "mapping", "layout of the fields that a search draws, as in row_surgery", default=LAYOUTS),
        Input(
            "fields", "any", "field -> column: a tensor [rows, ...], or a list with one entry per row", choices=({},)
        ),
    ),
    observes=(
        Observed("times", "number of times that each row occurs in each epoch", ("epochs", "rows")),
        Observed("sizes", "number of rows of each minibatch", ("minibatches",)),
        Observed("in_order", "whether rows keep their order if not shuffled"),
        Observed("intact", "number of unchanged field values, over all resulting rows"),
        Observed("dropped", "fields that a minibatch lacks"),
        Observed("dtype_changed", "fields with a changed dtype"),
        Observed("shape_changed", "fields with a changed shape per row"),
    ),
    measure=_measure_minibatch_iteration,
    oracle=_oracle_minibatch_iteration,
    laws=("the_oracle_agrees", "fields_survive_surgery", "nothing_else_is_touched"),
    arrange=_arrange_minibatch_iteration,
)


# -- batch surgery -----------------------------------------------------------------------------------------------------


def _present(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None; frameworks may represent a missing field as None."""
    return {name: rows[name] for name in sorted(rows.keys()) if rows[name] is not None}


def _measure_batch_surgery(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the added rows with the original rows, field by field."""
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
    """Return one padding row: every field of the real rows, with its dtype and shape, and a loss weight of zero."""
    real = {**inputs["fields"], **inputs["optional_fields"]}
    made = {name: torch.zeros_like(value[:1]) for name, value in _present(real).items()}
    return {"real_rows": real, "made_rows": made, "loss_mask": torch.zeros(1)}


def _arrange_batch_surgery(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw a batch: every required field, and any of the optional fields."""
    rows, response = choose.integer(1, 3), choose.integer(1, 4)
    sizes = {"batch": rows, "response": response, "length": response + choose.integer(1, 2)}
    for layouts, fields in (("layouts", "fields"), ("optional_layouts", "optional_fields")):
        chosen = inputs[layouts]
        if fields == "optional_fields":
            chosen = {name: layout for name, layout in chosen.items() if choose.integer(0, 1)}
        inputs[fields] = {name: _batch_field(layout, sizes, choose) for name, layout in chosen.items()}
    return inputs


def _batch_field(layout: Mapping[str, Any], sizes: dict[str, int], choose: Choose) -> Tensor:
    """Make the values of a batch field: ones for a mask, otherwise distinct numbers as far as the dtype allows."""
    for axis in layout["shape"]:
        if axis not in sizes:
            sizes[axis] = choose.integer(1, 2)
    shape = [sizes[axis] for axis in layout["shape"]]
    distinct = 2 if layout["dtype"] == "bool" else 128
    numbers = np.ones(shape) if layout.get("mask") else np.arange(math.prod(shape)).reshape(shape) % distinct
    return from_array(numbers.astype(np.float64), layout["dtype"])


BATCH_SURGERY = Contract(
    name="batch_surgery",
    summary="padding rows that fill up a training batch",
    source=(
        "a worker treats all microbatches alike, so a padding row must have every field of real rows and no weight"
    ),
    inputs=(
        Input("fields", "any", "the framework's field name -> tensor [batch, ...]", choices=({},)),
        Input("optional_fields", "any", "optional fields of this batch", default={}, choices=({},)),
        Input(
            "layouts",
            "mapping",
            "layout of the required fields that a search draws: name -> dtype, shape (batch, response for "
            "response tokens, length for all tokens, or another axis) and, for a mask, mask: true",
            default={},
        ),
        Input("optional_layouts", "mapping", "layout of the optional fields", default={}),
        drawn("max_tokens_per_microbatch", "token budget of one microbatch", (8, 4, 100), REQUIRED),
    ),
    observes=(
        Observed("fields", "the fields of the padding rows"),
        Observed("dropped", "fields of the real rows that the padding rows lack"),
        Observed("dtype_changed", "fields whose dtype differs in the padding rows"),
        Observed("shape_changed", "fields whose shape differs, apart from the batch dimension"),
        Observed("counted_tokens", "sum of the padding rows' loss mask"),
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
    """Add the missing padding columns to the values, in the same dtype.

    If ``longer`` is ``cut``, surplus columns are removed at the side of the padding.
    """
    values = inputs["values"]
    missing = max(inputs["length"] - values.shape[1], 0)
    beside = (missing, 0) if inputs["side"] == "left" else (0, missing)
    # Pad in float64, so that torch converts the padding value in the same way for every dtype, including bool.
    wide = torch.nn.functional.pad(values.to(torch.float64), beside, value=float(inputs["pad_value"]))
    if inputs["longer"] == "cut":
        wide = wide[:, -inputs["length"] :] if inputs["side"] == "left" else wide[:, : inputs["length"]]
    return {"padded": wide.to(values.dtype)}


def _arrange_column_padding(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw a matrix of any dtype; booleans are padded with false."""
    dtype = choose.one_of(_DTYPES)
    shape = (choose.integer(1, 2), choose.integer(1, 4))
    numbers = np.arange(shape[0] * shape[1]).reshape(shape) % (2 if dtype == "bool" else 100)
    inputs["values"] = from_array(numbers, dtype)
    if dtype == "bool":
        inputs["pad_value"] = 0
    return inputs


COLUMN_PADDING = rule(
    name="column_padding",
    summary="rows that are padded to a length with a value",
    source="padding adds columns and nothing else: values, order and dtype stay",
    inputs=(
        Input("values", "any", "tensor [rows, columns] of any dtype", choices=((),)),
        drawn("length", "minimum number of columns", (4, 2, 6), REQUIRED),
        drawn("pad_value", "padding value", (0, 7), REQUIRED, kind="number"),
        drawn("side", "side of the padding: right or left", ("right", "left")),
        dialect("longer", "kept", "longer rows: kept, or cut to the length"),
    ),
    observes=(
        Observed("padded", "the padded values", ("rows", "columns")),
        Observed("dtype_kept", "whether the result has the dtype of the values"),
        Observed("dtype", "dtype of the result", role="other"),
    ),
    measure=_measure_column_padding,
    oracle=_oracle_column_padding,
    arrange=_arrange_column_padding,
)


# -- collation ---------------------------------------------------------------------------------------------------------


def _measure_collation(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the samples that a collated batch contains, field by field."""
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
    """Return the samples unchanged, because collation must keep their contents."""
    return {"samples": inputs["samples"]}


def _arrange_collation(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw samples of different lengths that have no values in common."""
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
    summary="collation of samples into one batch",
    source="a batch contains its samples: reading a sample back returns its original fields",
    inputs=(
        Input("samples", "any", "field -> value, for each sample", choices=([],)),
        Input(
            "layouts",
            "mapping",
            "layout of the samples that a search draws: field -> kind (text, tensor); for a tensor, dtype and shape "
            "(sizes, or tokens: the sample's own length)",
            default={},
        ),
        # A search varies the following inputs only for bindings that list their values in ``accepts``.
        CONTEXT_PARALLEL,
        Input("multiple", "integer", "divisor of the number of tokens on a rank of a packed batch", default=1),
        Input("total", "integer", "tokens of a packed batch; default: as few as possible", default=None),
        Input(
            "form",
            "string",
            "media of the samples: plain (none, or as the binding adds them), media (images, videos and sounds), files "
            "(names of files, and placeholders in the prompt), sound (videos with tracks)",
            default="plain",
        ),
        Input(
            "history",
            "string",
            "how an agent's client repeats earlier answers: same (unchanged); retokenised (as other tokens); rewritten "
            "(as another message); forked (after another prompt); regenerated (a prompt has several answers); branched "
            "(an answer has several continuations); longer (unchanged, and the sample exceeds its maximum length)",
            default="same",
        ),
    ),
    observes=(
        Observed("count", "number of samples in the batch"),
        Observed("dropped", "fields that a sample lost"),
        Observed("altered", "fields that changed in a sample"),
        Observed("intact", "number of unchanged field values, over all samples"),
    ),
    measure=_measure_collation,
    oracle=_oracle_collation,
    law="fields_survive_surgery",
    laws=("fields_survive_surgery", "the_oracle_agrees", "nothing_else_is_touched"),
    arrange=_arrange_collation,
)
