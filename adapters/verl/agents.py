"""Bindings for verl's agent loop with tools, and for the sampling requests that verl sends to an engine."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import ROW, TableEngine, rollout, sampling_request
from sentinel.binding.kit import torch

_LOOP = "verl.experimental.agent_loop.tool_agent_loop"
_WORKERS = "verl.experimental.agent_loop.agent_loop"

_SELF = StandIn("self", "the real loop has an inference server and a tokenizer; the method reads only these attributes")
_TOOL = StandIn("tool", "returns the scenario's text, or as many tokens as the scenario requires")
_TIMER = StandIn("simple_timer", "measures the time of tools; the rest of its package is not needed")
_RESPONSE = StandIn("ToolResponse", "a record of text, image and video, like the real one, whose class needs pydantic")


def _tool_call(name: str, place: int = 0) -> Any:
    return kit.stand_in(name=name, arguments=f'{{"place": {place}}}', tool_call_id=None)


def _make_agent_data(boundary: Any) -> Any:
    record = boundary.module.AgentData
    empty = {"messages": [], "metrics": {}, "request_id": "request", "tools_kwargs": {}}
    return record(**{name: empty.get(name) for name in inspect.signature(record).parameters})


def _tool_response(text: str, image: Any = None, video: Any = None) -> Any:
    return kit.stand_in(text=text, image=image, video=video)


def _make_loop(boundary: Any, **attributes: Any) -> Any:
    plain = {"processor": None, "max_parallel_calls": 1, "enable_continuous_token": False, "loop": _SameThread()}
    return kit.make_unbuilt(boundary.owner, **{**plain, **attributes})


class _SameThread:
    """A stand-in event loop that runs functions immediately in this thread."""

    async def run_in_executor(self, executor: Any, function: Any) -> Any:
        return function()


def _run_tool_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one tool step of verl's agent loop. Return the new response mask, and whether the loop ends."""
    arguments = inputs["arguments"]
    answer, state = [7] * arguments["observation_tokens"], _make_agent_data(boundary)
    state.tool_calls = [_tool_call("tool")]
    state.response_mask = [1] * arguments["generated_tokens"]
    state.prompt_ids = list(state.response_mask)

    async def call_tool(*_: Any) -> Any:
        return _tool_response("answer"), None, {}

    async def template(*_: Any, **__: Any) -> list[int]:
        return answer

    async def merge(before: Any, after: Any, ids: list[int], mask: list[int], *_: Any, **__: Any) -> Any:
        return kit.stand_in(token_ids=ids + answer), mask + [0] * len(answer), None

    loop = _make_loop(
        boundary,
        _call_tool=call_tool,
        apply_chat_template=template,
        ct_merge_non_assistant_msg=merge,
        ct_merge_context_msg=merge,
        _assert_mm_supported=lambda *_: None,
        **dict.fromkeys(("tool_parser_name", "tool_parser"), "hermes"),
        tokenizer=kit.stand_in(apply_chat_template=lambda *_, **__: answer),
        system_prompt=[],  # empty, because older loops remove it from a reply, and newer loops prepend it
        turn_separator=[],
        apply_chat_template_kwargs={},
        tool_schemas=[],
        response_length=arguments["response_length"],
    )
    with kit.swap(boundary.module, "simple_timer", lambda *_: contextlib.nullcontext()):
        after = asyncio.run(boundary.function(loop, state))
    ended = after is boundary.module.AgentState.TERMINATED
    return {"returned": {"response_mask": state.response_mask, "ended": ended}}


def _truncate_reply(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    text = "".join(map(chr, inputs["token_ids"]))

    async def create(**_: Any) -> Any:
        return "instance", None

    async def execute(*_: Any, **__: Any) -> Any:
        return _Text(text), 0.0, {}

    async def release(*_: Any) -> None:
        return None

    loop = _make_loop(
        boundary,
        tools={"tool": kit.stand_in(create=create, execute=execute, release=release)},
        max_tool_response_length=inputs["max_length"],
        tool_response_truncate_side=inputs["side"],
    )
    with kit.swap(boundary.module, "ToolResponse", _tool_response):
        options = [{}] if "tools_kwargs" in boundary.parameters else []
        state = [_make_agent_data(boundary)] if "agent_data" in boundary.parameters else []
        answer = asyncio.run(boundary.function(loop, _tool_call("tool"), *options, *state))
    response = answer[0] if isinstance(answer, tuple) else answer
    # Before #2398, the response is a chat message.
    letters = response["content"] if isinstance(response, dict) else response.text
    # The scenario's reply consists of upper-case letters, and verl's truncation mark has none.
    return {"token_ids": [ord(letter) for letter in letters if letter.isupper()]}


_AGENTS = (
    Binding(
        f"{_LOOP}.ToolAgentLoop._handle_processing_tools_state", "call", call=_run_tool_step,
        stand_ins=(_SELF, _TOOL, _RESPONSE, _TIMER),
    ),
    Binding(
        f"{_LOOP}.ToolAgentLoop._call_tool", "truncation", call=_truncate_reply, stand_ins=(_SELF, _TOOL, _RESPONSE),
        fixed={"padded": False},
    ),
)  # fmt: skip


# -- from a prompt to a response ---------------------------------------------------------------------------------------

_PARSER = StandIn("tool_parser", "returns one tool call for each tool result in the scenario; no text is parsed")


class _Text(str):
    """A stand-in for a tool's result. Older versions read it as a string, and newer versions as a record."""

    image = video = None

    @property
    def text(self) -> str:
        return str(self)


class _Tool:
    """A stand-in tool that returns the scenario's messages."""

    tool_schema = None

    def __init__(self, engine: TableEngine) -> None:
        self._engine, self.truths = engine, list[Any]()

    async def create(self, *_: Any, create_kwargs: Mapping[str, Any] | None = None, **__: Any) -> tuple[str, None]:
        self.truths.append((create_kwargs or {}).get("ground_truth"))
        return "instance", None

    async def execute(
        self, instance: Any, arguments: Mapping[str, Any], **_: Any
    ) -> tuple[_Text, float, dict[str, Any]]:
        return _Text(self._engine.heard()[arguments["place"]]["content"]), 0.0, {}

    async def release(self, *_: Any) -> None:
        return None

    async def extract_tool_calls(self, *_: Any) -> tuple[str, list[Any]]:
        return "said", [_tool_call("tool", place) for place, _ in enumerate(self._engine.heard())]


def _token_output(module: Any, answer: Any, routed: bool) -> Any:
    import numpy

    experts = (numpy.array if hasattr(module, "np") else torch.tensor)(answer.experts).reshape(-1, 1, 1)
    reason = {"abort": "aborted", "stop": "completed"}.get(answer.ends, answer.ends)
    counts = dict.fromkeys(getattr(module, "SPEC_DECODE_EXTRA_KEYS", ()), answer.count)
    return kit.stand_in(
        token_ids=answer.ids,
        log_probs=answer.log_probs,
        routed_experts=experts if routed else None,
        stop_reason=reason,
        num_preempted=answer.count,
        extra_fields=counts,
    )


def _run_loop(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    engine, base = TableEngine(inputs), boundary.imported[_WORKERS]
    tool = _Tool(engine)

    async def generate(*_: Any, prompt_ids: Any, sampling_params: Any, **__: Any) -> Any:
        answer = engine.answer(prompt_ids, sampling_params)
        at_first = "response_logprobs" not in base.AgentLoopOutput.__annotations__
        return answer.ids if at_first else _token_output(boundary.module, answer, inputs["routed"])

    room = 1000 if inputs["max_tokens"] is None else inputs["max_tokens"]
    rollout = kit.stand_in(prompt_length=1000, response_length=room, full_determinism=False)
    config = kit.stand_in(actor_rollout_ref=kit.stand_in(rollout=rollout))
    builder = getattr(base, "create_continuous_token_builder", None)
    optional = builder is None or "hf_model_type" not in inspect.signature(builder).parameters
    separator = getattr(base, "initialize_turn_separator", lambda *_: [])
    # Only Qwen's template puts several tool replies into one turn.
    kind_of_model = "qwen3" if inputs["tools_share_a_turn"] else None
    loop = _make_loop(
        boundary,
        server_manager=kit.stand_in(generate=generate),
        tokenizer=engine.tokenizer,
        config=config,
        rollout_config=rollout,
        apply_chat_template_kwargs={},
        mm_processor_kwargs={},
        continuous_token_builder=None if optional else builder(engine.tokenizer, hf_model_type=kind_of_model),
        # Older loops cut this prefix off the tokens of a tool's reply.
        system_prompt=engine.tokenizer.encode(engine.tokenizer.written([])),
        turn_separator=separator(engine.tokenizer),
        tools={"tool": tool},
        tool_schemas=[],
        tool_parser=kit.stand_in(extract_tool_calls=tool.extract_tool_calls, stop_token_ids=[]),
        tool_parser_name="hermes",
        tool_response_truncate_side="left",
        response_length=room,
        **dict.fromkeys(("max_parallel_calls", "max_user_turns", "max_assistant_turns"), 9),
        **dict.fromkeys(("max_tool_response_length", "prompt_length"), 1000),
        interaction_config_file=None,
        _build_assistant_message=lambda content, *_: {"role": "assistant", "content": content},
    )
    row = {"raw_prompt": list(engine.prompt), "tools_kwargs": {"tool": {"create_kwargs": {"ground_truth": ROW}}}}
    if "messages" in boundary.parameters:
        row = {"messages": row.pop("raw_prompt")}
    states, kind = list[Any](), getattr(boundary.module, "AgentData", None)

    def watched(**fields: Any) -> Any:
        states.append(kind(**fields))
        return states[-1]

    own = {"simple_timer": lambda *_: contextlib.nullcontext(), "ToolResponse": _tool_response, "AgentData": watched}
    with kit.swap_all(boundary.module, **own, AgentLoopOutput=kit.record_maker(base.AgentLoopOutput)):
        made = kit.run_async(boundary.function(loop, sampling_params=dict(inputs["options"]), **row))
    return {
        "prompt_ids": made.prompt_ids,
        "response_ids": made.response_ids,
        "loss_mask": made.response_mask,
        "log_probs": kit.read_list(made, "response_logprobs"),
        "experts": kit.read_list(made, "routed_experts"),
        "row": tool.truths,
        "messages": states[0].messages if states else None,
        "counts": [
            total
            for name, total in {**made.metrics, **getattr(made, "extra_fields", {})}.items()
            if name in ("num_preempted", *getattr(boundary.module, "SPEC_DECODE_EXTRA_KEYS", ()))
        ],
        "engine": engine,
    }


def _generate_interrupted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    engine = TableEngine(inputs)

    async def generate(_: Any, *__: Any, prompt_ids: Any, sampling_params: Any, **___: Any) -> Any:
        return _token_output(boundary.module, engine.answer(prompt_ids, sampling_params), inputs["routed"])

    config = {"async_training": kit.stand_in(partial_rollout=inputs["resumed"])}
    client = kit.make_unbuilt(
        boundary.owner, config=kit.stand_in(**config, actor_rollout_ref=kit.stand_in(rollout=None))
    )
    limit = {} if inputs["max_tokens"] is None else {"max_tokens": inputs["max_tokens"]}
    prompt = engine.tokenizer.apply_chat_template(engine.prompt, add_generation_prompt=True)
    asked_for = {"prompt_ids": list(prompt), "sampling_params": {**inputs["options"], **limit}}
    own = kit.swap(boundary.module, "TokenOutput", kit.record_maker(boundary.module.TokenOutput))
    with own, kit.swap(boundary.owner.__mro__[1], "generate", generate):
        made = kit.run_async(boundary.function(client, "request", **asked_for))
    return {
        "prompt_ids": prompt,
        "response_ids": made.token_ids,
        "loss_mask": [1] * len(made.token_ids),
        "log_probs": kit.read_list(made, "log_probs"),
        "experts": kit.read_list(made, "routed_experts"),
        "engine": engine,
    }


_LOOPS = "verl.experimental.agent_loop"
_PATHS = (
    *(
        rollout(
            f"{_LOOPS}.{name}_agent_loop.{owner}AgentLoop.run",
            _run_loop,
            *(_SELF, _PARSER, _TIMER, _TOOL, _RESPONSE),
            takes=takes,
            role="tool",
            imports=(_WORKERS,),
            accepts={"end": ("eos", "length")},
        )
        for name, owner, takes in (
            ("tool", "Tool", "turns max_tokens routed default_system tools_share_a_turn"),
            ("single_turn", "SingleTurn", "max_tokens routed default_system tools_share_a_turn"),
        )
    ),
    rollout(
        "verl.workers.rollout.llm_server.FullyAsyncLLMServerClient.generate",
        _generate_interrupted,
        _SELF,
        takes="max_tokens interrupted routed resumed",
        formerly=(
            "verl.workers.rollout.llm_server.FullyLLMServerClient.generate",
            "verl.experimental.fully_async_policy.fully_async_rollouter.FullyAsyncLLMServerClient.generate",
            "verl.experimental.fully_async_policy.agent_loop.agent_loop.FullyAsyncLLMServerManager.generate",
        ),
        # Before #5487, the loop itself resumes interrupted generations.
        requires=("verl.workers.rollout.replica.TokenOutput.extra_fields",),
    ),
)

# -- sampling requests -------------------------------------------------------------------------------------------------

_PROTOCOL = "verl.protocol"
_SERVER = "verl.workers.rollout.sglang_rollout.async_sglang_server"

_WORKER = StandIn("self", "the real worker has a client of an engine; the method reads only its configuration")
_RUN = StandIn("_run_agent_loop", "passes the sampling parameters to the server; no response is sampled")
_ENGINE = StandIn("GenerateReqInput", "stores the request, which is the observation; no engine runs")

_OPTIONS = kit.fields(
    "temperature top_p top_k repetition_penalty ignore_eos", max_new_tokens="response_length", greedy=kit.DRAWS
)


def _worker_request(boundary: Any, config: Any) -> Any:
    """Return the sampling request that reaches the engine if verl's rollout configuration is ``config``."""
    sampling: dict[str, Any] = {}

    async def run(sampling_params: Mapping[str, Any], *_: Any, **__: Any) -> None:
        sampling.update(sampling_params)

    older = kit.stand_in(actor_rollout_ref=kit.stand_in(rollout=config))
    own = {"rollout_config": config, "config": older, "_run_agent_loop": run, "_postprocess": kit.return_first}
    worker = kit.make_unbuilt(boundary.owner, **own)
    batch = boundary.imported[_PROTOCOL].DataProto.from_dict(tensors={"prompts": torch.zeros(1, 1)})
    asyncio.run(boundary.function(worker, batch))
    return _server_request(boundary.imported[_SERVER], config, sampling)


def _server_request(module: Any, config: Any, parameters: Mapping[str, Any]) -> Any:
    """Return the request that verl's SGLang server passes to its engine."""

    def request(**fields: Any) -> Any:
        raise kit.EngineRequest(fields["sampling_params"])

    alone = dict.fromkeys(("_disaggregation_role", "_pd_decode_peers"))
    server = kit.make_unbuilt(module.SGLangHttpServer, config=config, replica_rank=0, **alone)
    with kit.swap(module, "GenerateReqInput", request):
        return kit.engine_request(server.generate([1], dict(parameters), "request"))


_REQUESTS = (
    sampling_request(
        f"{_WORKERS}.AgentLoopWorker.generate_sequences", "verl.workers.config.rollout.RolloutConfig", _worker_request,
        _OPTIONS, *(_WORKER, _RUN, _ENGINE), imports=(_PROTOCOL, _SERVER),
        extra={"name": "sglang", "prompt_length": 1, "max_model_len": 10000},
        # The class is required by name, because other worker classes also have a method of this name.
        requires=(f"{_WORKERS}.AgentLoopWorker.generate_sequences", "verl.workers.config.rollout"),
    ),
)  # fmt: skip

BINDINGS = (*_AGENTS, *_PATHS, *_REQUESTS)
