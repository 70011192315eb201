"""Bindings for AReaL's rollouts: the client of a remote inference engine, and the RLVR workflow."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from sentinel import StandIn
from sentinel.binding import kit
from sentinel.binding.families import BASE64, ROW, TableEngine, experts_beside, in_sglangs_words, rollout

_RECORDS, _ARGUMENTS, _SGLANG = "areal.api.io_struct", "areal.api.cli_args", "areal.engine.sglang_remote"

_SELF = StandIn("self", "the real class; its constructor, which looks for servers or starts processes, does not run")


def _request(boundary: Any, engine: TableEngine, inputs: Mapping[str, Any]) -> Any:
    room = {} if inputs["max_tokens"] is None else {"max_new_tokens": inputs["max_tokens"]}
    options = boundary.imported[_ARGUMENTS].GenerationHyperparameters(**inputs["options"], **room)
    prompt = engine.tokenizer.apply_chat_template(engine.prompt, add_generation_prompt=True)
    return boundary.imported[_RECORDS].ModelRequest(input_ids=prompt, gconfig=options)


class _Session(nullcontext[None]):
    """A stand-in HTTP session that sends nothing. Until 2026, AReaL's clients opened a session for each request."""

    async def close(self) -> None:
        pass


def _generated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Generate one answer with AReaL's remote client. A stand-in server reads and writes SGLang's JSON format."""
    engine, module = TableEngine(inputs), boundary.module

    async def post(*_: Any, payload: Mapping[str, Any], **__: Any) -> Any:
        return in_sglangs_words(engine.answer(payload["input_ids"], payload["sampling_params"]), inputs["routed"])

    async def session(*_: Any) -> None:
        return None

    running = kit.stand_in(is_paused=lambda: False)
    client = kit.make_unbuilt(
        boundary.owner,
        config=kit.stand_in(
            return_routed_experts=inputs["routed"],
            use_lora=False,
            **dict.fromkeys(("request_retries", "request_timeout", "setup_timeout"), 1),
        ),
        backend=boundary.imported[_SGLANG].SGLangBackend(),
        rid_to_address={},
        rid_queue=[],
        lora_initialized=False,
        choose_server=lambda: "server",
        get_version=lambda: engine.version,
        **dict.fromkeys(("workflow_executor", "_workflow_executor"), running),
    )
    sessions = kit.stand_in(ClientTimeout=lambda **_: None, ClientSession=lambda **_: _Session())
    own = {"arequest_with_retry": post, "aiohttp": sessions, "get_default_connector": lambda: None}
    of_sessions = kit.swap(getattr(module, "workflow_context", None), "get_aiohttp_session", session)
    with kit.swap_all(module, **own), kit.with_base64(boundary.imported[_SGLANG]), of_sessions:
        made = kit.run_async(boundary.function(client, _request(boundary, engine, inputs)))
    return {
        "prompt_ids": made.input_tokens,
        "response_ids": made.output_tokens,
        "loss_mask": [1] * len(made.output_tokens),
        "log_probs": made.output_logprobs,
        "versions": made.output_versions,
        "experts": experts_beside(kit.read_list(made, "routed_experts")),
        "cut": made.stop_reason == "length",
        "engine": engine,
    }


def _episode(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    engine, labels = TableEngine(inputs), list[Any]()
    request = _request(boundary, engine, inputs)

    async def generate(request_made: Any) -> Any:
        limits = {"max_new_tokens": request_made.gconfig.max_new_tokens}
        answer = engine.answer(
            request_made.input_ids, {name: getattr(request_made.gconfig, name) for name in inputs["options"]} | limits
        )
        return boundary.imported[_RECORDS].ModelResponse(
            input_tokens=request_made.input_ids,
            output_tokens=answer.ids,
            output_logprobs=answer.log_probs,
            output_versions=[answer.version] * len(answer.ids),
            stop_reason=answer.ends,
        )

    async def graded(*_: Any, **row: Any) -> float:
        labels.append(row.get("ground_truth"))
        return 1.0

    workflow = kit.make_unbuilt(
        boundary.owner,
        reward_fn=graded,
        async_reward_fn=graded,
        tokenizer=engine.tokenizer,
        gconfig=request.gconfig,
        enable_thinking=False,
        dump_dir=None,
        rollout_stat_scope="rollout",
        data_extract_prompt_fn=lambda data: data["messages"],
        get_input_ids_fn=lambda chat, tokenizer, *_: tokenizer.apply_chat_template(chat, add_generation_prompt=True),
    )
    row = {"messages": engine.prompt, "ground_truth": ROW}
    made = kit.run_async(
        boundary.function(workflow, kit.stand_in(agenerate=generate, get_version=lambda: engine.version), row)
    )
    columns = {name: column[0].tolist() for name, column in made.items() if column.dim() == 2}
    start = len(request.input_ids)
    return {
        "prompt_ids": columns["input_ids"][:start],
        "response_ids": columns["input_ids"][start:],
        "loss_mask": columns["loss_mask"][start:],
        "log_probs": columns["logprobs"],
        "versions": columns["versions"],
        "row": labels,
        "engine": engine,
    }


BINDINGS = (
    rollout(
        "areal.infra.remote_inf_engine.RemoteInfEngine.agenerate", _generated,
        *(_SELF, BASE64, StandIn("session", "an HTTP client session that sends nothing")),
        takes="max_tokens interrupted routed", formerly=("areal.core.remote_inf_engine.RemoteInfEngine.agenerate",),
        imports=(_RECORDS, _ARGUMENTS, _SGLANG),
    ),
    rollout(
        "areal.workflow.rlvr.RLVRWorkflow.arun_episode", _episode, _SELF, takes="max_tokens",
        imports=(_RECORDS, _ARGUMENTS), requires=(f"{_RECORDS}.ModelRequest",),
    ),
)  # fmt: skip
