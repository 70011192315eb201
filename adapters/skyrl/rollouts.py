"""Bindings for SkyRL's rollout generator. A stand-in engine and environment return the scenario's tokens and texts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import (
    ROW,
    WEIGHTS,
    WORDS,
    ChatTokenizer,
    TableEngine,
    WeightEngine,
    chat,
    rollout,
    sampling_request,
)

from .shared import BACKEND, CODE, CONFIG

_GENERATOR = "generators.skyrl_gym_generator.SkyRLGymGenerator"
_NOW = f"skyrl.train.{_GENERATOR}"

_EOS, _SAID, _HEARD = 2, 20, 30


class _Gym:
    """The base class of stand-in environments. Subclasses define ``heard``."""

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        return prompt, {}

    def heard(self) -> tuple[list[Any], bool]:
        """Return the environment's next messages, and whether the episode has ended."""
        raise NotImplementedError

    def step(self, output: str) -> dict[str, Any]:
        heard, done = self.heard()
        return {"observations": heard, "reward": self.reward(), "done": done, "postprocessed_action": None}

    def reward(self) -> float:
        return 1.0

    def get_metrics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    async def finish_session(self, *_: Any) -> None:
        pass


class _Environment(_Gym):
    """A stand-in environment whose messages are as long as the scenario requires."""

    def __init__(self, heard: list[int], rewards: Sequence[float] = ()) -> None:
        self._heard, self._rewards = list(heard), list(rewards)

    def reward(self) -> float:
        return self._rewards.pop(0) if self._rewards else 1.0

    def heard(self) -> tuple[list[Any], bool]:
        count = self._heard.pop(0)
        return [{"role": "user", "content": "x" * count}] if count else [], not self._heard


@dataclass
class _Sampling(dict[str, Any]):
    """Sampling parameters that older code reads as an empty mapping, and newer code as a record."""

    logprobs: int | None = None


class _Engine:
    """A stand-in engine whose responses are as long as the scenario requires, and end with EOS."""

    def __init__(self, lengths: list[list[int]]) -> None:
        self._said = list(lengths)

    async def finish_session(self, *_: Any) -> None:
        pass

    async def generate(self, request: Any, **_: Any) -> dict[str, Any]:
        lengths = self._said.pop(0)
        ids = [[_SAID] * (length - 1) + [_EOS] for length in lengths]
        return {"responses": ["x" * n for n in lengths], "response_ids": ids, "stop_reasons": ["stop"] * len(ids)}


class _Tokenizer:
    """A stand-in tokenizer for which each letter is a token, and a chat is the concatenation of its messages."""

    eos_token, eos_token_id = "$", _EOS
    pad_token_id = 0

    def apply_chat_template(self, messages: Any, **_: Any) -> Any:
        if messages and isinstance(messages[0], list):
            return [self.apply_chat_template(chat) for chat in messages]
        return [_HEARD for message in messages for _ in message["content"]]

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [_SAID] * (len(text) - 1) + [_EOS]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "x" * len(ids)


_SFT, _AFTER_STOP = "skyrl.train.sft_trainer", "append_eos_token_after_stop_str_in_multi_turn"


def _trained_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask that SkyRL computes for a chat, after collation as a single row."""
    tokenizer, messages = chat(inputs)
    kinds = boundary.module.TrainOnWhat
    which = {"all": kinds.ALL_ASSISTANT_MESSAGES, "last": kinds.LAST_ASSISTANT_MESSAGE}[inputs["trains"]]
    example = boundary.invoke(
        {}, example={"messages": messages}, tokenizer=tokenizer, max_length=inputs["max_tokens"], train_on_what=which
    )
    if example is None:
        return {"token_ids": None}
    batch = boundary.module.collate_sft_batch([example], tokenizer)
    ids, mask = batch["sequences"][0], batch["loss_mask"][0]
    return {"token_ids": ids, "loss_mask": [0] * (len(ids) - len(mask)) + mask.tolist()}


def _make_settings(kind: Any, turns: int, conversation: bool, sampling: Any, **more: Any) -> Any:
    off = ("apply_overlong_filtering", "step_wise_trajectories", "zero_reward_on_non_stop", "batched", _AFTER_STOP)
    return kind(
        max_turns=turns,
        use_conversation_multi_turn=conversation,
        chat_template_kwargs={},
        inference_engine=kind(enable_return_routed_experts=False),
        sampling_params=sampling,
        **{**dict.fromkeys(off, False), **more},
    )


def _make_generator(boundary: Any, engine: _Engine, turns: int, conversation: bool, batched: bool = False) -> Any:
    settings = _make_settings(kit.stand_in, turns, conversation, _Sampling(), batched=batched)
    base = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
    return kit.make_unbuilt(
        boundary.owner,
        generator_cfg=settings,
        skyrl_gym_cfg={},
        inference_engine_client=engine,
        tokenizer=_Tokenizer(),
        policy_model_name="policy",
        max_turns=turns,
        batched=batched,
        use_conversation_multi_turn=conversation,
        custom_chat_template=None,
        generation_prompt_ids=[],
        env_executor=None,
        base_conversation=base,
        base_conversation_token_ids=[_HEARD] * 2,
    )


def _use_environment(boundary: Any, *heard_and_rewards: Any) -> AbstractContextManager[Any]:
    return kit.swap(boundary.module.skyrl_gym, "make", lambda *_, **__: _Environment(*heard_and_rewards))


_PROMPT = [{"role": "user", "content": "xx"}]


def _run_episode(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one episode of SkyRL's agent loop with the scenario's responses, messages and rewards."""
    keeps_limit = "max_response_tokens" in kit.source_of(boundary.function)
    if not keeps_limit and sum(inputs["said"]) > inputs["max_tokens"]:
        raise AbsentError("this version's agent loop has no length limit; the engine limits responses instead")
    conversation = len(inputs["said"]) > 1 or inputs["heard"][-1] > 0
    generator = _make_generator(boundary, _Engine([[n] for n in inputs["said"]]), inputs["turns"], conversation)
    with _use_environment(boundary, inputs["heard"], inputs["rewards"]):
        answer = asyncio.run(boundary.function(generator, list(_PROMPT), "env", {}, inputs["max_tokens"], 1000))
    if isinstance(answer, tuple):  # older loops return (response, reward, stop reason, loss mask, prompt)
        _, reward, reason, mask, *_ = answer
    else:
        reward, reason, mask = answer.reward, answer.stop_reason, answer.loss_mask
    return {"loss_mask": mask, "cut": reason == "length", "reward": reward}


def _generate_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Generate a batch with SkyRL. Return the lengths of the responses, and the lengths that SkyRL reports."""
    generated = inputs["arguments"]["generated"]
    rows = len(generated)
    generator = _make_generator(boundary, _Engine([generated]), 1, conversation=False, batched=True)
    with _use_environment(boundary, [0]):
        answer = asyncio.run(
            boundary.function(
                generator,
                [list(_PROMPT) for _ in range(rows)],
                ["gsm8k"] * rows,
                [{} for _ in range(rows)],
                inputs["arguments"]["max_tokens"],
                *((1000,) if "max_input_length" in boundary.parameters else ()),
            )
        )
    metrics = answer["rollout_metrics"]
    names = {"mean": "avg", "max": "max", "min": "min"}
    reported = {name: metrics[f"generate/{key}_num_tokens"] for name, key in names.items()}
    return {"returned": {"lengths": [len(row) for row in answer["response_ids"]], **reported}}


class _OfTable(_Gym):
    """A stand-in engine and environment in one. It returns the scenario's tokens and messages."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.table, self.truths, self._again = TableEngine(inputs), list[Any](), inputs["heard_as"] == "again"
        self.prompt = [message for message in self.table.prompt if message["role"] != "system"]

    async def generate(self, request: Any, **_: Any) -> dict[str, Any]:
        ids = request.get("prompt_token_ids")
        if ids is None:  # older loops pass a chat instead of ids
            ids = [self.table.tokenizer.apply_chat_template(request["prompts"][0], add_generation_prompt=True)]
        answer = self.table.answer(ids[0], request.get("sampling_params"))
        return {
            "responses": [answer.text],
            "response_ids": [list(answer.ids)],
            "stop_reasons": [answer.ends],
            "response_logprobs": None if self._again else [list(answer.log_probs)],
        }

    def make(self, *_: Any, extras: Mapping[str, Any], **__: Any) -> Any:
        self.truths.append(extras.get("ground_truth"))
        return self

    def init(self, prompt: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return self.table.prompt[: len(self.table.prompt) - len(prompt)] + prompt, {}

    def heard(self) -> tuple[list[Any], bool]:
        heard = self.table.heard()
        return heard, not heard


@dataclass
class _Options(_Sampling):
    stop: Any = None


def _run_rollout(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one rollout with SkyRL's generator, made by its real constructor.

    If an answer has no end token, a stop string ends it.
    """
    engine, text = _OfTable(inputs), inputs["end"] == "text" or inputs["heard_as"] == "text"
    own = {"chat_template": kit.Named(source="name", name_or_path=None), _AFTER_STOP: True}
    settings = _make_settings(kit.Named, inputs["turns"], inputs["heard_as"] != "text", _Options(), **own)
    policy = ["policy"] * ("model_name" in str(inspect.signature(boundary.owner)))  # only in some versions
    made = boundary.owner(settings, kit.Named(max_env_workers=0), engine, engine.table.tokenizer, *policy)
    if inputs["heard_as"] == "again":  # as if the user had set a chat template
        made.custom_chat_template, made.tokenizer = "of words", ChatTokenizer(default_system=True)
    sampling = {**inputs["options"], "logprobs": 1, "stop": [word["content"] for word in engine.table.messages] * text}
    with kit.swap(boundary.module.skyrl_gym, "make", engine.make):
        row = {"ground_truth": ROW}
        answer = kit.run_async(
            boundary.function(made, list(engine.prompt), "env", row, 100, 1000, sampling_params=sampling)
        )
    if isinstance(answer, tuple):  # older loops return (response, reward, stop reason, loss mask, prompt)
        names = ("response_ids", "reward", "stop_reason", "loss_mask", "prompt_ids", "rollout_logprobs")
        answer = kit.stand_in(**{**dict.fromkeys(names), **dict(zip(names, answer))})
    return {
        **{name: getattr(answer, name) for name in ("prompt_ids", "response_ids", "loss_mask")},
        "log_probs": answer.rollout_logprobs or None,  # older versions return no log-probs
        "cut": answer.stop_reason == "length",
        "row": engine.truths,
        "engine": engine.table,
    }


def _engine_versions(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weight version with which the engine generates each sample.

    SkyRL broadcasts weights after each update. A colocated engine sleeps before each update.
    """
    engine, updates = WeightEngine(), 0

    async def answer(method: str, *arguments: Any, **options: Any) -> None:
        getattr(engine, method)(*arguments, **options)

    async def nothing(*_: Any, **__: Any) -> None:
        return None

    client = kit.stand_in(
        **{method: partial(answer, method) for method in ("sleep", "wake_up")},
        **dict.fromkeys(("pause_generation", "resume_generation"), nothing),
        increment_weight_version=lambda: None,
    )
    settings = {"trainer.strategy": "fsdp", "trainer.policy.model.lora.rank": 0}
    own = {"weight_sync_backend": "nccl", "offload_kv_for_weight_sync": False}
    settings |= {f"generator.inference_engine.{name}": value for name, value in own.items()}
    dispatch = kit.make_unbuilt(
        boundary.owner,
        cfg=kit.nest_options(settings),
        colocate_all=inputs["sleeps"],
        _inference_engine_client=client,
        _broadcast_to_inference_engines=lambda *_, **__: engine.load(updates),
        **dict.fromkeys(("_prepare_for_weight_sync", "_finish_weight_sync", "prepare_for_weight_sync"), lambda: None),
        **dict.fromkeys(("ensure_active_adapter", "finish_weight_sync"), lambda *_: None),
        broadcast_to_inference_engines=lambda *_, **__: engine.load(updates),
    )
    for updates, count in enumerate(inputs["generations"], start=1):  # noqa: B007 - the broadcast reads `updates`
        if inputs["sleeps"]:
            engine.sleep()
        kit.run_async(boundary.function(dispatch))
        for _ in range(count):
            engine.generate()
    return {"versions": engine.versions}


_STAND_INS = (
    StandIn("self", "the real constructor needs a tokenizer and an engine; the method reads only these attributes"),
    StandIn("inference_engine_client", "returns as many tokens as the scenario requires"),
    StandIn("tokenizer", "each letter is a token"),
    StandIn("skyrl_gym", "makes an environment that follows the scenario"),
)

#: The options of a rollout, without repetition_penalty, which has no effect according to SkyRL's documentation.
_OPTIONS = kit.fields("temperature top_p top_k min_p stop", max_new_tokens="max_generate_length")


def _make_request(boundary: Any, config: Any) -> dict[str, Any]:
    # The function always sets min_tokens to 1, which no option controls, so it is set back to 0.
    return {**boundary.function("vllm", config), "min_tokens": 0}


BINDINGS = (
    sampling_request(
        "skyrl.backends.skyrl_train.inference_servers.engine_utils.get_sampling_params_for_backend",
        f"{CONFIG}.SamplingParams",  # absent before February 2026
        _make_request, _OPTIONS,
        formerly=("skyrl.backends.skyrl_train.inference_engines.utils.get_sampling_params_for_backend",),
    ),
    Binding(
        f"{_SFT}.tokenize_chat_example", "trained_tokens", call=_trained_tokens,
        requires=(f"{_SFT}.tokenize_chat_example(train_on_what)", f"{_SFT}.collate_sft_batch"), stand_ins=(WORDS,),
        dialects=(
            Dialect(
                "after_the_end", "counted", "the newline after the end of the last answer is trained too",
                f"{CODE}/train/sft_trainer.py#L608", {"trains": ("last",)},
            ),
        ),
    ),
    Binding(
        f"{_NOW}.agent_loop", "rollout_episode", call=_run_episode, stand_ins=_STAND_INS,
        # No scenario reaches this limit. Older versions apply it in the loop. Newer versions leave it to the engine,
        # and the stand-in engine has no limit.
        accepts={"max_tokens": (100,)},
    ),
    rollout(f"{_NOW}.agent_loop", _run_rollout, _STAND_INS[3], takes="turns heard_as"),  # the engine applies limits
    Binding(
        f"{BACKEND}.workers.worker_dispatch.WorkerDispatch.save_weights_for_sampler", "engine_weights",
        call=_engine_versions,
        stand_ins=(
            WEIGHTS, StandIn("self", "the real dispatch starts workers; the function reads only these attributes"),
        ),
    ),
    Binding(f"{_NOW}.generate_batched", "call", call=_generate_batch, stand_ins=_STAND_INS),
)  # fmt: skip
