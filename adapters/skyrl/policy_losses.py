"""Bindings for SkyRL's policy losses and their metrics, and the function that calls SkyRL's critic loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect
from sentinel.binding import kit
from sentinel.binding.families import aggregated, policy_loss
from sentinel.binding.kit import torch

from .shared import AS_SUMS, CODE, CONFIG, PPO, algorithm_of, is_averaged_inside, ppo_line

#: SkyRL's policy losses are sums over tokens. The caller scales advantages for the loss reduction.
SUMMED = aggregated("token-sum")
_CLIP = {"eps_clip_low": "eps_clip_low", "eps_clip_high": "eps_clip_high"}

_SAFE_EXP = f"{CODE}/backends/skyrl_train/utils/torch_utils.py#L191"
SAFELY = (
    Dialect("log_ratio_clamp", 20.0, "safe_exp_delta clamps a log-ratio to [-20, 20] to prevent overflow", _SAFE_EXP),
    Dialect("ratio_precision", "float32", "safe_exp_delta computes every exponential in single precision", _SAFE_EXP),
)


def _call_policy_loss(
    knobs: Mapping[str, str],
    settings: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    behaviour: bool,
    boundary: Any,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Call one of SkyRL's policy losses.

    :param knobs: contract input -> option of the algorithm's configuration.
    :param settings: returns further options for a scenario.
    :param behaviour: True if the ratio of the loss is relative to the rollout's log-probs. Then the scenario's old
        log-probs are passed as the rollout's log-probs.
    """
    options = {option: inputs[name] for name, option in knobs.items() if inputs[name] is not None}
    names = kit.take_inputs(inputs, "log_probs", "old_log_probs", "advantages", "response_mask")
    rollout = {"rollout_logprobs": inputs["old_log_probs"]} if behaviour else {}
    # Read the code of this loss, because some losses changed from averages to sums earlier than others, and heads of
    # pull requests have both forms.
    reads = inspect.unwrap(boundary.function).__code__.co_names
    averaged = is_averaged_inside(boundary.module) and "loss_reduction" in reads
    if "safe_exp_delta" in reads and inputs["log_ratio_clamp"] is None:
        log_ratio = inputs["log_probs"] - inputs["old_log_probs"]
        if (log_ratio[inputs["response_mask"] != 0].abs() > 20).any():
            raise AbsentError("the scenario has a log-ratio outside [-20, 20], which this version clamps")
    config = algorithm_of(boundary, {**options, **settings(inputs), **(AS_SUMS if averaged else {})})
    loss, metrics = boundary.invoke(names, config=config, **rollout)
    # Older versions return the clip fraction itself instead of a mapping.
    clipped = metrics.get("clip_ratio") if isinstance(metrics, Mapping) else metrics
    return {"loss": loss * len(inputs["log_probs"]) if averaged else loss, "clip_fraction": clipped}


def _no_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _all_tokens_of_clip_cov(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return bounds for Clip-Cov that select all tokens, so that the loss makes no random choice.

    With the default bounds, no token of a small batch is selected, and the loss equals PPO's.
    """
    return {"clip_cov.clip_ratio": 1.0, "clip_cov.clip_cov_lb": 0.05, "clip_cov.clip_cov_ub": 100.0}


def _some_tokens_of_kl_cov(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"kl_cov.kl_cov_frac": 0.3, "kl_cov.ppo_kl_coef": 1.0}


def _policy(
    function: str,
    algorithm: str | tuple[str, ...],
    knobs: Mapping[str, str],
    *dialects: Dialect,
    settings: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _no_options,
    behaviour: bool = False,
    fixed: Mapping[str, Any] = {},
) -> Binding:
    """Bind one of SkyRL's policy losses.

    :param knobs, settings, behaviour: as in :func:`_call_policy_loss`.
    :param fixed: the oracle's inputs that correspond to the options of ``settings``.
    """
    call = partial(_call_policy_loss, dict(knobs), settings, behaviour)
    path, summed = f"{PPO}.{function}", "token-sum"
    return policy_loss(path, call, algorithm, [*knobs], *dialects, mode=summed, fixed=fixed, imports=(CONFIG,))


def _clip_kind(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"policy_loss_type": "regular" if inputs["dual_clip"] is None else "dual_clip"}


_DIVERGENCES = {"dppo_tv": "binary_tv", "dppo_kl": "binary_kl"}


def _divergence(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"dppo.dppo_type": _DIVERGENCES[inputs["algorithm"]]}


def _report_ratios(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the largest and the smallest ratio that SkyRL's CISPO reports.

    With these clip bounds, both would differ if SkyRL measured the ratios after clamping them.
    """
    config = algorithm_of(boundary, {"cispo.cispo_eps_clip_low": 0.0, "cispo.cispo_eps_clip_high": 5.0})
    names = kit.take_inputs(inputs, "log_probs", "old_log_probs", "response_mask")
    _, metrics = boundary.invoke(names, advantages=torch.ones_like(inputs["log_probs"]), config=config)
    return {name: metrics[f"cispo/{name}"] for name in ("ratio_max", "ratio_min")}


def _find_shared_state(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy each prompt into several samples with SkyRL.

    Return whether samples share ``env_extras``, which an environment may change, with each other or with the prompt.
    """
    arguments = inputs["arguments"]
    rows: list[dict[str, Any]] = [
        {"prompt": [], "env_class": None, "env_extras": {"state": [row]}, "uid": str(row)}
        for row in range(arguments["prompts"])
    ]
    made, _ = boundary.invoke(
        {},
        prompts=rows,
        n_samples_per_prompt=arguments["samples_per_prompt"],
        sampling_params={},
        default_env_class="env",
        training_phase="train",
        global_step=0,
    )
    samples = [id(extras["state"]) for extras in made["env_extras"]]
    dataset = {id(row["env_extras"]["state"]) for row in rows}
    shared = {
        "shared_with_sibling": len(set(samples)) < len(samples),
        "shared_with_prompt": not dataset.isdisjoint(samples),
    }
    return {"returned": shared}


CALLS = (
    Binding(
        f"{PPO}.compute_policy_loss_cispo",
        "ratio_report",
        call=_report_ratios,
        imports=(CONFIG,),
        requires=("skyrl.train.config.CISPOConfig.cispo_anchor",),
        dtypes=("float32",),  # only float32, because safe_exp_delta computes every exponential in it
        dialects=SAFELY[:1],
    ),
    Binding("skyrl.train.generators.utils.prepare_generator_input", "call", call=_find_shared_state),
)

POLICY_LOSSES = (
    _policy("ppo_policy_loss", "ppo", {**_CLIP, "dual_clip": "clip_ratio_c"}, *SAFELY, settings=_clip_kind),
    _policy(
        "gspo_policy_loss", "gspo_token", _CLIP,
        Dialect("log_ratio_clamp", 10.0, "the logarithm of the ratio is clamped from above", ppo_line(709)),
        Dialect("log_ratio_clamp_side", "upper", "the ratio is clamped from above only", ppo_line(709)),
    ),
    _policy(
        "sapo_policy_loss", "sapo", {"tau_pos": "sapo.tau_pos", "tau_neg": "sapo.tau_neg"},
        Dialect("log_ratio_clamp", 20.0, "the log-ratio is clamped to [-20, 20] to prevent overflow", ppo_line(633)),
    ),
    _policy(
        "compute_policy_loss_cispo", "cispo",
        {"eps_clip_low": "cispo.cispo_eps_clip_low", "eps_clip_high": "cispo.cispo_eps_clip_high"}, *SAFELY,
    ),
    _policy("rollout_is_policy_loss", "icepop", _CLIP, *SAFELY, behaviour=True),
    _policy(
        "dppo_policy_loss", ("dppo_tv", "dppo_kl"),
        {"eps_clip_low": "dppo.delta_low", "eps_clip_high": "dppo.delta_high"}, *SAFELY,
        Dialect(
            "epsilon", 1e-08, "1e-8 is added to 1 - p and to 1 - p_old in the binary KL", ppo_line(910),
            {"algorithm": ("dppo_kl",)},
        ),
        settings=_divergence, behaviour=True,
    ),
    _policy(
        "compute_policy_loss_clip_cov", "clip_cov", _CLIP,
        Dialect(
            "nothing_else_is_touched", None, "the loss draws from the global generator, as dropout does", ppo_line(980),
            symptom="global-state",
        ),
        settings=_all_tokens_of_clip_cov, fixed={"cov_share": 1.0, "cov_low": 0.05, "cov_high": 100.0},
    ),
    _policy(
        "compute_policy_loss_kl_cov", "kl_cov", {},
        Dialect(
            "order_does_not_matter", None,
            "topk takes the first of several tokens with equal covariance; two tokens always have equal covariance",
            ppo_line(1038), symptom="value",
        ),
        settings=_some_tokens_of_kl_cov, fixed={"cov_share": 0.3, "cov_kl_coef": 1.0},
    ),
    # SkyRL's source says of importance_sampling: "This matches Tinker's cross_entropy semantics where the loss is a
    # simple sum."
    _policy("importance_sampling_loss", "importance_sampling", {}),
    _policy("cross_entropy_loss", "cross_entropy", {}),
)  # fmt: skip


def _critic_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    config = algorithm_of(boundary, {"value_clip": inputs["cliprange_value"]})
    names = kit.take_inputs(inputs, "vpreds", "values", "returns", "response_mask")
    loss, clip_fraction = boundary.invoke(names, config=config)
    return {"loss": loss, "clip_fraction": clip_fraction}
