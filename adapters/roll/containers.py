"""ROLL: DataProto, the container of a batch: tensors, arrays of objects, and what belongs to the batch as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sentinel.targets import Binding

PROTOCOL = "roll.distributed.scheduler.protocol"
_DATA = f"{PROTOCOL}.DataProto"

#: ``do(boundary, inputs, container) -> containers``.
Surgery = Callable[[Any, Mapping[str, Any], Any], Sequence[Any]]


def container(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """A DataProto; columns that are no tensors become arrays of objects, one object a row."""
    import torch

    tensors = {name: column for name, column in fields.items() if isinstance(column, torch.Tensor)}
    objects = {name: _objects(fields[name]) for name in fields.keys() - tensors.keys()}
    owner = boundary.imported[PROTOCOL].DataProto
    return owner.from_dict(tensors=tensors, non_tensors=objects, meta_info=dict(meta))


def _objects(column: Sequence[Any]) -> Any:
    """What a collator hands on: of lists that are all of one length from_dict made a table until August 2025."""
    import numpy

    entries = numpy.empty(len(column), dtype=object)
    entries[:] = column
    return entries


def columns(data: Any) -> dict[str, Any]:
    return {**dict(data.batch.items()), **{name: list(column) for name, column in data.non_tensor_batch.items()}}


def _operated(do: Surgery, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = do(boundary, inputs, container(boundary, inputs["fields"], inputs["meta"]))
    return {"parts": [columns(part) for part in parts], "metas": [part.meta_info for part in parts]}


def _surgery(name: str, kind: str, do: Surgery, **more: Any) -> Binding:
    return Binding(
        name, "row_surgery", call=partial(_operated, do), imports=(PROTOCOL,), fixed={"surgery": kind}, **more
    )


def _joined(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Each part is made for itself, as the workers make them."""
    parts, start = [], 0
    for size in inputs["sizes"]:
        rows = {name: column[start : start + size] for name, column in inputs["fields"].items()}
        parts.append(container(boundary, rows, inputs["meta"]))
        start += size
    return [boundary.function(parts)]


def _reordered(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    import torch

    boundary.function(data, torch.tensor(inputs["order"]))
    return [data]


def _filled(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    filled, added = boundary.function(data, inputs["count"])
    return [filled] if added == len(filled) - len(data) else []


def _counted(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return boundary.function(data, inputs["count"])


def _one(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["count"])]


def _iterated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    made = boundary.function(
        container(boundary, inputs["fields"], {}),
        mini_batch_size=inputs["minibatch_size"],
        epochs=inputs["epochs"],
        seed=inputs["seed"],
        dataloader_kwargs={"shuffle": inputs["shuffle"]},
    )
    return {"parts": [columns(part) for part in made]}


BINDINGS = (
    _surgery(f"{_DATA}.chunk", "cut", _counted),
    _surgery(f"{_DATA}.concat", "join", _joined),
    _surgery(f"{_DATA}.reorder", "reorder", _reordered),
    _surgery(f"{_DATA}.repeat", "repeat", _one),
    _surgery(f"{PROTOCOL}.pad_dataproto_to_divisor", "fill", _filled),
    _surgery(f"{PROTOCOL}.unpad_dataproto", "shorten", _one),
    Binding(f"{_DATA}.make_iterator", "minibatch_iteration", call=_iterated, imports=(PROTOCOL,)),
)

UNBOUND: Mapping[str, str] = {
    f"{PROTOCOL}.union_tensor_dict": "it adds fields, or compares those of one name; it moves no row",
    f"{PROTOCOL}.union_numpy_dict": "it adds fields, or compares those of one name; it moves no row",
    f"{PROTOCOL}.*": "parts of DataProto, which is bound, dictionaries and devices",
}
