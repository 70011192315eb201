"""Value losses: one scalar from a critic's predictions, its old ones and the returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import (
    AGGREGATION_INPUTS,
    count_globally,
    cut_rows,
    detached,
    gradient,
    leaf,
    metric,
)
from sentinel.contracts.contract import Choose, Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One loss and its backward pass.

    ``call`` returns ``loss``, and ``clip_fraction`` as a number or one number a token.
    """
    vpreds = leaf(inputs["vpreds"])
    outputs = call(**{**inputs, "vpreds": vpreds})
    return {
        "loss": detached(outputs["loss"]),
        "per_token_gradient": gradient(outputs["loss"], vpreds),
        "clip_fraction": metric(outputs.get("clip_fraction"), inputs["response_mask"]),
    }


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    count_globally(inputs)
    return inputs


def _parts(inputs: Mapping[str, Any], choose: Choose) -> list[dict[str, Any]]:
    """Microbatches of consecutive rows with the same global counts; their losses add up to the whole's."""
    return cut_rows(inputs, choose)


VALUE_LOSS = Contract(
    name="value_loss",
    summary="the loss that moves a critic's values towards the returns",
    source=(
        "PPO (arXiv:1707.06347), equation 9, and for the clipped form Implementation Matters in Deep RL "
        "(arXiv:2005.12729), section 3; aggregation as in loss_aggregation"
    ),
    inputs=(
        Input(
            "vpreds",
            "tensor",
            "the critic's values now",
            shape=("batch", "tokens"),
            differentiable=True,
            domain="value",
        ),
        Input("values", "tensor", "its values before the update", shape=("batch", "tokens"), domain="value"),
        Input("returns", "tensor", "what it should predict", shape=("batch", "tokens"), domain="value"),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts",
            shape=("batch", "tokens"),
            domain="mask",
            dtypes=("bool", "int64"),
        ),
        Input(
            "cliprange_value",
            "number",
            "how far a value may move from its old one; left out, any distance",
            default=None,
            choices=(None, 0.5, 0.2),
            knob=True,
        ),
        *AGGREGATION_INPUTS,
        Input("factor", "number", "of the whole loss: 1, or 0.5", default=1.0, dialect=True),
        Input("kind", "string", "mse (squared error) or huber", default="mse", dialect=True),
        Input("huber_delta", "number", "where huber becomes linear", default=1.0, dialect=True),
        Input(
            "clipped_tokens",
            "string",
            "what clip_fraction counts: loss (the clipped term is the larger one) or range (the value has moved "
            "further than cliprange_value)",
            default="loss",
            dialect=True,
        ),
        Input(
            "clip_fraction_over",
            "string",
            "what clip_fraction is the mean over: tokens, or sequences (each the mean over its own valid tokens)",
            default="tokens",
            dialect=True,
        ),
    ),
    observes=(
        Observed("loss", "the scalar loss"),
        Observed("per_token_gradient", "d loss / d vpreds", ("batch", "tokens"), "gradient"),
        Observed("clip_fraction", "share of the valid tokens that the clip range cuts", role="metric"),
    ),
    measure=_measure,
    law="the_oracle_agrees",
    aliases={"old_values": "values", "loss_mask": "response_mask", "value_clip": "cliprange_value"},
    arrange=_arrange,
    parts=_parts,
)
