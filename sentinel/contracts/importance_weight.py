"""Define contracts of off-policy corrections: importance weights and masks for tokens that a different policy
sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import (
    RATIO_PRECISION,
    detached,
    exponential,
    fraction,
    gradient,
    leaf,
    log_ratio,
    metric,
    replaced,
    row_mean,
    spread,
    spreading,
)
from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    laws_of_tokens,
    per_token,
    token_mask,
)
from sentinel.values.lazy import torch
from sentinel.values.literals import tensor


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe importance weights, kept tokens and the clip fraction.

    ``call`` returns ``weights``, ``kept`` or both, [batch, tokens] or [batch, 1], and optionally ``clip_fraction``.
    """
    mask = inputs["response_mask"]
    valid = mask != 0
    old_log_probs = leaf(inputs["old_log_probs"])
    outputs = call(**{**inputs, "old_log_probs": old_log_probs})
    weights, kept = (
        None if outputs.get(key) is None else outputs[key].expand(mask.shape) for key in ("weights", "kept")
    )
    # Values on masked tokens are undefined, so they are set to 0, in the oracle's outputs too.
    decision = None if kept is None else ((detached(kept) != 0) & valid).to(inputs["old_log_probs"].dtype)
    return {
        "weights": None if weights is None else torch.where(valid, detached(weights), 0.0),
        "weight_gradient": None if weights is None else gradient(weights[valid].sum(), old_log_probs),
        "kept": decision,
        "sequence_kept": None if inputs["level"] == "token" else decision,
        "clip_fraction": metric(outputs.get("clip_fraction"), mask),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute importance weights ``w = p_old / p_rollout`` per token, or per sequence (product or geometric mean).

    With thresholds ``a <= b``: truncate returns ``clip(w, a, b)`` and keeps all tokens; mask returns ``w`` if ``a <= x
    <= b``, else 0. ``x`` is ``w`` itself, or ``k2 = (log w)^2 / 2`` or ``k3 = (w - 1) - log w`` of the tokens, summed
    (sequence) or averaged (geometric) over the sequence, or their maximum (largest). Weights have no gradient, because
    they correct the sampling distribution and are not part of the objective.
    """
    valid, level = inputs["response_mask"] != 0, inputs["level"]
    of_tokens = level in ("token", "every_token", "largest", "kept_by_mean")
    logs = log_ratio(inputs["old_log_probs"], inputs["rollout_log_probs"], valid, "token" if of_tokens else level)
    weights = exponential(_cut(logs, inputs), inputs)
    low, high = inputs["threshold_low"], inputs["threshold_high"]
    if inputs["mode"] == "truncate":
        kept, raw = torch.ones_like(weights), weights
        if low is not None or high is not None:
            weights = weights.clamp(low, high)
        cut = weights != raw
    else:
        statistic = weights if inputs["statistic"] == "ratio" else _divergence(inputs)
        if level == "largest" and inputs["statistic"] == "ratio":
            raise DoesNotApply("the level `largest` is defined for the statistics k2 and k3, not for the ratio")
        if level == "kept_by_mean":
            means = log_ratio(inputs["old_log_probs"], inputs["rollout_log_probs"], valid, "geometric")
            statistic = exponential(_cut(means, inputs), inputs)
        inside = torch.ones_like(valid)
        if low is not None and inputs["statistic"] == "ratio":
            inside &= statistic >= low
        if high is not None:
            inside &= statistic <= high
        if level == "every_token":
            inside = (inside | ~valid).all(-1, keepdim=True).expand_as(valid)
        kept, cut = inside.double(), ~inside
        weights = torch.where(inside, weights, 0.0)
    if inputs["normalise"]:
        mean = float(_mean_weight(weights, valid, of_tokens))
        weights = weights / mean if mean > 0 else weights
    return {
        "weights": weights.detach() if inputs["detached"] else weights,
        "kept": kept,
        "clip_fraction": fraction(cut, valid),
    }


def _cut(logs: Any, inputs: Mapping[str, Any]) -> Any:
    clamp = inputs["log_ratio_clamp"]
    return logs if clamp is None else logs.clamp(-clamp, clamp)


def _divergence(inputs: Mapping[str, Any]) -> Any:
    valid = inputs["response_mask"] != 0
    logs = _cut(log_ratio(inputs["old_log_probs"], inputs["rollout_log_probs"], valid), inputs)
    logs = -logs if inputs["statistic_of"] == "inverse" else logs
    estimators = {"k2": logs.square() / 2, "k3": torch.exp(logs) - 1 - logs}
    if inputs["statistic"] not in estimators:
        raise DoesNotApply(f"the contract does not define the statistic {inputs['statistic']!r}")
    tokens = estimators[inputs["statistic"]]
    if inputs["level"] == "geometric":
        return row_mean(tokens, valid)
    if inputs["level"] == "largest":
        return torch.where(valid, tokens, 0.0).amax(-1, keepdim=True).expand_as(tokens)
    if inputs["level"] == "sequence":
        return torch.where(valid, tokens, 0.0).sum(-1, keepdim=True).expand_as(tokens)
    return tokens


def _mean_weight(weights: Any, valid: Any, of_tokens: bool) -> Any:
    if of_tokens:
        return weights[valid].sum() / valid.sum().clamp(min=1)
    some = valid.any(-1)
    return weights[:, 0][some].sum() / some.sum().clamp(min=1)


IMPORTANCE_WEIGHT = Contract(
    name="importance_weight",
    summary="importance weights between the old policy and the rollout policy, and the tokens that are masked",
    source=(
        "truncated importance sampling (Ionides 2008; for LLMs Yao et al. 2025, fengyao.notion.site/off-policy-rl), "
        "IcePop (arXiv:2510.18855), masked importance sampling of sequences (Liu et al. 2025, "
        "richardli.xyz/rl-collapse)"
    ),
    inputs=(
        per_token(
            "old_log_probs",
            "log-probs of the trained policy when the tokens were scored, in nats, <= 0",
            "log_prob",
            differentiable=True,
        ),
        per_token("rollout_log_probs", "log-probs of the policy that generated the tokens", "log_ratio"),
        token_mask(),
        knob(
            "level",
            "level of the ratio: token; sequence (product over its valid tokens); geometric (their geometric mean); "
            "every_token (keep a sequence if all its valid tokens are kept; weights as for token); largest (keep a "
            "sequence by its largest token distance; weights as for token); kept_by_mean (keep a sequence by the "
            "geometric mean of its ratios; weights as for token)",
            ("token", "sequence", "geometric"),
        ),
        knob(
            "mode",
            "truncate (clip weights to the thresholds, keep all) or mask (weight 0 and not kept outside them)",
            ("truncate", "mask"),
        ),
        knob("threshold_low", "lower threshold, included", (None, 0.5, 0.9)),
        knob("threshold_high", "upper threshold, included", (2.0, 1.25, 5.0)),
        Input(
            "statistic",
            "string",
            "statistic that mask compares with the thresholds: ratio, or its distance from 1 as k2 or k3 (upper "
            "threshold only; sequence: the sum over tokens, geometric: their mean)",
            default="ratio",
        ),
        dialect(
            "statistic_of",
            "ratio",
            "the ratio in k3: ratio (p_old / p_rollout, whose mean k3 over rollout tokens estimates the "
            "divergence), or inverse",
        ),
        Input(
            "normalise",
            "boolean",
            "whether weights are divided by their mean over valid tokens (over sequences, for sequence levels)",
            default=None,
        ),
        dialect("log_ratio_clamp", None, "bound of the log-ratio: it is clamped to [-clamp, clamp]"),
        RATIO_PRECISION,
        dialect("detached", True, "whether weights are detached; if not, the caller must pass constants"),
    ),
    observes=(
        Observed("weights", "weight of each token; None if only a decision is returned", TOKENS),
        Observed("weight_gradient", "d sum(weights) / d old_log_probs", TOKENS, "gradient"),
        Observed("kept", "1 for kept tokens, 0 for masked tokens", TOKENS),
        Observed("sequence_kept", "1 for tokens of kept sequences; None at level token", TOKENS, "decision"),
        Observed("clip_fraction", "fraction of valid tokens whose weight is clipped or masked", role="metric"),
    ),
    measure=_measure,
    oracle=_oracle,
    aliases={"train_log_probs": "old_log_probs", "rollout_logprobs": "rollout_log_probs", "loss_mask": "response_mask"},
    laws=laws_of_tokens("parts_add_up", "normalisation_laws"),
    arrange=spreading("old_log_probs", "rollout_log_probs"),
)


# -- sequence rejection ------------------------------------------------------------------------------------------------


def _measure_sequence_rejection(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the rejection mask, and the policy loss multiplied by this mask.

    A token leaks if it is valid and has a non-zero loss although a token of its sequence is rejected.
    """
    outputs = call(**inputs)
    valid = inputs["response_mask"].to(torch.bool)
    kept = outputs["opsm_mask"]
    losses = outputs["policy_loss"] * kept
    rejected = ((kept == 0) & valid).any(dim=-1, keepdim=True)
    leaked = rejected & valid & (losses != 0)
    # A position is an index into the tokens of all rows, concatenated as frameworks do.
    positions = torch.nonzero(leaked.flatten()).flatten()
    return {
        "opsm_mask": kept,
        "opsm_clipfrac": outputs["opsm_clipfrac"],
        "masked_policy_pg_loss_tokens": losses,
        "reduced_policy_loss": losses[valid].mean() if valid.any() else losses.new_zeros(()),
        "leaked_positions": positions.tolist(),
        "leaked_token_count": int(positions.numel()),
    }


def _oracle_sequence_rejection(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute PPO's loss, and the mask that rejects far off-policy sequences with negative advantages.

    ``M = 0`` for a sequence with ``A < 0`` and ``1/|y| sum_t (log p_old - log p) > delta``, else 1; the loss of a
    token is PPO's ``-min(r A, clip(r, 1 - e_low, 1 + e_high) A)`` with ``r = exp(-ppo_kl)``.
    """
    valid, advantages = inputs["response_mask"] != 0, inputs["advantages"]
    negative = (advantages < 0) & valid
    if (negative.any(-1) & ((advantages >= 0) & valid).any(-1)).any():
        raise DoesNotApply("the paper does not define sequences with advantages of both signs")
    distance = -row_mean(log_ratio(inputs["log_probs"], inputs["old_log_probs"], valid), valid)
    rejected = negative.any(-1) & (distance[:, 0] > inputs["opsm_delta"])
    ratio = torch.exp(-inputs["ppo_kl"])
    bounded = ratio.clamp(1 - inputs["eps_clip"], 1 + inputs["eps_clip_high"])
    return {
        "opsm_mask": (~rejected).double()[:, None].expand(valid.shape),
        "opsm_clipfrac": rejected.double().sum(),
        "policy_loss": -torch.minimum(ratio * advantages, bounded * advantages),
    }


def _arrange_sequence_rejection(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw advantages per sequence or per token, and a threshold near some row's statistic.

    If a sequence has advantages of both signs, the oracle does not apply, but the laws do. The threshold is the drawn
    one, or about 0.5 or 1.5 times the statistic of some row. A wrong statistic (a sum, or a mean over other tokens) is
    then on the other side of the threshold.
    """
    spread(inputs, "log_probs", "old_log_probs")
    if choose.integer(0, 1) == 0:
        values = inputs["advantages"].array().copy()
        values[:] = values[:, :1]
        inputs["advantages"] = replaced(inputs["advantages"], values)
    # Log-probs are multiples of 1/8, so that with these factors no row is exactly at the threshold.
    factor = choose.one_of((None, 1.47, 0.53))
    if factor is not None:
        current, old = (inputs[name].array().astype(np.float64) for name in ("log_probs", "old_log_probs"))
        valid = inputs["response_mask"].array() != 0
        far = ((old - current) * valid).sum(-1) / np.maximum(valid.sum(-1), 1)
        above = [float(distance) for distance in far if 0 < distance < np.inf]
        inputs["opsm_delta"] = factor * choose.one_of(above) if above else inputs["opsm_delta"]
    return inputs


def _ones(scenario: Mapping[str, Any]) -> Any:
    rows, columns = scenario["log_probs"].shape
    return tensor([[1.0] * columns for _ in range(rows)], "float32")


SEQUENCE_REJECTION = Contract(
    name="sequence_rejection",
    summary="off-policy sequence masking: the sequences that the policy loss rejects",
    source=(
        "OPSM, DeepSeek-V3.2 (arXiv:2512.02556), section 3.1: a sequence with negative "
        "advantage and mean KL over delta is masked"
    ),
    inputs=(
        per_token("log_probs", "log-probs of the current policy", "log_prob"),
        per_token("old_log_probs", "log-probs of the policy that generated the tokens", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(default=_ones),
        knob("opsm_delta", "threshold of the mean sequence KL, in nats", (0.11, 0.07, 0.31, 1.13), REQUIRED),
        per_token("ppo_kl", "old log-prob minus current log-prob, as computed for the policy loss", default=_ones),
        Input("eps_clip", "number", "lower clip range of the policy loss", default=0.2),
        Input("eps_clip_high", "number", "upper clip range of the policy loss", default=0.2),
    ),
    observes=(
        Observed("opsm_mask", "0 for rejected tokens", TOKENS, "decision"),
        Observed("opsm_clipfrac", "the framework's count of rejected sequences", role="metric"),
        Observed("masked_policy_pg_loss_tokens", "policy loss of each token times the mask", TOKENS),
        Observed("reduced_policy_loss", "mean of masked_policy_pg_loss_tokens over valid tokens"),
        Observed("leaked_positions", "tokens of a rejected sequence that still have a loss", role="other"),
        Observed("leaked_token_count", "number of leaked positions", role="other"),
    ),
    measure=_measure_sequence_rejection,
    oracle=_oracle_sequence_rejection,
    law="a_sequence_decision_is_one_decision",
    aliases={"full_log_probs": "log_probs", "full_old_log_probs": "old_log_probs", "loss_masks": "response_mask"},
    laws=laws_of_tokens("parts_add_up", "normalisation_laws", "gradients_stay_where_they_belong"),
    arrange=_arrange_sequence_rejection,
)
