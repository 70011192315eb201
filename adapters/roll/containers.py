"""ROLL's batch containers (DataProto), and its distribution of sequences over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import Binding
from sentinel.binding import kit
from sentinel.binding.families import balanced_partition, data_proto

PROTOCOL = "roll.distributed.scheduler.protocol"
_DATA = f"{PROTOCOL}.DataProto"
CONTAINER = partial(kit.make_container, _DATA)


_FUNCTIONALS = "roll.utils.functionals"


def _balanced_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Reorder a batch so that each rank gets the same number of rows."""

    lengths, parts = inputs["lengths"], inputs["parts"]
    batch = CONTAINER(boundary, kit.numbered_rows(lengths), {})
    size = inputs["minibatch_size"] or len(lengths)
    boundary.function(batch, dp_size=parts, minibatch_size=size, keep_minibatch=inputs["keep_minibatches"])
    return kit.read_dealt_rows(batch, parts)


_BALANCING = (
    balanced_partition(f"{_FUNCTIONALS}.get_seqlen_balanced_partitions"),
    Binding(
        f"{_FUNCTIONALS}.batch_balance", "balanced_partition", call=_balanced_batch, imports=(PROTOCOL,),
        fixed={"grouped": False, "equal_size": True}, accepts={"keep_minibatches": (False, True)},
    ),
)  # fmt: skip


BINDINGS = (*data_proto(PROTOCOL), *_BALANCING)
