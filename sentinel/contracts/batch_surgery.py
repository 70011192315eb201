"""Batch surgery: pad, split, reorder or concatenate a training batch, and keep what every row must carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


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


BATCH_SURGERY = Contract(
    name="batch_surgery",
    summary="rows that are made to fill up a training batch, beside the real ones",
    source=(
        "a worker treats every microbatch alike, so a made-up row must have each field "
        "that real rows have, and no weight"
    ),
    inputs=(
        Input("fields", "any", "field name, as the framework calls it -> tensor [batch, ...]"),
        Input("optional_fields", "any", "further fields that this batch carries", default={}),
        Input("max_tokens_per_microbatch", "integer", "token budget of one microbatch"),
    ),
    observes=(
        Observed("fields", "the fields that the made-up rows carry"),
        Observed("dropped", "fields of the real rows that the made-up rows lack"),
        Observed("dtype_changed", "fields whose dtype is another one on the made-up rows"),
        Observed("shape_changed", "fields whose shape behind the batch dimension is another one"),
        Observed("counted_tokens", "sum of the made-up rows' loss mask"),
    ),
    measure=_measure,
    law="fields_survive_surgery",
)
