"""Bindings for ROLL's schedulers, which draw prompts, collect finished rollouts and join them to a batch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import Container
from sentinel.binding.kit import torch

from .containers import CONTAINER, PROTOCOL, RECENT
from .data import MAIN

_SCHEDULING = "roll.distributed.scheduler"
_SCHEDULER = f"{_SCHEDULING}.generate_scheduler"
_ROLLOUTS = f"{_SCHEDULING}.rollout_scheduler"
_LOOP = f"{_SCHEDULING}.user_defined_rollout_loop"
_CONFIG = StandIn("config", "the options that the function reads; the real configuration looks for checkpoints")
_ALONE = Dialect(
    "group_of_one", "kept", "nothing is filtered if each prompt has one response",
    f"{MAIN}/distributed/scheduler/user_defined_rollout_loop.py#L34",
)  # fmt: skip
_SELF = StandIn("self", "the real scheduler starts Ray; the method reads only these attributes")


# -- the replay buffer -------------------------------------------------------------------------------------------------


def _collected(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collect a batch of prompts from ROLL's replay buffer, and then the prompts that stay for the next step.

    Rollouts are asynchronous by one step, so that prompts may stay. One prompt is aborted before any other is finished.
    The prompts of the two steps are the finished rollouts; each prompt has two samples.
    """
    module = boundary.module
    buffer, needed, completed = module.ReplayBuffer(1, False, 0), inputs["needed"], inputs["completed"]
    items: dict[int, list[Any]] = {}

    async def finish(number: int, aborts: bool = False) -> None:
        prompt = await buffer.poll()
        step = await buffer.begin(prompt)
        if aborts:
            buffer.abort(prompt)
            return
        items[prompt] = [module.ExperienceItem(prompt_id=number, sampling_start_step=step) for _ in range(2)]
        buffer.commit(prompt, items[prompt])

    async def collect() -> list[list[int]]:
        buffer.advance_step(0, completed)  # allows twice as many prompts, because rollouts are one step ahead
        await finish(-1, aborts=True)
        for number in range(completed):
            await finish(number)
        made = []
        for step, count in ((0, needed), (1, completed - needed)):
            if step:
                buffer.advance_step(1, 1)
            batch = await _soon(buffer.get_batch(2 * count, kit.bookkeeping())) if count else []
            numbers = [item.prompt_id for item in batch]
            made.append(numbers[::2] if numbers[::2] == numbers[1::2] else [])
        return made

    taken, left = asyncio.run(collect())
    return {"taken": taken, "left": left}


# -- queues of groups --------------------------------------------------------------------------------------------------


def _queued(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collect a batch of groups from ROLL's queues, and then the groups that stay for the next step.

    There is one queue. Each group has two rollouts, which two environments put into the queue. The filter drops the
    scenario's rejected groups.
    """
    module, done = boundary.module, inputs["completed"]
    rejected = set(inputs["rejected"])

    def rejects(group: Sequence[Any], **_: Any) -> bool:
        return group[0].number in rejected

    monitor = kit.stand_in(record_episode_start=_ignore, cleanup_episode=_ignore, record_activity=_ignore)
    queue = module.GroupQueue(0, kit.bookkeeping(), 2, 0, done, 1, kit.stand_in(filter=rejects), monitor)
    manager = kit.make_unbuilt(
        boundary.owner if boundary.owner.__name__ == "GroupQueueManager" else module.GroupQueueManager,
        mode="train", group_size=2, group_queue={0: queue}, pending_gets=set(), rollout_complete={}, total=0, waiting=0,
        async_generation_ratio=1, env_monitor=monitor,
    )  # fmt: skip

    async def collect() -> tuple[list[int], list[int]]:
        manager.advance_step(0)
        for number in range(done):
            episodes = [await _soon(manager.get_episode_id(0, env)) for env in range(2)]
            for env, episode in enumerate(episodes):
                manager.put(0, episode, 0, kit.stand_in(number=number, meta_info={}), env)
        accepted = [number for number in range(done) if number not in rejected]
        size = min(inputs["needed"], len(accepted))
        taken = await _soon(manager.get_batch(2 * size, 0))
        left = await _soon(manager.get_batch(2 * (len(accepted) - size), 1)) if len(accepted) > size else []
        for task in manager.pending_gets:
            task.cancel()
        return ([one.number for one in rollouts[::2]] for rollouts in (taken, left))

    with kit.swap(boundary.module, "tqdm", kit.bookkeeping):
        taken, left = asyncio.run(collect())
    return {"taken": [*taken], "left": [*left]}


async def _soon(result: Coroutine[Any, Any, Any]) -> Any:
    """Return a coroutine's result, or an empty list if it waits for rollouts that nobody will finish."""
    task = asyncio.ensure_future(result)
    done, _ = await asyncio.wait({task}, timeout=0.5)
    if not done:
        task.cancel()
    return task.result() if done else []


def _ignore(*_: Any, **__: Any) -> None:
    return None


# -- prompts and batches -----------------------------------------------------------------------------------------------


def _drawn(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Draw the rows of a dataset from ROLL's scheduler, one by one, for all epochs."""
    rows, size = len(inputs["fields"]["number"]), inputs["minibatch_size"]
    scheduler = kit.make_unbuilt(
        boundary.owner, get_data_item_kwargs={}, dataset_iter=None, indices=[*range(rows)], dataset=[*range(rows)],
        dataset_epoch=0, dataset_iter_count=0, reward_clusters={}, pipeline_config=kit.stand_in(seed=inputs["seed"]),
    )  # fmt: skip
    with kit.keep_random_state():
        numbers = [boundary.function(scheduler) for _ in range(rows * inputs["epochs"])]
    return {"parts": [_taken(inputs, numbers[at : at + size]) for at in range(0, len(numbers), size)]}


def _taken(inputs: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    return {
        name: column[places] if isinstance(column, torch.Tensor) else [column[place] for place in places]
        for name, column in inputs["fields"].items()
    }


def _stratified(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Draw batches with ROLL's sampler, which mixes domains. For an even batch size, there are two equal domains."""
    rows, size = len(inputs["fields"]["number"]), inputs["minibatch_size"]
    domains = 2 - size % 2
    dataset = [{"domain": f"domain {row % domains}"} for row in range(rows)]
    ratios = {f"domain {number}": 1.0 / domains for number in range(domains)}
    with kit.keep_random_state(), contextlib.redirect_stdout(None):
        sampler = boundary.owner(dataset, ratios, size)
        parts = [batch for _ in range(inputs["epochs"]) for batch in sampler]
    mixed = all(sum(row % domains for row in batch) * domains == size * (domains - 1) for batch in parts)
    return {"parts": [_taken(inputs, batch) for batch in parts] if mixed else []}


def _items(boundary: Any, data: Any) -> list[Any]:
    """Return the items of a container's rows. The two halves of the rows have different domains."""
    half = (len(data) + 1) // 2
    return [
        boundary.module.ExperienceItem(
            prompt_id=row, domain=f"domain {row // half}", sampling_start_step=2, data=data[[row]]
        )
        for row in range(len(data))
    ]


def _batched(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    data.batch["scores"] = torch.zeros(len(data))
    scheduler = kit.make_unbuilt(boundary.owner, replay_buffer=kit.stand_in(current_step=3))
    made = boundary.function(scheduler, _items(boundary, data))
    made.pop(["scores"])
    del made.meta_info["metrics"]
    return [made]


def _scored(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statistic of the scores of one domain that ROLL reports. The other domain has other scores."""
    values = [value for part in inputs["parts"] for value in part]
    data = CONTAINER(boundary, {"scores": torch.tensor([*values, *(5.0 - value for value in values)])}, {})
    scheduler = kit.make_unbuilt(boundary.owner, replay_buffer=kit.stand_in(current_step=3))
    metrics = boundary.function(scheduler, _items(boundary, data)).meta_info["metrics"]
    return {"mean": metrics[f"scheduler/domain 0/score/{inputs['statistic']}"]}


def _routed(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Send each row to the reward workers of its domain with ROLL, and return the joined answers.

    The workers return the rows that they receive. Each domain has two workers; the first one receives one row.
    """
    domains = [f"domain {row % 3 % 2}" for row in range(len(data))]
    rows = CONTAINER(boundary, {**kit.read_columns(data), "domain": domains}, data.meta_info)

    async def answer(part: Any) -> Any:
        return part

    def compute(data: Any, **_: Any) -> list[Any]:
        parts = [data[:1], data[1:]] if len(data) > 1 else [data]
        columns = [[*part.batch.keys() - {"prompt_id"}] for part in parts]
        names = [*data.non_tensor_batch.keys() - {"domain"}]
        return [kit.stand_in(obj_ref=answer(part.select(own, names))) for part, own in zip(parts, columns)]

    clusters = {f"domain {number}": kit.stand_in(compute_rewards=compute) for number in (1, 0)}
    made = asyncio.run(boundary.function(boundary.owner(), rows, clusters, kit.stand_in()))
    return [made.select([*made.batch.keys() - {"prompt_id"}], [*made.non_tensor_batch.keys()])]


def _filtered(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the prompts that ROLL keeps because their rewards differ."""
    kept = _kept(boundary, inputs, "std_filter", {"std_threshold": 0})
    numbers = [row for row, flag in enumerate(kept) if flag]
    return {"numbers": numbers, "rewards": inputs["rewards"][numbers].tolist()}


def _of_mean(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {"threshold_down": inputs["low"], "threshold_up": inputs["high"]}
    return {"kept": torch.tensor(_kept(boundary, inputs, "mean_filter", bounds))}


def _kept(boundary: Any, inputs: Mapping[str, Any], kind: str, options: Mapping[str, Any]) -> list[float]:
    """Return 1 for each row of a prompt that ROLL keeps, else 0."""
    chosen = kit.stand_in(query_filter_config=kit.stand_in(type=kind, filter_args=dict(options)))
    config = kit.stand_in(rewards={"domain": chosen})
    kept = [0.0] * len(inputs["group"])
    for rows in kit.rows_of_groups(inputs["group"]):
        rewards = [inputs["rewards"][[row]] for row in rows]
        data = [CONTAINER(boundary, {"response_level_rewards": one, "domain": ["domain"]}, {}) for one in rewards]
        for row in rows if boundary.function(data, config) else ():
            kept[row] = 1.0
    return kept


_BATCHES = Container(CONTAINER, common={"imports": (PROTOCOL,), "stand_ins": (_SELF,)})
_DYNAMIC = f"{_SCHEDULER}.DynamicSamplingScheduler"
BINDINGS = (
    *(
        Binding(f"{_SCHEDULER}.ReplayBuffer.{name}", "rollout_collection", call=_collected, imports=(PROTOCOL,))
        for name in ("get_batch", "commit", "poll", "begin", "abort", "advance_step")
    ),
    *(
        Binding(f"{_SCHEDULER}.ItemsGroup.{name}", "rollout_collection", call=_collected, imports=(PROTOCOL,))
        for name in ("get_batch", "commit_prompt", "begin_prompt", "abort_prompt")
    ),
    *(
        Binding(
            f"{_ROLLOUTS}.{path}", "rollout_collection", call=_queued, imports=(PROTOCOL,), stand_ins=(_SELF,),
            accepts={"filters": (False, True)}, requires=RECENT,
        )
        for path in (
            "GroupQueueManager.get_batch", "GroupQueueManager.put", "GroupQueueManager.get_episode_id",
            "GroupQueue.put",
        )
    ),
    Binding(
        f"{_DYNAMIC}.get_next_dataset_item", "minibatch_iteration", call=_drawn, stand_ins=(_SELF,),
        fixed={"shuffle": True},
    ),
    *(
        Binding(
            f"roll.datasets.sampler.BatchStratifiedSampler.{name}", "minibatch_iteration", call=_stratified,
            fixed={"shuffle": True},
        )
        for name in ("__iter__", "__init__")
    ),
    _BATCHES.surgery(f"{_DYNAMIC}.collect_items_as_batch", "repeat", _batched, fixed={"count": 1}),
    Binding(
        f"{_DYNAMIC}.collect_items_as_batch", "mean_of_parts", call=_scored, imports=(PROTOCOL,), stand_ins=(_SELF,),
        fixed={"missing": False}, accepts={"statistic": ("mean", "max", "min")},
    ),
    _BATCHES.surgery(
        f"{_SCHEDULING}.reward_scheduler.RewardScheduler.compute_rewards", "repeat", _routed, fixed={"count": 1},
        requires=RECENT,
    ),
    Binding(
        f"{_LOOP}.query_filter", "group_filter", call=_filtered, imports=(PROTOCOL,), stand_ins=(_CONFIG,),
        dialects=(_ALONE,), requires=RECENT,
    ),
    Binding(
        f"{_LOOP}.query_filter", "difficulty_filter", call=_of_mean, imports=(PROTOCOL,), stand_ins=(_CONFIG,),
        dialects=(_ALONE,), requires=RECENT,
    ),
)  # fmt: skip
