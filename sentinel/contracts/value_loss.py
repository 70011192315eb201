"""Define the contract of value losses, which reduce a critic's values, old values and returns to a scalar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.contracts.aggregation import (
    AGGREGATION_INPUTS,
    aggregate,
    count_globally,
    cut_rows,
    differentiated,
    fraction,
)
from sentinel.contracts.contract import (
    TOKENS,
    Contract,
    Input,
    Observed,
    dialect,
    laws_of_tokens,
    per_token,
    token_mask,
)
from sentinel.values.lazy import torch


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the value loss ``(v - R)^2`` (PPO, equation 9), with value clipping if there is a clip range.

    With a clip range ``c`` and the old value ``o``, a token's loss is ``max(l(v), l(o + clip(v - o, -c, c)))``
    (Engstrom et al., section 3, value function clipping).
    """
    valid = inputs["response_mask"] != 0
    v, old, returns = (torch.where(valid, inputs[key], 0.0) for key in ("vpreds", "values", "returns"))
    losses = _distance(v - returns, inputs)
    cut = torch.zeros_like(losses)
    reach = inputs["cliprange_value"]
    if reach is not None:
        clipped = _distance(old + (v - old).clamp(-reach, reach) - returns, inputs)
        cut = (clipped > losses).double()
        losses = torch.maximum(losses, clipped)
    return {"loss": inputs["factor"] * aggregate(losses, inputs), "clip_fraction": _clip_fraction(cut, inputs)}


def _distance(error: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute the squared distance ``d^2``, or twice Huber's loss: ``d^2`` for ``|d| < delta``, else ``2 delta |d| -
    delta^2``.
    """
    if inputs["kind"] == "mse":
        return error.square()
    delta = inputs["huber_delta"]
    return torch.where(error.abs() < delta, error.square(), 2 * delta * error.abs() - delta**2)


def _clip_fraction(cut: Any, inputs: Mapping[str, Any]) -> float:
    mask = inputs["response_mask"]
    if inputs["clip_fraction_over"] == "tokens":
        return fraction(cut, mask)
    counted = {**inputs, "loss_agg_mode": "seq-mean-token-mean", "global_batch_size": None, "dp_size": None}
    return float(aggregate(cut, counted))


VALUE_LOSS = Contract(
    name="value_loss",
    summary="the loss of a critic's values relative to the returns",
    source=(
        "PPO (arXiv:1707.06347), equation 9, and for the clipped form Implementation Matters in Deep RL "
        "(arXiv:2005.12729), section 3; aggregation as in loss_aggregation"
    ),
    inputs=(
        per_token("vpreds", "the critic's current values", "value", differentiable=True),
        per_token("values", "the critic's values before the update", "value"),
        per_token("returns", "the target of each value", "value"),
        token_mask(),
        Input(
            "cliprange_value",
            "number",
            "clip range of a value around its old value; default: no clip",
            default=None,
            # Drawn values are never exactly at one of these bounds, where the gradient is undefined.
            choices=(None, 0.2, 0.6),
            knob=True,
        ),
        *AGGREGATION_INPUTS,
        dialect("factor", 1.0, "factor of the loss: 1, or 0.5"),
        dialect("kind", "mse", "mse: (v - R)^2; huber: the same up to huber_delta, then linear"),
        dialect("huber_delta", 1.0, "distance from which huber is linear"),
        dialect(
            "clip_fraction_over",
            "tokens",
            "clip_fraction is a mean over: tokens, or sequences (of each sequence's mean over its valid tokens)",
        ),
    ),
    observes=(
        Observed("loss", "the scalar loss"),
        Observed("per_token_gradient", "d loss / d vpreds", TOKENS, "gradient"),
        Observed("clip_fraction", "fraction of valid tokens that the clip range clips", role="metric"),
    ),
    measure=differentiated("clip_fraction", vpreds="per_token_gradient"),
    oracle=_oracle,
    aliases={"old_values": "values", "loss_mask": "response_mask", "value_clip": "cliprange_value"},
    laws=laws_of_tokens("a_sequence_decision_is_one_decision", "normalisation_laws"),
    arrange=count_globally,
    parts=cut_rows,
)
