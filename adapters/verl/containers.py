"""verl: DataProto, the container of a batch: tensors, arrays of objects, and what belongs to the batch as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

_PROTOCOL = "verl.protocol"
_DATA = f"{_PROTOCOL}.DataProto"
CONTAINER = partial(container, _DATA)


def _surgery(name: str, kind: str, do: Surgery, **more: Any) -> Binding:
    return Binding(
        name,
        "row_surgery",
        call=partial(operated, CONTAINER, columns_and_meta, do),
        imports=(_PROTOCOL,),
        fixed={"surgery": kind},
        **more,
    )


def _repeated(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["sizes"])]


# -- what replaces it: tensordict's own container ---------------------------------------------------------------------

_TENSORDICT = "verl.utils.tensordict_utils"


def _tensordict(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Rows of different lengths are one nested tensor; what is no tensor is a stack of it."""
    import torch

    def made(column: Any) -> Any:
        ragged = isinstance(column, list) and isinstance(column[0], torch.Tensor)
        return boundary.module.nested_tensor_from_tensor_list(column) if ragged else column

    return boundary.module.get_tensordict({name: made(column) for name, column in fields.items()}, dict(meta))


def _read_tensordict(data: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = tuple(data.keys())
    meta = {name: data[name] for name in inputs.get("meta", {}).keys() & set(names)}
    return {name: _column(data.get(name)) for name in names}, meta


def _column(found: Any) -> Any:
    import torch

    if not isinstance(found, torch.Tensor):
        return found.tolist()
    if not found.is_nested:
        return found
    axis = found._ragged_idx - 1  # of the values, in which the rows stand side by side
    return list(found.values().split(found.offsets().diff().tolist(), axis))


def _selected(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["order"])]


def _of_tensordict(name: str, kind: str, do: Surgery, **more: Any) -> Binding:
    fixed = {"surgery": kind, **_RAGGED}
    call = partial(operated, _tensordict, _read_tensordict, do)
    return Binding(f"{_TENSORDICT}.{name}", "row_surgery", call=call, requires=_NESTED, fixed=fixed, **more)


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
    _surgery(f"{_DATA}.chunk", "cut", cut, accepts=_EVEN),
    _surgery(f"{_DATA}.split", "split", cut),
    _surgery(f"{_DATA}.concat", "join", partial(joined, CONTAINER)),
    _surgery(f"{_DATA}.reorder", "reorder", reordered),
    _surgery(f"{_DATA}.repeat", "repeat", counted, requires=(f"{_DATA}.repeat",)),
    _surgery(f"{_DATA}.sample_level_repeat", "repeat_each", _repeated),
    _surgery(f"{_PROTOCOL}.pad_dataproto_to_divisor", "fill", filled),
    _surgery(f"{_PROTOCOL}.unpad_dataproto", "shorten", counted),
    Binding(
        f"{_DATA}.make_iterator",
        "minibatch_iteration",
        call=partial(iterated, CONTAINER, columns_and_meta),
        imports=(_PROTOCOL,),
    ),
    _of_tensordict("chunk_tensordict", "cut", cut, accepts=_EVEN),
    _of_tensordict("concat_tensordict", "join", partial(joined, _tensordict)),
    _of_tensordict("index_select_tensor_dict", "reorder", _selected),
    _of_tensordict("pad_to_divisor", "fill", filled),
    _of_tensordict("unpad", "shorten", counted),
    Binding(
        f"{_TENSORDICT}.make_iterator",
        "minibatch_iteration",
        call=partial(iterated, _tensordict, _read_tensordict),
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
