"""Rollout KL: a loss term that holds the trained policy near the policy that generated the tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import spread
from sentinel.contracts.contract import Choose, Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One training step, its backward pass included, in which the term is the whole loss."""
    log_probs = inputs["log_probs"].detach().clone().requires_grad_(True)
    outputs = call(**{**inputs, "log_probs": log_probs})
    return {"rollout_kl": outputs["rollout_kl"], "loss": outputs["loss"], "per_token_gradient": log_probs.grad}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "rollout_log_probs")
    return inputs


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``coefficient * mean over sequences of the mean over valid tokens of k(log_probs - rollout_log_probs)``."""
    import torch

    # Schulman's r is rollout / current, so log r = -d: k1 = -log r, k2 = (log r)^2 / 2, k3 = (r - 1) - log r.
    valid = inputs["response_mask"] != 0
    d = torch.where(valid, inputs["log_probs"] - inputs["rollout_log_probs"], 0.0)
    estimators = {"k1": d, "abs": d.abs(), "k2": d.square() / 2, "k3": torch.exp(-d) - 1 + d}
    estimate = estimators[inputs["kl_estimator"]]
    if inputs["clamp"] is not None:
        estimate = estimate.clamp(-inputs["clamp"], inputs["clamp"])
    per_token = torch.where(valid, estimate, 0.0)
    rollout_kl = (per_token.sum(-1) / valid.sum(-1).clamp(min=1)).mean()
    loss = inputs["coefficient"] * rollout_kl
    loss.backward()
    return {"rollout_kl": rollout_kl.detach(), "loss": loss.detach()}


ROLLOUT_KL = Contract(
    name="rollout_kl",
    summary="the loss term that penalises the KL between the trained policy and the rollout policy",
    source="Schulman, Approximating KL Divergence (http://joschu.net/blog/kl-approx.html): k1, k2, k3; abs is |k1|",
    inputs=(
        Input(
            "log_probs",
            "tensor",
            "of the trained policy, in nats, < 0",
            shape=("batch", "tokens"),
            differentiable=True,
            domain="log_prob",
        ),
        Input(
            "rollout_log_probs",
            "tensor",
            "of the policy that generated the tokens",
            shape=("batch", "tokens"),
            domain="log_ratio",
        ),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts",
            shape=("batch", "tokens"),
            domain="mask",
            dtypes=("bool", "int64"),
        ),
        Input("kl_estimator", "string", "k1, abs, k2 or k3", choices=("k1", "abs", "k2", "k3"), knob=True),
        Input("coefficient", "number", "of the term in the loss", choices=(1.0, 0.5), knob=True),
        Input(
            "clamp",
            "number",
            "the estimate of a token is cut to [-clamp, clamp] and has no gradient beyond",
            default=None,
            dialect=True,
        ),
    ),
    observes=(
        Observed("rollout_kl", "the reported estimate, which the term is a multiple of"),
        Observed("loss", "the loss that is differentiated; every other term of it is off"),
        Observed("per_token_gradient", "d loss / d log_probs", ("batch", "tokens"), "gradient"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"old_log_probs": "rollout_log_probs", "loss_mask": "response_mask"},
    laws=(
        "masked_values_have_no_influence",
        "order_does_not_matter",
        "padding_is_invisible",
        "twins_agree",
        "the_oracle_agrees",
        "nothing_else_is_touched",
        "every_knob_counts",
        "finite_in_finite_out",
        "gradients_stay_where_they_belong",
    ),
    arrange=_arrange,
)
