"""Define the contract of per-token KL estimates between policy and reference, from log-probs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import gradient, leaf, spreading
from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Contract,
    Observed,
    dialect,
    knob,
    laws_of_tokens,
    per_token,
    token_mask,
)
from sentinel.values.lazy import torch


def _measure_kl(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs = leaf(inputs["log_probs"])
    kl = call(**{**inputs, "log_probs": log_probs})["kl"]
    return {"kl": kl.detach(), "per_token_gradient": gradient(kl.sum(), log_probs)}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute Schulman's estimates of the KL divergence from the log-probs of one token.

    With the ratio ``r = q / p`` of the reference q to the policy p, which sampled the token: ``k1 = -log r``, ``k2 =
    (log r)^2 / 2``, ``k3 = (r - 1) - log r``. An estimator with a ``+`` has the gradient of k2.
    """
    log_r = inputs["ref_log_probs"] - inputs["log_probs"]
    mask = inputs["response_mask"]
    if mask is not None:  # masked before exp, because 0 times an infinite gradient is NaN
        log_r = torch.where(mask != 0, log_r, 0.0)
    k3 = torch.exp(log_r) - 1 - log_r
    estimators = {"k1": -log_r, "abs": log_r.abs(), "k2": log_r.square() / 2, "k3": k3, "low_var_kl": k3}
    kl = estimators[inputs["kl_estimator"].removesuffix("+")]
    if inputs["clamp"] is not None:
        kl = kl.clamp(-inputs["clamp"], inputs["clamp"])
    if inputs["kl_estimator"].endswith("+"):
        kl = kl.detach() + estimators["k2"] - estimators["k2"].detach()
    return {"kl": kl.detach() if inputs["reported"] else kl}


KL_ESTIMATE = Contract(
    name="kl_estimate",
    summary="the per-token estimate of the KL between the policy and a reference policy",
    source=(
        "Schulman, Approximating KL Divergence (http://joschu.net/blog/kl-approx.html): k1, k2, k3; abs is |k1|; "
        "DeepSeekMath (arXiv:2402.03300), equation 4: k3"
    ),
    inputs=(
        per_token("log_probs", "log-probs of the policy, in nats, <= 0", "log_prob", differentiable=True),
        per_token("ref_log_probs", "log-probs of the reference for the same tokens", "log_ratio"),
        knob(
            "kl_estimator",
            "k1, abs, k2, or k3 (also called low_var_kl); k3+ is k3 with the gradient of k2",
            ("k1", "abs", "k2", "k3"),
            REQUIRED,
        ),
        dialect("clamp", None, "the estimate is clamped to [-clamp, clamp], and has no gradient outside"),
        dialect("reported", False, "the estimate is only reported, so it has no gradient"),
        token_mask("1 for tokens that count; elsewhere the estimate is 0", default=None),
    ),
    observes=(
        Observed("kl", "the estimate of each token", TOKENS),
        Observed("per_token_gradient", "d sum(kl) / d log_probs", TOKENS, "gradient"),
    ),
    measure=_measure_kl,
    oracle=_oracle,
    aliases={"ref_log_prob": "ref_log_probs", "log_probs_base": "ref_log_probs", "loss_mask": "response_mask"},
    laws=laws_of_tokens(
        "parts_add_up", "a_sequence_decision_is_one_decision", "metrics_tell_the_truth", "normalisation_laws"
    ),
    arrange=spreading("log_probs", "ref_log_probs"),
)
