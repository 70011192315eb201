"""Bindings for verl's batch containers, DataProto and TensorDict, and for its balancing of batches over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import Container, balanced_partition, data_proto
from sentinel.binding.kit import torch

_PROTOCOL = "verl.protocol"
_DATA = f"{_PROTOCOL}.DataProto"
CONTAINER = partial(kit.make_container, _DATA)


def _repeat_rows(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["sizes"])]


_TENSORDICT = "verl.utils.tensordict_utils"


def _make_tensordict(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    def made(column: Any) -> Any:
        ragged = isinstance(column, list) and isinstance(column[0], torch.Tensor)
        return boundary.module.nested_tensor_from_tensor_list(column) if ragged else column

    return boundary.module.get_tensordict({name: made(column) for name, column in fields.items()}, dict(meta))


def _read_tensordict(data: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = tuple(data.keys())
    meta = {name: data[name] for name in inputs.get("meta", {}).keys() & set(names)}
    return {name: _column(data.get(name)) for name in names}, meta


def _column(column: Any) -> Any:
    if not isinstance(column, torch.Tensor):
        return column.tolist()
    if not column.is_nested:
        return column
    axis = column._ragged_idx - 1  # the axis of the values along which the rows are concatenated
    return list(column.values().split(column.offsets().diff().tolist(), axis))


def _select_rows(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["order"])]


#: Required, because versions without this function make nested tensors with torch, and cut them differently.
_NESTED = (f"{_TENSORDICT}.nested_tensor_from_tensor_list",)
#: The columns of an unpadded batch. Tokens, and position ids with four rows, are nested tensors.
_RAGGED: Mapping[str, Any] = {
    "layouts": {
        "number": {"kind": "tensor", "dtype": "int64", "shape": []},
        "input_ids": {"kind": "ragged", "shape": []},
        "position_ids": {"kind": "ragged", "shape": [4]},
        "label": {"kind": "text"},
        "prompt": {"kind": "list"},
    }
}
_PROTO = Container(CONTAINER, common={"imports": (_PROTOCOL,)})
_OTHER = Container(_make_tensordict, _read_tensordict, {"requires": _NESTED, "fixed": _RAGGED})
#: verl's functions reject a cut into parts of different sizes, unless padding is enabled.
_EVEN = {"remainder": (0,)}

_CONTAINERS = (
    *data_proto(_PROTOCOL, accepts=_EVEN),
    _PROTO.surgery(f"{_DATA}.split", "split", kit.cut_parts),
    _PROTO.surgery(f"{_DATA}.sample_level_repeat", "repeat_each", _repeat_rows),
    _OTHER.surgery(f"{_TENSORDICT}.chunk_tensordict", "cut", kit.cut_parts, accepts=_EVEN),
    _OTHER.joining(f"{_TENSORDICT}.concat_tensordict"),
    _OTHER.surgery(f"{_TENSORDICT}.index_select_tensor_dict", "reorder", _select_rows),
    _OTHER.surgery(f"{_TENSORDICT}.pad_to_divisor", "fill", kit.fill_rows),
    _OTHER.surgery(f"{_TENSORDICT}.unpad", "shorten", kit.apply_count),
    _OTHER.iteration(f"{_TENSORDICT}.make_iterator"),
)


_BALANCING = "verl.utils.seqlen_balancing"
_TRAINER = "verl.trainer.ppo.ray_trainer.RayPPOTrainer"

_TRAINER_SELF = StandIn("self", "the real trainer starts workers; the method reads only their number")


def _balance_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if inputs["keep_minibatches"] and "keep_minibatch" not in boundary.parameters:
        raise AbsentError("this version has no option keep_minibatch: it distributes rows before it forms minibatches")
    lengths, parts = inputs["lengths"], inputs["parts"]
    batch = CONTAINER(boundary, kit.numbered_rows(lengths), {})
    trainer = kit.stand_in(
        _get_dp_size=lambda *_: parts,
        actor_rollout_wg=kit.stand_in(world_size=parts),
        config=kit.stand_in(actor_rollout_ref=kit.stand_in(actor={"ppo_mini_batch_size": inputs["minibatch_size"]})),
        use_prefix_grouper=False,
    )
    keep = {"keep_minibatch": True} if inputs["keep_minibatches"] else {}
    boundary.function(trainer, batch, {}, **keep)
    return kit.read_dealt_rows(batch, parts)


def _split_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["attention_mask"]
    places = torch.arange(len(mask))
    data = CONTAINER(boundary, {"attention_mask": mask, "input_ids": mask, "row": places, "label": places.tolist()}, {})
    parts, places_of = boundary.function(data, max_token_len=inputs["max_tokens_per_microbatch"])
    fields = [kit.read_columns(part) for part in parts]
    rows = [part["row"].tolist() for part in fields]
    # No microbatches are returned if verl reports other rows than they contain.
    whole = rows == [list(part) for part in places_of] == [part["label"] for part in fields]
    return {"parts": rows if whole else []}


def _restore_order(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    order, ends = inputs["order"], [sum(inputs["sizes"][:end]) for end in range(1, len(inputs["sizes"]) + 1)]
    order_in_parts = [list(order[start:end]) for start, end in zip([0, *ends], ends)]
    fields = inputs["fields"]
    return {
        "parts": [{name: boundary.function(column[list(order)], order_in_parts) for name, column in fields.items()}],
        "metas": [inputs["meta"]],
    }


_COLUMNS: Mapping[str, Any] = {
    "number": {"kind": "tensor", "dtype": "int64", "shape": []},
    "log_probs": {"kind": "tensor", "dtype": "float32", "shape": [3]},
}

_BALANCING = (
    balanced_partition(f"{_BALANCING}.get_seqlen_balanced_partitions"),
    balanced_partition(f"{_BALANCING}.karmarkar_karp"),
    # Equal sizes are not tested, because the totals of parts of equal size may differ by more than the longest item,
    # which the contract does not allow.
    balanced_partition(
        f"{_BALANCING}.greedy_partition", fixed={"equal_size": False},
        call=partial(kit.call_with, leading=("lengths", "parts"), takes=(), equal_size=False),
    ),
    balanced_partition(
        f"{_BALANCING}.get_group_balanced_partitions", "lengths", "prompts", "parts",
        fixed={"grouped": True, "equal_size": True},
    ),
    Binding(
        f"{_TRAINER}._balance_batch", "balanced_partition", call=_balance_rows, imports=(_PROTOCOL,),
        stand_ins=(_TRAINER_SELF,), fixed={"grouped": False, "equal_size": True},
        accepts={"keep_minibatches": (False, True)},
    ),
    Binding(
        f"{_BALANCING}.prepare_dynamic_batch", "microbatch_packing", call=_split_batch, imports=(_PROTOCOL,),
        accepts={"attention_mask": ("full", "right")},
    ),
    Binding(
        f"{_BALANCING}.restore_dynamic_batch", "row_surgery", call=_restore_order,
        fixed={"surgery": "join", "layouts": _COLUMNS},
    ),
)  # fmt: skip


BINDINGS = (*_CONTAINERS, *_BALANCING)
