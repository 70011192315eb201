"""verl: sequences that are dealt out to ranks and microbatches, and put back in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, StandIn
from sentinel.worker.drift import AbsentError
from sentinel.worker.kit import columns, dealt, numbered_rows, partitioned, stand_in

from .containers import CONTAINER

_BALANCING = "verl.utils.seqlen_balancing"
_PROTOCOL = "verl.protocol"
_TRAINER = "verl.trainer.ppo.ray_trainer.RayPPOTrainer"

#: Sequences of one prompt may be parted, and no minibatch is known.
_BARE: Mapping[str, Any] = {"grouped": False, "keep_minibatches": False}
_TRAINER_SELF = StandIn("self", "the real trainer starts its workers; this one knows how many there are to be")


def _of_groups(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"parts": boundary.function(inputs["lengths"], inputs["prompts"], inputs["parts"])}


def _balanced_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer puts the rows of a batch in the order in which they are dealt out: each rank gets as many. A row
    whose label is not its own is in no part."""

    if inputs["keep_minibatches"] and "keep_minibatch" not in boundary.parameters:
        raise AbsentError("not in this version: minibatches are cut from the rows as they are dealt out")
    lengths, parts = inputs["lengths"], inputs["parts"]
    batch = CONTAINER(boundary, numbered_rows(lengths), {})
    trainer = stand_in(
        _get_dp_size=lambda *_: parts,
        actor_rollout_wg=stand_in(world_size=parts),
        config=stand_in(actor_rollout_ref=stand_in(actor={"ppo_mini_batch_size": inputs["minibatch_size"]})),
        use_prefix_grouper=False,
    )
    keep = {"keep_minibatch": True} if inputs["keep_minibatches"] else {}
    boundary.function(trainer, batch, {}, **keep)
    return dealt(batch, parts)


def _packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The microbatches of a container: their rows must be those that it says, with what is no tensor beside them."""
    import torch

    mask = inputs["attention_mask"]
    places = torch.arange(len(mask))
    data = CONTAINER(boundary, {"attention_mask": mask, "input_ids": mask, "row": places, "label": places.tolist()}, {})
    parts, said = boundary.function(data, max_token_len=inputs["max_tokens_per_microbatch"])
    seen = [columns(part) for part in parts]
    rows = [part["row"].tolist() for part in seen]
    whole = rows == [list(part) for part in said] == [part["label"] for part in seen]
    return {"parts": rows if whole else []}


def _restored(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the microbatches answered, put back: the columns in another order, and that order in parts."""
    order, ends = inputs["order"], [sum(inputs["sizes"][:end]) for end in range(1, len(inputs["sizes"]) + 1)]
    said = [list(order[start:end]) for start, end in zip([0, *ends], ends)]
    fields = inputs["fields"]
    return {
        "parts": [{name: boundary.function(column[list(order)], said) for name, column in fields.items()}],
        "metas": [inputs["meta"]],
    }


_COLUMNS: Mapping[str, Any] = {
    "number": {"kind": "tensor", "dtype": "int64", "shape": []},
    "log_probs": {"kind": "tensor", "dtype": "float32", "shape": [3]},
}

BINDINGS = (
    Binding(f"{_BALANCING}.get_seqlen_balanced_partitions", "balanced_partition", call=partitioned, fixed=_BARE),
    Binding(f"{_BALANCING}.karmarkar_karp", "balanced_partition", call=partitioned, fixed=_BARE),
    Binding(
        f"{_BALANCING}.get_group_balanced_partitions",
        "balanced_partition",
        call=_of_groups,
        fixed={"grouped": True, "keep_minibatches": False, "equal_size": True},
    ),
    Binding(
        f"{_TRAINER}._balance_batch",
        "balanced_partition",
        call=_balanced_batch,
        imports=(_PROTOCOL,),
        stand_ins=(_TRAINER_SELF,),
        fixed={"grouped": False, "equal_size": True},
        accepts={"keep_minibatches": (False, True)},
    ),
    Binding(
        f"{_BALANCING}.prepare_dynamic_batch",
        "microbatch_packing",
        call=_packed,
        imports=(_PROTOCOL,),
        accepts={"attention_mask": ("full", "right")},
    ),
    Binding(
        f"{_BALANCING}.restore_dynamic_batch",
        "row_surgery",
        call=_restored,
        fixed={"surgery": "join", "layouts": _COLUMNS},
    ),
)
