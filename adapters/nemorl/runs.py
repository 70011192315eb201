"""Bindings for NeMo-RL's training loops.

The real loops run a few steps, with stand-ins for models, engines and environments.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, cycle
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .shared import ALGORITHMS, BATCHES, LOSSES, MAIN, Options, Words, message

#: ``_ROWS`` is the number of rows in a step, two for each prompt. Training prompts are numbered from ``_NAMES``, and
#: validation prompts from ``_VALIDATION``.
_ROWS, _NAMES, _VALIDATION = 4, 10, 100
#: Seconds that an update takes by the stand-in clock.
_STEP = 1000
#: Maximum number of calls of ``train`` in a run. A call is an update or a validation batch.
_MOST = 30


class _Rows(list[Callable[[], Any]]):
    """A stand-in data loader that makes new batches for each iteration, because training loops may change them.

    :ivar endless: True if an iteration never ends, as with several data loaders.
    """

    endless = False

    @property
    def dataloaders(self) -> dict[str, Any]:
        return {"one": self}

    def __iter__(self) -> Iterator[Any]:
        return (make() for make in (cycle(list.__iter__(self)) if self.endless else list.__iter__(self)))

    def state_dict(self) -> dict[str, int]:
        return {"batches": len(self)}


#: The prompt that asks for a brief answer, and a token that an answer must not have.
_BRIEF, _UNWANTED = "Be brief.", 9


class _Run:
    """A stand-in for the policy, engine, logger and checkpointer of a training loop. It records what the loop does.

    Methods that are not defined here do nothing. Sentinel compares the arguments of all calls.
    """

    save_optimizer = True
    checkpoint_dir = "checkpoints"
    requires_kv_scale_sync = False
    weight_synchronizer = None
    cfg: Mapping[str, Any] = {"backend": "vllm", "vllm_cfg": {"async_engine": True, "max_model_len": 7}}

    def __init__(self, boundary: Any, inputs: Mapping[str, Any]) -> None:
        self._batch, self._rewards = boundary.imported[BATCHES].BatchedDataDict, inputs["rewards"]
        self._truncated, self._options = inputs["truncated"], inputs["equivalent_options"]
        self._answers: Counter[int] = Counter()
        self._alone = False  # whether the policy generates, without an engine
        self._parts, self._updates, self._loaded, self._calls = inputs["validation"], 0, 0, count()
        self._trainings = count()
        self._times: Counter[int] = Counter()
        self._metrics: list[str] = []
        self.did: dict[str, list[Any]] = {name: [] for name in ("trained", "validated", "saved")}
        self.sharding_annotations = kit.stand_in(get_axis_size=lambda *_: 1)

    def __getattr__(self, name: str) -> Any:
        optional = name in ("snapshot_step_metrics", "get_step_metrics") and self._options != _MANY
        if name.startswith("__") or optional:
            raise AttributeError(name)
        return partial(self.note, name, next(self._calls))

    def note(self, what: str, place: int, *_: Any, **__: Any) -> dict[str, Any]:
        """Do nothing, in place of a method that this class does not define. ``place`` is a running number."""
        return {}

    def _list(self, name: str) -> list[Any]:
        return self.did.setdefault(name, [])

    # -- batches

    def prompts(self, numbers: Sequence[int], rewards: Sequence[Sequence[float]]) -> Any:
        """Make a batch of prompts with the given numbers. The third token of a prompt is its number."""
        logs = [[message("user", [1, 2, number])] for number in numbers]
        info = []
        for number, own in zip(numbers, rewards):
            asks = [{"role": "user", "content": "" if any(own) else _BRIEF}]
            row = {"responses_create_params": {"input": asks}, "agent_ref": {"name": "one"}}
            info.append({"prompt": number, "rewards": list(own), **row})
        columns = {"task_name": ["one" if number % 2 else "two" for number in numbers], "extra_env_info": info}
        lengths = torch.full((len(logs),), 3)
        weights = torch.ones(len(logs))
        return self._batch(
            {**columns, "message_log": logs, "length": lengths, "loss_multiplier": weights, "idx": [*numbers]}
        )

    def answers(self, numbers: Sequence[int]) -> Any:
        """Make a batch of message logs with two-token answers. The first token of a log is its number."""
        logs = [[message("user", [number]), message("assistant", [5, 6])] for number in numbers]
        return self._batch({"message_log": logs, "loss_multiplier": torch.ones(len(logs))})

    def pairs(self, numbers: Sequence[int]) -> Any:
        """Make a collated batch of sequences. The first token of a sequence is its number."""
        ids = torch.tensor([[number, 5, 6] for number in numbers])
        lengths, ones = torch.full((len(ids),), 3), torch.ones(len(ids))
        return self._batch(
            {"input_ids": ids, "input_lengths": lengths, "token_mask": torch.ones_like(ids), "sample_mask": ones}
        )

    def loader(self, make: str) -> _Rows:
        size = _ROWS // 2 if make == "prompts" else _ROWS
        rows = []
        for place, rewards in enumerate(self._rewards):
            numbers = [_NAMES + size * place + row for row in range(size)]
            own = [[rewards[0:2], rewards[2:4]]] if make == "prompts" else []
            rows.append(partial(getattr(self, make), numbers, *own))
        return _Rows(rows)

    def validation_loader(self, make: str) -> _Rows:
        rows = []
        for part in self._parts:
            numbers = [_VALIDATION + row + value * _VALIDATION for row, value in enumerate(part)]
            numbers = [number for number in numbers for _ in range(1 + (make == "pairs"))]
            own = [[[float(value)] for value in part]] if make == "prompts" else []
            rows.append(partial(getattr(self, make), numbers, *own))
        return _Rows(rows)

    # -- the policy

    def generate(self, data: Any, greedy: bool = False) -> dict[str, Any]:
        ids, ends = data["input_ids"], data["input_lengths"]
        if ids[0, 2] < _VALIDATION:
            self._note_version()
        sizes = 1 + ids[:, 2] % 3
        whole = torch.zeros(len(ids), int((ends + sizes).max()), dtype=ids.dtype)
        log_probs = torch.zeros(whole.shape)
        for row, (end, size) in enumerate(zip(ends.tolist(), sizes.tolist())):
            whole[row, :end], whole[row, end : end + size] = ids[row, :end], torch.arange(5, 5 + size)
            log_probs[row, end : end + size] = -0.1 * (1 + row)
        lengths = {"unpadded_sequence_lengths": ends + sizes, "generation_lengths": sizes}
        routes = (whole[..., None, None] + torch.arange(2)).repeat(1, 1, 2, 1).int()
        return {
            "output_ids": whole,
            "logprobs": log_probs,
            "truncated": self._flags(ids[:, 2].tolist(), sizes == 3),
            "routed_experts": routes,
            **lengths,
        }

    def _note_version(self) -> None:
        """Record the weights that generate the first rollouts after an update."""
        if len(self._list("versions")) == self._updates:
            self._list("versions").append(self._updates if self._alone else self._loaded)

    def _flags(self, numbers: Sequence[int], usual: Any) -> Any:
        """Return which answers are truncated. The two answers to a prompt are generated one after the other."""
        if self._truncated is None:
            return usual
        flags = []
        for number in numbers:
            place = 2 * (number - _NAMES) + self._answers[number] % 2
            self._answers[number] += 1
            flags.append(bool(number < _VALIDATION and self._truncated[place // _ROWS][place % _ROWS]))
        return torch.tensor(flags)

    async def generate_async(self, data: Any, greedy: bool = False) -> Any:
        rows = self.generate(data, greedy)
        for row in reversed(range(len(data["input_ids"]))):
            own = self._batch({name: column[row : row + 1] for name, column in rows.items()})
            yield row, self._batch({**own, "gen_leader_worker_idx": [[row]]})

    def get_logprobs(self, data: Any, timer: Any = None) -> dict[str, Any]:
        return {"logprobs": -(data["input_ids"] % 7) / 10}

    def get_reference_policy_logprobs(self, data: Any, micro_batch_size: Any = None, timer: Any = None) -> Any:
        return {"reference_logprobs": -(data["input_ids"] % 5) / 10}

    def get_topk_logits(self, data: Any, k: int, timer: Any = None) -> dict[str, Any]:
        ids = data["input_ids"][..., None].expand(*data["input_ids"].shape, k)
        return {"topk_logits": ids / 10, "topk_indices": ids}

    def get_values(self, data: Any) -> dict[str, Any]:
        return {"values": torch.zeros(data["input_ids"].shape)}

    def train(
        self, data: Any, loss_fn: Any, eval_mode: bool = False, gbs: Any = None, mbs: Any = None, timer: Any = None
    ) -> dict[str, Any]:
        """Record a training step, or return a validation batch's loss, which is the mean of its samples' values."""
        if next(self._trainings) > _MOST:
            raise AbsentError(f"with these options, the run calls the method `train` more than {_MOST} times")
        first = data["input_ids"][:, 2 if "generation_logprobs" in data or "teacher_topk_logits" in data else 0]
        weights = data["sample_mask"] != 0
        loss = ((first[weights] >= 2 * _VALIDATION) * 1.0).mean() if eval_mode else torch.tensor(0.5)
        counted = {"num_valid_samples": [float(weights.sum())], "global_valid_seqs": [4.0, 2.0]}
        metrics: dict[str, list[float]] = {name: [0.25, 0.5] for name in self._metrics}
        if eval_mode:
            metrics = {name: [float(loss)] for name in self._metrics}
        else:
            self._updates += 1
            self._note_rows(data, first)
        metrics |= {"loss": [float(loss)], "lr": [0.1, 0.3], "wd": [0.1, 0.2], "global_valid_toks": [10.0, 30.0]}
        metrics |= {"token_mult_prob_error": [1.5], "gen_kl_error": [0.25], **counted}
        metrics |= {f"probs_ratio_{name}": [0.5, float("inf"), 2.0] for name in ("min", "max", "clamped_min")}
        flops = {"total_flops": 3e12, "num_ranks": 2, "theoretical_tflops": 4.0, "moe_metrics": {"load": 0.5}}
        if self._options == _MANY:
            flops |= {"mtp_metrics": {"accepted": 0.5}, "draft_grad_norm": torch.tensor(1.5)}
            metrics["draft_loss"] = [0.5]
        return {"loss": loss, "grad_norm": torch.tensor(2.0), "all_mb_metrics": metrics, **flops}

    def _note_rows(self, data: Any, first: Any) -> None:
        numbers = (first - _NAMES).tolist()
        if "generation_logprobs" in data or "teacher_topk_logits" in data:
            times: Counter[int] = Counter()
            for place, number in enumerate(numbers):
                numbers[place] = 2 * number + times[number]
                times[number] += 1
        self.did["trained"] += numbers
        if "sample_mask" in data:
            self._list("counted").extend((data["sample_mask"] != 0).int().tolist())
        if "advantages" in data:
            counted = data["sample_mask"] != 0
            tokens = (data["token_mask"] != 0).float()
            means = (data["advantages"] * tokens).sum(-1) / tokens.sum(-1)
            self._list("advantages").extend(torch.where(counted, means, 0.0))

    def calibrate_qkv_fp8_scales(self, data: Any, include_q: bool = False, **_: Any) -> dict[str, Any]:
        return {"layers": {"0": 1.0}}

    def get_logger_metrics(self) -> dict[str, Any]:
        """Return sizes and queue lengths of two engines over time."""
        sizes = {0: [0, 1, 2, 0], 1: [3] * 60}
        return {"inflight_batch_sizes": sizes, "num_pending_samples": {0: [1, 0], 1: []}}

    def load(self, *_: Any, **__: Any) -> dict[str, float]:
        """Record that the engine loads the policy's current weights."""
        self._loaded = self._updates
        return {"refitted": 1.0}

    # -- NeMo-Gym

    def run_examples(self, examples: Sequence[Mapping[str, Any]], head_server_config: Any) -> list[Any]:
        """Return the examples' results in reverse order. A result with reward 0 has a fault that NeMo-RL penalises."""
        if examples[0]["prompt"] < _VALIDATION:
            self._note_version()
        results = []
        for place, (row, reward) in enumerate(zip(examples, self._next_rewards(examples))):
            number, good = row["prompt"], bool(reward)
            text, thought = ("yes", "hm") if good else (("", "hm"), ("same", "same"), ("no", "hm"))[place % 3]
            ids = [5, 6] if good or place % 3 < 2 else [_UNWANTED, 5, 8]
            say = {"type": "message", "content": [{"text": text}], "generation_token_ids": ids}
            say |= {"prompt_token_ids": [1, 2, number], "generation_log_probs": [-0.1 * (1 + place)] * len(ids)}
            items = [{"type": "reasoning", "summary": [{"text": thought}]}, say]
            if number % 2:
                more = {"prompt_token_ids": [1, 2, number, *ids, 6], "generation_token_ids": [5]}
                items += [*items[:1], {**say, **more, "generation_log_probs": [-0.2]}]
            items.append({"type": "message", "content": []})
            asked = {"responses_create_params": dict(row["responses_create_params"]), "reward": float(reward)}
            results.append(_Answer((row, {"response": {"output": items}, **asked})))
        return results[::-1]

    def _next_rewards(self, infos: Sequence[Mapping[str, Any]]) -> list[float]:
        rewards = []
        for info in infos:
            rewards.append(info["rewards"][self._times[info["prompt"]] % len(info["rewards"])])
            self._times[info["prompt"]] += 1
        return rewards

    # -- the environment, the logger and the checkpointer

    def step(self, messages: Any, infos: Any) -> Callable[[], Any]:
        rewards = self._next_rewards(infos)
        rows = len(infos)
        texts = [{"role": "environment", "content": "6"}] * rows
        return lambda: (texts, [None] * rows, [None] * rows, torch.tensor(rewards), torch.ones(rows), [None] * rows)

    def log_metrics(
        self, metrics: Mapping[str, Any], step: int, prefix: str = "", step_finished: bool = False, **_: Any
    ) -> None:
        if prefix == "train" and "loss" in metrics and "reward" in metrics:
            self._list("reward").append(metrics["reward"])
        name = next((name for name in ("accuracy", "val_loss", "loss") if name in metrics), "")
        if prefix.startswith("validation") and name:
            self.did["validated"].append(step)
            self._list("validation").append(metrics[name])

    def log_batched_dict_as_jsonl(self, columns: Mapping[str, Any], name: str) -> None:
        """Do not write the rows of a step to a file."""

    def log_histogram(self, values: Any, step: int, name: str) -> None:
        """Do not plot the values of a step."""

    def log_plot_token_mult_prob_error(self, data: Any, step: int, name: str) -> None:
        """Do not plot the sample whose sampling and training probabilities differ most."""

    def init_tmp_checkpoint(self, step: int, state: Mapping[str, Any], config: Any = None) -> str:
        self.did["saved"].append(step)
        return f"step {step}"

    def save_checkpoint(self, **paths: Any) -> None:
        """Do not write a checkpoint."""

    def get_latest_checkpoint_path(self) -> None:
        """Return None, because no earlier run saved a checkpoint."""

    def blocks_training(self) -> bool:
        return False

    def save_loader(self, state: Any, path: Any) -> None:
        """Do not write the state of a data loader."""


#: Numbers of the sets of options that must not change a run. With ``_MANY``, the engine has its own devices, quantised
#: caches and step metrics, and reference log-probs are not used. With ``_FEW``, there are several data loaders,
#: checkpoints are ranked by a validation, ratios are 1, and the policy itself generates, if the loop supports it.
_MANY, _FEW = 1, 2
_ONE_DEVICE_LOOPS = ("ppo", "distillation")  # loops that may have no engine

#: Additional options for runs of several epochs. With these values, they mask no sequence and reduce no reward.
_NEUTRAL = {
    "seq_logprob_error_threshold": 1e6,
    "debug_payload_metrics": True,
    "reward_shaping": {
        "enabled": True, "stop_properly_penalty_coef": 1.0, "overlong_buffer_length": 1, "overlong_buffer_penalty": 0.0,
        "max_response_length": 1000,
    },
}  # fmt: skip


def _make_config(boundary: Any, inputs: Mapping[str, Any], name: str, waits: bool, gym: bool) -> Any:
    """Make NeMo-RL's configuration of a training run. Options that are not set here have NeMo-RL's defaults.

    :param name: the algorithm, such as ``grpo``.
    :param waits: True if rollouts are coroutines.
    :param gym: True if NeMo-Gym runs the rollouts.
    """
    estimator, losses = "gae" if name == "ppo" else "grpo", boundary.imported[LOSSES]
    planned = inputs["epochs"] * len(inputs["rewards"])
    options = {
        "max_num_steps": planned if inputs["max_steps"] is None else min(planned, inputs["max_steps"]),
        "max_num_epochs": inputs["epochs"],
        "val_period": inputs["validation_period"],
        "val_at_start": inputs["validates_first"],
        "val_at_end": inputs["validates_last"],
        "val_batch_size": 4,
        "val_global_batch_size": 4,
        "num_prompts_per_step": 2,
        "num_generations_per_prompt": 2,
        "max_val_samples": 100,
        "max_rollout_turns": 2,
        "normalize_rewards": False,
        "use_leave_one_out_baseline": False,
        "topk_logits_k": 2,
        "val_batches": 0,
        "ppo_epochs": 1,
        "skip_reference_policy_logprobs_calculation": False,
        **(_NEUTRAL if inputs["epochs"] > 1 else {}),
    }
    more = {
        "stop_at_validation_metric": "accuracy" if inputs["stop_value"] is not None else None,
        "stop_at_validation_threshold": inputs["stop_value"],
        "use_dynamic_sampling": inputs["filters_constant_groups"],
        "dynamic_sampling_max_gen_batches": 10,
        "overlong_filtering": inputs["filters_truncated"],
    }
    sets = inputs["equivalent_options"]
    # With TransferQueue, NeMo-RL's workers read the reference log-probs even if nobody has computed them.
    unused = sets == _MANY and "sync" not in boundary.path
    options |= {**more, "skip_reference_policy_logprobs_calculation": unused}
    kind = next(value for key, value in vars(boundary.module).items() if key.lower() == f"{name}config")
    if not hasattr(kind, "model_fields"):
        raise AbsentError(f"this version's {kind.__name__} is not a pydantic model")
    if missing := [key for key, value in more.items() if value and key not in kind.model_fields and value != 10]:
        raise AbsentError(f"this version's {kind.__name__} has no option {missing[0]}")
    own = kind(**{key: value for key, value in options.items() if key in kind.model_fields})
    if "adv_estimator" in kind.model_fields:
        gae = dict.fromkeys(("gae_lambda", "gae_gamma"), 1.0) | {"normalize_advantages": False}
        usual = {"gae_lambda_value": None, "gae_lambda_policy": None, "length_adaptive_alpha": 0.0}
        own.adv_estimator = Options({**options, **gae, **usual, "name": estimator, "reward_weights": None})
    apart = "async" in boundary.path
    shared = {"enabled": not apart and sets != _MANY, "resources": {"num_nodes": 1, "gpus_per_node": 1}}
    engine = {"async_engine": waits, "expose_http_server": True, "max_model_len": 7}
    if sets == _MANY:
        engine |= {"enable_vllm_metrics_logger": True, "vllm_metrics_logger_interval": 0.5}
    generation = {"colocated": shared, "backend": "vllm", "vllm_cfg": engine, "max_new_tokens": 50, "top_k": None}
    generation |= {"temperature": 1.0, "top_p": 1.0, "stop_strings": None, "stop_token_ids": None}
    generation |= {"val_temperature": 0.5, "val_top_p": 0.9, "val_top_k": None}
    penalties = {f"penalize_{fault}": True for fault in _FAULTS} if gym else {}
    tokens = {"unwanted": [_UNWANTED], "think_open": 7, "think_close": 8}
    brief = {"low_weight": 1.0, "low_penalty": 1.0, "low_ub": 4, "low_string": _BRIEF}
    policy = {"generation": generation, "precision": "float32", "max_total_sequence_length": 100}
    policy |= {"train_global_batch_size": 2, "train_micro_batch_size": 1, "make_sequence_length_divisible_by": 4}
    policy |= {"router_replay": {"enabled": not gym}}
    saving = {"enabled": True, "checkpoint_must_save_by": None, "save_period": inputs["save_period"]}
    if inputs["time_limit"] is not None:
        hours, seconds = divmod(_STEP * inputs["time_limit"] + _STEP // 2, 3600)
        saving["checkpoint_must_save_by"] = f"00:{hours:02}:{seconds // 60:02}:{seconds % 60:02}"
    ranked_by = "val:accuracy" if sets == _FEW else "train:loss"
    corrected = {"use_importance_sampling_correction": apart, "force_on_policy_ratio": sets == _FEW}
    corrected |= {"reference_policy_kl_penalty": 0.0} if sets == _MANY else {}
    return boundary.module.MasterConfig.model_construct(
        **{name: own},
        policy=policy,
        loss_fn=losses.ClippedPGLossConfig(**corrected),
        checkpointing={**saving, "metric_name": ranked_by},
        cluster={"num_nodes": 2, "gpus_per_node": 2},
        logger={"num_val_samples_to_print": 1, "wandb_enabled": False, "wandb": {}},
        data={"use_multiple_dataloader": sets == _FEW},
        env={"should_use_nemo_gym": gym, "nemo_gym": {"effort_levels": brief}} if gym else {},
        reward_penalties={**penalties, "token_ids": tokens},
        on_policy_distillation=None,
    )


class _Answer:
    """A stand-in for the object reference that a Ray actor's method returns. It can be awaited or passed to _get."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Iterator[Any]:
        yield from ()
        return self.value


class _Actor:
    """A stand-in for a Ray actor whose methods run immediately, in this process."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        return kit.stand_in(remote=lambda *_, **__: _Answer(getattr(self._made, name)(*_, **__)))


def _actors(make: Callable[..., Any]) -> Any:
    class Actors:
        def __init__(self, **_: Any) -> None:
            """Ignore the options, because Sentinel would compare the environment variables that they contain."""

        def remote(self, **named: Any) -> _Actor:
            return _Actor(make(**named))

    return kit.stand_in(options=Actors)


def _get(answers: Any, **_: Any) -> Any:
    if not isinstance(answers, _Answer):
        return [answer() for answer in answers]
    return kit.run_async(answers.value) if inspect.iscoroutine(answers.value) else answers.value


def _make_gym(kind: Any, run: _Run) -> Any:
    """Make a stand-in for NeMo-Gym's Ray actor, which runs NeMo-RL's code without Gym's servers."""
    served = {"rh": run, "rch": run, "head_server_config": None, "_tokenizer": Words(), "cfg": {}}
    made = kit.make_unbuilt(kind, **served, _processor=None)

    async def stream(*arguments: Any) -> Any:
        async for result in made.run_rollouts(*arguments):
            yield _Answer(result)

    return kit.stand_in(run_rollouts=kit.stand_in(options=lambda **_: kit.stand_in(remote=stream)))


def _make_collector(kind: Any, run: _Run) -> Any:
    """Make a subclass of NeMo-RL's trajectory collector that collects immediately instead of in a thread."""

    class Collector(kind):  # type: ignore[misc]
        def start_collection(self, dataloader: Any) -> None:
            self.running, self.dataloader, self.batches = True, dataloader, cycle(dataloader)
            self.fill()

        def set_weight_version(self, version: int) -> None:
            super().set_weight_version(version)
            self.fill()

        def set_generation_window(self, **window: int) -> None:
            super().set_generation_window(**window)
            self.fill()

        def resume_after_refit(self) -> None:
            super().resume_after_refit()
            self.fill()

        def fill(self) -> None:
            """Collect batches until NeMo-RL's collector pauses, at most four."""
            for _ in range(4):
                paused = not self._refit_pause_cleared.is_set() or self._should_pause_for_generation_limits()
                if self.running and not paused and getattr(self, "_fatal_error_message", None) is None:
                    run.did.setdefault("versions", []).append(run._loaded)
                    self._process_batch(next(self.batches))

    return Collector


class _Thread:
    """A stand-in for a thread. The method ``start`` runs the whole target before it returns."""

    def __init__(self, target: Callable[[], None], daemon: bool = False) -> None:
        self.start = target

    def is_alive(self) -> bool:
        return False


class _Waits:
    """Stand-ins for waiting. They raise AbsentError at the 20th wait, because nothing happens while a loop waits."""

    def __init__(self) -> None:
        self._left = 20

    def sleep(self, *_: Any) -> None:
        self._left -= 1
        if not self._left:
            raise AbsentError("with these options, the run never ends: it waits for an event that no stand-in produces")

    async def pause(self, *_: Any) -> None:
        self.sleep()

    def event(self) -> Any:
        """Make an event whose ``wait`` always returns at once. If the event is not set, the wait is counted."""
        made = threading.Event()
        made.wait = lambda timeout=None: made.is_set() or self.sleep() or False  # type: ignore[method-assign]
        return made


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


_OF_CRITIC = ("returns_mean", "values_mean", "returns_sq_mean", "residual_sq_mean", "values_min", "values_max")
_FAULTS = ("duplicated_reasoning", "empty_final_answer", "unwanted_tokens", "malformed_think_tag")
_GYM, _ASYNC = "nemo_rl.environments.nemo_gym", f"{ALGORITHMS}.async_utils"
_HISTOGRAMS, _PAYLOADS = "nemo_rl.experience.metric_utils", "nemo_rl.utils.multimodal_payload_metrics"
_BUFFER, _COLLECTOR = f"{_ASYNC}.replay_buffer", f"{_ASYNC}.trajectory_collector"
_ROLLOUTS, _TIMER = "nemo_rl.experience.rollouts", "nemo_rl.utils.timer"
_GRPO = f"{ALGORITHMS}.grpo"


def _ran(name: str, make: str, waits: bool, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one of NeMo-RL's training loops with stand-ins, and return the record of the run."""
    run, imported, module = _Run(boundary, inputs), boundary.imported, boundary.module
    many, few = (inputs["equivalent_options"] == sets for sets in (_MANY, _FEW))
    run.requires_kv_scale_sync = many
    gym = name in ("grpo", "distillation") and len(inputs["rewards"]) == 1
    config, critic = _make_config(boundary, inputs, name, waits or gym, gym), _Run(boundary, inputs)
    critic._metrics = [*_OF_CRITIC]
    for kind in ("DPOValMetrics", "RMValMetrics"):
        if hasattr(module, kind):
            run._metrics = [field.name for field in dataclasses.fields(getattr(module, kind))]
    environments = dict.fromkeys(("one", "two"), kit.stand_in(step=kit.stand_in(remote=run.step)))
    if _GYM in imported:
        environments["nemo_gym"] = _make_gym(imported[_GYM].NemoGym, run)
    initial = next(value for key, value in vars(module).items() if key.startswith("_") and key.endswith("save_state"))
    validation, training = run.validation_loader(make), run.loader(make)
    training.endless = few and make == "prompts" and not inputs["filters_constant_groups"]
    named = {
        "policy": run, "policy_generation": run, "student_policy": run, "teacher_policy": run, "value_model": critic,
        "student_generation": run, "logger": run, "checkpointer": run, "tokenizer": Words(), "loss_fn": None,
        "value_loss_fn": None, "task_to_env": environments, "val_task_to_env": environments, "master_config": config,
        **dict.fromkeys(("wrapped_dataloader", "dataloader", "train_dataloader"), training),
        "val_dataloader": {"one": validation} if make == "pairs" else validation,
        f"{name}_save_state": initial(),
    }  # fmt: skip
    if few and name in _ONE_DEVICE_LOOPS and "async" not in boundary.path:
        run._alone = True
        named |= dict.fromkeys(("policy_generation", "student_generation"))
    seconds, patience = count(), _Waits()  # the clock advances a little at each reading, and a lot in each update
    read = lambda: _STEP * run._updates + next(seconds) / 1000  # noqa: E731
    clock = kit.stand_in(**dict.fromkeys(("perf_counter", "time"), read), sleep=lambda *_: None)
    ray = kit.stand_in(get=_get, kill=lambda *_: None)
    replaced = {
        "refit_policy_generation": run.load, "_write_latest_checkpoint_status": run.write_status, "ray": ray,
        **dict.fromkeys(("get_actor_python_env", "make_actor_runtime_env"), lambda name: name), "time": clock,
    }  # fmt: skip
    with ExitStack() as alone:
        alone.enter_context(
            kit.swap_all(module, MemoryTracker=lambda: kit.stand_in(snapshot_start_of_stage={}.get), **replaced)
        )
        alone.enter_context(kit.swap(imported[_TIMER], "time", clock))
        alone.enter_context(kit.swap(module.torch, "save", run.save_loader))
        alone.enter_context(kit.swap(imported[_ROLLOUTS].asyncio, "to_thread", _at_once))
        alone.enter_context(kit.swap(imported[_ROLLOUTS], "ray", ray))
        if _PAYLOADS in sys.modules:  # since August 2026; Ray's pickle is a stub, and only the number of bytes is used
            alone.enter_context(kit.swap(sys.modules[_PAYLOADS], "cloudpickle", kit.stand_in(dumps=_pickle_names)))
        if _HISTOGRAMS in imported:
            alone.enter_context(kit.swap(imported[_HISTOGRAMS], "Histogram", list))
        if _COLLECTOR in imported:
            collects = imported[_COLLECTOR]
            collector = _make_collector(collects.AsyncTrajectoryCollector, run)
            buffer = imported[_BUFFER].ReplayBufferImpl
            threads = _make_threads(collects._threading, patience)
            alone.enter_context(kit.swap_all(collects, ray=ray, _threading=threads, time=clock))
            alone.enter_context(kit.swap(collects.asyncio, "sleep", patience.pause))
            actors = {"AsyncTrajectoryCollector": _actors(collector), "ReplayBuffer": _actors(buffer)}
            alone.enter_context(kit.swap_all(imported[_ASYNC], **actors))
        boundary.function(**{key: value for key, value in named.items() if key in boundary.parameters})
    if inputs["filters_constant_groups"]:
        run.did.pop("reward", None)  # NeMo-RL reports a mean over rewards of prompts that it does not train on
    if "versions" in run.did:  # a run that ends early may have generated rollouts that it does not train on
        run.did["versions"] = run.did["versions"][: run._updates]
    return run.did


def _pickle_names(value: Any, **_: Any) -> bytes:
    """Return a batch's sorted column names as bytes, in place of the batch's pickle."""
    return repr(sorted(value) if isinstance(value, Mapping) else type(value).__name__).encode()


def _make_threads(module: Any, waits: _Waits) -> Any:
    names = ("Lock", "RLock", "current_thread", "Condition", "local")
    return kit.stand_in(Thread=_Thread, Event=waits.event, **{name: getattr(module, name) for name in names})


_OF_GAE = (
    Dialect(
        "centred",
        False,
        "with values of 0, GAE (arXiv:1506.02438) is the reward itself",
        f"{MAIN}/algorithms/ppo.py#L1199",
    ),
)
_AHEAD = (
    Dialect("ahead", 1, "the engine generates rollouts one step ahead of training", f"{MAIN}/algorithms/grpo.py#L4450"),
)


def _choices(path: str, name: str, make: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of optional inputs that a training loop supports."""
    choices: dict[str, tuple[Any, ...]] = {"time_limit": (None, None, 2)}
    if make == "prompts":
        choices["equivalent_options"] = (0, _MANY, _FEW)
    if name == "grpo":
        choices["stop_value"] = (None, None, 0.5)
    if name in ("grpo", "ppo"):
        choices["filters_truncated"] = (False, False, True)
    if name == "grpo" and "async" not in path:
        choices["filters_constant_groups"] = (False, False, True)
    return choices


_STAND_INS = (
    StandIn("policy, engine, environment", "return the scenario's rewards and fixed tokens; no model runs"),
    StandIn("logger, checkpointer, clock", "record their arguments; nothing is written, and time advances by calls"),
)
_OF_ROLLOUTS, _OF_ASYNC = (_GYM, _HISTOGRAMS), (_ASYNC, _BUFFER, _COLLECTOR)
_IMPORTS = (BATCHES, _ROLLOUTS, _TIMER, LOSSES)
BINDINGS = tuple(
    Binding(
        f"{ALGORITHMS}.{path}", "training_loop", call=partial(_ran, name, make, waits), stand_ins=_STAND_INS,
        imports=(*_IMPORTS, *(_OF_ROLLOUTS if make == "prompts" else ()), *(_OF_ASYNC if "async" in path else ())),
        requires=(f"{_GRPO}._initial_grpo_save_state",),
        dialects=(*(_OF_GAE if name == "ppo" else ()), *(_AHEAD if "async" in path else ())),
        accepts=_choices(path, name, make),
    )
    for path, name, make, waits in (
        ("grpo.grpo_train", "grpo", "prompts", False), ("ppo.ppo_train", "ppo", "prompts", True),
        ("grpo.async_grpo_train", "grpo", "prompts", True), ("ppo.async_ppo_train", "ppo", "prompts", True),
        ("distillation.distillation_train", "distillation", "prompts", True),
        ("sft.sft_train", "sft", "answers", False), ("dpo.dpo_train", "dpo", "pairs", False),
        ("rm.rm_train", "rm", "pairs", False),
    )
)  # fmt: skip
