"""Batch trimming: how many samples a step takes, where they are no multiple of its batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {name: int(outputs[name]) for name in ("kept", "global_batch_size")}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A dynamic batch has as many samples as ranks can share equally; samples that fill no batch are left out."""
    samples, size = inputs["samples"], inputs["global_batch_size"]
    if inputs["dynamic"]:
        size = samples // inputs["dp_size"] * inputs["dp_size"]
    return {"kept": samples // size * size, "global_batch_size": size}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """At least one sample for each rank, and a whole batch."""
    least = inputs["dp_size"] if inputs["dynamic"] else inputs["global_batch_size"]
    inputs["samples"] = least + choose.integer(0, 16)
    return inputs


BATCH_TRIMMING = rule(
    name="batch_trimming",
    summary="the samples that a step keeps, where they are no multiple of its batch size",
    source="floor(n / b) * b samples are whole batches",
    inputs=(
        Input("samples", "integer", "samples that there are", choices=(0,)),
        Input("global_batch_size", "integer", "samples of a batch, as configured", choices=(4, 2, 8)),
        Input("dp_size", "integer", "data-parallel ranks, which share a batch equally", choices=(1, 2, 4)),
        Input(
            "dynamic",
            "boolean",
            "whether the batch is what there is, rounded down to a multiple of dp_size, instead of the configured one",
            default=False,
            choices=(False, True),
        ),
    ),
    observes=(Observed("kept", "samples that are left"), Observed("global_batch_size", "samples of a batch")),
    measure=_measure,
    oracle=_oracle,
    aliases={"batch_size": "global_batch_size"},
    arrange=_arrange,
)
