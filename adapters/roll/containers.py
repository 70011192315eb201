"""Bindings for ROLL's DataProto batches, and for its distribution of sequences over ranks and microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import Container, balanced_partition, data_proto, microbatch_packing
from sentinel.binding.kit import torch

PROTOCOL = "roll.distributed.scheduler.protocol"
#: Some bindings are only for versions with this module, because older versions of their functions are called otherwise.
RECENT = ("roll.distributed.scheduler.remote_protocol",)
_DATA = f"{PROTOCOL}.DataProto"
CONTAINER = partial(kit.make_container, _DATA)


_FUNCTIONALS = "roll.utils.functionals"


def _balanced_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Reorder a batch with ROLL so that all ranks get the same number of rows, and return the rows of each rank."""

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


_DYNAMIC, _PACKING = "roll.utils.dynamic_batching", "roll.utils.sequence_packing"


def _batch_of(boundary: Any, mask: Any) -> Any:
    return CONTAINER(boundary, {"input_ids": mask, "attention_mask": mask, "row": torch.arange(len(mask))}, {})


def _cut_dynamically(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split a batch into microbatches with ROLL's iterators. The result lacks rows that lost tokens in the split."""
    mask, module = inputs["attention_mask"], boundary.module
    stages = inputs["stages"]
    pipeline = () if stages == 1 else (stages, 2)
    budget = inputs["max_tokens_per_microbatch"]
    batch, _ = module.dynamic_batching_shard(_batch_of(boundary, mask), 1, budget, 1, *pipeline)
    parts = []
    for mini in module.make_mini_batch_iter_for_dynamic_batching(batch, 1, ga_steps=2):
        mini.meta_info |= {name: batch.meta_info[name] for name in ("micro_batch_indices", "micro_batch_lengths")}
        parts += list(module.make_micro_batch_iter_for_dynamic_batching(mini))
    lengths = kit.lengths_of(inputs)
    return {
        "parts": [
            [
                row
                for row, own in zip(part.batch["row"].tolist(), part.batch["attention_mask"])
                if own.sum() == lengths[row]
            ]
            for part in parts
        ]
    }


def _packed_by_load(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Distribute rows over balanced microbatches with ROLL. The result is empty if ROLL does not restore the order."""
    lengths, parts = inputs["lengths"], inputs["parts"]
    config = boundary.imported["roll.configs.worker_config"].SequencePackingConfig()
    config.algorithm, config.max_packed_sequence_length_forward = "load_balance", sum(lengths) * 16
    config.min_num_micro_batches_forward = parts
    mask = kit.numbered_rows(lengths)["attention_mask"]
    batch, packer = _batch_of(boundary, mask), boundary.module.get_sequence_packing_packer(config)
    made = [one.batch["row"] for one in packer.make_micro_batch_iter_for_sequence_packing(batch, 1, 1, 1, dp_group=0)]
    order = packer.restore_results_order({"row": torch.cat(made)}, batch.meta_info["partition_indices_list"])["row"]
    return {"parts": [own.tolist() for own in made] if order.tolist() == [*range(len(lengths))] else []}


#: Method that does not change rows -> its call, ``do(boundary, inputs, data) -> containers``.
_SAME = {
    "select": lambda boundary, inputs, data: [
        boundary.function(data, [*data.batch.keys()], [*data.non_tensor_batch.keys()])
    ],
    "pop": lambda boundary, inputs, data: [
        boundary.function(data, [*data.batch.keys()], [*data.non_tensor_batch.keys()], [*data.meta_info])
    ],
    "clone": lambda boundary, inputs, data: [boundary.function(data)],
    "to": lambda boundary, inputs, data: [boundary.function(data, "cpu")],
    "from_single_dict": lambda boundary, inputs, data: [
        boundary.function({**dict(data.batch.items()), **dict(data.non_tensor_batch.items())}, data.meta_info)
    ],
    "union": lambda boundary, inputs, data: [
        boundary.function(
            data.select(["number", "tokens", "flags"], ["label"]),
            data.select(["flags", "weights"], ["prompt", "label"]),
        )
    ],
}


def _renamed(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Rename two columns, at once if this version can, and give each its original name again."""
    if "rename_key_(tuple" in kit.source_of(boundary.function):  # several names are read as one nested key
        data = boundary.function(boundary.function(data, "tokens", "one"), "weights", "other")
    else:
        data = boundary.function(data, ["tokens", "weights"], ["one", "other"])
    return [boundary.function(boundary.function(data, "one", "tokens"), "other", "weights")]


def _sliced(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    size = len(data) // inputs["count"]
    return [boundary.function(data, place * size, (place + 1) * size) for place in range(inputs["count"])]


def _grouped(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return list(boundary.function(data, ["label", "number"]).values())


def _indexed(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, list(inputs["order"]))]


def _expanded(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    rows: Sequence[Any] = boundary.function(data)
    return rows


def _updated(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Replace the columns of a container of reversed rows by the right columns, at once or one after the other."""
    turned = {
        name: column.flip(0) if isinstance(column, torch.Tensor) else column[::-1]
        for name, column in inputs["fields"].items()
    }
    wrong, right = CONTAINER(boundary, turned, data.meta_info), {**dict(data.batch.items())}
    right |= dict(data.non_tensor_batch.items())
    if boundary.path.endswith("update"):
        boundary.function(wrong, right)
        return [wrong]
    for name, column in right.items():
        boundary.function(wrong, name, column)
    return [wrong]


def _restored(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Restore a container from its pickled state."""
    made = kit.make_unbuilt(boundary.owner)
    boundary.function(made, data.__getstate__())
    return [made]


def _remade(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    tensors, objects = dict(data.batch.items()), dict(data.non_tensor_batch.items())
    return [boundary.function(tensors, objects, dict(data.meta_info))]


def _divided(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Divide the tensors and each column of objects into parts of ``count`` rows with ROLL."""
    sizes = _sizes(len(data), inputs["count"])
    tensors = boundary.function(data.select([*data.batch.keys()], [])._batch, sizes)
    objects = {name: boundary.function(column, sizes) for name, column in data.non_tensor_batch.items()}
    return [
        CONTAINER(
            boundary, {**dict(part.items()), **{name: own[place] for name, own in objects.items()}}, inputs["meta"]
        )
        for place, part in enumerate(tensors)
    ]


def _sizes(rows: int, count: int) -> list[int]:
    return [min(count, rows - start) for start in range(0, rows, count)]


def _fetched(boundary: Any, inputs: Mapping[str, Any], _: Any) -> Sequence[Any]:
    """Join containers that are behind references, among which there is one that ROLL must not collect."""
    wrapped = boundary.module.ObjectRefWrap

    def call(parts: Sequence[Any]) -> Any:
        references = [wrapped(part, collected=True) for part in parts]
        return boundary.function([*references, wrapped(parts[0], collected=False)])

    with kit.swap(boundary.module, "ray", kit.stand_in(get=kit.return_first)):
        return kit.join_parts(CONTAINER, replace(boundary, function=call), inputs, None)


_RAY = StandIn("ray", "a reference is the object itself")
_CONTAINER = Container(CONTAINER, common={"imports": (PROTOCOL,)})
_ROWS = (
    *(_CONTAINER.surgery(f"{_DATA}.{name}", "repeat", do, fixed={"count": 1}) for name, do in _SAME.items()),
    _CONTAINER.surgery(f"{_DATA}.rename", "repeat", _renamed, fixed={"count": 1}),
    *(
        _CONTAINER.surgery(f"{_DATA}.{name}", "repeat", _updated, fixed={"count": 1})
        for name in ("update", "__setitem__")
    ),
    _CONTAINER.surgery(f"{_DATA}.__setstate__", "repeat", _restored, fixed={"count": 1}),
    _CONTAINER.surgery(f"{_DATA}.from_dict", "repeat", _remade, fixed={"count": 1}),
    _CONTAINER.surgery(f"{_DATA}.materialize_concat", "join", _fetched, stand_ins=(_RAY,)),
    _CONTAINER.joining(f"{PROTOCOL}.collate_fn", requires=RECENT),
    _CONTAINER.surgery(f"{_FUNCTIONALS}.divide_by_chunk_size", "split", _divided, requires=RECENT),
    _CONTAINER.surgery(f"{_DATA}.slice", "cut", _sliced, fixed={"remainder": 0}),
    _CONTAINER.surgery(f"{_DATA}.group_by", "split", _grouped, fixed={"count": 1}),
    *(_CONTAINER.surgery(f"{_DATA}.{name}", "reorder", _indexed) for name in ("select_idxs", "__getitem__")),
    _CONTAINER.surgery(
        "roll.distributed.scheduler.generate_scheduler.expand_responses", "split", _expanded, fixed={"count": 1},
    ),
    *(
        replace(
            microbatch_packing(f"{_DYNAMIC}.{name}", _cut_dynamically, imports=(PROTOCOL,)),
            accepts={"attention_mask": ("full", "right"), "stages": (1, 2)},
        )
        for name in (
            "dynamic_batching_shard", "make_mini_batch_iter_for_dynamic_batching",
            "make_micro_batch_iter_for_dynamic_batching",
        )
    ),
    *(
        Binding(
            f"{_PACKING}.LoadBalancePacker.{name}", "balanced_partition", call=_packed_by_load,
            imports=(PROTOCOL, "roll.configs.worker_config"),
            fixed={"grouped": False, "equal_size": False, "keep_minibatches": False},
        )
        for name in ("make_micro_batch_iter_for_sequence_packing", "restore_results_order")
    ),
)  # fmt: skip


BINDINGS = (*data_proto(PROTOCOL), *_BALANCING, *_ROWS)
