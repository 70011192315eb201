"""Critic values: which output of a value head is the value of the state before which response token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import leaf
from sentinel.contracts.contract import (
    TOKENS,
    Contract,
    Observed,
    dialect,
    laws_of_tokens,
    per_row,
    per_token,
    token_mask,
)


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``values`` [batch, tokens]. Where it takes no gradients there are none to observe."""
    import torch

    valid = inputs["response_mask"] != 0
    outputs, after = leaf(inputs["outputs"]), leaf(inputs["output_after"])
    values = call(**{**inputs, "outputs": outputs, "output_after": after})["values"]
    counted = torch.where(valid, values, 0.0)
    outside = torch.where(valid, 0.0, values.detach()).abs().amax(-1)
    slopes: tuple[Any, ...] = (None, None)
    if counted.requires_grad:
        slopes = torch.autograd.grad(counted.sum(), (outputs, after), allow_unused=True, materialize_grads=True)
    return {
        "values": counted.detach(),
        "outside": outside if inputs["outside_the_mask"] == "zero" else None,
        "per_token_gradient": slopes[0],
        "gradient_after": slopes[1],
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``V(s_t)`` of the state in which token t is chosen (PPO, arXiv:1707.06347, equation 11): what the head says at
    the token before it. What it says of the state after the last token is no baseline of any token: it has seen them
    all."""
    import torch

    return {"values": torch.where(inputs["response_mask"] != 0, inputs["outputs"], 0.0)}


CRITIC_VALUES = Contract(
    name="critic_values",
    summary="the critic's value of each response token, from the outputs of its value head",
    source="PPO (arXiv:1707.06347), equations 10 and 11: advantages compare with V(s_t), of the state before action t",
    inputs=(
        per_token(
            "outputs",
            "of each response token: what the value head says one position before it",
            "value",
            differentiable=True,
        ),
        per_row(
            "output_after",
            "what the value head says at the last position of each row, after its last token",
            "value",
            differentiable=True,
        ),
        token_mask("1 where there is a response token"),
        dialect("outside_the_mask", "zero", "what stands at tokens that do not count: zero, or any number"),
    ),
    observes=(
        Observed("values", "of each response token; 0 elsewhere", TOKENS),
        Observed("outside", "the largest magnitude at a token of the row that does not count", ("batch",)),
        Observed("per_token_gradient", "d sum(values) / d outputs", TOKENS, "gradient"),
        Observed("gradient_after", "d sum(values) / d output_after", ("batch",), "gradient"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"loss_mask": "response_mask"},
    laws=laws_of_tokens(
        "parts_add_up",
        "a_sequence_decision_is_one_decision",
        "every_knob_counts",
        "metrics_tell_the_truth",
        "normalisation_laws",
    ),
)
