"""Batch surgery: pad, split, reorder or concatenate a training batch, and keep what every row must carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.contract import Choose, Contract, Input, Observed
from sentinel.values.literals import Tensor, from_array


def _present(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are there; None is how the frameworks write a field that is not."""
    return {name: rows[name] for name in sorted(rows.keys()) if rows[name] is not None}


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
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


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One made-up row: every field of the real rows, of their dtype and shape; zeros, so that it counts for nothing."""
    import torch

    real = {**inputs["fields"], **inputs["optional_fields"]}
    made = {name: torch.zeros_like(value[:1]) for name, value in _present(real).items()}
    return {"real_rows": real, "made_rows": made, "loss_mask": torch.zeros(1)}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Make a batch of the layouts: every field that batches always have, and any of the others."""
    rows, response = choose.integer(1, 3), choose.integer(1, 4)
    sizes = {"batch": rows, "response": response, "length": response + choose.integer(1, 2)}
    for layouts, fields in (("layouts", "fields"), ("optional_layouts", "optional_fields")):
        chosen = inputs[layouts]
        if fields == "optional_fields":
            chosen = {name: layout for name, layout in chosen.items() if choose.integer(0, 1)}
        inputs[fields] = {name: _field(layout, sizes, choose) for name, layout in chosen.items()}
    return inputs


def _field(layout: Mapping[str, Any], sizes: dict[str, int], choose: Choose) -> Tensor:
    """A mask is all ones; in any other field no two places hold the same number, as far as its dtype goes."""
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
        Input("max_tokens_per_microbatch", "integer", "token budget of one microbatch", choices=(8, 4, 100)),
    ),
    observes=(
        Observed("fields", "the fields that the made-up rows carry"),
        Observed("dropped", "fields of the real rows that the made-up rows lack"),
        Observed("dtype_changed", "fields whose dtype is another one on the made-up rows"),
        Observed("shape_changed", "fields whose shape behind the batch dimension is another one"),
        Observed("counted_tokens", "sum of the made-up rows' loss mask"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="fields_survive_surgery",
    laws=("fields_survive_surgery", "the_oracle_agrees"),
    arrange=_arrange,
)
