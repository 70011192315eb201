"""Bindings for verl (https://github.com/verl-project/verl).

Most boundaries are functions of tensors. Their options are passed in verl's own configuration classes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, DriftError, PackageRoot, Registry, Target, UnknownInputError
from sentinel.binding import kit
from sentinel.binding.families import MASKED_STATISTICS, group_advantage, masked_statistic, policy_loss
from sentinel.binding.kit import torch

from . import agents, containers, data, functions, models, packing, rewards, schedules, updates
from .shared import CPU
from .shared import MAIN as _MAIN

_CORE = "verl.trainer.ppo.core_algos"
_CORRECTION = "verl.trainer.ppo.rollout_corr_helper"
_TORCH = "verl.utils.torch_functional"
_CONFIG = "verl.workers.config"
_GROUPWISE = "verl.utils.groupwise"


def _core_line(number: int) -> str:
    return f"{_MAIN}/trainer/ppo/core_algos.py#L{number}"


def _make_config(owner: Any, options: Mapping[str, Any]) -> Any:
    for name in options:
        if name not in owner.__dataclass_fields__:
            raise DriftError(f"{owner.__name__} has no option {name!r}")
    return owner(**options)


# -- advantages --------------------------------------------------------------------------------------------------------

_ADVANTAGES = ("advantages", "returns")


def _algo_config(boundary: Any, options: Mapping[str, Any]) -> Any:
    """Make the configuration of verl's advantage estimators: an AlgoConfig, or an omegaconf mapping before #2147."""
    import omegaconf

    values = {name: value for name, value in options.items() if value is not None}
    owner = getattr(boundary.module, "AlgoConfig", None)
    return omegaconf.OmegaConf.create(values) if owner is None else _make_config(owner, values)


def _with_numpy_groups(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs, with the group labels as a numpy array of objects, which verl requires."""
    import numpy

    return {**inputs, "group": numpy.array(inputs["group"], dtype=object)}


def _call_estimator(names: tuple[str, ...], boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call an advantage estimator with the inputs ``names``, or with all inputs if ``names`` is empty."""
    rest = kit.take_inputs(_with_numpy_groups(inputs), *(names or inputs))
    if rest.get("norm_by_std") is True and "norm_adv_by_std_in_grpo" not in boundary.parameters:
        del rest["norm_by_std"]  # before #990, GRPO has no such switch and always divides
    # Without a GPU, verl's get_torch_device returns the module torch.cpu, which is not a device: replace the function.
    with kit.swap(sys.modules.get(_GROUPWISE), "get_torch_device", lambda: boundary.device):
        return boundary.invoke(rest)


def _pass_at_k(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    rest = _with_numpy_groups(inputs)
    if "config" not in boundary.parameters:
        return boundary.invoke(rest)
    return boundary.invoke(rest, config=_algo_config(boundary, {"norm_adv_by_std_in_grpo": rest.pop("norm_by_std")}))


def _with_components(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call GDPO. If there are several reward components, they are passed as verl's reward manager returns them.

    The weights are passed only if they are not all 1, which is the default.
    """
    scores, mask, weights = inputs["component_scores"], inputs["response_mask"], inputs["component_weights"]
    rest = {name: value for name, value in inputs.items() if not name.startswith("component")}
    if scores is None:
        return _call_estimator((), boundary, rest)
    if "non_tensor_batch" not in boundary.parameters:
        raise AbsentError("this version's GDPO has no reward components")
    there = (mask != 0).long()
    # A response ends at its last valid token; a rejected response has only masked tokens.
    ends = torch.where(there.any(-1), there.shape[1] - there.flip(-1).argmax(-1), there.shape[1])
    attended = (torch.arange(there.shape[1]) < ends[:, None]).long()
    names = [f"component {number}" for number in range(len(scores))]
    config = {"gdpo_reward_keys": names}
    if any(weight != 1 for weight in weights):
        config["gdpo_reward_weights"] = weights
    more = {
        "config": config,
        "non_tensor_batch": {name: row.float().numpy() for name, row in zip(names, scores)},
        "batch": {"prompts": there[:, :1], "attention_mask": kit.prepend_prompt(attended)},
    }
    return boundary.invoke(_with_numpy_groups(rest), **more)


def _reinforce_plus_plus(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    if "config" not in boundary.parameters:
        return boundary.invoke(kit.take_inputs(inputs, "token_level_rewards", "response_mask", "gamma"))
    config = _algo_config(boundary, {"gamma": inputs["gamma"]})
    return boundary.invoke(kit.take_inputs(inputs, "token_level_rewards", "response_mask"), config=config)


def _alone(line: int) -> Dialect:
    return Dialect("group_of_one", "score", "a response alone in its group has the baseline 0", _core_line(line))


def _outcome(function: str, estimator: str, knobs: tuple[str, ...], *dialects: Dialect, **more: Any) -> Binding:
    call = more.pop("call", partial(_call_estimator, ()))
    return group_advantage(f"{_CORE}.{function}", call, estimator, knobs, *dialects, **more)


_WITH_PROBABILITIES = partial(
    _call_estimator, ("token_level_rewards", "response_mask", "group", "old_log_probs", "sum_squared_probs")
)
_OUTCOMES = (
    _outcome(
        "compute_grpo_outcome_advantage", "grpo", ("epsilon", "norm_by_std"), _alone(316),
        twins=(f"{_CORE}.compute_grpo_vectorized_outcome_advantage",),
    ),
    _outcome(
        "compute_grpo_vectorized_outcome_advantage", "grpo", ("epsilon", "norm_by_std"),
        Dialect(
            "group_of_one", "score", "a response alone in its group has the baseline 0 and the scale 1",
            f"{_MAIN}/utils/groupwise.py#L37",
        ),
        stand_ins=(CPU,), twins=(f"{_CORE}.compute_grpo_outcome_advantage",),
    ),
    _outcome("compute_grpo_passk_outcome_advantage", "passk", ("epsilon", "norm_by_std"), call=_pass_at_k),
    _outcome("compute_reinforce_plus_plus_baseline_outcome_advantage", "reinforce_plus_plus_baseline", (), _alone(573)),
    _outcome(
        "compute_gdpo_outcome_advantage", "gdpo", ("epsilon", "norm_by_std"), _alone(316), call=_with_components,
        accepts={"components": (1, 2, 3)},
    ),
    _outcome(
        "compute_rloo_outcome_advantage", "rloo", (), _alone(623),
        twins=(f"{_CORE}.compute_rloo_vectorized_outcome_advantage",),
    ),
    _outcome(
        "compute_rloo_vectorized_outcome_advantage", "rloo", (), twins=(f"{_CORE}.compute_rloo_outcome_advantage",),
    ),
    _outcome(
        "compute_gpg_outcome_advantage", "gpg", (), _alone(818),
        Dialect(
            "zero_gradient", "zero_scores",
            "alpha is the number of responses divided by the number of responses with a score other than 0",
            _core_line(810),
        ),
    ),
    _outcome("compute_opo_outcome_advantage", "opo", (), _alone(679)),
    _outcome(
        "compute_remax_outcome_advantage", "remax", (),
        call=partial(_call_estimator, ("token_level_rewards", "response_mask", "reward_baselines")),
    ),
    _outcome(
        "compute_optimal_token_baseline_advantage", "optimal_token_baseline", (), _alone(980), call=_WITH_PROBABILITIES,
        accepts={"response_mask": ("full", "right")},
    ),
    _outcome(
        "compute_multi_turn_optimal_token_baseline_advantage", "optimal_token_baseline", (), _alone(1106),
        call=_WITH_PROBABILITIES,
    ),
)  # fmt: skip

# -- policy losses -----------------------------------------------------------------------------------------------------

_CLIP = {"eps_clip_low": "clip_ratio_low", "eps_clip_high": "clip_ratio_high"}

_METRICS = {
    "clip_fraction": ("actor/pg_clipfrac",),
    "dual_clip_fraction": ("actor/pg_clipfrac_lower",),
    "approx_kl": ("actor/ppo_kl",),
}
#: Before #4062, a policy loss returned these metrics after the loss, in this order. Since then, it returns a mapping.
_RETURNED = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")


#: Loss options that the configuration class of some versions does not declare. In these versions, the trainer adds them
#: to the configuration object.
_PUT_THERE = frozenset({"rollout_correction"})


def _actor_config(boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Make the configuration of verl's actor, including the token counts of the global batch.

    :param options: option -> value. An option ``policy_loss.NAME`` is set in the configuration of the loss.
    """
    counts = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
    counted = {name: inputs[name] for name in counts if inputs[name] is not None}
    of_loss = {name.partition(".")[2]: value for name, value in options.items() if "." in name}
    required: dict[str, Any] = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    actor = getattr(boundary.module, "ActorConfig", None)
    if counted and "global_batch_info" not in getattr(actor, "__dataclass_fields__", ()):
        raise UnknownInputError("this version's actor config has no option 'global_batch_info'", next(iter(counted)))
    if actor is None:  # before #2621, the configuration came from Hydra
        from omegaconf import OmegaConf

        usual = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None}
        return OmegaConf.create({**usual, **options, "policy_loss": of_loss})
    losses, optimizer = sys.modules[_CONFIG].PolicyLossConfig, sys.modules[_CONFIG].OptimizerConfig
    if getattr(optimizer, "lr", None) == "???":  # before #3235, the option had no default
        required["optim"] = optimizer(lr=1e-6)
    beside = {name: value for name, value in of_loss.items() if name in _PUT_THERE - losses.__dataclass_fields__.keys()}
    chosen = {name: value for name, value in required.items() if name in actor.__dataclass_fields__}
    chosen |= {name: value for name, value in options.items() if "." not in name}
    if counted:
        chosen["global_batch_info"] = counted
    if of_loss:
        chosen["policy_loss"] = _make_config(losses, {name: of_loss[name] for name in of_loss.keys() - beside.keys()})
    made = _make_config(actor, chosen)
    for name, value in beside.items():
        object.__setattr__(made.policy_loss, name, value)
    return made


def _call_policy_loss(
    knobs: Mapping[str, str],
    metrics: Mapping[str, tuple[str, ...]],
    options: Mapping[str, Any],
    boundary: Any,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    names = ("log_probs", "old_log_probs", "advantages", "response_mask", "importance_weights", "loss_agg_mode")
    chosen = {option: inputs[name] for name, option in knobs.items()}
    config = _actor_config(boundary, inputs, {**options, **chosen})
    loss, *rest = boundary.invoke(kit.take_inputs(inputs, *names), config=config)
    reported = rest[0] if len(rest) == 1 else dict(zip(_RETURNED, rest))
    shares = {key: sum(reported[name] for name in names) for key, names in metrics.items() if names[0] in reported}
    return {"loss": loss, **shares}


def _policy(
    function: str,
    algorithm: str,
    knobs: Mapping[str, str],
    *dialects: Dialect,
    metrics: Mapping[str, tuple[str, ...]] = _METRICS,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Binding:
    """Bind one of verl's policy losses.

    :param knobs: contract input -> option of the actor's configuration.
    :param metrics: observed key -> the metrics of verl that are added up to this value.
    :param options: further options, as in :func:`_actor_config`.
    """
    call = partial(_call_policy_loss, dict(knobs), dict(metrics), dict(options or {}))
    arguments = {"old_log_probs": ("old_log_prob", "rollout_log_prob")}
    path = f"{_CORE}.{function}"
    return policy_loss(path, call, algorithm, [*knobs], *dialects, weights=True, arguments=arguments, **more)


def _cut(line: int) -> Dialect:
    return Dialect("log_ratio_clamp", 20.0, "the log-ratio is clamped to [-20, 20] for stability", _core_line(line))


def _surrogate(line: int) -> Dialect:
    return Dialect(
        "surrogate", "log_prob", "a token's weight is constant, and only its log-prob has a gradient", _core_line(line)
    )


def _aggregation_parameters(boundary: Any, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters that select the aggregation of the loss: none in versions before April 2025.

    :raises AbsentError: if such a version would need another aggregation than the mean over tokens.
    """
    if "loss_agg_mode" in boundary.parameters:
        return ("loss_agg_mode",)
    if inputs["loss_agg_mode"] != "token-mean":
        raise AbsentError("this version has no loss aggregation other than the mean over tokens")
    return ()


def _call_deprecated_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = ("log_probs", "old_log_probs", "advantages", "response_mask", *_aggregation_parameters(boundary, inputs))
    if "cliprange_low" in boundary.parameters:
        returned = boundary.invoke(kit.take_inputs(inputs, *names, "eps_clip_low", "eps_clip_high", "dual_clip"))
    elif inputs["dual_clip"] is not None:
        raise UnknownInputError("this version's policy loss has no dual clip", "dual_clip")
    elif inputs["eps_clip_low"] != inputs["eps_clip_high"]:
        raise AbsentError("this version has a single clip range: eps_clip_low and eps_clip_high must be equal")
    else:
        returned = boundary.invoke(kit.take_inputs(inputs, *names), cliprange=inputs["eps_clip_low"])
    return dict(zip(("loss", "clip_fraction", "approx_kl", "dual_clip_fraction"), returned))


#: For sequence-level losses. A comment in verl states that they "need to aggregate the loss at the sequence level".
_BY_SEQUENCE = {"loss_agg_mode": "seq-mean-token-mean", "loss_scale_factor": None}
_GLOBAL = ("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")
_DUAL = {**_CLIP, "dual_clip": "clip_ratio_c"}
_DPPO = {**_CLIP, "ratio_cap": "clip_ratio_c"}

_POLICY_LOSSES = (
    _policy("compute_policy_loss_vanilla", "ppo", _DUAL, _cut(1338), accepts={"dual_clip": (3.0, 1.5)}),
    policy_loss(
        f"{_CORE}.compute_policy_loss", _call_deprecated_loss, "ppo", [*_DUAL], _cut(1256),
        arguments={
            "eps_clip_low": ("cliprange_low",), "eps_clip_high": ("cliprange_high",), "dual_clip": ("clip_ratio_c",),
        },
        fixed=dict.fromkeys(_GLOBAL), accepts={"dual_clip": (3.0, 1.5)},
        twins=(f"{_CORE}.compute_policy_loss_vanilla",),
    ),
    _policy(
        "compute_policy_loss_bypass_mode", "ppo", _DUAL, _cut(1338), imports=(_CORRECTION,),
        fixed={"importance_weights": None}, options={"policy_loss.rollout_correction": {"loss_type": "ppo_clip"}},
        accepts={"dual_clip": (3.0, 1.5)}, twins=(f"{_CORE}.compute_policy_loss_vanilla",),
    ),
    _policy(
        "compute_policy_loss_dppo_tv", "dppo_tv", _DPPO, _cut(1420), _surrogate(1439),
        accepts={"ratio_cap": (5.0, 1.5)},
    ),
    _policy(
        "compute_policy_loss_dppo_kl", "dppo_kl", _DPPO, _cut(1501), _surrogate(1523),
        Dialect("epsilon", 1e-08, "1e-8 is added to 1 - p and to 1 - p_old in the binary KL", _core_line(1516)),
        accepts={"ratio_cap": (5.0, 1.5)},
    ),
    _policy(
        "compute_policy_loss_gspo", "gspo_token", _CLIP,
        Dialect("log_ratio_clamp", 10.0, "the logarithm of the ratio is clamped for stability", _core_line(1590)),
        Dialect("log_ratio_clamp_side", "upper", "the ratio is clamped from above only", _core_line(1590)),
        fixed=_BY_SEQUENCE,
    ),
    _policy(
        "compute_policy_loss_sapo", "sapo", {"tau_pos": "tau_pos", "tau_neg": "tau_neg"}, _cut(1665),
        fixed=_BY_SEQUENCE,
    ),
    _policy("compute_policy_loss_gpg", "gpg", {}),
    # The default bounds select no token of a small batch. These bounds select all tokens, so nothing is random.
    _policy(
        "compute_policy_loss_clip_cov", "clip_cov", _CLIP,
        Dialect(
            "nothing_else_is_touched", reason="the tokens that lose their gradient are drawn from the global generator",
            link=_core_line(1822), symptom="global-state",
        ),
        metrics={"clip_fraction": ("actor/pg_clipfrac",)}, fixed={"cov_share": 1.0, "cov_low": 0.05, "cov_high": 100.0},
        options={"policy_loss.clip_cov_ratio": 1.0, "policy_loss.clip_cov_lb": 0.05, "policy_loss.clip_cov_ub": 100.0},
    ),
    _policy(
        "compute_policy_loss_kl_cov", "kl_cov", {},
        Dialect(
            "order_does_not_matter",
            reason="a fixed number of tokens with the largest covariance is penalised; their order decides ties",
            link=_core_line(1906), symptom="value",
        ),
        metrics={}, fixed={"cov_share": 0.3, "cov_kl_coef": 1.0},
        options={"policy_loss.kl_cov_ratio": 0.3, "policy_loss.ppo_kl_coef": 1.0},
    ),
    # verl reports one clip fraction for positive advantages, and one for negative advantages.
    _policy(
        "compute_policy_loss_geo_mean", "gmpo", _CLIP,
        Dialect("epsilon", 1e-10, "1e-10 is added to a weight before its logarithm", _core_line(1995)),
        metrics={"clip_fraction": ("actor/pg_clipfrac", "actor/pg_clipfrac_lower"), "approx_kl": ("actor/ppo_kl",)},
        fixed=_BY_SEQUENCE,
    ),
    _policy("compute_policy_loss_dro", "dro", {"beta": "policy_loss.dro_beta"}),
    _policy("compute_policy_loss_cispo", "cispo", _CLIP, _cut(2070)),
    _policy("compute_policy_loss_reinforce", "reinforce", {}, metrics={"approx_kl": ("actor/ppo_kl",)}),
)  # fmt: skip

# -- off-policy correction ---------------------------------------------------------------------------------------------

_SAFETY_BOUND = Dialect(
    "log_ratio_clamp",
    20.0,
    "SAFETY_BOUND: log-ratios are clamped to [-20, 20] before they are exponentiated",
    f"{_MAIN}/trainer/ppo/rollout_corr_helper.py#L75",
)
_RATIO = {"ratio": "k1", "k2": "k2", "k3": "k3"}
_AGGREGATES = {"token": "token", "sequence": "seq_sum", "geometric": "seq_mean", "largest": "seq_max"}


def _compute_log_ratio(inputs: Mapping[str, Any]) -> Any:
    # Copied from verl, which computes the log-ratio before it calls the correction:
    # https://github.com/verl-project/verl/blob/1dda039b9c6311889a9c9a26040677e1254814f9/verl/trainer/ppo/rollout_corr_helper.py#L849
    return inputs["old_log_probs"] - inputs["rollout_log_probs"]


def _truncate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    level = inputs["level"]
    batch, _, metrics = boundary.invoke(
        kit.take_inputs(inputs, "old_log_probs", "rollout_log_probs", "response_mask"),
        rollout_is=level,
        rollout_is_threshold=inputs["threshold_high"],
        rollout_is_batch_normalize=bool(inputs["normalise"]),
    )
    cut = metrics["rollout_corr/rollout_is_ratio_fraction_high"] if level == "token" else None
    return {"weights": batch.batch["rollout_is_weights"], "clip_fraction": cut}


def _zero_out(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return verl's IcePop weights, which are 0 if the ratio is outside the thresholds."""
    if not hasattr(boundary.module, "_parse_rollout_is_threshold"):
        raise AbsentError("this version can only truncate importance weights, not set them to 0")
    weights, metrics = boundary.invoke(
        kit.take_inputs(inputs, "response_mask"),
        log_ratio=_compute_log_ratio(inputs),
        rollout_is=inputs["level"],
        rollout_is_threshold=f"{inputs['threshold_low']}_{inputs['threshold_high']}",
        rollout_is_batch_normalize=bool(inputs["normalise"]),
    )
    return {"weights": weights, "clip_fraction": metrics["rollout_is_oob_ratio"]}


def _reject(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return verl's rejection mask. The thresholds apply to the ratio or to an estimate of the divergence."""
    low, high = inputs["threshold_low"], inputs["threshold_high"]
    if "rollout_rs_threshold_lower" in boundary.parameters:
        return _reject_by_ratio(boundary, inputs)
    if inputs["level"] == "largest" and inputs["statistic"] == "ratio":
        raise AbsentError("verl cannot reject a sequence by the largest ratio of its tokens")
    kept, metrics = boundary.invoke(
        kit.take_inputs(inputs, "response_mask"),
        log_ratio=_compute_log_ratio(inputs),
        rollout_rs=f"{_AGGREGATES[inputs['level']]}_{_RATIO[inputs['statistic']]}",
        rollout_rs_threshold=f"{low}_{high}" if inputs["statistic"] == "ratio" else f"{high}",
    )
    return {"kept": kept, "clip_fraction": metrics["rollout_rs_masked_fraction"]}


def _reject_by_ratio(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rejection mask of verl until February 2026, when thresholds applied only to the ratio."""
    if inputs["statistic"] != "ratio":
        raise AbsentError("this version can reject only by the probability ratio, not by a divergence")
    kept, metrics = boundary.invoke(
        kit.take_inputs(inputs, "response_mask"),
        log_ratio=_compute_log_ratio(inputs),
        rollout_rs=inputs["level"],
        rollout_rs_threshold=inputs["threshold_high"],
        rollout_rs_threshold_lower=inputs["threshold_low"],
    )
    return {"kept": kept, "clip_fraction": metrics["rollout_rs_masked_fraction"]}


def _correction(function: str, call: Any, fixed: Mapping[str, Any], **accepts: tuple[Any, ...]) -> Binding:
    return Binding(
        f"{_CORRECTION}.{function}",
        "importance_weight",
        call=call,
        fixed=fixed,
        accepts=accepts,
        dialects=(_SAFETY_BOUND,),
    )


def _mask(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    batch, *masks, metrics = boundary.invoke(
        kit.take_inputs(inputs, "old_log_probs", "rollout_log_probs", "response_mask"),
        rollout_is_level=inputs["level"],
        rollout_is_mode="mask",
        rollout_is_threshold=inputs["threshold_high"],
        rollout_is_threshold_lower=inputs["threshold_low"],
        rollout_is_veto_threshold=None,
    )
    kept = masks[0] if masks else inputs["response_mask"]
    weights = batch.batch["rollout_is_weights"] * kept
    return {"weights": weights, "kept": kept, "clip_fraction": metrics["mismatch/rollout_is_masked_fraction"]}


_CORRECTIONS = (
    Binding(
        "verl.trainer.ppo.mismatch_helper.compute_rollout_importance_weights", "importance_weight", call=_mask,
        requires=("verl.trainer.ppo.mismatch_helper.compute_rollout_importance_weights",),
        fixed={"mode": "mask", "normalise": None},
        accepts={"level": ("token", "sequence", "geometric"), "threshold_low": (0.5, 0.9)},
        dialects=(
            _SAFETY_BOUND,
            Dialect(
                "detached", False, "the caller passes the trainer's log-probs without a gradient",
                "https://github.com/verl-project/verl/blob/4424616d7dfe03cc564866dc5e99dfaba1daba2e/verl/trainer/ppo/mismatch_helper.py#L130",
            ),
        ),
    ),
    _correction(
        "compute_rollout_correction_and_rejection_mask", _truncate, {"mode": "truncate", "threshold_low": None},
        level=("token", "sequence"), normalise=(False, True),
    ),
    _correction(
        "compute_rollout_correction_weights", _zero_out, {"mode": "mask"}, level=("token", "sequence"),
        threshold_low=(0.5, 0.9), normalise=(False, True),
    ),
    _correction(
        "compute_rollout_rejection_mask", _reject, {"mode": "mask"}, level=tuple(_AGGREGATES),
        threshold_low=(0.5, 0.9), statistic=("k2", "k3", "ratio"),
    ),
)  # fmt: skip

# -- other boundaries --------------------------------------------------------------------------------------------------


def _kl(function: str, *estimators: str, **more: Any) -> Binding:
    return Binding(
        f"{_CORE}.{function}",
        "kl_estimate",
        outputs=("kl",),
        accepts={"response_mask": (None,), "kl_estimator": ("k1", "abs", "k2", "k3", "low_var_kl", *estimators)},
        dialects=(
            Dialect(
                "clamp",
                10,
                "k3 is clamped to [-10, 10]",
                _core_line(2244),
                where={"kl_estimator": ("k3", "low_var_kl", "k3+")},
            ),
        ),
        **more,
    )


def _without_float64(*bindings: Binding) -> tuple[Binding, ...]:
    """Return the bindings without the dtype float64, because verl's masks are float32."""
    return tuple(replace(binding, dtypes=("float32", "bfloat16", "float16")) for binding in bindings)


#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "verl.models.transformers.*", "verl.utils.kernel.*", "*.mtp_patch.*", "*.activation_offload.*", "*.modelopt.*",
    "verl.utils.tracking.*", "*.rollout_trace.*", "*.trajectory_tracker.*", "verl.checkpoint_engine.*",
    "*.main_generation_server.*", "*.message_queue.*", "verl.third_party.*",
)  # fmt: skip

TARGET = Target(
    name="verl",
    arguments={
        "response_mask": ("response_mask", "loss_mask", "mask", "eos_mask"),
        "log_probs": ("log_probs", "log_prob", "logprob"),
        "old_log_probs": ("old_log_probs", "old_log_prob"),
        "rollout_log_probs": ("rollout_log_probs", "rollout_log_prob"),
        "ref_log_probs": ("ref_logprob",),
        "group": ("index",),
        "labels": ("index",),
        "norm_by_std": ("norm_adv_by_std_in_grpo",),
        "sum_squared_probs": ("sum_pi_squared",),
        "importance_weights": ("rollout_is_weights",),
        "kl_estimator": ("kl_penalty",),
    },
    defaults=("verl/trainer/config/_generated_ppo_trainer.yaml", "verl/trainer/config/ppo_trainer.yaml"),
    repository="https://github.com/verl-project/verl",
    roots=(PackageRoot("verl"),),
    moved={
        **{f"verl.workers.{role}": (f"verl.trainer.ppo.{role}",) for role in ("actor", "critic")},
        "verl.workers.utils.losses": ("verl.workers.roles.utils.losses",),
    },
    pypi="verl",
    preload=("tensordict", "omegaconf"),
    registries=(
        Registry(
            "register_policy_loss",
            f"{_CORE}.compute_policy_loss_vanilla",
            "POLICY_LOSS_REGISTRY",
            excludes={
                f"{_CORE}.compute_policy_loss_rollout_correction_wrapper": (
                    "it calls compute_policy_loss_reinforce and the rollout correction, which are bound on their own"
                )
            },
        ),
        Registry("register_adv_est", f"{_CORE}.compute_grpo_outcome_advantage", "ADV_ESTIMATOR_REGISTRY"),
    ),
    bindings=_without_float64(
        *_OUTCOMES,
        Binding(
            f"{_CORE}.compute_reinforce_plus_plus_outcome_advantage",
            "discounted_return",
            outputs=_ADVANTAGES,
            call=_reinforce_plus_plus,
            fixed={"kl": None, "kl_coef": 0.0},
            dialects=(Dialect("whiten", True, "the estimator whitens its returns over the batch", _core_line(728)),),
        ),
        Binding(
            f"{_CORE}.compute_gae_advantage_return",
            "generalised_advantage",
            outputs=_ADVANTAGES,
            dialects=(Dialect("whiten", True, "the estimator whitens its advantages over the batch", _core_line(262)),),
        ),
        Binding(
            f"{_CORE}.agg_loss",
            "loss_aggregation",
            outputs=("loss",),
            fixed={"weights": None},
            accepts={"dp_size": (1, 2)},
        ),
        *_POLICY_LOSSES,
        Binding(
            f"{_CORE}.compute_value_loss",
            "value_loss",
            outputs=("loss", "clip_fraction"),
            call=partial(kit.call_with, since={"loss_agg_mode": "token-mean"}),
            accepts={"cliprange_value": (0.2, 0.6), "dp_size": (1, 2)},
            dialects=(Dialect("factor", 0.5, "the loss is half the squared error", _core_line(2174)),),
        ),
        _kl("kl_penalty", "k1+", "k3+", twins=(f"{_CORE}.kl_penalty_forward",)),
        _kl("kl_penalty_forward", twins=(f"{_CORE}.kl_penalty",)),
        *_CORRECTIONS,
        # This function exists only at the head of #6362.
        Binding(
            f"{_CORE}._masked_reward_sum",
            "masked_statistics",
            arguments={"values": ("token_level_rewards",)},
            outputs=("row_statistic",),
            fixed={**MASKED_STATISTICS.lacking(), "statistic": "sum", "axis": "token"},
            requires=(f"{_CORE}._masked_reward_sum",),
        ),
        masked_statistic(f"{_TORCH}.masked_mean", "mean", "axis"),
        masked_statistic(f"{_TORCH}.masked_sum", "sum", "axis"),
        masked_statistic(f"{_TORCH}.masked_var", "var", "unbiased"),
        masked_statistic(f"{_TORCH}.masked_whiten", "whiten", "shift_mean"),
        *updates.BINDINGS,
        *packing.BINDINGS,
        *data.BINDINGS,
        *containers.BINDINGS,
        *schedules.BINDINGS,
        *rewards.BINDINGS,
        *agents.BINDINGS,
        *functions.BINDINGS,
        *models.BINDINGS,
    ),
    no_signal=_NO_SIGNAL,
)
