"""Collation: samples that become one batch, and can be read out of it again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.contract import Choose, Input, Observed, rule
from sentinel.values.literals import from_array


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``samples``: each as it is read out of the batch, field by field."""
    given = inputs["samples"]
    found = list(call(**inputs)["samples"])
    fields = sorted(given[0])
    pairs = list(zip(given, found))
    return {
        "count": len(found),
        "dropped": [name for name in fields if any(name not in after for _, after in pairs)],
        "altered": [
            name
            for name in fields
            if any(name in after and not _same(before[name], after[name]) for before, after in pairs)
        ],
        "intact": sum(name in after and _same(before[name], after[name]) for before, after in pairs for name in fields),
    }


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return bool(one == other)


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What went in."""
    return {"samples": inputs["samples"]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Samples of the layouts, of lengths of their own; nothing in one is equal to anything in another."""
    lengths = [choose.integer(1, 4) for _ in range(choose.integer(1, 3))]
    inputs["samples"] = [
        {name: _field(layout, row, tokens) for name, layout in inputs["layouts"].items()}
        for row, tokens in enumerate(lengths)
    ]
    return inputs


def _field(layout: Mapping[str, Any], row: int, tokens: int) -> Any:
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
    measure=_measure,
    oracle=_oracle,
    law="fields_survive_surgery",
    laws=("fields_survive_surgery", "the_oracle_agrees", "nothing_else_is_touched"),
    arrange=_arrange,
)
