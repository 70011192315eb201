"""ROLL: DataProto, the container of a batch, and the sequences that are dealt out in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel.binding.families import balanced_partition, data_proto
from sentinel.binding.kit import container, dealt, numbered_rows
from sentinel.targets import Binding

PROTOCOL = "roll.distributed.scheduler.protocol"
_DATA = f"{PROTOCOL}.DataProto"
CONTAINER = partial(container, _DATA)


UNBOUND: Mapping[str, str] = {
    f"{PROTOCOL}.union_tensor_dict": "it adds fields, or compares those of one name; it moves no row",
    f"{PROTOCOL}.union_numpy_dict": "it adds fields, or compares those of one name; it moves no row",
    f"{PROTOCOL}.*": "parts of DataProto, which is bound, dictionaries and devices",
}


# -- sequences that are dealt out to ranks -----------------------------------------------------------------------------

_FUNCTIONALS = "roll.utils.functionals"


def _balanced_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Put the rows of a batch in the order in which they are dealt out: each rank gets as many. A row whose label
    is not its own is in no part."""

    lengths, parts = inputs["lengths"], inputs["parts"]
    batch = CONTAINER(boundary, numbered_rows(lengths), {})
    size = inputs["minibatch_size"] or len(lengths)
    boundary.function(batch, dp_size=parts, minibatch_size=size, keep_minibatch=inputs["keep_minibatches"])
    return dealt(batch, parts)


_BALANCING = (
    balanced_partition(f"{_FUNCTIONALS}.get_seqlen_balanced_partitions"),
    Binding(
        f"{_FUNCTIONALS}.batch_balance",
        "balanced_partition",
        call=_balanced_batch,
        imports=(PROTOCOL,),
        fixed={"grouped": False, "equal_size": True},
        accepts={"keep_minibatches": (False, True)},
    ),
)


BINDINGS = (*data_proto(PROTOCOL), *_BALANCING)
