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
from sentinel.contracts.importance_weight import IMPORTANCE_WEIGHT
from sentinel.contracts.normalisation import REWARD_NORMALISATION
from sentinel.targets import Alias, Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.worker.drift import AbsentError
from sentinel.worker.families import (
    Container,
    group_advantage,
    masked_statistic,
    policy_loss,
    rule_reward,
)
from sentinel.worker.kit import (
    accepted,
    counted,
    estimated,
    lengths_of,
    score_of,
    stand_in,
    swapped,
    taken,
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

# -- losses -----------------------------------------------------------------------------------------------------------

_MODES = {"token-mean": True, "seq-mean-token-mean": False}

#: What every version's configuration must say, and what a later one's says by default.
_OPTIONS: Mapping[str, Any] = {
    "reference_policy_kl_penalty": 0.0,
    "reference_policy_kl_type": "k3",
    "kl_input_clamp_value": 20.0,
    "kl_output_clamp_value": 10.0,
    "ratio_clip_min": 0.2,
    "ratio_clip_max": 0.2,
    "ratio_clip_c": None,
    "use_on_policy_kl_approximation": False,
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_ratio": None,
    "token_level_loss": True,
    "disable_ppo_ratio": False,
    "sequence_level_importance_ratios": False,
    "use_cispo": False,
    "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio_min": None,
    "positive_example_nll_weight": 0.0,
}


def _configured(kind: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """A configuration of the target's class, a typed dictionary or a model.

    :raises AbsentError: for an option that came later, where the scenario wants what it does.
    """
    return kind(**accepted(kind, {**defaults, **options}, defaults))


def _behind_a_prompt(values: Any) -> Any:
    import torch

    return torch.nn.functional.pad(values, (1, 0))


def _rows(mask: Any) -> Any:
    return (mask != 0).any(-1).float()


def _called(boundary: Any, loss: Any, log_probs: Any, data: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """A loss of a batch; until March 2026 it took the logits."""
    import torch

    mask = data["token_mask"]
    counted = mask[:, 1:] * data["sample_mask"][:, None]
    sequences = inputs.get("global_batch_size") or _rows(counted).sum()
    tokens = inputs.get("batch_num_tokens") or counted.sum()
    counts = {"global_valid_seqs": torch.tensor(float(sequences)), "global_valid_toks": torch.tensor(float(tokens))}
    given = {"input_ids": torch.ones(mask.shape, dtype=torch.int64), **data}
    batch = boundary.imported[_BATCHES].BatchedDataDict(given)
    if "next_token_logprobs" in boundary.parameters:
        return boundary.invoke({}, loss, next_token_logprobs=log_probs, data=batch, **counts)
    logits = two_token_logits(log_probs)
    with swapped(torch.Tensor, "cuda", lambda self: self):
        last = torch.zeros_like(logits[:, :1])
        return boundary.invoke({}, loss, next_token_logits=torch.cat([logits, last], 1), data=batch, **counts)


def _clipped(
    boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> Any:
    """The clipped policy loss of a batch: the loss, and what it reports."""
    names = {"advantages": "advantages", "old_log_probs": "prev_logprobs", "response_mask": "token_mask"}
    data = {upstream: _behind_a_prompt(inputs[name]) for name, upstream in names.items()}
    rollout = inputs.get("rollout_log_probs")
    data["generation_logprobs"] = data["prev_logprobs"] if rollout is None else _behind_a_prompt(rollout)
    data = {**data, "reference_policy_logprobs": data["prev_logprobs"], "sample_mask": _rows(inputs["response_mask"])}
    loss = boundary.owner(_configured(boundary.module.ClippedPGLossConfig, options, _OPTIONS))
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
    import torch

    algorithm, mode = inputs["algorithm"], inputs["loss_agg_mode"]
    options, only = _BY_ALGORITHM[algorithm]
    if only not in (None, mode) or (algorithm in ("cispo", "reinforce") and inputs["dual_clip"] is not None):
        raise AbsentError(f"its constructor refuses {algorithm} with these options")
    if algorithm in ("gspo", "cross_entropy") and inputs["rollout_log_probs"] is not None:
        raise AbsentError(f"the weights of {algorithm} are none of tokens")
    correction, cap = inputs["rollout_log_probs"] is not None, inputs["importance_weight_cap"]
    asked = {
        **options,
        "token_level_loss": _MODES[mode],
        "ratio_clip_min": inputs["eps_clip_low"],
        "ratio_clip_max": inputs["eps_clip_high"],
        "ratio_clip_c": inputs["dual_clip"],
        "use_importance_sampling_correction": correction,
        "truncated_importance_sampling_ratio": cap if correction else None,
    }
    if correction and cap is not None and "truncated_importance_sampling_type" in _fields(boundary):
        asked["truncated_importance_sampling_type"] = "tis"
    if algorithm == "cross_entropy":
        nothing = {"advantages": torch.zeros_like(inputs["advantages"])}
        rewards = {"rewards": torch.ones(len(inputs["log_probs"]))}
        return {"loss": _clipped(boundary, {**inputs, **nothing}, asked, rewards)[0]}
    return {"loss": _clipped(boundary, inputs, asked)[0]}


def _fields(boundary: Any) -> Sequence[str]:
    return [*boundary.module.ClippedPGLossConfig.__annotations__]


def _weights(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The weight of a token is what its log-prob's gradient is times, where the policy is the one before; advantages
    are such that every other factor of it is -1."""
    import torch

    mask, level, high = inputs["response_mask"], inputs["level"], inputs["threshold_high"]
    by_row = level == "sequence"
    kind = "tis" if inputs["mode"] == "truncate" else "icepop"
    if kind == "icepop" and inputs["threshold_low"] is None:
        raise AbsentError("its constructor wants both bounds")
    options = {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": inputs["threshold_low"],
        "sequence_level_importance_ratios": by_row,
        "token_level_loss": not by_row,
    }
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
    import torch

    _, told = _clipped(boundary, {**inputs, "advantages": torch.ones_like(inputs["log_probs"])}, {})
    if "probs_ratio_max" not in told:
        raise AbsentError("not in this version: the extremes of ratios are not reported")
    return {"ratio_max": told["probs_ratio_max"], "ratio_min": told["probs_ratio_min"]}


def _kl_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The KL term alone: advantages are 0. What it calls the reference is the contract's rollout policy."""
    import torch

    log_probs = inputs["log_probs"]
    options = {
        "reference_policy_kl_penalty": inputs["coefficient"],
        "reference_policy_kl_type": inputs["kl_estimator"],
        "token_level_loss": False,
    }
    if inputs["kl_estimator"] == "k3" and "reference_policy_kl_type" not in _fields(boundary):
        del options["reference_policy_kl_type"]
    on_policy = {"old_log_probs": log_probs.detach(), "rollout_log_probs": None}
    more = {
        "reference_policy_logprobs": _behind_a_prompt(inputs["rollout_log_probs"]),
        "sample_mask": torch.ones(len(log_probs)),
    }
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
    "reference_policy_kl_penalty": 0.05,
    "preference_loss_weight": 1.0,
    "sft_loss_weight": 0.0,
    "preference_average_log_probs": False,
    "sft_average_log_probs": False,
}


def _preference(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A chosen and a rejected sequence, one after the other; those of the reference stand one place to the left."""
    import torch

    def both(name: str) -> Any:
        sides = [inputs[f"{side}_{name}"] for side in ("chosen", "rejected")]
        longest = max(side.shape[1] for side in sides)
        filled = [torch.nn.functional.pad(side, (0, longest - side.shape[1])) for side in sides]
        return torch.stack(filled, 1).flatten(0, 1)

    mask = both("mask")
    log_probs = torch.where(mask != 0, both("log_probs"), -1.0)
    data = {
        "token_mask": _behind_a_prompt(mask),
        "sample_mask": torch.ones(len(mask)),
        "reference_policy_logprobs": torch.nn.functional.pad(both("ref_log_probs"), (0, 1)),
    }
    options = {"reference_policy_kl_penalty": inputs["beta"]}
    loss = boundary.owner(_configured(boundary.module.DPOLossConfig, options, _DPO))
    return {"loss": _called(boundary, loss, log_probs, data, {})[0]}


def _value(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    mask = inputs["response_mask"]
    loss = boundary.owner(boundary.module.MseValueLossConfig(cliprange=inputs["cliprange_value"]))
    data = {
        "token_mask": mask,
        "sample_mask": _rows(mask),
        "returns": inputs["returns"],
        "values": inputs["values"],
    }
    tokens = inputs["batch_num_tokens"]
    counted = torch.tensor(float((mask != 0).sum() if tokens is None else tokens))
    batch = boundary.imported[_BATCHES].BatchedDataDict(data)
    found, told = boundary.function(loss, inputs["vpreds"], batch, _rows(mask).sum(), counted)
    clipped = told["vf_clipfrac"] if inputs["cliprange_value"] is not None else None
    return {"loss": found, "clip_fraction": clipped}


_LOSS_BINDINGS = (
    policy_loss(
        f"{_LOSSES}.ClippedPGLossFn.__call__",
        _policy,
        [*_BY_ALGORITHM],
        ("eps_clip_low", "eps_clip_high", "dual_clip"),
        imports=(_BATCHES,),
        fixed={"dp_size": None, "loss_scale_factor": None},
        accepts={"importance_weight_cap": (None, 2.0), "loss_agg_mode": tuple(_MODES)},
    ),
    Binding(
        f"{_LOSSES}.ClippedPGLossFn.__call__",
        "importance_weight",
        call=_weights,
        imports=(_BATCHES,),
        accepts={"level": ("token", "sequence"), "response_mask": ("full", "right")},
        fixed=IMPORTANCE_WEIGHT.lacking("level", "mode", "threshold_low", "threshold_high"),
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
    import torch

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
    import torch

    rewards = inputs["rewards"]
    estimator = _estimator(boundary, use_leave_one_out_baseline=inputs["leave_one_out"], normalize_rewards=False)
    found = boundary.function(estimator, _prompts(inputs["group"]), rewards, torch.ones(len(rewards), 1))
    return {"normalised": found[:, 0]}


def _baseline(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    rewards = inputs["rewards"]
    baseline, _ = boundary.function(
        _prompts(inputs["group"]), rewards, torch.ones_like(rewards), leave_one_out_baseline=inputs["leave_one_out"]
    )
    return {"normalised": rewards - baseline}


def _whitened(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """With rewards of 0, the KL penalty is the advantage; an estimate of more than 10 is cut."""
    import torch

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
        "gae_lambda": inputs["lam"],
        "gae_gamma": inputs["gamma"],
        "normalize_advantages": False,
        "gae_lambda_value": None,
        "gae_lambda_policy": None,
        "length_adaptive_alpha": 0.0,
    }
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
_RELATIVE: dict[str, Any] = {
    **REWARD_NORMALISATION.lacking("leave_one_out"),
    "mean_level": "group",
    "std_level": None,
}
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
    Binding(
        f"{_ESTIMATORS}.GRPOAdvantageEstimator.compute_advantage",
        "reward_normalisation",
        call=_leave_one_out,
        stand_ins=(_OF_LOSS,),
        fixed=_RELATIVE,
    ),
    Binding(
        f"{_UTILS}.calculate_baseline_and_std_per_prompt",
        "reward_normalisation",
        call=_baseline,
        fixed=_RELATIVE,
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
    import torch

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
    import torch

    log = [{"role": "user", "content": "", "token_ids": torch.tensor(list(prompt))}]
    for reply in replies:
        spoken = torch.tensor([5, 6])
        probabilities = {"generation_logprobs": torch.zeros(2)}
        log.append({"role": "assistant", "content": "", "token_ids": spoken, **probabilities})
        log.append({"role": "user", "content": "", "token_ids": torch.tensor(list(reply))})
    return log


def _grouped(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Rollouts of prompts, to each of which the environment says something else: which of them have one prompt."""
    import torch

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
    import torch

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


_MESSAGES = (
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
    import torch

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
    import torch

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
        import torch

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
        f"{_ALGORITHMS}.loss.utils.prepare_loss_input",
        "call",
        call=_filtered,
        imports=(_LOSSES, _BATCHES, _SAMPLING),
    ),
)


def _for(reason: str, *paths: str) -> dict[str, str]:
    return dict.fromkeys(paths, reason)


_TRAINERS = ("dpo", "rm", "sft", "distillation", "xtoken_off_policy_distillation", "single_controller")
_STEPS = ("setup", "validate", "grpo_train", "async_grpo_train", "ppo_train", "async_ppo_train")
_UNBOUND: dict[str, str] = {
    **_for(
        "it starts Ray's workers and goes through the steps of a training; what it asks is bound",
        *(f"{_ALGORITHMS}.{trainer}.*" for trainer in (*_TRAINERS, "single_controller_utils")),
        *(f"{_ALGORITHMS}.{module}.{step}" for module in ("grpo", "ppo") for step in _STEPS),
        f"{_ALGORITHMS}.grpo_sync.grpo_train_sync",
        f"{_ALGORITHMS}.grpo_sync.validate_sync",
    ),
    **_for(
        "metrics alone",
        f"{_ALGORITHMS}.metric_utils.*",
        f"{_ALGORITHMS}.ppo._compute_critic_metrics",
        f"{_ALGORITHMS}.grpo_sync._compute_seq_logprob_error_metrics",
        f"{_ESTIMATORS}.OPDAdvantageEstimator._compute_metrics",
        f"{_GRPO}._log_mixed_rewards_and_advantages_information",
        f"{_GRPO}.aggregate_rollout_metrics",
        *(f"{_UTILS}.{name}" for name in ("print_performance_metrics", "log_generation_metrics")),
        f"{_UTILS}.print_efficiency_summary",
        "nemo_rl.environments.metrics.*",
        "nemo_rl.experience.metric_utils.*",
    ),
    **_for(
        "it looks a thing up by its options, or refuses some",
        *(f"{_ALGORITHMS}.{module}._create_advantage_estimator" for module in ("grpo", "ppo")),
        f"{_GRPO}._validate_use_kl_in_reward_compat",
        f"{_GRPO}._raise_if_reward_penalties_enabled_without_nemo_gym",
        f"{_ESTIMATORS}.GeneralizedAdvantageEstimator._resolve_lambda_value",
        "nemo_rl.data.interfaces.*",
        "nemo_rl.data.utils.*",
    ),
    **_for(
        "the loss that asks it is bound",
        *(f"{_LOSSES}.PreferenceLossFn.{name}" for name in ("split_output_tensor", "_preference_loss")),
        f"{_LOSSES}.DPOLossFn._dpo_loss",
    ),
    **_for("when a training stops", f"{_GRPO}._validation_stop_value", f"{_GRPO}._validation_early_stop_message"),
    f"{_GRPO}._save_async_replay_buffer_checkpoint": "a checkpoint",
    f"{_GRPO}.refit_policy_generation": "it hands weights to engines",
    f"{_ALGORITHMS}.opd.*": "which teacher answers, and how its batches are padded",
    f"{_ALGORITHMS}.async_utils.*": "threads that ask engines, and which of their answers are fresh enough",
    "nemo_rl.data.datasets.*": "columns of data sets, as messages",
    "nemo_rl.data.packing.*": "packers behind get_packer, which is bound, and metrics",
    "nemo_rl.data_plane.*": "fields on their way between workers, unchanged",
    **_for("it needs the process group of its ranks", "nemo_rl.distributed.model_utils.*", "nemo_rl.models.dtensor.*"),
    **_for("where Ray puts a worker", "nemo_rl.distributed.virtual_cluster.*", "nemo_rl.distributed.worker_groups.*"),
    "nemo_rl.environments.code_environment.*": "it runs a response's program",
    "nemo_rl.environments.dapo_math_verifier.*": "parts of the graders that are bound",
    "nemo_rl.environments.games.*": "an example of a game",
    "nemo_rl.environments.tools.*": "a search in documents",
    "nemo_rl.environments.utils.*": "it deals rows out to workers",
    **_for(
        "images, sound and videos, as processors make them",
        "nemo_rl.data.multimodal_utils.*",
        "nemo_rl.environments.nemo_gym_video.*",
        "nemo_rl.environments.nemotron_utils.*",
    ),
    "nemo_rl.environments.reward_model_environment.*": "a reward model on its own workers",
    "nemo_rl.evals.*": "an evaluation: nothing is trained on it",
    "nemo_rl.modelopt.*": "it calibrates a quantised model",
    "nemo_rl.models.generation.*": "it asks an engine, starts its servers, and keeps them",
    **_for(
        "workers load models, and hand batches to them on their devices, and to losses that are bound",
        *(f"nemo_rl.models.{name}.*" for name in ("huggingface", "policy", "value", "automodel.train")),
        *(f"nemo_rl.models.megatron.{name}.*" for name in ("setup", "draft", "router_replay", "train", "common")),
    ),
    **_for(
        "actors of Ray wait for engines and environments",
        *(f"nemo_rl.experience.{name}.*" for name in ("rollout_manager", "sync_rollout_actor", "payload")),
        "nemo_rl.environments.nemo_gym.*",
    ),
    "nemo_rl.utils.*": "logs, timers and traces, and weights on their way to engines",
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
    preload=("torch._dynamo", "pydantic", "transformers"),
    # A patch of tokenizers is for transformers before 5.12; pydantic wants the TypedDict of Python 3.12.
    at_import={"transformers.__version__": "5.11.0", "typing.TypedDict": Alias("typing_extensions.TypedDict")},
    bindings=tuple(
        replace(binding, dtypes=("float32", "bfloat16"))
        for binding in (*_LOSS_BINDINGS, *_NUMBERS, *_ADVANTAGES, *_MESSAGES, *_ROWS, *_RULES, *_CALLS)
    ),
    unbound=_UNBOUND,
)
