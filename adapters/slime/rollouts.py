"""Bindings for slime's functions that generate and collect rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import (
    BASE64,
    ROW,
    SAMPLING_REQUEST,
    WORDS,
    TableEngine,
    experts_beside,
    in_sglangs_words,
    rollout,
    sampling_request,
)
from sentinel.binding.kit import torch

from .data import SKIPPED, flagged_chat
from .shared import ARGS, MAIN, TYPES, Session

_DISTILLATION = "slime.rollout.on_policy_distillation"
_ASYNC, _HOOKS = "slime.rollout.fully_async_rollout", "slime.rollout.sample_hooks"
_ROLLOUTS, _GENERATOR = "slime.rollout.sglang_rollout", "slime.rollout.components.sample_generator"

_MANAGER = StandIn("self", "the real manager starts a cluster; the method reads only these attributes")
_SESSION = StandIn("aiohttp.ClientSession", "stores the request, which is the observation; no teacher runs")
_ROLLOUT = StandIn("call_rollout_fn", "replaces SGLang; returns as many samples as the scenario requires")
_GRADER = StandIn("async_rm", "gives every response the same grade and stores the label that it receives")
_OF_USER = StandIn("load_function", "returns functions of the user, which call slime's own function or change nothing")
_WORKER = StandIn("worker", "the real class without its constructor, which starts an engine; the queue is already full")


def _request(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters that slime sends to the teacher model."""
    args = kit.stand_in(rm_url="teacher", rollout_temperature=inputs["temperature"])
    sample = boundary.imported[TYPES].Sample(tokens=[5, 6, 7], response_length=1)
    with kit.swap(boundary.module, "aiohttp", kit.stand_in(ClientSession=Session)):
        request = asyncio.run(boundary.function(args, sample))
    return {"request": request["sampling_params"], "configured": {}}


_EXTRA = {
    "sglang_server_concurrency": 1,
    "sglang_dp_size": 1,
    "sglang_router_ip": "",
    "sglang_router_port": 0,
    "sglang_router_policy": None,
    "rollout_max_response_len": 100,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
}
_OPTIONS = {name: f"rollout_{name}" for name in ("temperature", "top_p", "top_k", "stop", "stop_token_ids")}
_OPTIONS |= {"max_new_tokens": "rollout_max_response_len"}


class _OneToken:
    """A stand-in tokenizer that returns the same token for every text."""

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return [5]

    def __call__(self, *_: Any, **__: Any) -> dict[str, list[int]]:
        return {"input_ids": [5]}


def _refuse_groups(module: Any) -> None:
    if hasattr(module, "_examples_to_rollout_groups"):
        raise AbsentError("this version returns rollout groups as records, not as lists of samples")


def _alone(tokenizer: Any) -> dict[str, Any]:
    """Return stand-ins for the functions that load slime's tokenizer and processor or count its inference engines."""
    answers = {"load_tokenizer": tokenizer, "load_processor": None, "get_rollout_num_engines": 1}
    tokenizers = kit.stand_in(from_pretrained=partial(kit.return_first, tokenizer))  # until December 2025
    return {
        **{name: partial(kit.return_first, answer) for name, answer in answers.items()},
        "AutoTokenizer": tokenizers,
    }


def _asked(boundary: Any, args: Any) -> Any:
    """Return the sampling parameters that slime sends to the inference engine in a rollout."""
    _refuse_groups(boundary.module)
    module, rollouts = boundary.module, boundary.imported[_ROLLOUTS]
    left_out = "custom_params"  # makes the engine return the top-p distribution too, and does not change samples

    async def post(url: str, payload: Any, *_: Any, **__: Any) -> Any:
        raise kit.EngineRequest({name: value for name, value in payload["sampling_params"].items() if name != left_out})

    tokenizer, sample = _OneToken(), boundary.imported[TYPES].Sample(prompt="a", tokens=[5])
    with kit.swap_all(module, **_alone(tokenizer), post=post, _prepare_prompt_ids=partial(kit.return_first, [5])):
        if "tokenizer" in boundary.parameters:  # a parameter for one day in August 2025
            return kit.engine_request(
                boundary.function(args, tokenizer, sample, rollouts.compute_sampling_params(args))
            )
        type(module.GenerateState)._instances.clear()
        return kit.engine_request(boundary.function(args, sample, module.GenerateState(args).sampling_params.copy()))


@contextlib.contextmanager
def _without_engines_options(arguments: Any) -> Iterator[None]:
    own = kit.stand_in(add_cli_args=kit.return_first)
    with kit.swap(sys.modules.get(_SGLANG), "ServerArgs", own), kit.swap(arguments, "RouterArgs", own):
        yield


def _options(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return slime's command-line options for a rollout. Rewards are computed for a group at once if the chat starts
    with a system message.
    """
    options = {"partial_rollout": True, "use_token_output": True, "use_rollout_routing_replay": inputs["routed"]}
    options |= {"mask_offpolicy_in_partial_rollout": inputs["stale"] == "masked", "group_rm": inputs["system"]}
    options |= {"sglang_enable_deterministic_inference": True, "rollout_seed": _SEED}
    if boundary.function.__name__ == "generate_and_rm":
        own = "generate_several" if len(inputs["pieces"][0]) % 2 else "generate_one"
        options |= {"custom_generate_function_path": own, "rollout_sample_hook_path": ["keep"]}
    sizes = dict.fromkeys(("num_layers", "moe_router_topk", "rollout_num_gpus", "rollout_num_gpus_per_engine"), 1)
    arguments = boundary.imported[_ARGUMENTS]
    with _without_engines_options(arguments):
        return kit.parser_options(arguments.get_slime_extra_args_provider(), **_EXTRA)(
            **options, **sizes, ci_test=True, sglang_speculative_algorithm="EAGLE", router_policy="consistent_hashing"
        )


#: The seed of the first sample of each group.
_SEED = 40


def _of_user(module: Any) -> Any:
    """Return a stand-in for slime's ``load_function``. It returns functions of the user, which slime's options name."""

    async def generate_several(args: Any, sample: Any, params: Any, evaluation: bool = False) -> list[Any]:
        return [await module.generate(args, sample, params)]

    async def generate_one(args: Any, sample: Any, params: Any) -> Any:
        return await module.generate(args, sample, params)

    async def keep(args: Any, sample: Any) -> Any:
        return sample

    return {each.__name__: each for each in (generate_several, generate_one, keep)}.__getitem__


def _processor(tokenizer: Any) -> Any:
    """Return a stand-in processor, which adds no token for a picture."""
    return lambda text, **_: {"input_ids": [tokenizer.encode(text)], "pixels": torch.ones(1)}


def _followed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Generate one sample with slime, and resume the generation after each interruption.

    slime is also called while it stops all rollouts, before it resumes the sample, and again after the sample is
    complete. Both calls must change nothing.
    """
    module, made = boundary.module, boundary.imported[TYPES].Sample
    _refuse_groups(module)
    engine, labels = TableEngine(inputs), list[Any]()
    if inputs["stale"] == "masked" and "mask_offpolicy" not in kit.source_of(module):
        raise AbsentError("this version has no option that masks the tokens of older weights")
    args, alone = _options(boundary, inputs), boundary.function.__name__ != "generate_and_rm_group"
    replayed = "rollout_top_p_token_ids" in made.__dataclass_fields__
    pictured = hasattr(module, "encode_image_for_rollout_engine") and not inputs["interrupted"] and inputs["system"]

    async def post(url: str, payload: Any, *_: Any, **__: Any) -> Any:
        ids = engine.tokenizer.encode(payload["text"]) if "image_data" in payload else payload.get("input_ids")
        if ids is None:
            raise AbsentError("this version sends prompts to the engine as text, not as token ids")
        # SGLang's response has no routed experts for the last token.
        answer = in_sglangs_words(engine.answer(ids, payload["sampling_params"]), inputs["routed"], replayed)
        if not answer["meta_info"]["output_token_logprobs"]:
            del answer["meta_info"]["output_token_logprobs"]
        return answer

    async def graded(_: Any, sample: Any, **__: Any) -> Any:
        several = isinstance(sample, list)
        labels.extend(one.label for one in (sample if several else [sample]))
        return [1.0] * len(sample) if several else 1.0

    prompt = engine.tokenizer.written(engine.prompt, add_generation_prompt=True)
    row = made(prompt=prompt, label=ROW, **({"multimodal_inputs": {"images": ["picture"]}} if pictured else {}))
    shared = {**inputs["options"], "max_new_tokens": 1000 if inputs["max_tokens"] is None else inputs["max_tokens"]}
    stands = {**_alone(engine.tokenizer), "post": post, "async_rm": graded, "batched_async_rm": graded}
    stands["encode_image_for_rollout_engine"] = kit.return_first
    if pictured:
        stands["load_processor"] = partial(kit.return_first, _processor(engine.tokenizer))
    of_user = _of_user(module)

    def follow(row: Any) -> Any:
        answer = kit.run_async(boundary.function(*state, args, row if alone else [row], {**shared}))
        return answer[0] if isinstance(answer, list) else answer

    with (
        kit.swap_all(module, **stands, load_function=of_user),
        kit.swap(sys.modules.get(_HOOKS), "load_function", of_user),
        kit.with_base64(module),
        kit.swap(sys.modules.get(_GENERATOR), "post", post),
    ):
        getattr(type(module.GenerateState), "_instances", {}).clear()
        # `state` was a parameter for one day in August 2025
        state = (module.GenerateState(args),) if "state" in boundary.parameters else ()
        for _ in range(1 + sum(map(len, inputs["pieces"]))):
            row = follow(row)
            if row.status is not made.Status.ABORTED:
                break
            if not state:
                module.GenerateState(args).aborted = True
                row = follow(row)
                module.GenerateState(args).aborted = False
        if inputs["stale"] == "trained":
            row = follow(row)
    if any(options.get("sampling_seed", _SEED) != _SEED for _, options in engine.requests):
        labels.append("another seed")
    count, counted = (
        row.response_length,
        [row.prefix_cache_info.cached_tokens] if hasattr(row, "prefix_cache_info") else [],
    )
    if hasattr(row, "spec_info"):
        counted += [row.spec_info.spec_accept_token_num, row.spec_info.spec_verify_ct]
    return {
        "prompt_ids": row.tokens[: len(row.tokens) - count],
        "response_ids": row.tokens[len(row.tokens) - count :],
        "loss_mask": row.loss_mask or [1] * count,
        "log_probs": kit.read_list(row, "rollout_log_probs"),
        "experts": experts_beside(kit.read_list(row, "rollout_routed_experts")),
        "nuclei": _nuclei(row) if replayed and count else None,
        "cut": row.status is made.Status.TRUNCATED,
        "row": labels,
        "counts": counted or None,
        "engine": engine,
    }


def _nuclei(row: Any) -> list[list[int]]:
    """Return the tokens that top-p kept at each position of a response."""
    kept, ends = map(list, (row.rollout_top_p_token_ids, row.rollout_top_p_token_offsets))
    return [[int(token) for token in kept[start:end]] for start, end in itertools.pairwise(ends)]


def _teacher_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the teacher log-probs that slime stores in each sample."""
    arguments, made = inputs["arguments"], boundary.imported[TYPES].Sample
    samples = [
        made(
            response_length=length, reward={"meta_info": {"input_token_logprobs": [(None, 5), *((n, 6) for n in row)]}}
        )
        for row, length in zip(arguments["values"], arguments["response_lengths"])
    ]
    boundary.function(kit.stand_in(reward_key=None), samples)
    return {"returned": [sample.teacher_log_probs for sample in samples]}


def _rollout_data(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of samples that slime keeps from a rollout, and the global batch size that slime then uses."""
    arguments = inputs["arguments"]
    if hasattr(boundary.module, "build_dp_schedule"):
        raise AbsentError(
            f"in this version, {boundary.path} does not trim samples; build_dp_schedule omits incomplete steps"
        )
    sample = boundary.imported[TYPES].Sample
    answer = kit.stand_in(samples=[sample(index=n) for n in range(arguments["samples"])], metrics=None)
    args = kit.stand_in(
        load_debug_rollout_data=None,
        disable_rollout_trim_samples=False,
        debug_rollout_only=False,
        use_dynamic_global_batch_size=arguments["dynamic"],
        global_batch_size=arguments["global_batch_size"],
    )
    manager = kit.stand_in(args=args, train_parallel_config={"dp_size": arguments["dp_size"]})
    manager.rollout_id, manager.data_source = 0, None
    manager.generate_rollout = lambda *_, **__: answer.samples
    manager._dynamic_global_batch_size = arguments["global_batch_size"]
    if arguments["dynamic"]:
        size = getattr(boundary.owner, "_compute_dynamic_global_batch_size", None)
        if size is None:
            raise AbsentError("this version has no dynamic global batch size")
        manager._compute_dynamic_global_batch_size = size.__get__(manager)
    if hasattr(boundary.module, "call_rollout_fn"):
        with kit.swap(boundary.module, "call_rollout_fn", lambda *_, **__: answer):
            data, _ = boundary.function(manager, 0)
    else:  # until October 2025, the manager calls the rollout function itself and passes on only the samples
        data = boundary.function(manager)
    return {"returned": {"kept": len(data), "global_batch_size": manager._dynamic_global_batch_size}}


def _fully_async(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return which finished groups slime's asynchronous rollout takes, and which groups it leaves in the queue.

    If no group is left over, the last one arrives while slime waits.
    """
    sample = boundary.imported[TYPES].Sample
    worker = object.__new__(boundary.module.AsyncRolloutWorker)
    worker.output_queue = queue.Queue()
    finished = [(n, [sample(index=n)]) for n in range(inputs["completed"])]
    late = finished[-1:] if inputs["completed"] == inputs["needed"] else []
    for item in finished[: len(finished) - len(late)]:
        worker.output_queue.put(item)
    args = kit.stand_in(rollout_global_dataset=True, rollout_batch_size=inputs["needed"])

    async def wait(_: float) -> None:
        while late:
            worker.output_queue.put(late.pop())

    with kit.swap(boundary.module, "_get_global_worker", lambda *_: worker), kit.swap(asyncio, "sleep", wait):
        groups = asyncio.run(boundary.function(args, 0, None))
    left = []
    with contextlib.suppress(queue.Empty):
        while True:
            left.append(worker.output_queue.get_nowait()[1])
    return {name: [group[0].index for group in which] for name, which in (("taken", groups), ("left", left))}


def _trained_of_a_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    kind = boundary.function.__name__.removeprefix("gen_multi_turn_loss_mask_")
    tokenizer, messages = flagged_chat(inputs)
    ids, mask = boundary.invoke({}, boundary.owner(tokenizer, kind), messages=messages)
    return {"token_ids": ids, "loss_mask": mask}


_SGLANG, _ARGUMENTS = "slime.backends.sglang_utils.arguments", "slime.utils.arguments"
_MASKS = "slime.utils.mask_utils.MultiTurnLossMaskGenerator"

_REQUEST = sampling_request(
    f"{_ROLLOUTS}.generate",
    f"{_ARGUMENTS}.get_slime_extra_args_provider",
    _asked,
    _OPTIONS,
    StandIn("post", "stores the request, which is the observation; SGLang does not run"),
    imports=(TYPES, _ROLLOUTS),
    parsed=True,
    extra=_EXTRA,
    formerly=(f"{_GENERATOR}.generate_one_sample_vanilla",),
)


def _requested(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    assert _REQUEST.call is not None
    with _without_engines_options(boundary.imported[_ARGUMENTS]):
        return _REQUEST.call(boundary, inputs)


BINDINGS = (
    replace(_REQUEST, call=_requested),
    *(
        rollout(
            f"{_ROLLOUTS}.{name}", _followed, BASE64, _GRADER, *more,
            formerly=(f"slime.rollout.sglang_example.{name}",), takes=f"max_tokens interrupted stale {takes}",
            accepts={"stale": ("trained", "masked")}, imports=(TYPES, _ARGUMENTS),
        )
        for name, takes, more in (("generate_and_rm_group", "routed", ()), ("generate_and_rm", "", (_OF_USER,)))
    ),
    # For Qwen3, ``default_system`` is False, because its templates add no system message.
    *(
        Binding(
            f"{_MASKS}.gen_multi_turn_loss_mask_{kind}", "trained_tokens", call=_trained_of_a_chat,
            requires=(f"{_MASKS}.gen_multi_turn_loss_mask_{kind}",), stand_ins=(WORDS,),
            fixed={"trains": "all", "max_tokens": None, **without}, accepts={"skipped": SKIPPED},
            dialects=(
                Dialect(
                    "after_the_end", "counted", "the newline after the end of an answer is trained too",
                    f"{MAIN}/utils/mask_utils.py#L{line}",
                ),
            ),
        )
        for kind, line, without in (
            ("qwen", 68, {}), ("qwen3", 121, {"default_system": False}), ("qwen3_5", 173, {"default_system": False}),
        )
    ),
    Binding(
        f"{_DISTILLATION}.reward_func", "sampling_request", call=_request, imports=(TYPES,), stand_ins=(ARGS, _SESSION),
        fixed=SAMPLING_REQUEST.lacking("temperature"),
    ),
    Binding(
        f"{_DISTILLATION}.post_process_rewards", "call", call=_teacher_log_probs, imports=(TYPES,), stand_ins=(ARGS,),
    ),
    Binding(
        "slime.ray.rollout.RolloutManager._get_rollout_data", "call", call=_rollout_data, imports=(TYPES,),
        stand_ins=(_MANAGER, ARGS, _ROLLOUT),
    ),
    Binding(
        f"{_ASYNC}._generate_rollout_async", "rollout_collection", call=_fully_async, imports=(TYPES,),
        stand_ins=(ARGS, _WORKER),
    ),
)  # fmt: skip
