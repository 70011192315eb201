"""Bindings for AReaL's reward rules, reward normalisation, length penalty, filters and sampling parameters."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import normalised_rewards, rule_reward, sampling_request
from sentinel.binding.kit import torch

_CODE = "https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal"
#: For links to code from before January 2026.
_SAMPLING = "https://github.com/areal-project/AReaL/blob/66372e468ad5131573a1e6558e59283754423c7f/areal"
_FUNCTIONAL = "areal.utils.functional"
_REWARD = "areal.reward"

_RECORDS = "areal.api.io_struct"

_OPTIONS = kit.fields(
    "temperature top_p top_k max_new_tokens min_new_tokens frequency_penalty stop stop_token_ids ignore_eos seed greedy"
)

_GRADER = StandIn(
    "get_math_verify_worker", "math-verify is not installed; here two results are equal if their texts are equal"
)


def _in_box(text: str) -> str:
    _, box, rest = text.rpartition("\\boxed{")
    return rest.rpartition("}")[0] if box else text


def _ruled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    grader = types.SimpleNamespace(verify=lambda answer, truth: float(_in_box(answer) == _in_box(truth)))
    with kit.swap(boundary.module, "get_math_verify_worker", lambda: grader):
        return {"score": boundary.function(None, inputs["response"], None, None, inputs["ground_truth"])}


def _compared(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a boxed answer with AReaL's verifier. Stand-ins for its math parser compare the texts in the boxes."""
    parsed = {"parse": lambda text, **_: [_in_box(text)], "math_verify_verify": lambda gold, made, **_: gold == made}
    kinds = dict.fromkeys(("ExprExtractionConfig", "LatexExtractionConfig"), lambda **_: None)
    with kit.swap_all(boundary.module, **parsed, **kinds):
        return {"score": boundary.function(boundary.owner(timeout=None), inputs["response"], inputs["ground_truth"])}


def _normalised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Normalise rewards within each prompt's group of rollouts. A rollout's reward belongs to its last interaction."""
    rewards = inputs["rewards"].float()
    made = torch.zeros(len(rewards))
    for rows in kit.rows_of_groups(inputs["group"]):
        turns = [kit.stand_in(reward=float(rewards[row]), _cache=None) for row in rows]
        workflow = kit.stand_in(group_size=len(rows), logger=kit.make_silent_logger())
        boundary.function(workflow, [{"turn": turn} for turn in turns])
        made[rows] = torch.tensor([turn.reward for turn in turns])
    return {"normalised": made}


def _penalised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rewards after AReaL has applied its penalty for long responses."""
    mask = kit.prepend_prompt(inputs["response_mask"] != 0).long()
    data = {"rewards": inputs["rewards"].clone(), "input_ids": torch.ones_like(mask), "loss_mask": mask}
    options = {"overlong_tokens": inputs["buffer"], "overlong_penalty_factor": inputs["factor"]}
    penalised = boundary.invoke({}, data=data, max_response_length=inputs["max_length"], **options)
    return {"rewards": penalised["rewards"]}


def _sampled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Filter groups of rollouts with AReaL's dynamic sampling. In the first versions, batches were TensorDicts."""
    rows = len(inputs["group"])
    data: Any = {"rewards": inputs["rewards"], "numbers": torch.arange(rows)}
    if getattr(boundary.parameters["data"].annotation, "__name__", "") == "TensorDict":
        import tensordict

        data = tensordict.TensorDict(data, batch_size=[rows])
    batch = boundary.function(data, rows // len(set(inputs["group"])))
    batch = batch[0] if isinstance(batch, tuple) else batch
    return {name: batch[name].tolist() for name in ("numbers", "rewards")}


def _moments(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask of the tokens that M2PO keeps. The criterion is a token's squared log-ratio."""
    old, proximal, mask = (inputs[name] for name in ("behaviour_log_probs", "proximal_log_probs", "response_mask"))
    if "sorted_m2" not in boundary.parameters:
        return {"kept": boundary.function(old, proximal, mask, inputs["threshold"])}
    # In the first versions, the function's caller computed the squared log-ratios.
    moments, order = (old - proximal)[mask].square().sort(descending=True)
    kept = mask.clone()
    kept[mask] = boundary.function(sorted_m2=moments, m2_threshold=inputs["threshold"])[order.argsort()]
    return {"kept": kept}


def _discounted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rewards of a session's interactions after AReaL has discounted them. Each token is an interaction.

    Interactions without a reward are left to AReaL.
    """
    rewards, mask = inputs["token_level_rewards"], inputs["response_mask"] != 0
    returns = torch.zeros_like(rewards)
    cache_of, record = boundary.imported[_CACHE].InteractionCache, boundary.imported[_SESSIONS]
    for row, valid in enumerate(mask):
        cache, places = cache_of(), valid.nonzero()[:, 0].tolist()
        for place in places:
            said = [{"role": "user", "content": str(place)}]
            cache[str(place)] = record.InteractionWithTokenLogpReward(
                messages=said, output_message_list=said, _interaction_id=str(place)
            )
            if float(rewards[row, place]):
                cache.set_reward(str(place), 99.0)  # a reward that is replaced
                cache.set_reward(str(place), float(rewards[row, place]))
        if abs(cache.total_reward - float(rewards[row][valid].sum())) > 1e-6:
            return {"returns": torch.full_like(rewards, float("nan"))}
        made = cache.export_interactions("individual", reward_discount=inputs["gamma"])
        for place in places:
            returns[row, place] = made[str(place)].reward
    return {"returns": returns}


_CACHE, _SESSIONS = "areal.experimental.openai.cache", "areal.experimental.openai.types"
#: Fields in which a request for completions differs from a request for chat completions.
_OF_A_PROMPT = ("prompt", "logprobs")


def _request(boundary: Any, config: Any) -> Any:
    """Return the sampling parameters that AReaL's backend sends to its inference server.

    A request with images must have the same parameters. If it differs, its parameters are returned, or none if its
    messages lack an image.
    """
    others = (False, 0)[: len(boundary.parameters) - 2]
    made = boundary.imported[_RECORDS].ModelRequest
    request = made(input_ids=[1], gconfig=config)
    payload = boundary.function(boundary.owner(), request, *others).payload
    if "vllm" in boundary.path and "vision_msg_vllm" in made.__dataclass_fields__:
        messages = [{"role": "user", "content": [{"type": "image_url"}, {"type": "text"}, {"type": "image_url"}]}]
        messages.append({"role": "user", "content": "text"})
        pictured = made(input_ids=[1], gconfig=config, image_data=["AAAA", "BBBB"], vision_msg_vllm=[messages])
        seen = boundary.function(boundary.owner(), pictured, *others).payload
        urls = [item.get("image_url", {}).get("url", "") for item in seen.pop("messages")[0]["content"]]
        if [url.rpartition(",")[2] for url in urls] != ["AAAA", "", "BBBB"]:
            return {}
        if {**seen, **dict.fromkeys(_OF_A_PROMPT)} != {**payload, **dict.fromkeys(_OF_A_PROMPT)}:
            return seen
    return payload.get("sampling_params", payload)


_GROUPED = "areal.infra.remote_inf_engine.GroupedRolloutWorkflow._normalize_group_rewards"
BINDINGS = (
    *(
        rule_reward(
            f"{_REWARD}.MathVerifyWorker.{name}", "boxed", call=_compared, stand_ins=(_GRADER,),
            requires=(f"{_REWARD}.MathVerifyWorker",),
        )
        for name in ("verify", "_verify_impl")
    ),
    rule_reward(
        f"{_REWARD}.gsm8k.gsm8k_reward_fn", "boxed", call=_ruled, stand_ins=(_GRADER,),
        requires=(f"{_REWARD}.gsm8k.get_math_verify_worker",),
    ),
    *(
        Binding(
            f"{_CACHE}.InteractionCache.{name}", "discounted_return", call=_discounted, imports=(_CACHE, _SESSIONS),
            requires=(f"{_CACHE}.InteractionCache.{name}",), fixed={"kl": None, "kl_coef": 0.0},
        )
        for name in ("set_reward", "apply_reward_discount", "export_interactions")
    ),
    normalised_rewards(
        _GROUPED, _normalised, requires=(_GROUPED,), fixed={"std_level": "group", "epsilon": 1e-8},
        dialects=(
            Dialect("std", "biased", "the variance divides by n", f"{_CODE}/infra/remote_inf_engine.py#L193"),
        ),
    ),
    *(
        sampling_request(
            f"areal.engine.{engine}_remote.{name}Backend.build_generation_request",
            "areal.api.cli_args.GenerationHyperparameters", _request, _OPTIONS, imports=(_RECORDS,),
        )
        for engine, name in (("sglang", "SGLang"), ("vllm", "VLLM"))
    ),
    rule_reward(
        f"{_REWARD}.clevr_count_70k.clevr_count_70k_reward_fn", "[{answer}]", "There are two and two: [{answer}].",
        call=_ruled, accepts={"ground_truth": ("42", "7", "100")},
    ),
    # Older versions compare expressions without the worker that the stand-in replaces, so the worker is required.
    rule_reward(
        f"{_REWARD}.geometry3k.geometry3k_reward_fn", "[{answer}]", "boxed", "The angle is {answer}.", call=_ruled,
        requires=(f"{_REWARD}.geometry3k.get_math_verify_worker",), stand_ins=(_GRADER,),
        accepts={"ground_truth": ("42", "7", "-3", "5 \\sqrt { 3 }"), "wrong_answer": ("43", "8", "2 \\sqrt { 3 }")},
    ),
    Binding(
        f"{_FUNCTIONAL}.reward_overlong_penalty", "overlong_penalty", call=_penalised,
        accepts={"response_mask": ("full", "right", "gaps")}, dtypes=("float32",),
        dialects=(
            Dialect(
                "beyond_limit", "linear",
                "an engine generates at most this many tokens, so longer responses are not defined",
                f"{_CODE}/utils/functional/functional.py#L952",
            ),
        ),
    ),
    Binding(
        f"{_FUNCTIONAL}.dynamic_sampling", "group_filter", call=_sampled, requires=(f"{_FUNCTIONAL}.dynamic_sampling",),
        fixed={"group_layout": "equal"},
        dialects=(
            Dialect(
                "none_left", "all", "if the filter rejects every row, the whole batch is trained on",
                f"{_SAMPLING}/utils/functional/functional.py#L435",
            ),
        ),
    ),
    Binding(
        "areal.trainer.ppo.actor._apply_m2po_masking", "second_moment_mask",
        formerly=("areal.trainer.ppo.actor.get_m2po_loss_mask",), call=_moments, dtypes=("float32",),
        dialects=(
            Dialect(
                "none_left", "closest", "one token is kept so that the loss is defined",
                f"{_CODE}/trainer/ppo/actor.py#L1004",
            ),
        ),
    ),
)  # fmt: skip
