"""verl: an agent's loop between a model and its tools, and what it asks an engine for."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import types
from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, StandIn
from sentinel.worker.families import sampling_request
from sentinel.worker.kit import DRAWS, Asked, asked, fields, stand_in, swapped

_LOOP = "verl.experimental.agent_loop.tool_agent_loop"

_SELF = StandIn("self", "the real loop holds an inference server and a tokenizer; the method reads these alone")
_TOOL = StandIn("tool", "answers the text of the scenario, or that many tokens")
_TIMER = StandIn("simple_timer", "measures how long tools take, with a package that is not needed for anything else")
_RESPONSE = StandIn("ToolResponse", "a record of text, image and video, as the real one, whose class needs pydantic")


def _call(name: str) -> Any:
    return types.SimpleNamespace(name=name, arguments="{}", tool_call_id=None)


def _state(boundary: Any) -> Any:
    """The real record of a trajectory, with nothing in it; its fields grow from release to release."""
    record = boundary.module.AgentData
    empty = {"messages": [], "metrics": {}, "request_id": "request", "tools_kwargs": {}}
    return record(**{name: empty.get(name) for name in inspect.signature(record).parameters})


def _response(text: str, image: Any = None, video: Any = None) -> Any:
    return types.SimpleNamespace(text=text, image=image, video=video)


def _loop(boundary: Any, **attributes: Any) -> Any:
    loop = object.__new__(boundary.owner)
    plain = {"processor": None, "max_parallel_calls": 1, "enable_continuous_token": False, "loop": _SameThread()}
    for name, value in {**plain, **attributes}.items():
        setattr(loop, name, value)
    return loop


class _SameThread:
    """The event loop that older agents hold, as far as they ask it: it runs a function here and now."""

    async def run_in_executor(self, executor: Any, function: Any) -> Any:
        return function()


def _answered(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What is in the response after a tool has answered so many tokens, and where the loop goes from there."""
    answer = [7] * inputs["observation_tokens"]
    state = _state(boundary)
    state.tool_calls = [_call("tool")]
    state.response_mask = [1] * inputs["generated_tokens"]
    state.prompt_ids = list(state.response_mask)

    async def call_tool(*_: Any) -> Any:
        return _response("answer"), None, {}

    async def template(*_: Any, **__: Any) -> list[int]:
        return answer

    async def merge(before: Any, after: Any, ids: list[int], mask: list[int], *_: Any, **__: Any) -> Any:
        return types.SimpleNamespace(token_ids=ids + answer), mask + [0] * len(answer), None

    loop = _loop(
        boundary,
        _call_tool=call_tool,
        apply_chat_template=template,
        ct_merge_non_assistant_msg=merge,
        ct_merge_context_msg=merge,
        _assert_mm_supported=lambda *_: None,
        tool_parser_name="hermes",
        tokenizer=types.SimpleNamespace(apply_chat_template=lambda *_, **__: answer),
        system_prompt=[],  # what older loops cut off before an answer, and newer ones put there
        turn_separator=[],
        apply_chat_template_kwargs={},
        tool_schemas=[],
        response_length=inputs["response_length"],
    )
    with swapped(boundary.module, "simple_timer", lambda *_: contextlib.nullcontext()):
        after = asyncio.run(boundary.function(loop, state))
    return {"response_mask": state.response_mask, "ended": after is boundary.module.AgentState.TERMINATED}


def _truncated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of a tool's text, which is in capitals; the note that something is missing is not."""
    text = "".join(map(chr, inputs["token_ids"]))

    async def create(**_: Any) -> Any:
        return "instance", None

    async def execute(*_: Any, **__: Any) -> Any:
        return _response(text), 0.0, {}

    async def release(*_: Any) -> None:
        return None

    loop = _loop(
        boundary,
        tools={"tool": types.SimpleNamespace(create=create, execute=execute, release=release)},
        max_tool_response_length=inputs["max_length"],
        tool_response_truncate_side=inputs["side"],
    )
    with swapped(boundary.module, "ToolResponse", _response):
        state = [_state(boundary)] if "agent_data" in boundary.parameters else []
        response, _, _ = asyncio.run(boundary.function(loop, _call("tool"), {}, *state))
    return {"token_ids": [ord(letter) for letter in response.text if letter.isupper()]}


_AGENTS = (
    Binding(
        f"{_LOOP}.ToolAgentLoop._handle_processing_tools_state",
        "rollout_turn",
        call=_answered,
        stand_ins=(_SELF, _TOOL, _RESPONSE, _TIMER),
    ),
    Binding(
        f"{_LOOP}.ToolAgentLoop._call_tool",
        "truncation",
        call=_truncated,
        stand_ins=(_SELF, _TOOL, _RESPONSE),
        fixed={"padded": False},
    ),
)


# -- what an engine is asked for ---------------------------------------------------------------------------------------

_WORKERS = "verl.experimental.agent_loop.agent_loop"
_PROTOCOL = "verl.protocol"
_SERVER = "verl.workers.rollout.sglang_rollout.async_sglang_server"

_WORKER = StandIn("self", "the real worker holds a client of an engine; the method reads its configuration alone")
_RUN = StandIn("_run_agent_loop", "hands the sampling parameters to the server; no response is sampled")
_ENGINE = StandIn("GenerateReqInput", "there is no engine; its record of a request is kept, which is what is observed")

_OPTIONS = fields(
    "temperature top_p top_k repetition_penalty ignore_eos", max_new_tokens="response_length", greedy=DRAWS
)


def _asked(boundary: Any, config: Any) -> Any:
    """Through the agents' worker and SGLang's server, for one prompt."""
    import torch

    given: dict[str, Any] = {}

    async def run(sampling_params: Mapping[str, Any], *_: Any, **__: Any) -> None:
        given.update(sampling_params)

    worker = object.__new__(boundary.owner)
    worker.rollout_config = config
    worker.config = stand_in(actor_rollout_ref=stand_in(rollout=config))  # older ones'
    worker._run_agent_loop = run
    worker._postprocess = lambda outputs, **_: outputs
    batch = boundary.imported[_PROTOCOL].DataProto.from_dict(tensors={"prompts": torch.zeros(1, 1)})
    asyncio.run(boundary.function(worker, batch))
    return _served(boundary.imported[_SERVER], config, given)


def _served(module: Any, config: Any, parameters: Mapping[str, Any]) -> Any:
    """What SGLang's server asks its engine for."""

    def request(**fields: Any) -> Any:
        raise Asked(fields["sampling_params"])

    server = object.__new__(module.SGLangHttpServer)
    vars(server).update(config=config, replica_rank=0, _disaggregation_role=None, _pd_decode_peers=None)
    with swapped(module, "GenerateReqInput", request):
        return asked(server.generate([1], dict(parameters), "request"))


_REQUESTS = (
    sampling_request(
        f"{_WORKERS}.AgentLoopWorker.generate_sequences",
        "verl.workers.config.rollout.RolloutConfig",
        _asked,
        _OPTIONS,
        *(_WORKER, _RUN, _ENGINE),
        imports=(_PROTOCOL, _SERVER),
        beside={"name": "sglang", "prompt_length": 1, "max_model_len": 10000},
        requires=(f"{_WORKERS}.AgentLoopWorker.generate_sequences",),  # workers have a method of this name
    ),
)

UNBOUND = {f"{_WORKERS}.*": "a register of loops, and what is traced of them"}


BINDINGS = (*_AGENTS, *_REQUESTS)
