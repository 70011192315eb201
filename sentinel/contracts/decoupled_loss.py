"""Decoupled policy losses: the ratio is to a proximal policy, a weight corrects for the one that sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import detached, leaf, replaced, spread
from sentinel.contracts.contract import (
    AS_DEFINED,
    TOKENS,
    Choose,
    Contract,
    Input,
    Observed,
    dialect,
    knob,
    per_token,
    token_mask,
)


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    given = {name: leaf(inputs[name]) for name in ("log_probs", "proximal_log_probs")}
    outputs = call(**{**inputs, **given})
    loss = outputs["loss"]
    found = torch.autograd.grad(loss, list(given.values()), allow_unused=True) if loss.requires_grad else (None, None)
    gradients = [torch.zeros_like(value) if slope is None else slope for value, slope in zip(given.values(), found)]
    return {
        "loss": detached(loss),
        "gradient": gradients[0],
        "proximal_gradient": gradients[1],
        "ratio": detached(outputs["ratio"]),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``-min(r A, clip(r) A) w`` with ``r = pi / pi_prox`` and the constant ``w = pi_prox / pi_behaviour``, of the
    tokens whose ``w`` lies within its bounds. The ratio that is reported is that of every token, dropped or not."""
    import torch

    valid, eps = inputs["response_mask"] != 0, inputs["eps_clip"]
    ratio = (inputs["log_probs"] - inputs["proximal_log_probs"]).exp()
    weight = (inputs["proximal_log_probs"].detach() - inputs["behaviour_log_probs"]).exp()
    kept = valid & (weight <= inputs["weight_high"])
    if inputs["weight_low"] is not None:
        kept &= weight >= inputs["weight_low"]
    gains = inputs["advantages"] * ratio, inputs["advantages"] * ratio.clamp(1 - eps, 1 + eps)
    losses = torch.where(kept, -torch.minimum(*gains) * weight, 0.0)
    counted = kept if inputs["denominator"] == "kept" else valid
    return {"loss": losses.sum() / counted.sum().clamp(min=1), "ratio": torch.where(valid, ratio, 0.0)}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "proximal_log_probs")
    proximal = inputs["proximal_log_probs"].array().astype(np.float64)
    behaviour = inputs["behaviour_log_probs"]
    inputs["behaviour_log_probs"] = replaced(behaviour, np.minimum(proximal - behaviour.array(), 0))
    return inputs


DECOUPLED_LOSS = Contract(
    name="decoupled_loss",
    summary="a policy loss relative to a proximal policy, weighted for the policy that sampled",
    source=(
        "decoupled PPO (arXiv:2110.00641), equation 2, in which the proximal policy and the weight are constants; "
        "tokens whose weight is out of bounds are dropped, as in IcePop (Ring-1T, arXiv:2510.18855)"
    ),
    inputs=(
        per_token("log_probs", "of the trained policy, in nats", "log_prob", differentiable=True),
        per_token(
            "proximal_log_probs", "of the policy that the ratio is relative to", "log_ratio", differentiable=True
        ),
        per_token("behaviour_log_probs", "of the policy that sampled", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(dtype="bool", dtypes=()),
        knob("eps_clip", "bound of |ratio - 1|", (0.2, 0.6)),
        Input(
            "correction",
            "string",
            "what drops tokens, as the framework calls it: icepop or mask",
            choices=("mask", "icepop"),
        ),
        knob("weight_low", "smallest weight of a token that is kept", (None, 0.5)),
        knob("weight_high", "largest weight of a token that is kept", (2.0, 5.0)),
        dialect(
            "denominator",
            "counted",
            "what the loss is divided by: counted (tokens of the mask) or kept (those whose weight is in bounds)",
        ),
    ),
    observes=(
        Observed("loss", "the loss"),
        Observed("gradient", "d loss / d log_probs", TOKENS, "gradient"),
        Observed("proximal_gradient", "d loss / d proximal_log_probs, through the ratio alone", TOKENS, "gradient"),
        Observed("ratio", "the reported ratio of each token", TOKENS, "metric"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"loss_mask": "response_mask"},
    laws=(
        "masked_values_have_no_influence",
        "order_does_not_matter",
        "padding_is_invisible",
        "metrics_tell_the_truth",
        "every_knob_counts",
        *AS_DEFINED,
    ),
    arrange=_arrange,
)
