"""NeMo-RL (NVIDIA-NeMo/RL): how Sentinel's contracts bind to its boundaries.

It wants Python 3.13 and packages of the NVIDIA stack. Its losses, estimators and batches want neither: what is missing
is only imported, and what a later Python has, ``typing_extensions`` gives to earlier ones. Its losses take tensors of
whole sequences, whose first token nobody predicts: every tensor here has one column more on the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel.contracts.aggregation import aggregated
from sentinel.contracts.conversations import chat
from sentinel.contracts.importance_weight import IMPORTANCE_WEIGHT
from sentinel.targets import Alias, Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.worker.drift import AbsentError
from sentinel.worker.families import (
    Container,
    group_advantage,
    masked_statistic,
    normalised_rewards,
    policy_loss,
    rule_reward,
)
from sentinel.worker.kit import (
    accepted,
    both_sides,
    counted,
    estimated,
    lengths_of,
    score_of,
    stand_in,
    swapped,
    taken,
    torch,
    two_token_logits,
)

_MAIN = "https://github.com/NVIDIA-NeMo/RL/blob/7ea279abfbeb698b092856d0dab61e7cf39bc909/nemo_rl"
_ALGORITHMS = "nemo_rl.algorithms"
_UTILS = f"{_ALGORITHMS}.utils"
_LOSSES = f"{_ALGORITHMS}.loss.loss_functions"
_ESTIMATORS = f"{_ALGORITHMS}.advantage_estimator"
_GRPO = f"{_ALGORITHMS}.grpo"
_BATCHES = "nemo_rl.distributed.batched_data_dict"
_BATCH = f"{_BATCHES}.BatchedDataDict"
_PREPARED = f"{_ALGORITHMS}.loss.utils"
_MESSAGES_OF = "nemo_rl.data.llm_message_utils"

# -- losses -----------------------------------------------------------------------------------------------------------

_MODES = {"token-mean": True, "seq-mean-token-mean": False}

#: What every version's configuration must say, and what a later one's says by default.
_OPTIONS: Mapping[str, Any] = {
    "reference_policy_kl_penalty": 0.0, "reference_policy_kl_type": "k3", "kl_input_clamp_value": 20.0,
    "kl_output_clamp_value": 10.0, "ratio_clip_min": 0.2, "ratio_clip_max": 0.2, "ratio_clip_c": None,
    "use_on_policy_kl_approximation": False, "use_importance_sampling_correction": False,
    "truncated_importance_sampling_ratio": None, "token_level_loss": True, "disable_ppo_ratio": False,
    "sequence_level_importance_ratios": False, "use_cispo": False, "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio_min": None, "positive_example_nll_weight": 0.0,
}  # fmt: skip


def _configured(kind: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """A configuration of the target's class, a typed dictionary or a model.

    :raises AbsentError: for an option that came later, where the scenario wants what it does.
    """
    return kind(**accepted(kind, {**defaults, **options}, defaults))


def _behind_a_prompt(values: Any) -> Any:
    return torch.nn.functional.pad(values, (1, 0))


def _rows(mask: Any) -> Any:
    return (mask != 0).any(-1).float()


def _called(boundary: Any, loss: Any, log_probs: Any, data: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """A loss of a batch; until March 2026 it took the logits."""
    mask = data["token_mask"]
    counted = mask[:, 1:] * data["sample_mask"][:, None]
    sequences = inputs.get("global_batch_size") or _rows(counted).sum()
    tokens = inputs.get("batch_num_tokens") or counted.sum()
    counts = {"global_valid_seqs": torch.tensor(float(sequences)), "global_valid_toks": torch.tensor(float(tokens))}
    batch = boundary.imported[_BATCHES].BatchedDataDict({"input_ids": torch.ones_like(mask, dtype=torch.int64), **data})
    if boundary.owner.__name__ == "SequencePackingLossWrapper":
        return _of_a_pack(boundary, loss, log_probs, batch, counts)
    if "next_token_logprobs" in boundary.parameters:
        return boundary.invoke({}, loss, next_token_logprobs=log_probs, data=batch, **counts)
    logits = two_token_logits(log_probs)
    with swapped(torch.Tensor, "cuda", lambda self: self):
        last = torch.zeros_like(logits[:, :1])
        return boundary.invoke({}, loss, next_token_logits=torch.cat([logits, last], 1), data=batch, **counts)


def _of_a_pack(boundary: Any, loss: Any, log_probs: Any, batch: Any, counts: Mapping[str, Any]) -> Any:
    """The logits of all sequences, one behind the other, without padding between them."""
    said = torch.where(torch.isfinite(log_probs) & (log_probs < 0), log_probs, -1.0)  # a model is never certain
    logits = two_token_logits(said)
    rows, width = logits.shape[0], logits.shape[1] + 1
    packed = torch.cat([logits, torch.zeros_like(logits[:, :1])], 1).flatten(0, 1)[None]
    prepared = boundary.imported[_PREPARED].prepare_loss_input
    with swapped(torch.Tensor, "cuda", lambda self: self):
        return boundary.function(
            boundary.owner(loss, prepared, torch.arange(rows + 1) * width), packed, batch, **counts
        )


def _losses(boundary: Any) -> Any:
    """The module of the losses, which a wrapper's is not."""
    return boundary.imported[_LOSSES] if "wrapper" in boundary.path else boundary.module


def _clipped(
    boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> Any:
    """The clipped policy loss of a batch: the loss, and what it reports."""
    names = {"advantages": "advantages", "old_log_probs": "prev_logprobs", "response_mask": "token_mask"}
    data = {upstream: _behind_a_prompt(inputs[name]) for name, upstream in names.items()}
    rollout = inputs.get("rollout_log_probs")
    data["generation_logprobs"] = data["prev_logprobs"] if rollout is None else _behind_a_prompt(rollout)
    data = {**data, "reference_policy_logprobs": data["prev_logprobs"], "sample_mask": _rows(inputs["response_mask"])}
    module = _losses(boundary)
    kind = boundary.owner if module is boundary.module else module.ClippedPGLossFn
    loss = kind(_configured(module.ClippedPGLossConfig, options, _OPTIONS))
    return _called(boundary, loss, inputs["log_probs"], {**data, **(more or {})}, inputs)


#: The options by which each algorithm is asked for, and the one way in which its constructor lets it aggregate.
_BY_ALGORITHM: Mapping[str, tuple[Mapping[str, Any], str | None]] = {
    "ppo": ({}, None),
    "gspo": ({"sequence_level_importance_ratios": True}, "seq-mean-token-mean"),
    "cispo": ({"use_cispo": True}, "token-mean"),
    "reinforce": ({"disable_ppo_ratio": True}, None),
    "cross_entropy": ({"positive_example_nll_weight": 1.0}, "token-mean"),
}


def _policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The cross entropy is its loss of positive examples, in a batch of nothing else and without advantages."""
    algorithm, mode = inputs["algorithm"], inputs["loss_agg_mode"]
    options, only = _BY_ALGORITHM[algorithm]
    if only not in (None, mode) or (algorithm in ("cispo", "reinforce") and inputs["dual_clip"] is not None):
        raise AbsentError(f"its constructor refuses {algorithm} with these options")
    if algorithm in ("gspo", "cross_entropy") and inputs["rollout_log_probs"] is not None:
        raise AbsentError(f"the weights of {algorithm} are none of tokens")
    correction, cap = inputs["rollout_log_probs"] is not None, inputs["importance_weight_cap"]
    asked = {
        **options, "token_level_loss": _MODES[mode], "ratio_clip_min": inputs["eps_clip_low"],
        "ratio_clip_max": inputs["eps_clip_high"], "ratio_clip_c": inputs["dual_clip"],
        "use_importance_sampling_correction": correction,
        "truncated_importance_sampling_ratio": cap if correction else None,
    }  # fmt: skip
    if correction and cap is not None and "truncated_importance_sampling_type" in _fields(boundary):
        asked["truncated_importance_sampling_type"] = "tis"
    if algorithm == "cross_entropy":
        nothing = {"advantages": torch.zeros_like(inputs["advantages"])}
        rewards = {"rewards": torch.ones(len(inputs["log_probs"]))}
        return {"loss": _clipped(boundary, {**inputs, **nothing}, asked, rewards)[0]}
    return {"loss": _clipped(boundary, inputs, asked)[0]}


def _fields(boundary: Any) -> Sequence[str]:
    return [*_losses(boundary).ClippedPGLossConfig.__annotations__]


def _weights(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The weight of a token is what its log-prob's gradient is times, where the policy is the one before; advantages
    are such that every other factor of it is -1."""
    mask, level, high = inputs["response_mask"], inputs["level"], inputs["threshold_high"]
    by_row = level == "sequence"
    kind = "tis" if inputs["mode"] == "truncate" else "icepop"
    if kind == "icepop" and inputs["threshold_low"] is None:
        raise AbsentError("its constructor wants both bounds")
    options = {
        "use_importance_sampling_correction": True, "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": inputs["threshold_low"],
        "sequence_level_importance_ratios": by_row, "token_level_loss": not by_row,
    }  # fmt: skip
    if "truncated_importance_sampling_type" in _fields(boundary):
        options["truncated_importance_sampling_type"] = kind
    elif kind == "icepop":
        raise AbsentError("not in this version: weights are truncated alone")
    valid = (mask != 0).float()
    counted = valid.sum(-1, keepdim=True) * _rows(mask).sum() if by_row else valid.sum()
    current = inputs["old_log_probs"].detach().clone().requires_grad_()
    scenario = {**inputs, "log_probs": current, "advantages": -counted.expand(mask.shape)}
    loss, told = _clipped(boundary, scenario, options)
    (weights,) = torch.autograd.grad(loss, current)
    kept = {"kept": weights} if kind == "icepop" else {}
    return {"weights": weights, **kept, "clip_fraction": told.get("is_oob_ratio")}


def _ratios(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    _, told = _clipped(boundary, {**inputs, "advantages": torch.ones_like(inputs["log_probs"])}, {})
    if "probs_ratio_max" not in told:
        raise AbsentError("not in this version: the extremes of ratios are not reported")
    return {"ratio_max": told["probs_ratio_max"], "ratio_min": told["probs_ratio_min"]}


def _kl_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The KL term alone: advantages are 0. What it calls the reference is the contract's rollout policy."""
    log_probs = inputs["log_probs"]
    options = {"reference_policy_kl_penalty": inputs["coefficient"], "token_level_loss": False,
               "reference_policy_kl_type": inputs["kl_estimator"]}  # fmt: skip
    if inputs["kl_estimator"] == "k3" and "reference_policy_kl_type" not in _fields(boundary):
        del options["reference_policy_kl_type"]
    on_policy = {"old_log_probs": log_probs.detach(), "rollout_log_probs": None}
    reference = _behind_a_prompt(inputs["rollout_log_probs"])
    more = {"reference_policy_logprobs": reference, "sample_mask": torch.ones(len(log_probs))}
    counts = {"global_batch_size": len(log_probs)}
    scenario = {**inputs, **on_policy, **counts, "advantages": torch.zeros_like(log_probs)}
    loss, told = _clipped(boundary, scenario, options, more)
    loss.backward()
    return {"rollout_kl": told["kl_penalty"], "loss": loss.detach()}


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    data = {"token_mask": _behind_a_prompt(mask), "sample_mask": _rows(mask)}
    return {"loss": _called(boundary, boundary.owner(), inputs["log_probs"], data, inputs)[0]}


_DPO: Mapping[str, Any] = {
    "reference_policy_kl_penalty": 0.05, "preference_loss_weight": 1.0, "sft_loss_weight": 0.0,
    "preference_average_log_probs": False, "sft_average_log_probs": False,
}  # fmt: skip


def _preference(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A chosen and a rejected sequence, one after the other; those of the reference stand one place to the left."""

    def both(name: str) -> Any:
        return torch.stack(both_sides(inputs, name).chunk(2), 1).flatten(0, 1)

    mask = both("mask")
    log_probs = torch.where(mask != 0, both("log_probs"), -1.0)
    data = {"token_mask": _behind_a_prompt(mask), "sample_mask": torch.ones(len(mask)),
            "reference_policy_logprobs": torch.nn.functional.pad(both("ref_log_probs"), (0, 1))}  # fmt: skip
    options = {"reference_policy_kl_penalty": inputs["beta"]}
    loss = boundary.owner(_configured(boundary.module.DPOLossConfig, options, _DPO))
    return {"loss": _called(boundary, loss, log_probs, data, {})[0]}


def _value(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    loss = boundary.owner(boundary.module.MseValueLossConfig(cliprange=inputs["cliprange_value"]))
    data = {"token_mask": mask, "sample_mask": _rows(mask), **{name: inputs[name] for name in ("returns", "values")}}
    tokens = inputs["batch_num_tokens"]
    counted = torch.tensor(float((mask != 0).sum() if tokens is None else tokens))
    batch = boundary.imported[_BATCHES].BatchedDataDict(data)
    found, told = boundary.function(loss, inputs["vpreds"], batch, _rows(mask).sum(), counted)
    clipped = told["vf_clipfrac"] if inputs["cliprange_value"] is not None else None
    return {"loss": found, "clip_fraction": clipped}


def _distilled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The teacher's best tokens are all that there are."""
    mask, tokens = inputs["response_mask"], inputs["batch_num_tokens"]
    options, kind = {"zero_outside_topk": False, "mixed_kl_weight": 0.5}, "reverse" if inputs["beta"] else "forward"
    loss = boundary.owner(boundary.module.DistillationLossConfig(kl_type=kind, **options))
    said = [torch.log_softmax(inputs[name], -1) for name in ("logits", "teacher_logits")]
    data = {"token_mask": _behind_a_prompt(mask), "sample_mask": _rows(mask), "input_ids": mask}
    counts = _rows(mask).sum(), torch.tensor(float((mask != 0).sum() if tokens is None else tokens))
    return {"loss": boundary.function(loss, *said, None, data, *counts)[0]}


_LOSS_BINDINGS = (
    *(
        policy_loss(
            boundary,
            _policy,
            [*_BY_ALGORITHM],
            ("eps_clip_low", "eps_clip_high", "dual_clip"),
            imports=imports,
            fixed={"dp_size": None, "loss_scale_factor": None},
            accepts={"importance_weight_cap": (None, 2.0), "loss_agg_mode": tuple(_MODES)},
        )
        for boundary, imports in (
            (f"{_LOSSES}.ClippedPGLossFn.__call__", (_BATCHES,)),
            (f"{_ALGORITHMS}.loss.wrapper.SequencePackingLossWrapper.__call__", (_BATCHES, _LOSSES, _PREPARED)),
        )
    ),
    Binding(
        f"{_LOSSES}.ClippedPGLossFn.__call__",
        "importance_weight",
        call=_weights,
        imports=(_BATCHES,),
        accepts={"level": ("token", "sequence"), "response_mask": ("full", "right")},
        fixed=IMPORTANCE_WEIGHT.lacking("level", "mode", "threshold_low", "threshold_high"),
    ),
    Binding(
        f"{_LOSSES}.DistillationLossFn.__call__",
        "distillation_loss",
        call=_distilled,
        fixed={"temperature": 1.0},
        accepts={"beta": (0.0, 1.0)},
    ),
    Binding(f"{_LOSSES}.ClippedPGLossFn.__call__", "ratio_report", call=_ratios, imports=(_BATCHES,)),
    Binding(
        f"{_LOSSES}.ClippedPGLossFn.__call__",
        "rollout_kl",
        call=_kl_loss,
        imports=(_BATCHES,),
        accepts={"kl_estimator": ("k1", "k2", "k3")},
        dialects=(
            Dialect("clamp", 10.0, "an estimate is cut to [-10, 10]", f"{_MAIN}/algorithms/utils.py#L99"),
            Dialect(
                "of_the_samples",
                "differentiated",
                "the KL loss includes the gradient of having sampled the tokens",
                f"{_MAIN}/algorithms/loss/loss_functions.py#L478",
            ),
        ),
    ),
    policy_loss(
        f"{_LOSSES}.NLLLossFn.__call__",
        _supervised,
        "cross_entropy",
        (),
        mode="token-mean",
        formerly=(f"{_ALGORITHMS}.loss_functions.NLLLoss.__call__",),
        imports=(_BATCHES,),
    ),
    Binding(
        f"{_LOSSES}.DPOLossFn.__call__",
        "preference_loss",
        call=_preference,
        imports=(_BATCHES,),
        fixed={"ld_alpha": None, "loss_type": "sigmoid"},
    ),
    Binding(
        f"{_LOSSES}.MseValueLossFn.__call__",
        "value_loss",
        call=_value,
        imports=(_BATCHES,),
        fixed=aggregated("token-mean"),
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", f"{_MAIN}/algorithms/loss/loss_functions.py"),
        ),
    ),
)


# -- KL and masked statistics -----------------------------------------------------------------------------------------


_COUNT_EPSILON = Dialect(
    "count_epsilon",
    1e-8,
    "a small number is added to the count, lest a mean of no token divides by 0",
    f"{_MAIN}/algorithms/utils.py#L224",
)


_NUMBERS = (
    Binding(
        f"{_UTILS}.calculate_kl",
        "kl_estimate",
        formerly=(f"{_UTILS}.calculate_kl_penalty_joschu2020",),
        arguments={
            "log_probs": ("logprobs", "logprobs_policy"),
            "ref_log_probs": ("logprobs_reference",),
            "kl_estimator": ("kl_type",),
        },
        outputs=("kl",),
        call=partial(estimated, {"k3": {}}, ("log_probs", "ref_log_probs")),  # until November 2025 it had no option
        fixed={"response_mask": None},
        accepts={"kl_estimator": ("k1", "k2", "k3")},
        dialects=(Dialect("clamp", 10.0, "an estimate is cut to [-10, 10]", f"{_MAIN}/algorithms/utils.py#L99"),),
    ),
    masked_statistic(f"{_UTILS}.masked_mean", "mean", "axis", arguments={"axis": ("dim",)}, dialects=(_COUNT_EPSILON,)),
    masked_statistic(f"{_UTILS}.masked_var", "var", "unbiased", dialects=(_COUNT_EPSILON,)),
)


# -- advantages -------------------------------------------------------------------------------------------------------


def _prompts(group: Sequence[Any]) -> Any:
    """A prompt of one token for each group."""
    labels = list(dict.fromkeys(group))
    return torch.tensor([[labels.index(label)] for label in group])


def _estimator(boundary: Any, **options: Any) -> Any:
    """An estimator by its own constructor, and both of the configurations that it is given."""
    kl = stand_in(use_kl_in_reward=False, reference_policy_kl_penalty=0.0, reference_policy_kl_type="k1")
    usual = {"use_leave_one_out_baseline": False, "normalize_rewards": True, "minus_baseline": False}

    class Options(dict[str, Any]):
        """Read as an object, and until July 2026 as a dictionary."""

        __getattr__ = dict.__getitem__

    of_loss = Options({**vars(kl), **{name: options.pop(name) for name in list(options) if name in vars(kl)}})
    return boundary.owner(Options({**usual, **options}), of_loss)


def _group_advantage(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    estimator = _estimator(boundary, normalize_rewards=inputs["norm_by_std"] is not False)
    rewards, mask = inputs["token_level_rewards"].sum(-1), inputs["response_mask"]
    found = boundary.function(estimator, _prompts(inputs["group"]), rewards, mask)
    return {"advantages": found, "returns": found}


def _leave_one_out(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rewards = inputs["rewards"]
    estimator = _estimator(boundary, use_leave_one_out_baseline=inputs["leave_one_out"], normalize_rewards=False)
    found = boundary.function(estimator, _prompts(inputs["group"]), rewards, torch.ones(len(rewards), 1))
    return {"normalised": found[:, 0]}


def _baseline(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rewards = inputs["rewards"]
    baseline, _ = boundary.function(
        _prompts(inputs["group"]), rewards, torch.ones_like(rewards), leave_one_out_baseline=inputs["leave_one_out"]
    )
    return {"normalised": rewards - baseline}


def _whitened(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """With rewards of 0, the KL penalty is the advantage; an estimate of more than 10 is cut."""
    advantages, mask = inputs["advantages"], inputs["response_mask"]
    if advantages.abs().max() > 10:
        raise AbsentError("a KL estimate is cut to [-10, 10]")
    estimator = _estimator(boundary, use_kl_in_reward=True, reference_policy_kl_penalty=1.0)
    nothing = torch.zeros_like(advantages)
    penalty = {"logprobs_policy": -advantages, "logprobs_reference": nothing}
    found = boundary.function(estimator, _prompts(range(len(mask))), nothing[:, 0], mask, **penalty)
    return {"normalised": found}


def _critic(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    options = {
        "gae_lambda": inputs["lam"], "gae_gamma": inputs["gamma"], "normalize_advantages": False,
        "gae_lambda_value": None, "gae_lambda_policy": None, "length_adaptive_alpha": 0.0,
    }  # fmt: skip
    names = taken(inputs, "token_level_rewards", "values", "response_mask")
    return boundary.invoke(names, _estimator(boundary, **options))


def _landed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    estimator = _estimator(
        boundary,
        **dict.fromkeys(("gae_lambda", "gae_gamma", "normalize_advantages", "gae_lambda_value", "gae_lambda_policy")),
        length_adaptive_alpha=0.0,
    )
    found = boundary.invoke(taken(inputs, "rewards", "response_mask"), estimator)
    return {"token_level_rewards": found}


_OF_LOSS = StandIn("configurations", "the options that an estimator reads, as an object and as a dictionary")
_AT = f"{_MAIN}/algorithms/advantage_estimator.py#L"
_EVERY = ("every response to a prompt is valid; what is rejected is masked in the loss", f"{_AT}82")
_NUMBER = ("a reward is one number a response", f"{_AT}80")
_COUNTED = (
    Dialect("rejected", "counted", *_EVERY),
    Dialect("a_rejected_row_is_an_absent_row", None, *_EVERY),
    Dialect("masked_rewards", "counted", *_NUMBER),
    Dialect("masked_values_have_no_influence", None, *_NUMBER),
)
_ADVANTAGES = (
    group_advantage(
        f"{_ESTIMATORS}.GRPOAdvantageEstimator.compute_advantage",
        _group_advantage,
        "grpo",
        ("norm_by_std",),
        *_COUNTED,
        stand_ins=(_OF_LOSS,),
        fixed={"reward_layout": "outcome"},
        accepts={"response_mask": ("full", "right")},
    ),
    normalised_rewards(
        f"{_ESTIMATORS}.GRPOAdvantageEstimator.compute_advantage",
        _leave_one_out,
        "leave_one_out",
        stand_ins=(_OF_LOSS,),
        fixed={"std_level": None},
    ),
    normalised_rewards(
        f"{_UTILS}.calculate_baseline_and_std_per_prompt", _baseline, "leave_one_out", fixed={"std_level": None}
    ),
    Binding(
        f"{_ESTIMATORS}.ReinforcePlusPlusAdvantageEstimator.compute_advantage",
        "advantage_normalisation",
        call=_whitened,
        stand_ins=(_OF_LOSS,),
        fixed={"mean_level": "batch", "std_level": "batch", "leave_one_out": False, "epsilon": 1e-8},
        dialects=(
            Dialect("std", "biased", "the variance divides by the tokens", f"{_AT}259"),
            Dialect("epsilon_placement", "floor", "it is at least 1e-8", f"{_AT}260"),
            Dialect("masked_output", "any", "the loss has its mask", f"{_AT}261"),
        ),
    ),
    Binding(
        f"{_ESTIMATORS}.GeneralizedAdvantageEstimator._compute_gae",
        "generalised_advantage",
        outputs=("advantages", "returns"),
        call=_critic,
        stand_ins=(_OF_LOSS,),
    ),
    Binding(
        f"{_ESTIMATORS}.GeneralizedAdvantageEstimator._build_token_level_rewards",
        "token_reward",
        call=_landed,
        stand_ins=(_OF_LOSS,),
        fixed={"score_as": None},
    ),
)


# -- rewards, prompts and masks ---------------------------------------------------------------------------------------


def _overlong(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    logs = [[{"role": "assistant", "token_ids": torch.zeros(int((row != 0).sum()))}] for row in mask]
    batch = {"total_reward": inputs["rewards"].clone(), "message_log": logs}
    options = {
        "enabled": True,
        "overlong_buffer_length": inputs["buffer"],
        "overlong_buffer_penalty": inputs["factor"],
        "max_response_length": inputs["max_length"],
        "stop_properly_penalty_coef": None,
    }
    defaults = {"enabled": False, **dict.fromkeys(list(options)[1:])}
    config = _configured(boundary.module.RewardShapingConfig, options, defaults)
    return {"rewards": boundary.function(batch, config)["total_reward"]}


def _turns(prompt: Sequence[int], replies: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """A log of messages: a prompt, and after each answer of the policy what the environment says."""
    log = [{"role": "user", "content": "", "token_ids": torch.tensor(list(prompt))}]
    for reply in replies:
        spoken = torch.tensor([5, 6])
        probabilities = {"generation_logprobs": torch.zeros(2)}
        log.append({"role": "assistant", "content": "", "token_ids": spoken, **probabilities})
        log.append({"role": "user", "content": "", "token_ids": torch.tensor(list(reply))})
    return log


def _grouped(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Rollouts of prompts, to each of which the environment says something else: which of them have one prompt."""
    labels = inputs["labels"].tolist()
    known = list(dict.fromkeys(labels))
    logs = [_turns([1, 2, 10 + known.index(label)], [[40 + row]]) for row, label in enumerate(labels)]
    lengths = {"original_prompt_lengths": torch.full((len(logs),), 3)}
    prompts = boundary.invoke({}, message_logs=logs, **lengths)
    found = [tuple(token for message in log for token in message["token_ids"].tolist()) for log in prompts]
    order = list(dict.fromkeys(found))
    return {"numbers": torch.tensor([order.index(prompt) for prompt in found])}


def _episode(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt that holds an answer of another assistant; and turns, the last of which the environment may not answer.

    What is behind the last turn is the environment's, and in the batch: it is cut off here, as it has no gradient.
    """
    log: list[dict[str, Any]] = [
        {"role": "user", "content": "", "token_ids": torch.tensor([1, 2])},
        {"role": "assistant", "content": "", "token_ids": torch.tensor([3])},
        {"role": "user", "content": "", "token_ids": torch.tensor([4])},
    ]
    for said, heard in zip(inputs["said"], inputs["heard"]):
        spoken = {"token_ids": torch.full((said,), 5), "generation_logprobs": torch.zeros(said)}
        log.append({"role": "assistant", "content": "", **spoken})
        log.append({"role": "user", "content": "", "token_ids": torch.full((heard,), 6)})
    if inputs["max_tokens"] < 100:
        raise AbsentError("the engine has the limit, and this is what comes after it")
    boundary.function([log])
    mask = [int(flag) for message in log[:-1] for flag in message["token_loss_mask"]]
    return {"loss_mask": mask[4:] if not any(mask[:4]) else mask, "cut": False}


def _flat(boundary: Any, log: Any, **options: Any) -> tuple[Any, Any]:
    """The tokens of a log of messages, and their mask, as collators make them."""
    data = boundary.imported[_MESSAGES_OF]
    data.add_loss_mask_to_message_log([log], **options)
    found, _ = data.batched_message_log_to_flat_message([log])
    return found["token_ids"][0], found["token_loss_mask"][0]


def _of_a_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A chat whose assistant is asked by the template to begin."""
    tokenizer, messages = chat(inputs)
    row, task = {"messages": messages, "task_name": "chats"}, stand_in(prompt=None, system_prompt=None)
    made = boundary.function(row, task, tokenizer, 1000, 0, add_generation_prompt=True)
    ids, mask = _flat(boundary, made["message_log"], only_unmask_final=inputs["trains"] == "last")
    return {"token_ids": ids, "loss_mask": mask}


def _of_a_pair(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen answer to a chat, beside another one. What both have before they differ is no part of their
    difference."""
    tokenizer, messages = chat(inputs)
    other = {"role": "assistant", "content": "w9.9"}
    answers = [{"rank": rank, "completion": [answer]} for rank, answer in enumerate((messages[-1], other))]
    row, task = {"context": messages[:-1], "completions": answers}, stand_in(prompt=None, system_prompt=None)
    made = boundary.function(row, task, tokenizer, 1000, 0)
    ids, mask = _flat(boundary, made["message_log_chosen"], only_unmask_final=True)
    against, _ = _flat(boundary, made["message_log_rejected"], only_unmask_final=True)
    shared = next(place for place, pair in enumerate(zip(ids, against)) if pair[0] != pair[1])
    return {"token_ids": ids, "loss_mask": [int(flag) * (place >= shared) for place, flag in enumerate(mask)]}


_BEHIND = "the new line behind an answer's end is a part of the message"
_CHATS: dict[str, Any] = {
    "stand_ins": (StandIn("tokenizer", "a word is a token, in a template of ChatML's form"),),
    "imports": (_MESSAGES_OF,),
    "dialects": (Dialect("after_the_end", "counted", _BEHIND, f"{_MAIN}/data/llm_message_utils.py#L560"),),
}
_WHOLE = {"max_tokens": None}
_PAIRS = {**_WHOLE, "trains": "last"}
_MESSAGES = (
    Binding("nemo_rl.data.processors.sft_processor", "trained_tokens", call=_of_a_chat, fixed=_WHOLE, **_CHATS),
    Binding(
        "nemo_rl.data.processors.preference_preprocessor", "trained_tokens", call=_of_a_pair, fixed=_PAIRS, **_CHATS
    ),
    Binding(
        f"{_ALGORITHMS}.reward_functions.apply_reward_shaping",
        "overlong_penalty",
        call=_overlong,
        dialects=(
            Dialect("beyond_limit", "linear", "more with each token", f"{_MAIN}/algorithms/reward_functions.py#L163"),
        ),
    ),
    Binding(
        f"{_GRPO}.extract_initial_prompt_messages",
        "group_numbers",
        formerly=(f"{_GRPO}._extract_prompt_only_messages",),
        call=_grouped,
    ),
    Binding(f"{_GRPO}.add_grpo_token_loss_masks_and_generation_logprobs", "rollout_episode", call=_episode),
)


# -- batches and packing ----------------------------------------------------------------------------------------------


def _batch(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    rows = {name: column if isinstance(column, torch.Tensor) else list(column) for name, column in fields.items()}
    return boundary.imported[_BATCHES].BatchedDataDict(rows)


def _read(batch: Any, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """It holds rows alone: what belongs to the whole is somewhere else."""
    return dict(batch.items()), inputs["meta"]


def _chunks(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    return [boundary.function(batch, rank, inputs["count"]) for rank in range(inputs["count"])]


def _back_in_order(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    """It takes the place of each row: the order that a scenario gives, turned round."""
    order = list(inputs["order"])
    boundary.function(batch, [order.index(place) for place in range(len(order))])
    return [batch]


def _packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    packer = boundary.function("modified_first_fit_decreasing", inputs["max_tokens_per_microbatch"])
    return {"parts": packer.pack(lengths_of(inputs))}


_CONTAINER = Container(_batch, _read, {"imports": (_BATCHES,), "fixed": {"remainder": 0}})
_ROWS = (
    _CONTAINER.surgery(f"{_BATCH}.chunk", "cut", _chunks),
    _CONTAINER.surgery(f"{_BATCH}.repeat_interleave", "repeat", counted),
    _CONTAINER.surgery(f"{_BATCH}.reorder_data", "reorder", _back_in_order),
    _CONTAINER.joining(f"{_BATCH}.from_batches"),
    Binding("nemo_rl.data.packing.algorithms.get_packer", "microbatch_packing", call=_packed),
)


# -- rules ------------------------------------------------------------------------------------------------------------


def _verified(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    response, truth = inputs["response"], inputs["ground_truth"]
    return {
        "score": score_of(boundary.invoke({}, solution_str=response, response=response, ground_truth=truth, gt=truth))
    }


_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_RULES = (
    rule_reward("nemo_rl.environments.dapo_math_verifier.compute_score", *_LINES, call=_verified),
    rule_reward("nemo_rl.environments.dapo_math_verifier.is_correct_minerva", *_LINES, call=_verified),
    rule_reward(
        "nemo_rl.environments.rewards.exact_answer_alphanumeric_reward",
        "I see. <answer> {answer} </answer>",
        call=_verified,
        accepts={"ground_truth": ("42", "7", "100")},  # letters and digits alone are compared
    ),
)


# -- what is asked for by recipes alone -------------------------------------------------------------------------------


def _filtered(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The loss of one sequence whose tokens are sampled from ``top_k``, with the weight of a whole sequence."""
    given = inputs["arguments"]
    ids = given["token_ids"]
    tokens = ids.shape[1]
    ones = torch.ones(1, tokens)
    data = {
        "input_ids": ids,
        "token_mask": ones,
        "sample_mask": torch.ones(1),
        "advantages": ones,
        "prev_logprobs": _behind_a_prompt(given["old_log_probs"]),
        "generation_logprobs": _behind_a_prompt(given["rollout_log_probs"]),
    }
    losses = boundary.imported[_LOSSES]
    options = {
        "sequence_level_importance_ratios": True,
        "token_level_loss": False,
        "use_importance_sampling_correction": True,
        "disable_ppo_ratio": True,
    }
    loss = losses.ClippedPGLossFn(_configured(losses.ClippedPGLossConfig, options, _OPTIONS))
    batch = boundary.imported[_BATCHES].BatchedDataDict(data)
    params = boundary.imported[_SAMPLING].TrainingSamplingParams(top_k=given["top_k"])
    with swapped(torch.Tensor, "cuda", lambda self: self):
        made, batch = boundary.function(given["logits"], batch, loss, sampling_params=params)
    counts = {"global_valid_seqs": torch.tensor(1.0), "global_valid_toks": torch.tensor(float(tokens - 1))}
    return {"returned": loss(data=batch, **counts, **made)[0]}


class _Words:
    """A tokenizer and its template: a word is a token, and a message its words."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **_: Any) -> str:
        return " ".join(message["content"] for message in messages)

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        return {"input_ids": torch.tensor([[int(word) for word in text.split()]])}


def _prompted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens that generation goes on from."""
    found = boundary.function(inputs["arguments"], None, _Words(), 100, 0)
    return {"returned": [token for message in found["message_log"] for token in message["token_ids"].tolist()]}


_SAMPLING = f"{_ALGORITHMS}.logits_sampling_utils"
_CALLS = (
    Binding(
        "nemo_rl.data.processors.helpsteer3_data_processor",
        "call",
        call=_prompted,
        stand_ins=(StandIn("tokenizer", "a word is a token, which is its number"),),
    ),
    Binding(
        f"{_PREPARED}.prepare_loss_input",
        "call",
        call=_filtered,
        imports=(_LOSSES, _BATCHES, _SAMPLING),
    ),
)


#: Reason -> what is left out for it.
_LEFT_OUT = {
    "metrics alone, or a log of them": """
        algorithms.*metric* algorithms.grpo._log_mixed_rewards_and_advantages_information environments.*metrics*
        algorithms.utils.print_efficiency_summary experience.*metric* models.*metrics*
    """,
    "which experts a router has chosen, for a replay on the same kernels": "*routed_experts* models.*_r3_trace_*",
    "it starts Ray's workers and goes through the steps of a training; what it asks is bound": """
        algorithms.dpo.* algorithms.rm.* algorithms.sft.* algorithms.distillation.* algorithms.single_controller*
        algorithms.xtoken_off_policy_distillation.* algorithms.*.setup algorithms.*.validate algorithms.*_train
        algorithms.grpo_sync.*_sync
    """,
    "it looks a thing up by its options, or refuses some": """
        algorithms.*._create_advantage_estimator algorithms.*._validate_* algorithms.*._raise_if_*
        algorithms.*._resolve_* algorithms.*Config.* algorithms.ppo._async_ppo_* data.interfaces.* data.utils.*
        experience.rollouts.*reward_penalty_* experience.rollouts._infer_single_token_id
        experience.rollouts.should_mask_flagged_samples
        models.automodel.data.check_sequence_dim models.megatron.data.get_and_validate_seqlen
    """,
    "what is bound asks it, or its options are those of what is bound": """
        algorithms.advantage_estimator.GRPOAdvantageEstimator.__init__ algorithms.*.MseValueLossFn.__init__
        algorithms.advantage_estimator.ReinforcePlusPlusAdvantageEstimator.__init__ algorithms.*.NLLLossFn.__init__
        algorithms.advantage_estimator.GeneralizedAdvantageEstimator.__init__ algorithms.*.ClippedPGLossFn.__init__
        algorithms.*.DPOLossFn.* algorithms.*.PreferenceLossFn.split_output_tensor algorithms.*._preference_loss
        algorithms.*.SequencePackingLossWrapper.__init__ distributed.batched_data_dict.BatchedDataDict.slice
        data.llm_message_utils.* environments.dapo_math_verifier.* data.packing.*
    """,
    "distillation between two vocabularies, which no contract defines": """
        algorithms.x_token.* data.cross_tokenizer_collate.* data.processors.kd_data_processor
        algorithms.*.CrossTokenizerDistillationLossFn.*
    """,
    "when a training stops; a checkpoint; weights on their way to engines": """
        algorithms.grpo._validation_* algorithms.*_checkpoint algorithms.grpo.refit_policy_generation
    """,
    "which teacher answers, and how its batches are padded": "algorithms.opd.* algorithms.grpo._pad_teacher_logprobs",
    "images, sound and videos, as processors make them": """
        data.multimodal_utils.* environments.nemo_gym_video.* environments.nemotron_utils.* data.*.vlm_* models.*_vlm_*
        distributed.*multimodal* experience.rollouts.*multimodal* experience.rollouts.*image*
    """,
    "columns of data sets, as messages": """
        data.datasets.* data.processors.math_* data.processors.*multichoice* data.processors.nemo_gym_data_processor
    """,
    "fields on their way between workers, unchanged": "data_plane.*",
    "it needs the process group of its ranks": """
        distributed.model_utils.* models.dtensor.* models.megatron.data.*pack_sequences_*_megatron
    """,
    "where Ray puts a worker": "distributed.virtual_cluster.* distributed.worker_groups.*",
    "it runs a response's program, plays a game, or searches in documents": """
        environments.code_environment.* environments.games.* environments.tools.*
    """,
    "it deals rows out to workers, or runs on one": """
        environments.utils.* environments.reward_model_environment.* environments.*.step environments.vlm_environment.*
    """,
    "math_verify decides, a package that parses formulas": """
        environments.math_environment.HF* environments.math_environment._select_extracted_answer
        environments.rewards.math_expression_reward environments.rewards.geo3k_reward
    """,
    "an evaluation, or a quantised model: nothing is trained": "evals.* data.collate_fn.eval_collate_fn modelopt.*",
    "it asks an engine or an environment, starts its servers, or waits for them": """
        algorithms.async_utils.* models.generation.* experience.rollout_manager.* experience.sync_rollout_*
        experience.payload.* environments.nemo_gym.* experience.rollouts.*nemo_gym_ro*
        experience.rollouts.generate_responses* experience.rollouts.async_generate_response_for_sample_turn
    """,
    "workers load models, and hand batches to them on their devices, and to losses that are bound": """
        models.huggingface.* models.policy.* models.value.* models.automodel.train.* models.automodel.setup.*
        models.megatron.setup.* models.megatron.draft.* models.megatron.router_replay.* models.megatron.train.*
        models.megatron.common.*
    """,
    "logs, timers and traces, and weights on their way to engines": "utils.*",
}

TARGET = Target(
    name="nemorl",
    arguments={"response_mask": ("mask", "response_mask")},
    repository="https://github.com/NVIDIA-NeMo/RL",
    roots=(PackageRoot("nemo_rl"), PackageRoot("nemo_reinforcer")),
    moved={
        "nemo_rl": ("nemo_reinforcer",),
        _LOSSES: (f"{_ALGORITHMS}.loss_functions", "nemo_reinforcer.algorithms.loss_functions"),
    },
    preload=("torch._dynamo", "pydantic", "transformers", "transformers.models.auto.processing_auto", "requests"),
    # A patch of tokenizers is for transformers before 5.12; pydantic wants the TypedDict of Python 3.12.
    at_import={"transformers.__version__": "5.11.0", "typing.TypedDict": Alias("typing_extensions.TypedDict")},
    bindings=tuple(
        replace(binding, dtypes=("float32", "bfloat16"))
        for binding in (*_LOSS_BINDINGS, *_NUMBERS, *_ADVANTAGES, *_MESSAGES, *_ROWS, *_RULES, *_CALLS)
    ),
    unbound={f"nemo_rl.{path}": reason for reason, paths in _LEFT_OUT.items() for path in paths.split()},
)
