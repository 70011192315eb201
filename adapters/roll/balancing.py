"""ROLL: sequences that are dealt out to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding

from .containers import PROTOCOL, columns, container

_FUNCTIONALS = "roll.utils.functionals"


def _partition(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"parts": boundary.function(inputs["lengths"], inputs["parts"], equal_size=inputs["equal_size"])}


def _balanced_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """It puts the rows of a batch in the order in which they are dealt out: each rank gets as many. A row whose label
    is not its own is in no part."""
    import torch

    lengths, parts = inputs["lengths"], inputs["parts"]
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    fields = {"attention_mask": mask.long(), "row": torch.arange(len(lengths)), "label": [*range(len(lengths))]}
    batch = container(boundary, fields, {})
    size = inputs["minibatch_size"] or len(lengths)
    boundary.function(batch, dp_size=parts, minibatch_size=size, keep_minibatch=inputs["keep_minibatches"])
    found = columns(batch)
    rows = [row if row == label else -1 for row, label in zip(found["row"].tolist(), found["label"])]
    each = len(rows) // parts
    return {"parts": [[row for row in rows[rank * each :][:each] if row >= 0] for rank in range(parts)]}


BINDINGS = (
    Binding(
        f"{_FUNCTIONALS}.get_seqlen_balanced_partitions",
        "balanced_partition",
        call=_partition,
        fixed={"grouped": False, "keep_minibatches": False},
    ),
    Binding(
        f"{_FUNCTIONALS}.batch_balance",
        "balanced_partition",
        call=_balanced_batch,
        imports=(PROTOCOL,),
        fixed={"grouped": False, "equal_size": True},
        accepts={"keep_minibatches": (False, True)},
    ),
)
