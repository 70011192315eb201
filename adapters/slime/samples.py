"""Bindings for slime's functions that build samples from an agent's turns, distribute them over ranks, and log them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MPU, RANKS
from sentinel.binding.kit import torch

from .shared import ARGS, CP, TYPES, one_rank

_TRAJECTORY, _SHARED = "slime.agent.trajectory", "slime.utils.data.process_rollout_data"
_SCHEDULE = "slime.utils.dp_schedule.build_dp_schedule(rollout_indices)"
_REPORTS = "slime.observability.train_metric_utils"
_STORE = StandIn("ray", "holds the parts of a batch in this process")
_LOGGED = StandIn("logging_utils", "records the metrics that slime reports; the contract checks these")

#: The columns of a response. The adapter adds a prompt of one token.
_RESPONSE = {
    "layouts": {
        name: {"kind": "tensor", "dtype": dtype, "shape": ["tokens"]}
        for name, dtype in (("tokens", "int64"), ("log_probs", "float32"))
    }
}
_PROMPT, _HEARD = 1005, 1999


def _recorded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Record an agent's turns with slime, and return the response tokens of the sample that slime builds."""
    module, kind, read = boundary.module, boundary.imported[TYPES].Sample, []
    for place, sample in enumerate(inputs["samples"]):
        ids, logs = sample["tokens"].tolist(), sample["log_probs"].tolist()
        manager, base = module.TrajectoryManager(), kind(index=place, group_index=9, prompt="", label=f"label {place}")
        messages = [{"role": "user", "content": "ask"}]
        # The first turn generates one token, the second turn all others. The environment adds one token between them.
        turns = [([_PROMPT], ids[:1], logs[:1])]
        turns += [([_PROMPT, ids[0], _HEARD], ids[1:], logs[1:])] if ids[1:] else []
        for number, (before, after, of_after) in enumerate(turns):
            answer = {"role": "assistant", "content": f"answer {number}"}
            turn = module.TurnRecord(before, after, "stop", of_after)
            manager.record_turn("session", turn=turn, prompt_messages=[*messages], response_message=answer)
            messages += [answer, {"role": "user", "content": f"hear {number}"}]
        made = manager.get_trajectory("session", base_sample=base, reward=0.25 + place, extra_metadata={"key": place})
        read.append(_response(made, place, [0] * (len(turns) - 1)))
    return {"samples": read}


def _response(made: list[Any], place: int, heard: list[int]) -> dict[str, Any]:
    """Return the trained tokens and their log-probs, or an empty dict if any other field of the sample is wrong."""
    if len(made) != 1:
        return {}
    sample = made[0]
    mask, ids, logs = sample.loss_mask, sample.tokens[1:], sample.rollout_log_probs
    fits = [
        sample.tokens[0] == _PROMPT and len(ids) == len(mask) == len(logs) == sample.response_length,
        mask == [1, *heard, *([1] * (len(mask) - 1 - len(heard)))],
        [(token, log) for token, log, flag in zip(ids, logs, mask) if not flag] == [(_HEARD, 0.0)] * len(heard),
        (sample.index, sample.group_index, sample.rollout_id) == (place, 9, place),
        (sample.reward, sample.label, sample.metadata["key"]) == (0.25 + place, f"label {place}", place),
    ]
    own = [at for at, flag in enumerate(mask) if flag]
    columns = {"tokens": torch.tensor([ids[at] for at in own]), "log_probs": torch.tensor([logs[at] for at in own])}
    return columns if all(fits) else {}


def _processed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Distribute samples over two ranks, and read each sample from the data that slime prepares for the rank."""
    samples, found = inputs["samples"], dict[int, dict[str, Any]]()
    lengths, rewards = (
        [10 + 3 * place for place, _ in enumerate(samples)],
        [0.5 * place for place, _ in enumerate(samples)],
    )
    parts = [[place for place in range(len(samples)) if place % 2 == rank] for rank in range(2)]
    boxes = [
        kit.stand_in(
            inner={
                "partition": part,
                "total_lengths": [*lengths],
                "raw_reward": [*rewards],
                **{name: [samples[place][name] for place in part] for name in ("tokens", "log_probs")},
            }
        )
        for part in parts
    ]
    for rank, part in enumerate(parts):
        with kit.swap(boundary.module, "ray", kit.stand_in(get=kit.return_first)):
            data = boundary.function(kit.stand_in(), boxes, rank, 2)
        for at, place in enumerate(part):
            # Return an empty sample if its length, its reward or the list of all rewards is wrong.
            own = data["total_lengths"][at] == lengths[place] and data["raw_reward"] == rewards
            own = own and data.get("local_raw_reward", rewards[rank::2])[at] == rewards[place]
            found[place] = {name: data[name][at] for name in ("tokens", "log_probs")} if own else {}
    return {"samples": [found.get(place, {}) for place, _ in enumerate(samples)]}


def _logged(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean reward and the mean advantage that slime logs for samples on several ranks."""
    parts, waiting, told = inputs["parts"], list[Any](), dict[str, Any]()
    everything = [value for part in parts for value in part]
    options = dict.fromkeys(("wandb_always_use_train_step", "ci_test"), False)
    options |= dict.fromkeys(("log_multi_turn", "log_passrate", "log_correct_samples"), True)
    args = kit.stand_in(
        **options, n_samples_per_prompt=1, rollout_batch_size=len(everything), rollout_max_response_len=3
    )

    def gather(log: Any, into: Any = None, **_: Any) -> None:
        if into is None:
            waiting.append(log)
        else:
            into[:] = [log, *(one for one in waiting if one.keys() == log.keys())]

    def record(_: Any, metrics: Mapping[str, Any], **__: Any) -> None:
        told.update(metrics)

    places, batches = [*range(1, len(parts)), 0], list[Any]()
    for rank in places:
        own, count = parts[rank], len(parts[rank])
        columns = {"advantages": [torch.tensor([1 - value, 9.0]) for value in own]}
        columns["log_probs"] = [torch.tensor([-0.25 - value, -7.0]) for value in own]
        batch = {
            "rewards": own,
            "raw_reward": everything,
            "local_raw_reward": own,
            "round_number": [1 + place for place in range(count)],
            "response_lengths": [2] * count,
            "total_lengths": [5 + place for place in range(count)],
            "loss_masks": [torch.tensor([1, 0])] * count,  # each response has a second, masked token
            "global_batch_sizes": [len(everything)],
            **columns,
        }
        batches.append(batch)
        world = kit.stand_in(get_rank=lambda rank=rank: rank, gather_object=gather)
        stands = {"dist": world, "logging_utils": kit.stand_in(log=record)}
        with one_rank(data_parallel=len(parts)), kit.swap_all(boundary.module, **stands):
            for name, answer in (("src_rank", 0), ("group_gloo", None)):
                setattr(
                    sys.modules["megatron.core"].mpu, f"get_data_parallel_{name}", lambda answer=answer, **_: answer
                )
            boundary.function(1, args, batch)
    return {"mean": told["rollout/rewards"], "loss": told["rollout/advantages"]}


BINDINGS = (
    *(
        Binding(f"{_TRAJECTORY}.{path}", "collation", call=_recorded, fixed=_RESPONSE, imports=(TYPES,))
        for path in ("_SampleBuilder.to_sample", "_SampleBuilder.append_turn", "TrajectoryManager.get_trajectory")
    ),
    # Older versions of this function distribute the samples themselves.
    Binding(
        _SHARED, "collation", call=_processed, fixed=_RESPONSE, stand_ins=(ARGS, _STORE), requires=(_SCHEDULE,),
    ),
    Binding(
        f"{_REPORTS}.log_rollout_data", "mean_of_parts", call=_logged, imports=(CP,), fixed={"missing": False},
        stand_ins=(ARGS, MPU, RANKS, _LOGGED),
    ),
)  # fmt: skip
