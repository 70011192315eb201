"""Bindings for ROLL's agent loop between a model and an environment."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from sentinel import StandIn
from sentinel.binding import kit
from sentinel.binding.families import TableEngine, rollout
from sentinel.binding.kit import torch

from .containers import PROTOCOL

_MANAGER = "roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager"


def _followed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one episode of a ROLL agent, and return the record that the agent puts into its queue.

    The template contains the system message. The first user message is the environment's observation.
    """
    engine = TableEngine(inputs)
    data, done = boundary.imported[PROTOCOL].DataProto, list[Any]()
    heard = [message["content"] for message in engine.messages if message["role"] == "user"]

    def generate(lm_input: Any, generation_config: Mapping[str, Any], **_: Any) -> Any:
        answer = engine.answer(lm_input.batch["input_ids"][0], generation_config)
        tensors = {"responses": torch.tensor([answer.ids]), "infer_logprobs": torch.tensor([answer.log_probs])}
        return data.from_dict(tensors=tensors)

    def step(*_: Any, **__: Any) -> tuple[Any, ...]:
        ended = not heard
        return "" if ended else heard.pop(0), 1.0, ended, False, {}

    def put(*arguments: Any) -> None:
        made.running = False
        done.extend(each for each in arguments if hasattr(each, "batch"))

    def remote(answers: Any) -> Any:
        return kit.stand_in(remote=answers)

    episodes = iter((0,))
    queue = kit.stand_in(get_episode_id=remote(lambda *_: next(episodes, None)), put=remote(put))
    limits = {"max_new_tokens": 1000}
    made = kit.make_unbuilt(
        boundary.owner,
        logger=kit.make_silent_logger(),
        worker_config=kit.stand_in(
            generating_args=kit.stand_in(max_new_tokens=1000, to_dict=lambda: {**inputs["options"], **limits})
        ),
        pipeline_config=kit.stand_in(sequence_length=1000, skip_mock_system_prompt=False),
        env_config=kit.Named(env_id=0, group_id=0, tag="tag", group_seed=0, max_steps=9, max_tokens_per_step=1000),
        tokenizer=engine.tokenizer,
        output_queue=queue,
        current_step=0,
        mode="train",
        trace_meta=None,
        running=False,
        **dict.fromkeys(("thread_lock", "env_step_limiter"), contextlib.nullcontext()),
        env=kit.stand_in(reset=lambda **_: (heard.pop(0), {}), step=step),
        agent_system_template=engine.messages[0]["content"],
        agent_template="{observation}",
        llm_proxy=kit.stand_in(generate=generate),
    )
    stands = {
        "ray": kit.stand_in(get=kit.return_first),
        "Timer": lambda **_: contextlib.nullcontext(kit.bookkeeping(last=0.0)),
        "attach_trace_context": lambda *_: contextlib.nullcontext(),
        "get_tracer": lambda *_: kit.bookkeeping(start_as_current_span=lambda *_, **__: contextlib.nullcontext()),
    }
    with kit.swap_all(boundary.module, **stands):
        boundary.function(made, data(meta_info={"seed": 0}))
    batch = done[0].batch
    mask, there = batch["response_mask"][0].long().tolist(), int(batch["attention_mask"][0].sum())
    start, log_probs = mask.index(1), batch.get("infer_logprobs")
    ids = batch["input_ids"][0].tolist()[:there]
    return {
        "prompt_ids": ids[:start],
        "response_ids": ids[start:],
        "loss_mask": mask[start:there],
        "log_probs": None if log_probs is None else log_probs[0, : there - 1],  # without the next observation
        "engine": engine,
    }


BINDINGS = (
    rollout(
        f"{_MANAGER}.run_rollout_loop", _followed,
        StandIn("self", "the real manager's constructor creates an environment and an engine client"),
        StandIn("env", "returns the scenario's text"), StandIn("ray", "holds the queue in this process"),
        StandIn("Timer", "measures the time of a step; the rest of its package is not needed"),
        StandIn("get_tracer", "records nothing; traces do not affect an episode"), takes="turns",
        # In versions without this module, the environment applies the limits, so the module is required.
        requires=("roll.pipeline.agentic.env_manager.token_mask_utils",),
        fixed={"heard": 1, "system": True}, imports=(PROTOCOL,),
    ),
)  # fmt: skip
