"""Bindings for ROLL's environment managers, which convert the turns of an episode to training rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .containers import PROTOCOL

_MANAGERS = "roll.pipeline.agentic.env_manager"
_CACHE = f"{_MANAGERS}.base_env_manager"
_CONSTANTS = "roll.utils.constants"
#: The first reward of a scenario is 0, which does not change a sum, so this number is added to each reward.
_MORE = 8.0
_WIDTH, _PAD = 16, 7

#: The columns of a turn: its prompt (without the extra first token), its answer, the answer's log-probs, its reward.
_TURN = {
    "layouts": {
        **{name: {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]} for name in ("prompt", "answer")},
        "log_probs": {"kind": "tensor", "dtype": "float32", "shape": ["tokens"]},
        "reward": {"kind": "tensor", "dtype": "float32", "shape": []},
    }
}
_ENVIRONMENT = StandIn("self", "the real manager's constructor creates an environment and an engine client")
_CLOCK = StandIn("time, datetime", "stand still, so that the reported times can be compared")


def _manager(boundary: Any, **attributes: Any) -> Any:
    """Return an environment manager. All of its ids and counters differ, so that a confusion of two is detected."""
    numbers = {
        "episode_id": 5,
        "group_seed": 6,
        "current_step": 2,
        "mode": "train",
        "tools": [],
        "traj_start_time": 0.0,
    }
    return kit.make_unbuilt(
        boundary.owner,
        logger=kit.make_silent_logger(),
        env_config=kit.Named(env_id=3, group_id=4, tag="tag", max_steps=9),
        pipeline_config=kit.stand_in(sequence_length=_WIDTH, exp_name="experiment"),
        tokenizer=kit.stand_in(pad_token_id=_PAD),
        **numbers,
        **attributes,
    )


def _still(boundary: Any) -> AbstractContextManager[None]:
    """Return a context manager that stops the clock of the module, so that reported times can be compared."""
    clocks = {"time": kit.stand_in(time=lambda: 50.0), "datetime": kit.stand_in(now=lambda: datetime(2026, 1, 2))}
    return kit.swap_all(
        boundary.module, **{name: each for name, each in clocks.items() if hasattr(boundary.module, name)}
    )


def _read(data: Any, row: int) -> dict[str, Any]:
    """Return a row's columns, or an empty dict if its positions, padding, prompt mask or scores are wrong."""
    batch = {name: column[row] for name, column in data.batch.items()}
    ids, there, answer = batch["input_ids"], batch["attention_mask"].bool(), batch["response_mask"].bool()
    length = int(there.sum())
    prompt = torch.arange(len(ids)) < int(batch["prompt_mask"].sum())
    fits = [
        torch.equal(there, torch.arange(len(ids)) < length),
        torch.equal(batch["position_ids"], torch.arange(len(ids)) * there),
        torch.equal(prompt, batch["prompt_mask"].bool()) and torch.equal(prompt, there & ~answer),
        bool((ids[~there] == _PAD).all()) and not batch["scores"][: length - 1].any(),
        data.non_tensor_batch["step_scores"][row] == batch["scores"][length - 1],
    ]
    log_probs = torch.cat([torch.zeros(1), batch["infer_logprobs"]])
    columns = {"prompt": ids[prompt][1:], "answer": ids[answer], "log_probs": log_probs[answer]}
    return {**columns, "reward": batch["scores"][length - 1] - _MORE} if all(fits) else {}


def _stepwise(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert each turn of an episode to one training row with ROLL, as for agents that train on single steps."""
    samples = inputs["samples"]
    cache = boundary.imported[_CACHE].RolloutCache(env_id=3, group_id=4, tag="tag")
    modes = {"second": "max", "first": "sum"}
    cache.history = [
        {
            "prompt_ids": [1, *sample["prompt"].tolist()],
            "response_ids": sample["answer"].tolist(),
            "infer_logprobs": sample["log_probs"].tolist(),
            "reward": float(sample["reward"]) + _MORE,
            "state_hash": f"state {place}",
            "messages": [{"role": "user", "content": f"turn {place}"}],
            "metrics": {"first": 1.0 + place, "second": 10.0 - place},
            "metrics_agg_mode": modes,
        }
        for place, sample in enumerate(samples)
    ]
    cache.history.append({"observation": "after the end"})
    cache.step, count = len(samples), len(samples)
    times = {"generate_time": [2.0 + n for n in range(count)], "step_time": [3.0 + 2 * n for n in range(count)]}
    steps = [*range(4, 4 + count)]
    stats = {**times, "current_step": steps, "reset_time": 1.5, "response_length": [], "tokens_per_second": []}
    reasons = getattr(boundary.imported[_CONSTANTS], "EpisodeStopReason", None)
    made = _manager(
        boundary,
        rollout_cache=cache,
        log_stats=stats,
        stop_reason=reasons and reasons.MAX_STEPS,
        env=kit.stand_in(env_timeout=False, env_info={"name": "environment"}),
    )
    with _still(boundary):
        data = boundary.function(made, cache)
    score = sum(float(sample["reward"]) + _MORE for sample in samples)
    whole = [
        data.non_tensor_batch["episode_scores"][row] == score and data.non_tensor_batch["step"][row] == row
        for row in range(len(data))
    ]
    return {"samples": [_read(data, row) if whole[row] else {} for row in range(len(data))]}


def _tracked(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert each recorded step or branch of an episode to one training row with ROLL.

    The mode is ``step`` for an odd number of rows, otherwise ``traj``. The reward is the pass rate in the result: in
    mode ``step`` only on the last row, in mode ``traj`` on each row.
    """
    samples = inputs["samples"]
    mode = "step" if len(samples) % 2 else "traj"
    recorded = [
        {
            "token_ids": [1, *sample["prompt"].tolist(), *sample["answer"].tolist()],
            "response_masks": [0] * (1 + len(sample["prompt"])) + [1] * len(sample["answer"]),
            "logprobs": [0.0] * (1 + len(sample["prompt"])) + sample["log_probs"].tolist(),
            "messages": [{"role": "user", "content": f"turn {place}"}],
        }
        for place, sample in enumerate(samples)
    ]
    names = ("step_rt", "pure_infer_time", "env_exec_time", "proxy_overhead")
    made = _manager(
        boundary,
        message_tracker=kit.stand_in(get_trajectory_data=lambda mode: recorded),
        trajectory_mode=mode,
        reward_granularity="pass_rate",
        history=recorded,
        log_stats={name: [1.0 + place, 3.0 + 2 * place] for place, name in enumerate(names)},
    )
    result = {"score": 0.25, "pass_rate": 0.75, "time_total_sec": 9.0}
    shares = ("agent_execution_time_ratio", "env_setup_time_ratio", "agent_setup_time_ratio")
    with _still(boundary):
        data = boundary.function(made, {**result, **{name: 0.125 * place for place, name in enumerate(shares, 1)}})
    last = len(samples) - 1
    scores = [0.75 if mode == "traj" or row == last else 0.0 for row in range(len(samples))]
    rows = [_read(data, row) for row in range(len(data))]
    for row, sample, score in zip(rows, samples, scores):
        if row and row["reward"] == score - _MORE:
            row["reward"] = sample["reward"]
    return {"samples": rows}


BINDINGS = (
    *(
        Binding(
            f"{_MANAGERS}.{path}.formulate_rollouts", "collation", call=call, fixed=_TURN,
            imports=(PROTOCOL, _CACHE, _CONSTANTS), stand_ins=(_ENVIRONMENT, _CLOCK), requires=(_CACHE,),
        )
        for path, call in (
            ("agent_native_env_manager.AgentNativeStepEnvManager", _stepwise),
            ("step_env_manager.StepEnvManager", _stepwise),
            ("proxy_env_manager.ProxyEnvManager", _tracked),
        )
    ),
)  # fmt: skip
