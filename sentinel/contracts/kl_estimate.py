"""KL estimates: how far the policy is from the reference at each token, from the log-probs of that token alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs = inputs["log_probs"].detach().clone().requires_grad_(True)
    kl = call(**{**inputs, "log_probs": log_probs})["kl"]
    kl.sum().backward()
    return {"kl": kl.detach(), "per_token_gradient": log_probs.grad}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Schulman, for a sample of the policy p and the reference q: ``r = q / p``, and ``k1 = -log r``,
    ``k2 = (log r)^2 / 2``, ``k3 = (r - 1) - log r``."""
    import torch

    log_r = inputs["ref_log_probs"] - inputs["log_probs"]
    k3 = torch.exp(log_r) - 1 - log_r
    estimators = {"k1": -log_r, "abs": log_r.abs(), "k2": log_r.square() / 2, "k3": k3, "low_var_kl": k3}
    kl = estimators[inputs["kl_estimator"]]
    if inputs["clamp"] is not None:
        kl = kl.clamp(-inputs["clamp"], inputs["clamp"])
    if inputs["response_mask"] is not None:
        kl = torch.where(inputs["response_mask"] != 0, kl, 0.0)
    return {"kl": kl}


KL_ESTIMATE = Contract(
    name="kl_estimate",
    summary="the per-token estimate of the KL between the policy and a reference policy",
    source=(
        "Schulman, Approximating KL Divergence (http://joschu.net/blog/kl-approx.html): k1, k2, k3; abs is |k1|; "
        "DeepSeekMath (arXiv:2402.03300), equation 4: k3"
    ),
    inputs=(
        Input("log_probs", "tensor", "of the policy, in nats, <= 0", shape=("batch", "tokens"), differentiable=True),
        Input("ref_log_probs", "tensor", "of the reference, for the same tokens", shape=("batch", "tokens")),
        Input("kl_estimator", "string", "k1, abs, k2, or k3, which is low_var_kl too"),
        Input(
            "clamp",
            "number",
            "dialect: the estimate is cut to [-clamp, clamp] and has no gradient beyond; a statement about the "
            "boundary, passed to it only where it has such an option",
            default=None,
        ),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts; elsewhere the estimate is 0",
            dtype="float32",
            shape=("batch", "tokens"),
            default=None,
        ),
    ),
    observes=(
        Observed("kl", "the estimate of each token", ("batch", "tokens")),
        Observed("per_token_gradient", "d sum(kl) / d log_probs", ("batch", "tokens")),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"ref_log_prob": "ref_log_probs", "log_probs_base": "ref_log_probs", "loss_mask": "response_mask"},
)
