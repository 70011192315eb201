"""verl: DataProto, the container of a batch: tensors, arrays of objects, and what belongs to the batch as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sentinel.targets import Binding

_PROTOCOL = "verl.protocol"
_DATA = f"{_PROTOCOL}.DataProto"

#: ``do(boundary, inputs, container) -> containers``.
Surgery = Callable[[Any, Mapping[str, Any], Any], Sequence[Any]]


def container(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """A DataProto. Columns that are no tensors are arrays of objects, one a row, as verl's datasets make them."""
    import numpy
    import torch

    tensors = {name: column for name, column in fields.items() if isinstance(column, torch.Tensor)}
    objects = {}
    for name in fields.keys() - tensors.keys():
        objects[name] = numpy.empty(len(fields[name]), dtype=object)
        objects[name][:] = fields[name]
    module = boundary.imported[_PROTOCOL]
    return module.DataProto.from_dict(tensors=tensors, non_tensors=objects, meta_info=dict(meta))


def columns(data: Any) -> dict[str, Any]:
    return {**dict(data.batch.items()), **{name: list(column) for name, column in data.non_tensor_batch.items()}}


def _operated(do: Surgery, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = do(boundary, inputs, container(boundary, inputs["fields"], inputs["meta"]))
    return {"parts": [columns(part) for part in parts], "metas": [part.meta_info for part in parts]}


def _surgery(name: str, kind: str, do: Surgery, **more: Any) -> Binding:
    return Binding(
        name, "row_surgery", call=partial(_operated, do), imports=(_PROTOCOL,), fixed={"surgery": kind}, **more
    )


def _joined(make: Callable[..., Any], boundary: Any, inputs: Mapping[str, Any], _: Any) -> Sequence[Any]:
    """Each part is made for itself, as the workers make them."""
    parts, start = [], 0
    for size in inputs["sizes"]:
        rows = {name: column[start : start + size] for name, column in inputs["fields"].items()}
        parts.append(make(boundary, rows, inputs["meta"]))
        start += size
    return [boundary.function(parts)]


def _counted(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return boundary.function(data, inputs["count"])


def _one(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["count"])]


def _repeated(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["sizes"])]


def _reordered(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    import torch

    boundary.function(data, torch.tensor(inputs["order"]))
    return [data]


def _filled(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    filled, added = boundary.function(data, inputs["count"])
    return [filled] if added == len(filled) - len(data) else []


def _minibatches(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    made = boundary.function(
        data,
        mini_batch_size=inputs["minibatch_size"],
        epochs=inputs["epochs"],
        seed=inputs["seed"],
        dataloader_kwargs={"shuffle": inputs["shuffle"]},
    )
    return list(made)


def _iterated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    data = container(boundary, inputs["fields"], {})
    return {"parts": [columns(part) for part in _minibatches(boundary, inputs, data)]}


# -- what replaces it: tensordict's own container ---------------------------------------------------------------------

_TENSORDICT = "verl.utils.tensordict_utils"


def _tensordict(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Rows of different lengths are one nested tensor; what is no tensor is a stack of it."""
    import torch

    def made(column: Any) -> Any:
        ragged = isinstance(column, list) and isinstance(column[0], torch.Tensor)
        return boundary.module.nested_tensor_from_tensor_list(column) if ragged else column

    return boundary.module.get_tensordict({name: made(column) for name, column in fields.items()}, dict(meta))


def _tensordict_columns(data: Any) -> dict[str, Any]:
    return {name: _column(data.get(name)) for name in tuple(data.keys())}


def _column(found: Any) -> Any:
    import torch

    if not isinstance(found, torch.Tensor):
        return found.tolist()
    if not found.is_nested:
        return found
    axis = found._ragged_idx - 1  # of the values, in which the rows stand side by side
    return list(found.values().split(found.offsets().diff().tolist(), axis))


def _operated_tensordict(do: Surgery, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = do(boundary, inputs, _tensordict(boundary, inputs["fields"], inputs["meta"]))
    metas = [{name: part[name] for name in inputs["meta"].keys() & set(part.keys())} for part in parts]
    return {"parts": [_tensordict_columns(part) for part in parts], "metas": metas}


def _selected(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["order"])]


def _of_tensordict(name: str, kind: str, do: Surgery, **more: Any) -> Binding:
    fixed = {"surgery": kind, **_RAGGED}
    call = partial(_operated_tensordict, do)
    return Binding(f"{_TENSORDICT}.{name}", "row_surgery", call=call, requires=_NESTED, fixed=fixed, **more)


def _iterated_tensordict(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    data = _tensordict(boundary, inputs["fields"], {})
    return {"parts": [_tensordict_columns(part) for part in _minibatches(boundary, inputs, data)]}


#: Until it made nested tensors itself, they were torch's, which cut them otherwise.
_NESTED = (f"{_TENSORDICT}.nested_tensor_from_tensor_list",)
#: What a batch of sequences without padding has beside plain tensors: tokens, and position ids in four rows.
_RAGGED: Mapping[str, Any] = {
    "layouts": {
        "number": {"kind": "tensor", "dtype": "int64", "shape": []},
        "input_ids": {"kind": "ragged", "shape": []},
        "position_ids": {"kind": "ragged", "shape": [4]},
        "label": {"kind": "text"},
        "prompt": {"kind": "list"},
    }
}
#: It refuses a cut that does not come out even, unless it is told to fill batches up by itself.
_EVEN = {"remainder": (0,)}

BINDINGS = (
    _surgery(f"{_DATA}.chunk", "cut", _counted, accepts=_EVEN),
    _surgery(f"{_DATA}.split", "split", _counted),
    _surgery(f"{_DATA}.concat", "join", partial(_joined, container)),
    _surgery(f"{_DATA}.reorder", "reorder", _reordered),
    _surgery(f"{_DATA}.repeat", "repeat", _one, requires=(f"{_DATA}.repeat",)),
    _surgery(f"{_DATA}.sample_level_repeat", "repeat_each", _repeated),
    _surgery(f"{_PROTOCOL}.pad_dataproto_to_divisor", "fill", _filled),
    _surgery(f"{_PROTOCOL}.unpad_dataproto", "shorten", _one),
    Binding(f"{_DATA}.make_iterator", "minibatch_iteration", call=_iterated, imports=(_PROTOCOL,)),
    _of_tensordict("chunk_tensordict", "cut", _counted, accepts=_EVEN),
    _of_tensordict("concat_tensordict", "join", partial(_joined, _tensordict)),
    _of_tensordict("index_select_tensor_dict", "reorder", _selected),
    _of_tensordict("pad_to_divisor", "fill", _filled),
    _of_tensordict("unpad", "shorten", _one),
    Binding(
        f"{_TENSORDICT}.make_iterator",
        "minibatch_iteration",
        call=_iterated_tensordict,
        requires=_NESTED,
        fixed=_RAGGED,
    ),
)

UNBOUND: Mapping[str, str] = {
    f"{_TENSORDICT}.union_tensor_dict": "it adds fields, or compares those of one name; it moves no row",
    f"{_TENSORDICT}.list_of_dict_to_tensordict": "rows of any kind put side by side, by torch and tensordict",
    f"{_TENSORDICT}.contiguous": "it makes fields contiguous, each by itself",
    f"{_TENSORDICT}.*": "parts of what is bound, and fields that are set, read and compared by their names",
}
