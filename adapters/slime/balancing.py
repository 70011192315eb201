"""Bindings for slime's functions that distribute sequences over ranks and microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.binding import kit
from sentinel.binding.families import balanced_partition, microbatch_packing

from .shared import ARGS

_BALANCING, _GROUP = "slime.utils.seqlen_balancing", "microbatch_group_size_per_vp_stage"


def schedule_of(lengths: Sequence[int], ranks: int, budget: int | None, micro_batch_size: int | None) -> dict[str, Any]:
    """Return the arguments of slime's ``build_dp_schedule`` for one training step.

    :param lengths: the number of tokens of each sample.
    :param budget: the maximum number of tokens in a microbatch, or None if ``micro_batch_size`` limits the samples.
    """
    dynamic = {"use_dynamic_batch_size": budget is not None, "max_tokens_per_gpu": budget}
    unbalanced = dict.fromkeys(("balance_data", "balance_by_flops"), False)
    return {
        "args": kit.stand_in(**dynamic, **unbalanced, micro_batch_size=micro_batch_size),
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
    partitions, microbatches, counts, _ = boundary.invoke({}, **schedule_of(lengths, ranks, **cutting))
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
