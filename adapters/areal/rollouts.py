"""Bindings for AReaL's rollouts: the client of a remote inference engine, and the RLVR workflow."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import BASE64, LOG_PROB_STEP, ROW, TableEngine, experts_beside, in_sglangs_words, rollout
from sentinel.binding.kit import torch

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

    def process(text: Any, **_: Any) -> dict[str, Any]:
        ids = torch.tensor([engine.tokenizer.apply_chat_template(text, add_generation_prompt=True)])
        return {"input_ids": ids, "mm_token_type_ids": torch.zeros_like(ids), "pixel_values": torch.zeros(0, 1)}

    workflow = kit.make_unbuilt(
        boundary.owner,
        processor=process,
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
    row = {"messages": engine.prompt, "ground_truth": ROW, "images": []}
    with kit.swap(boundary.module, "image2base64", lambda images: images):
        made = kit.run_async(
            boundary.function(workflow, kit.stand_in(agenerate=generate, get_version=lambda: engine.version), row)
        )
    columns = {name: column[0].tolist() for name, column in made.items() if getattr(column, "ndim", 0) == 2}
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


def _retried(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run an episode of AReaL's workflow that asks again after a wrong answer. All answers but the last are wrong.

    The policy's tokens are numbered from 1; token 0 belongs to the environment, and each answer ends with EOS.
    """
    said, heard, end = inputs["said"], inputs["heard"], 1000
    answers: list[Any] = []

    async def generate(request: Any) -> Any:
        turn = len(answers)
        before, count = sum(said[:turn]), said[turn]
        workflow.multi_turn_prompt_ids = [0] * heard[turn]
        answers.append(
            boundary.imported[_RECORDS].ModelResponse(
                input_tokens=[*request.input_ids],
                output_tokens=[*range(1, count), end],
                output_logprobs=[LOG_PROB_STEP * (before + place + 1) for place in range(count)],
                output_versions=[turn] * count,
                stop_reason="stop",
            )
        )
        return answers[-1]

    async def graded(*_: Any, **__: Any) -> float:
        return float(len(answers) == len(said))

    tokenizer = kit.stand_in(eos_token_id=end, decode=lambda _: "")
    workflow = kit.make_unbuilt(
        boundary.owner, async_reward_fn=graded, tokenizer=tokenizer, max_turns=len(said), turn_discount=1.0,
        gconfig=boundary.imported[_ARGUMENTS].GenerationHyperparameters(),
    )  # fmt: skip
    with kit.swap(boundary.module, "apply_chat_template", lambda *_, **__: [7, 7]):
        made = kit.run_async(boundary.function(workflow, kit.stand_in(agenerate=generate), {"messages": []}))
    names = ("loss_mask", "logprobs", "versions", "turn_ids", "input_ids")
    columns = {name: made[name][0].tolist()[2:] for name in names if name in made}
    own = [[turn] * count + [-1] * more for turn, (count, more) in enumerate(zip(said, heard))]
    turns = [number for part in own for number in part][: sum(said) + sum(heard[:-1])]
    if any(columns.get(name, turns) != turns for name in ("versions", "turn_ids")):
        return {"loss_mask": [], "cut": False}
    return {"loss_mask": columns["loss_mask"], "log_probs": columns["logprobs"], "cut": False}


def _served(payload: Mapping[str, Any], table: Any) -> dict[str, Any]:
    """Return the response of SGLang or vLLM to a request for the log-probs of a prompt's tokens."""
    ids = payload.get("input_ids", payload.get("prompt"))
    scores = [float(table[number]) for number in ids]
    start = payload.get("logprob_start_len", 0)
    of_sglang = [[score, number, None] for number, score in zip(ids[start:], scores[start:])]
    # vLLM numbers tokens by their ids, and knows nothing about the first token.
    of_vllm = [None, *({str(number): {"logprob": score}} for number, score in zip(ids[1:], scores[1:]))]
    return {"meta_info": {"input_token_logprobs": of_sglang}, "choices": [{"prompt_logprobs": of_vllm}]}


def _scored(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that AReaL's client gets from its server. As in AReaL's training engines, the value at a
    position is that of the next token.
    """
    named, table = kit.named_tokens(inputs), kit.prepend_prompt(inputs["log_probs"]).flatten()

    def request(_: str, __: str, json: Mapping[str, Any], **___: Any) -> Any:
        return kit.stand_in(raise_for_status=lambda: None, json=lambda: _served(json, table))

    client = kit.make_unbuilt(
        boundary.owner, backend=boundary.imported[_SGLANG].SGLangBackend(), choose_server=lambda: "server",
        config=kit.stand_in(request_timeout=1, use_lora=False), get_version=lambda: 0,
    )  # fmt: skip
    batch = {"input_ids": named["input_ids"], "attention_mask": named["attention_mask"]}
    batch["loss_mask"] = kit.prepend_prompt(inputs["response_mask"])
    with kit.swap(boundary.module, "requests", kit.stand_in(request=request)):
        (made,) = boundary.function(client, [batch])
    return {"log_probs": made[:, :-1]}


def _scored_by(backend: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs of each row's last tokens that a backend of AReaL requests from its server."""
    named, table = kit.named_tokens(inputs), kit.prepend_prompt(inputs["log_probs"]).flatten()
    own, made = getattr(boundary.module, backend)(), torch.zeros_like(inputs["log_probs"])
    for row, (ids, there) in enumerate(zip(named["input_ids"], named["attention_mask"])):
        tokens = ids[there].tolist()
        asked = own.build_score_request(tokens, len(tokens) - 1, False, 0)
        made[row, : len(tokens) - 1] = torch.tensor(
            own.parse_score_response(_served(asked.payload, table), len(tokens) - 1), dtype=made.dtype
        )
    return {"log_probs": made}


_SCORER = "areal.infra.remote_inf_engine.RemoteInfEngine.compute_logp"
_OF_SCORES: Mapping[str, Any] = {
    "stand_ins": (_SELF, StandIn("server", "looks up the log-probs of tokens, and answers as SGLang and vLLM do")),
    "fixed": {"entropies": None, "micro_batch_size": None, "max_tokens_per_microbatch": None},
    "accepts": {"response_mask": ("full", "right", "right")},
    "dtypes": ("float32",),
}
_PICTURED = "areal.workflow.vision_rlvr.VisionRLVRWorkflow.arun_episode"
_RETRIES = "areal.workflow.multi_turn.MultiTurnWorkflow.arun_episode"
BINDINGS = (
    Binding(_SCORER, "recomputed_log_probs", call=_scored, imports=(_SGLANG,), requires=(_SCORER,), **_OF_SCORES),
    *(
        Binding(path, "recomputed_log_probs", call=partial(_scored_by, name), requires=(path,), **_OF_SCORES)
        for engine, name in (("sglang", "SGLangBackend"), ("vllm", "VLLMBackend"))
        for method in ("build_score_request", "parse_score_response")
        for path in (f"areal.engine.{engine}_remote.{name}.{method}",)
    ),
    Binding(
        _RETRIES, "rollout_episode", call=_retried, imports=(_RECORDS, _ARGUMENTS), requires=(_RETRIES,),
        fixed={"max_tokens": 100},
        stand_ins=(
            _SELF, StandIn("engine", "returns the scenario's tokens, and sets the text that follows a wrong answer"),
        ),
    ),
    rollout(
        "areal.infra.remote_inf_engine.RemoteInfEngine.agenerate", _generated,
        *(_SELF, BASE64, StandIn("session", "an HTTP client session that sends nothing")),
        takes="max_tokens interrupted routed", formerly=("areal.core.remote_inf_engine.RemoteInfEngine.agenerate",),
        imports=(_RECORDS, _ARGUMENTS, _SGLANG),
    ),
    rollout(
        _PICTURED, _episode, _SELF, StandIn("processor", "treats each word as a token; there are no images"),
        takes="max_tokens", imports=(_RECORDS, _ARGUMENTS), requires=(_PICTURED, f"{_RECORDS}.ModelRequest"),
    ),
    rollout(
        "areal.workflow.rlvr.RLVRWorkflow.arun_episode", _episode, _SELF, takes="max_tokens",
        imports=(_RECORDS, _ARGUMENTS), requires=(f"{_RECORDS}.ModelRequest",),
    ),
)  # fmt: skip
