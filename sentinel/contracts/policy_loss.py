"""Policy losses: one scalar from the log-probs of the trained policy, those of the old one, and advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import (
    AGGREGATION_INPUTS,
    RATIO_PRECISION,
    count_globally,
    cut_rows,
    detached,
    gradient,
    leaf,
    metric,
    replaced,
    spread,
)
from sentinel.contracts.contract import (
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    laws_of_tokens,
    per_row,
    per_token,
    token_mask,
)
from sentinel.contracts.policy_objectives import policy_loss
from sentinel.values.lazy import torch

_METRICS = ("clip_fraction", "dual_clip_fraction", "approx_kl")

#: What a search draws for ``old_log_probs - rollout_log_probs``, where a boundary weighs tokens by that.
_ROLLOUT_RATIOS = (0.0, 0.5, -0.5, 1.0, 0.25)

#: Losses whose paper has one advantage a response.
_ONE_ADVANTAGE = ("gspo", "gmpo")

#: Losses that choose tokens by a statistic of the whole batch.
_OF_THE_BATCH = ("clip_cov", "kl_cov")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One loss and its backward pass.

    ``call`` returns ``loss``; or only ``per_token_loss``, of which the loss is then the sum over the valid tokens. Each
    metric is a number, or one number a token, of which the mean over the valid tokens is taken.
    """
    log_probs, mask = leaf(inputs["log_probs"]), inputs["response_mask"]
    outputs = call(**{**inputs, "log_probs": log_probs})
    per_token, loss = outputs.get("per_token_loss"), outputs.get("loss")
    if loss is None:
        assert per_token is not None, "a policy loss returns a loss, or a loss for each token"
        loss = torch.where(mask != 0, per_token.reshape(mask.shape), 0.0).sum()
    return {
        "loss": detached(loss),
        "per_token_gradient": gradient(loss, log_probs),
        "per_token_loss": None if per_token is None else _at_valid(detached(per_token), mask),
        **{name: metric(outputs.get(name), mask) for name in _METRICS},
    }


def _at_valid(per_token: Any, mask: Any) -> Any:
    """Leave out what stands at tokens that do not count: it means nothing."""
    return torch.where(mask != 0, per_token.reshape(mask.shape), 0.0)


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "old_log_probs")
    count_globally(inputs, choose)
    old = inputs["old_log_probs"]
    if inputs["importance_weight_cap"] is not None and inputs["rollout_log_probs"] is None:
        drawn = np.array(choose.integers(old.array().size, 0, len(_ROLLOUT_RATIOS) - 1)).reshape(old.shape)
        rollout = np.minimum(old.array().astype(np.float64) - np.array(_ROLLOUT_RATIOS)[drawn], 0)
        inputs["rollout_log_probs"] = replaced(old, rollout)
    if inputs["algorithm"] in _ONE_ADVANTAGE:
        advantages = inputs["advantages"]
        values = advantages.array().copy()
        values[:] = values[:, :1]
        inputs["advantages"] = replaced(advantages, values)
    return inputs


def _parts_of_a_policy_loss(inputs: Mapping[str, Any], choose: Choose) -> list[dict[str, Any]]:
    """Cut microbatches of consecutive rows with the same global counts; their losses add up to the whole's."""
    if inputs["algorithm"] in _OF_THE_BATCH:
        raise DoesNotApply(f"{inputs['algorithm']} looks at the whole batch")
    return cut_rows(inputs, choose)


POLICY_LOSS = Contract(
    name="policy_loss",
    summary="the loss whose gradient improves the policy on tokens that another policy has generated",
    source=(
        "PPO (arXiv:1707.06347), dual clip (arXiv:1912.09729), GSPO (arXiv:2507.18071), CISPO (arXiv:2506.13585), "
        "SAPO (arXiv:2511.20347), GPG (arXiv:2504.02546), GMPO (arXiv:2507.20673), DPPO (arXiv:2602.04879), "
        "Kimi k1.5 (arXiv:2501.12599), TOPR (arXiv:2503.14286), Clip-Cov and KL-Cov (arXiv:2505.22617); aggregation "
        "as in loss_aggregation"
    ),
    inputs=(
        per_token("log_probs", "of the trained policy, in nats, <= 0", "log_prob", differentiable=True),
        per_token("old_log_probs", "of the policy that the ratio is relative to, for the same tokens", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(),
        Input(
            "algorithm",
            "string",
            "which loss: ppo, gspo, gspo_token, cispo, cispo_unified, sapo, gpg, reinforce, importance_sampling, "
            "icepop, gmpo, dppo_tv, dppo_kl, dro, kimi, topr, cross_entropy, clip_cov, kl_cov",
        ),
        knob(
            "eps_clip_low",
            "lower clip range: of the ratio below 1; gmpo: of its logarithm below 0; dppo: the divergence threshold "
            "for negative advantages",
            (0.2, 0.1, 0.4),
        ),
        knob(
            "eps_clip_high",
            "upper clip range: of the ratio above 1; gmpo: of its logarithm above 0; dppo: the divergence threshold "
            "for positive advantages",
            (0.2, 0.28, 0.1, 0.9),
        ),
        knob(
            "dual_clip",
            "ppo, gspo, gspo_token: where the advantage is negative, the loss is at most this times |advantage|; > 1",
            (None, 3.0, 1.5),
        ),
        knob("ratio_cap", "dppo: the largest weight of a token (truncated importance sampling)", (None, 5.0, 1.5)),
        knob("tau_pos", "sapo: temperature at positive advantages", (1.0, 2.0)),
        knob("tau_neg", "sapo: temperature at the others", (1.05, 1.0, 2.0)),
        knob("beta", "dro and kimi: coefficient of half the squared log-ratio", (0.1, 0.5)),
        knob("positive_weight", "topr: weight of the responses with positive score", (1.0, 0.5)),
        knob("negative_weight", "topr: weight of the others", (1.0, 0.5)),
        per_row(
            "scores",
            "topr: the reward whose sign says which responses are positive; left out, each token's advantage",
            default=None,
        ),
        Input(
            "cov_share",
            "number",
            "clip_cov and kl_cov: the share of the tokens that count that is treated apart",
            default=None,
        ),
        Input("cov_low", "number", "clip_cov: the covariance above which tokens are drawn", default=1.0),
        Input("cov_high", "number", "clip_cov: the covariance below which tokens are drawn", default=5.0),
        Input("cov_kl_coef", "number", "kl_cov: coefficient of |log-ratio|", default=1.0),
        *AGGREGATION_INPUTS,
        per_token(
            "importance_weights",
            "factor of each token's loss, for what the old policy differs from the one that generated the tokens",
            "weight",
            default=None,
        ),
        per_token(
            "rollout_log_probs",
            "of the policy that generated the tokens; each token's loss is multiplied by min(exp(old_log_probs - "
            "rollout_log_probs), importance_weight_cap)",
            default=None,
        ),
        Input("importance_weight_cap", "number", "see rollout_log_probs; left out, no cap", default=None),
        dialect(
            "ratio_level",
            None,
            "of what the ratio is: token, sequence (product), geometric (mean over the sequence), segment (mean over "
            "a run of valid tokens); left out, what the algorithm's paper says",
            kind="string",
        ),
        dialect(
            "log_ratio_clamp", None, "the logarithm of the ratio is cut to [-clamp, clamp], and has no gradient beyond"
        ),
        dialect("log_ratio_clamp_side", "both", "where log_ratio_clamp cuts: both, or upper (only from above)"),
        RATIO_PRECISION,
        dialect(
            "surrogate",
            "ratio",
            "dppo: what carries the gradient: ratio (weight * advantage) or log_prob (stopped weight * advantage * "
            "log-prob). The gradients are the same, the losses are not",
        ),
        dialect(
            "epsilon",
            0.0,
            "dppo_kl: added to both 1 - p in the binary KL; gmpo: to an importance weight before its logarithm",
        ),
        dialect(
            "advantage_level",
            "token",
            "token (each token's own advantage) or sequence (their mean over the valid tokens of the response)",
        ),
    ),
    observes=(
        Observed("loss", "the scalar loss"),
        Observed("per_token_gradient", "d loss / d log_probs", TOKENS, "gradient"),
        Observed("per_token_loss", "loss of each token before aggregation, where returned", TOKENS),
        Observed("clip_fraction", "share of the valid tokens that the clip range cuts", role="metric"),
        Observed("dual_clip_fraction", "share of the valid tokens that dual_clip cuts", role="metric"),
        Observed("approx_kl", "mean of old_log_probs - log_probs over the valid tokens", role="metric"),
    ),
    measure=_measure,
    oracle=policy_loss,
    aliases={
        "log_prob": "log_probs",
        "logprobs": "log_probs",
        "old_log_prob": "old_log_probs",
        "loss_mask": "response_mask",
        "cliprange_low": "eps_clip_low",
        "cliprange_high": "eps_clip_high",
        "clip_ratio_c": "dual_clip",
        "rollout_is_weights": "importance_weights",
        "rollout_logprobs": "rollout_log_probs",
    },
    laws=laws_of_tokens("a_sequence_decision_is_one_decision", "normalisation_laws"),
    arrange=_arrange,
    parts=_parts_of_a_policy_loss,
)
