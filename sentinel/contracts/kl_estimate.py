"""KL estimates: how far the policy is from the reference at each token, from the log-probs of that token alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import gradient, leaf, spread
from sentinel.contracts.contract import Choose, Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs = leaf(inputs["log_probs"])
    kl = call(**{**inputs, "log_probs": log_probs})["kl"]
    return {"kl": kl.detach(), "per_token_gradient": gradient(kl.sum(), log_probs)}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "ref_log_probs")
    return inputs


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Schulman, for a sample of the policy p and the reference q: ``r = q / p``, and ``k1 = -log r``,
    ``k2 = (log r)^2 / 2``, ``k3 = (r - 1) - log r``."""
    import torch

    log_r = inputs["ref_log_probs"] - inputs["log_probs"]
    mask = inputs["response_mask"]
    if mask is not None:  # before exp: 0 times the gradient of an infinity is NaN
        log_r = torch.where(mask != 0, log_r, 0.0)
    k3 = torch.exp(log_r) - 1 - log_r
    estimators = {"k1": -log_r, "abs": log_r.abs(), "k2": log_r.square() / 2, "k3": k3, "low_var_kl": k3}
    kl = estimators[inputs["kl_estimator"]]
    if inputs["clamp"] is not None:
        kl = kl.clamp(-inputs["clamp"], inputs["clamp"])
    return {"kl": kl}


KL_ESTIMATE = Contract(
    name="kl_estimate",
    summary="the per-token estimate of the KL between the policy and a reference policy",
    source=(
        "Schulman, Approximating KL Divergence (http://joschu.net/blog/kl-approx.html): k1, k2, k3; abs is |k1|; "
        "DeepSeekMath (arXiv:2402.03300), equation 4: k3"
    ),
    inputs=(
        Input(
            "log_probs",
            "tensor",
            "of the policy, in nats, <= 0",
            shape=("batch", "tokens"),
            differentiable=True,
            domain="log_prob",
        ),
        Input(
            "ref_log_probs",
            "tensor",
            "of the reference, for the same tokens",
            shape=("batch", "tokens"),
            domain="log_ratio",
        ),
        Input(
            "kl_estimator",
            "string",
            "k1, abs, k2, or k3, which is low_var_kl too",
            choices=("k1", "abs", "k2", "k3"),
            knob=True,
        ),
        Input(
            "clamp",
            "number",
            "the estimate is cut to [-clamp, clamp] and has no gradient beyond",
            default=None,
            dialect=True,
        ),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts; elsewhere the estimate is 0",
            dtype="float32",
            shape=("batch", "tokens"),
            default=None,
            domain="mask",
            dtypes=("bool", "int64"),
        ),
    ),
    observes=(
        Observed("kl", "the estimate of each token", ("batch", "tokens")),
        Observed("per_token_gradient", "d sum(kl) / d log_probs", ("batch", "tokens"), "gradient"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"ref_log_prob": "ref_log_probs", "log_probs_base": "ref_log_probs", "loss_mask": "response_mask"},
    laws=(
        "masked_values_have_no_influence",
        "a_rejected_row_is_an_absent_row",
        "groups_are_isolated",
        "order_does_not_matter",
        "padding_is_invisible",
        "twins_agree",
        "the_oracle_agrees",
        "nothing_else_is_touched",
        "representation_is_invisible",
        "every_knob_counts",
        "finite_in_finite_out",
        "gradients_stay_where_they_belong",
    ),
    arrange=_arrange,
)
