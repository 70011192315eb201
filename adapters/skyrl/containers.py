"""Bindings for ``TensorBatch``, the container of SkyRL's training batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sentinel import Binding
from sentinel.binding import kit
from sentinel.binding.families import Container

from .driver import FIELDS, OPTIONAL_FIELDS
from .shared import BATCH, FORMER, training_batch

_TENSORS = f"{BATCH}.TensorBatch"
_FORMERLY = f"{FORMER}.training_batch.TensorBatch"


#: Fields are tensors. A field whose shape differs between rows, such as image patches, is a list of tensors.
LAYOUT: Mapping[str, Any] = {
    "number": {"kind": "tensor", "dtype": "int64", "shape": []},
    "sequences": {"kind": "tensor", "dtype": "int64", "shape": [2]},
    "advantages": {"kind": "tensor", "dtype": "float32", "shape": [2]},
    "rollout_expert_indices": {"kind": "tensor", "dtype": "int32", "shape": [2, 3]},
}
_IMAGES: Mapping[str, Any] = {**LAYOUT, "pixel_values": {"kind": "ragged", "shape": [2]}}


def _make_batch(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    module = boundary.module
    lists = {name: module.TensorList(list(field)) for name, field in fields.items() if isinstance(field, list)}
    batch = module.TrainingInputBatch({**fields, **lists})
    batch.metadata = dict(meta)
    return batch


def _read(batch: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    fields = {name: list(field.tensors) if hasattr(field, "tensors") else field for name, field in batch.items()}
    return fields, batch.metadata


BATCHES = Container(_make_batch, _read)


def _surgery(name: str, kind: str, do: kit.Surgery) -> tuple[Binding, Binding]:
    """Bind a method of TensorBatch in the current package, and again in the former package ``skyrl_train``.

    Only the current TensorBatch supports lists of tensors.
    """
    now, then = f"{_TENSORS}.{name}", f"{_FORMERLY}.{name}"
    return (
        BATCHES.surgery(now, kind, do, fixed={"layouts": _IMAGES}, requires=(f"{BATCH}.TensorList",)),
        BATCHES.surgery(then, kind, do, fixed={"layouts": LAYOUT}, requires=(then,)),
    )


def _shorten(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    return [boundary.function(batch, 0, len(batch) - inputs["count"])]


def _pad_with_two_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    real = training_batch(boundary, {**inputs["fields"], **inputs["optional_fields"]})
    padded = boundary.function(real, 2)
    made = {name: field[len(real) :] for name, field in padded.items() if field is not None}
    return {"real_rows": real, "made_rows": made, "loss_mask": made["loss_mask"]}


BINDINGS = (
    *_surgery("chunk", "split", kit.cut_parts), *_surgery("cat", "join", partial(kit.join_parts, _make_batch)),
    *_surgery("slice", "shorten", _shorten),
    Binding(
        f"{BATCH}.pad_training_input_batch", "batch_surgery", call=_pad_with_two_rows, imports=(BATCH,),
        requires=(f"{BATCH}.pad_training_input_batch",), fixed={"layouts": FIELDS, "optional_layouts": OPTIONAL_FIELDS},
    ),
)  # fmt: skip
