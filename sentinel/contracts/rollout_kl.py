"""Rollout KL: a loss term that holds the trained policy near the policy that generated the tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import spread
from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    Observed,
    dialect,
    knob,
    laws_of_tokens,
    per_token,
    token_mask,
)


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
        per_token("log_probs", "of the trained policy, in nats, < 0", "log_prob", differentiable=True),
        per_token("rollout_log_probs", "of the policy that generated the tokens", "log_ratio"),
        token_mask(),
        knob("kl_estimator", "k1, abs, k2 or k3", ("k1", "abs", "k2", "k3"), REQUIRED),
        knob("coefficient", "of the term in the loss", (1.0, 0.5), REQUIRED),
        dialect("clamp", None, "the estimate of a token is cut to [-clamp, clamp] and has no gradient beyond"),
    ),
    observes=(
        Observed("rollout_kl", "the reported estimate, which the term is a multiple of"),
        Observed("loss", "the loss that is differentiated; every other term of it is off"),
        Observed("per_token_gradient", "d loss / d log_probs", TOKENS, "gradient"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"old_log_probs": "rollout_log_probs", "loss_mask": "response_mask"},
    laws=laws_of_tokens(
        "a_rejected_row_is_an_absent_row",
        "groups_are_isolated",
        "parts_add_up",
        "a_sequence_decision_is_one_decision",
        "representation_is_invisible",
        "metrics_tell_the_truth",
        "normalisation_laws",
    ),
    arrange=_arrange,
)
