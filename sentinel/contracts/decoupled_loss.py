"""Decoupled policy losses: the ratio is to a proximal policy, a weight corrects for the one that sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import detached, leaf, replaced, spread
from sentinel.contracts.contract import Choose, Contract, Input, Observed

_TOKENS = ("batch", "tokens")


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
        Input(
            "log_probs",
            "tensor",
            "of the trained policy, in nats",
            shape=_TOKENS,
            differentiable=True,
            domain="log_prob",
        ),
        Input(
            "proximal_log_probs",
            "tensor",
            "of the policy that the ratio is relative to",
            shape=_TOKENS,
            differentiable=True,
            domain="log_ratio",
        ),
        Input("behaviour_log_probs", "tensor", "of the policy that sampled", shape=_TOKENS, domain="log_ratio"),
        Input("advantages", "tensor", "advantage of each token", shape=_TOKENS, domain="advantage"),
        Input("response_mask", "tensor", "1 where a token counts", dtype="bool", shape=_TOKENS, domain="mask"),
        Input("eps_clip", "number", "bound of |ratio - 1|", default=0.2, choices=(0.2, 0.6), knob=True),
        Input(
            "correction",
            "string",
            "what drops tokens, as the framework calls it: icepop or mask",
            choices=("mask", "icepop"),
        ),
        Input(
            "weight_low",
            "number",
            "smallest weight of a token that is kept",
            default=None,
            choices=(None, 0.5),
            knob=True,
        ),
        Input(
            "weight_high",
            "number",
            "largest weight of a token that is kept",
            default=2.0,
            choices=(2.0, 5.0),
            knob=True,
        ),
        Input(
            "denominator",
            "string",
            "what the loss is divided by: counted (tokens of the mask) or kept (those whose weight is in bounds)",
            default="counted",
            dialect=True,
        ),
    ),
    observes=(
        Observed("loss", "the loss"),
        Observed("gradient", "d loss / d log_probs", _TOKENS, "gradient"),
        Observed("proximal_gradient", "d loss / d proximal_log_probs, through the ratio alone", _TOKENS, "gradient"),
        Observed("ratio", "the reported ratio of each token", _TOKENS, "metric"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"loss_mask": "response_mask"},
    laws=(
        "masked_values_have_no_influence",
        "order_does_not_matter",
        "padding_is_invisible",
        "the_oracle_agrees",
        "metrics_tell_the_truth",
        "nothing_else_is_touched",
        "every_knob_counts",
    ),
    arrange=_arrange,
)
