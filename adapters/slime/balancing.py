"""Bindings for slime's functions that distribute sequences over ranks and microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.binding import kit
from sentinel.binding.families import balanced_partition, microbatch_packing

from .shared import ARGS

_BALANCING, _GROUP = "slime.utils.seqlen_balancing", "microbatch_group_size_per_vp_stage"


#: The sizes of a small model without experts, from which slime estimates the time of a sequence.
_MODEL = {
    **dict.fromkeys(("hidden_size", "ffn_hidden_size", "vocab_size", "kv_channels"), 8),
    **dict.fromkeys(("num_attention_heads", "num_query_groups", "num_layers", "moe_router_topk"), 1),
    **dict.fromkeys(("num_experts", "q_lora_rank", "kv_lora_rank")),
}


def schedule_of(
    lengths: Sequence[int],
    ranks: int,
    budget: int | None,
    micro_batch_size: int | None,
    balanced: str = "",
) -> dict[str, Any]:
    """Return the arguments of slime's ``build_dp_schedule`` for one training step.

    :param lengths: the number of tokens of each sample.
    :param budget: the maximum number of tokens in a microbatch, or None if ``micro_batch_size`` limits the samples.
    :param balanced: ``ranks`` if slime balances the estimated time of the ranks; ``all`` if also of the microbatches,
        which may then exceed the budget; empty for neither.
    """
    dynamic = {"use_dynamic_batch_size": budget is not None, "max_tokens_per_gpu": budget}
    dynamic |= {"balance_data": balanced in ("ranks", "all"), "balance_by_flops": balanced == "all"}
    return {
        "args": kit.stand_in(**dynamic, **_MODEL, micro_batch_size=micro_batch_size),
        "train_parallel_config": {"dp_size": ranks, "cp_size": 1, "vpp_size": 1, _GROUP: 1},
        "total_lengths": lengths,
        "global_batch_size": len(lengths),
        "rollout_indices": list(range(len(lengths))),
    }


def _schedule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row numbers of each microbatch in slime's schedule, or an empty list if a rank's microbatches are
    wrong.
    """
    lengths = kit.lengths_of(inputs)
    ranks = 1 if len(lengths) % 2 else 2
    cutting = {"budget": inputs["max_tokens_per_microbatch"], "micro_batch_size": None}
    balanced = "ranks" if lengths[0] % 2 else ""
    partitions, microbatches, counts, _ = boundary.invoke(
        {}, **schedule_of(lengths, ranks, **cutting, balanced=balanced)
    )
    if any(len(mine) != sum(counts) for mine in microbatches):
        return {"parts": []}
    pairs = [(mine, part) for mine, parts in zip(partitions, microbatches) for part in parts]
    return {"parts": [[mine[place] for place in part] for mine, part in pairs]}


BINDINGS = (
    balanced_partition(f"{_BALANCING}.get_seqlen_balanced_partitions"),
    balanced_partition(f"{_BALANCING}.karmarkar_karp"), microbatch_packing(f"{_BALANCING}.first_fit_pack"),
    microbatch_packing(
        "slime.utils.dp_schedule.build_dp_schedule", _schedule,
        requires=("slime.utils.dp_schedule.build_dp_schedule(rollout_indices)",), stand_ins=(ARGS,),
    ),
)  # fmt: skip
