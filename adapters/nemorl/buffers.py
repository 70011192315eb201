"""Bindings for NeMo-RL's replay buffers, and for the samplers that select rollouts from them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .planes import Store
from .shared import ALGORITHMS, MAIN, message

_ASYNC, _CODEC = f"{ALGORITHMS}.async_utils", "nemo_rl.data_plane.codec"
_RECORDS = "nemo_rl.experience.interfaces"
_BUFFERS, _SAMPLERS = f"{_ASYNC}.replay_buffer", f"{_ASYNC}.staleness_sampler"
_PARTITION, _GROUP = "train", 2


def _restore(boundary: Any, inputs: Mapping[str, Any], saved: Any) -> Any:
    """Save a buffer to a file in memory, and restore it as NeMo-RL does when a run resumes."""
    options: dict[str, Any] = {"num_prompts_per_step": inputs["needed"]} if inputs["restored"] != "saved" else {}
    if inputs["restored"] == "resumed":
        options |= {"current_training_step": inputs["step"], "max_age_steps": inputs["max_age"]}
    buffer = boundary.owner(inputs["capacity"], inputs["drops_incomplete"])
    file = io.BytesIO()
    saved.save_to_path(file)
    file.seek(0)
    buffer.load_from_path(file, **options)
    return buffer


def _sample(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Fill NeMo-RL's replay buffer, and take the rollouts of a step."""
    restores, step = inputs["restored"] != "no", inputs["step"]
    buffer = boundary.owner(100 if restores else inputs["capacity"], False)
    for number, (version, target) in enumerate(zip(inputs["versions"], inputs["targets"])):
        buffer.add({"number": number, "_ng_task_index": number}, version, target)
    if restores:
        buffer = _restore(boundary, inputs, buffer)
    window = step, inputs["needed"], inputs["max_age"]
    missing = buffer.get_trajectories_needed(*window)
    if buffer.has_complete_batch(*window) != (not missing):
        missing = -1
    made = buffer.sample(inputs["needed"], step, inputs["max_age"]) or {}
    left = [trajectory["number"] for trajectory in buffer.trajectories]
    return {
        "taken": [trajectory["number"] for trajectory in made.get("trajectories", ())],
        "left": left if len(left) == buffer.size() else [],
        "missing": missing,
        "age": made.get("avg_trajectory_age"),
        "open_targets": buffer.get_existing_target_weights(),
        "done_until": buffer.get_last_target_weight_already_generated(),
    }


def _record(interfaces: Any, number: int) -> Any:
    """Make a prompt with two answers of different lengths. The prompt's last token is the number of the rollout."""
    prompt = [message("user", [1, 2, number])]
    answers = []
    for place in range(_GROUP):
        ids = [5] * (1 + place)
        said = message("assistant", ids, generation_logprobs=-0.5 * torch.ones(len(ids)))
        answers.append(interfaces.Completion([*prompt, said], None, False, float(place)))
    return interfaces.PromptGroupRecord(number, prompt, None, {}, answers, {})


def _numbers_of(store: Store, sample_ids: Any) -> list[int]:
    """Return the numbers of rollouts, which the rows of the store must have too; otherwise -1."""
    numbers = []
    for first in range(0, len(sample_ids), _GROUP):
        own = sample_ids[first : first + _GROUP]
        rows = [store.row(_PARTITION, name) for name in own]
        whole = [row is not None and row["input_ids"].tolist() == [1, 2, int(own[0][:-3]), *answer]
                 and row["total_reward"] == place and row["token_mask"].tolist() == [0, 0, 0, *(1 for _ in answer)]
                 for place, (row, answer) in enumerate(zip(rows, ([5], [5, 5])))]  # fmt: skip
        numbers.append(int(own[0][:-3]) if all(whole) and len(own) == _GROUP else -1)
    return numbers


_CONFIGS = {
    "arrival": "WindowedSamplerConfig", "newest": "WindowedSamplerConfig", "ready": "ReadyFirstSamplerConfig",
    "oldest": "WeightFifoSamplerConfig", "step": "InOrderSamplerConfig",
}  # fmt: skip


async def _run_sampler(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    buffers, samplers = boundary.imported[_BUFFERS], boundary.imported[_SAMPLERS]
    store, step, selects = Store(boundary.imported[_CODEC]), inputs["step"], inputs["selects"]

    def make() -> Any:
        return buffers.TQReplayBuffer(store, _PARTITION, pad_value_dict={"token_ids": 0})

    # Before it is saved, NeMo-RL's driver limits the buffer.
    buffer, rollouts = make(), list(zip(inputs["versions"], inputs["targets"]))
    rollouts = rollouts[: inputs["capacity"]] if inputs["restored"] == "no" else rollouts
    unfinished = [number for number in inputs["unfinished"] if number < len(rollouts)]
    for number, (version, target) in enumerate(rollouts):
        due = target if selects == "step" else None
        buffer.reserve(weight_version=version, target_step=due, group_id=f"{number}")
    for number, (version, _) in reversed(list(enumerate(rollouts))):
        if number not in unfinished:
            await buffer.commit(f"{number}", _record(boundary.imported[_RECORDS], number), version, step)
    if inputs["restored"] == "saved":
        state = await buffer.state_dict(saved_capacity=100)
        store.clear_samples([f"{number}_g{place}" for number in range(len(rollouts)) for place in range(_GROUP)],
                            _PARTITION)  # fmt: skip
        buffer, checks = make(), {"expected_partition_id": _PARTITION, "expected_group_size": _GROUP}
        await buffer.load_state_dict(state, max_groups=inputs["capacity"], **checks)
    if inputs["borrows"]:
        buffer.promote_ready_group(to_target_step=step)
    ages = "max_lookahead_versions" if selects == "step" else "max_staleness_versions"
    freshest = {"sample_freshest_first": selects == "newest"} if selects in ("arrival", "newest") else {}
    config = getattr(samplers, _CONFIGS[selects])(**{ages: inputs["max_age"]}, **freshest)
    sampler = samplers.create_sampler(buffer, config)
    least = inputs["needed"] if inputs["least"] is None else min(inputs["least"], inputs["needed"])
    bounds = {"min_prompt_groups": least, "max_prompt_groups": inputs["needed"]}
    made, count = await sampler.select(current_train_weight=step, **bounds)
    await sampler.evict(current_train_weight=step)
    taken = _numbers_of(store, made.sample_ids) if made is not None else []
    ready = [meta.sample_ids for meta in buffer.meta_list if meta is not None]
    kept = iter([number for ids in ready for number in _numbers_of(store, ids)])
    waiting = iter(unfinished)
    left = [next(kept if flag else waiting) for flag in buffer.ready_list]
    if count != len(taken) or store.count() != _GROUP * (len(taken) + len(ready)):
        return {"taken": [-1], "left": left}
    return {"taken": taken, "left": left}


def _select(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Fill NeMo-RL's buffer for TransferQueue, and take the rollouts of a step with one of its samplers."""
    return kit.run_async(_run_sampler(boundary, inputs))  # type: ignore[no-any-return]


_SAVED = {"restored": ("no", "saved"), "capacity": (100, 100, 2), "least": (None, 1, 2)}
_REPLAY = f"{_BUFFERS}.ReplayBufferImpl"
_TRANSFER: dict[str, Any] = {
    "call": _select,
    "imports": (_BUFFERS, _SAMPLERS, _CODEC, _RECORDS),
    "requires": (f"{_SAMPLERS}.create_sampler", _RECORDS),
    "stand_ins": (StandIn("TransferQueue", "keeps the columns of samples in memory"),),
}
BINDINGS = (
    *(
        Binding(
            f"{_REPLAY}.{method}", "rollout_buffer", call=_sample, fixed={"selects": "due"},
            requires=(f"{_REPLAY}.load_from_path", f"{_REPLAY}.has_complete_batch"),
            accepts={
                "restored": ("no", "saved", "complete", "resumed"), "drops_incomplete": (False, True),
                "capacity": (100, 100, 3),
            },
        )
        for method in (
            "sample", "add", "state_dict", "load_state_dict", "get_trajectories_needed", "save_to_path",
            "load_from_path",
        )
    ),
    *(
        Binding(
            f"{_SAMPLERS}.{sampler}.{method}", "rollout_buffer",
            accepts={
                "selects": selects, "may_be_unfinished": (False, True), "borrows": (False, True) if due else (False,),
                **_SAVED, "capacity": (100,) if due else _SAVED["capacity"],
            },
            dialects=(
                Dialect(
                    "keeps", "newest", "a smaller buffer keeps the freshest groups",
                    f"{MAIN}/algorithms/async_utils/replay_buffer.py#L998",
                ),
            ),
            **_TRANSFER,
        )
        for sampler, selects, methods in (
            ("WindowedSampler", ("arrival", "newest"), ("select", "evict")),
            ("ReadyFirstSampler", ("ready",), ("select", "evict")), ("WeightFifoSampler", ("oldest",), ("select",)),
            ("InOrderSampler", ("step",), ("select", "evict")),
        )
        for method in methods for due in (sampler == "InOrderSampler",)
    ),
    *(
        Binding(
            f"{_BUFFERS}.TQReplayBuffer.{method}", "rollout_buffer", fixed={"selects": "step"},
            accepts={"may_be_unfinished": (False, True), "borrows": (False, True), **_SAVED, "capacity": (100,)},
            **_TRANSFER,
        )
        for method in ("commit", "remove", "load_state_dict", "promote_ready_group")
    ),
)  # fmt: skip
