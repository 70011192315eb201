"""ROLL: DataProto, the container of a batch: tensors, arrays of objects, and what belongs to the batch as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import (
    Surgery,
    columns_and_meta,
    container,
    counted,
    cut,
    filled,
    iterated,
    joined,
    operated,
    reordered,
)

PROTOCOL = "roll.distributed.scheduler.protocol"
_DATA = f"{PROTOCOL}.DataProto"
CONTAINER = partial(container, _DATA)


def _surgery(name: str, kind: str, do: Surgery, **more: Any) -> Binding:
    return Binding(
        name,
        "row_surgery",
        call=partial(operated, CONTAINER, columns_and_meta, do),
        imports=(PROTOCOL,),
        fixed={"surgery": kind},
        **more,
    )


BINDINGS = (
    _surgery(f"{_DATA}.chunk", "cut", cut),
    _surgery(f"{_DATA}.concat", "join", partial(joined, CONTAINER)),
    _surgery(f"{_DATA}.reorder", "reorder", reordered),
    _surgery(f"{_DATA}.repeat", "repeat", counted),
    _surgery(f"{PROTOCOL}.pad_dataproto_to_divisor", "fill", filled),
    _surgery(f"{PROTOCOL}.unpad_dataproto", "shorten", counted),
    Binding(
        f"{_DATA}.make_iterator",
        "minibatch_iteration",
        call=partial(iterated, CONTAINER, columns_and_meta),
        imports=(PROTOCOL,),
    ),
)

UNBOUND: Mapping[str, str] = {
    f"{PROTOCOL}.union_tensor_dict": "it adds fields, or compares those of one name; it moves no row",
    f"{PROTOCOL}.union_numpy_dict": "it adds fields, or compares those of one name; it moves no row",
    f"{PROTOCOL}.*": "parts of DataProto, which is bound, dictionaries and devices",
}
