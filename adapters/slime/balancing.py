"""slime: sequences that are dealt out to ranks and microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import partitioned, stand_in

from .shared import ARGS

_BALANCING = "slime.utils.seqlen_balancing"


def _lengths(inputs: Mapping[str, Any]) -> list[int]:
    lengths: list[int] = inputs["attention_mask"].sum(-1).tolist()
    return lengths


def _first_fit(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"parts": boundary.function(_lengths(inputs), inputs["max_tokens_per_microbatch"])}


def _schedule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The microbatches of all ranks in one step: two ranks where there are as many samples for each. What it says of a
    rank's microbatches must be places among that rank's samples, and their number the same on each rank."""
    lengths = _lengths(inputs)
    ranks = 1 if len(lengths) % 2 else 2
    args = stand_in(
        use_dynamic_batch_size=True,
        max_tokens_per_gpu=inputs["max_tokens_per_microbatch"],
        balance_data=False,
        balance_by_flops=False,
        micro_batch_size=None,
    )
    parallel = {"dp_size": ranks, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    rollouts = list(range(len(lengths)))
    partitions, microbatches, counts, _ = boundary.invoke(
        {},
        args=args,
        train_parallel_config=parallel,
        total_lengths=lengths,
        global_batch_size=len(lengths),
        rollout_indices=rollouts,
    )
    if any(len(mine) != sum(counts) for mine in microbatches):
        return {"parts": []}
    pairs = [(mine, part) for mine, parts in zip(partitions, microbatches) for part in parts]
    return {"parts": [[mine[place] for place in part] for mine, part in pairs]}


_BARE: Mapping[str, Any] = {"grouped": False, "keep_minibatches": False}
#: Lengths are those of sequences without padding.
_MASKS: Mapping[str, tuple[str, ...]] = {"attention_mask": ("full", "right")}

BINDINGS = (
    Binding(f"{_BALANCING}.get_seqlen_balanced_partitions", "balanced_partition", call=partitioned, fixed=_BARE),
    Binding(f"{_BALANCING}.karmarkar_karp", "balanced_partition", call=partitioned, fixed=_BARE),
    Binding(f"{_BALANCING}.first_fit_pack", "microbatch_packing", call=_first_fit, accepts=_MASKS),
    Binding(
        "slime.utils.dp_schedule.build_dp_schedule",
        "microbatch_packing",
        call=_schedule,
        requires=("slime.utils.dp_schedule.build_dp_schedule(rollout_indices)",),
        stand_ins=(ARGS,),
        accepts=_MASKS,
    ),
)

UNBOUND: Mapping[str, str] = {
    f"{_BALANCING}.*": "parts of build_dp_schedule, which is bound",
    "slime.utils.dp_schedule.*": "parts of build_dp_schedule, which is bound",
}
