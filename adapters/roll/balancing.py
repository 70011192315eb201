"""ROLL: sequences that are dealt out to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import dealt, numbered_rows, partitioned

from .containers import CONTAINER, PROTOCOL

_FUNCTIONALS = "roll.utils.functionals"


def _balanced_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """It puts the rows of a batch in the order in which they are dealt out: each rank gets as many. A row whose label
    is not its own is in no part."""

    lengths, parts = inputs["lengths"], inputs["parts"]
    batch = CONTAINER(boundary, numbered_rows(lengths), {})
    size = inputs["minibatch_size"] or len(lengths)
    boundary.function(batch, dp_size=parts, minibatch_size=size, keep_minibatch=inputs["keep_minibatches"])
    return dealt(batch, parts)


BINDINGS = (
    Binding(
        f"{_FUNCTIONALS}.get_seqlen_balanced_partitions",
        "balanced_partition",
        call=partitioned,
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
