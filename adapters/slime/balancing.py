"""slime: sequences that are dealt out to ranks and microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.worker.families import balanced_partition, microbatch_packing
from sentinel.worker.kit import lengths_of, stand_in

from .shared import ARGS

_BALANCING = "slime.utils.seqlen_balancing"


def _schedule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The microbatches of all ranks in one step: two ranks where there are as many samples for each. What it says of a
    rank's microbatches must be places among that rank's samples, and their number the same on each rank."""
    lengths = lengths_of(inputs)
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


BINDINGS = (
    balanced_partition(f"{_BALANCING}.get_seqlen_balanced_partitions"),
    balanced_partition(f"{_BALANCING}.karmarkar_karp"),
    microbatch_packing(f"{_BALANCING}.first_fit_pack"),
    microbatch_packing(
        "slime.utils.dp_schedule.build_dp_schedule",
        _schedule,
        requires=("slime.utils.dp_schedule.build_dp_schedule(rollout_indices)",),
        stand_ins=(ARGS,),
    ),
)

UNBOUND: Mapping[str, str] = {
    f"{_BALANCING}.*": "parts of build_dp_schedule, which is bound",
    "slime.utils.dp_schedule.*": "parts of build_dp_schedule, which is bound",
}
