"""Define the contract of loss aggregation, which reduces the per-token losses of a batch to a scalar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.contracts.aggregation import (
    AGGREGATION_INPUTS,
    aggregate,
    count_globally,
    cut_rows,
    detached,
    gradient,
    leaf,
)
from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Contract,
    Input,
    Observed,
    laws_of_tokens,
    per_row,
    per_token,
    token_mask,
)
from sentinel.values.lazy import torch


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the aggregated loss and two of its gradients, with respect to a parameter ``theta`` that multiplies the
    losses, and with respect to the losses."""
    arguments = {name: value for name, value in inputs.items() if name not in ("loss_mat", "theta", "learning_rate")}
    loss_mat = inputs["loss_mat"]
    theta = torch.nn.Parameter(torch.tensor(float(inputs["theta"]), dtype=loss_mat.dtype, device=loss_mat.device))
    loss = call(loss_mat=theta * loss_mat, **arguments)["loss"]
    slope = gradient(loss, theta)

    tokens = leaf(loss_mat)
    per_token = gradient(call(loss_mat=tokens, **arguments)["loss"], tokens)
    masked = inputs["response_mask"].to(torch.bool).logical_not()
    return {
        "loss": detached(loss),
        "theta_gradient": slope,
        "parameter_update_delta": -float(inputs["learning_rate"]) * slope.item(),
        "per_token_gradient": per_token,
        "masked_token_gradient_abs_sum": per_token[masked].abs().sum(),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"loss": aggregate(inputs["loss_mat"], inputs, inputs["weights"])}


LOSS_AGGREGATION = Contract(
    name="loss_aggregation",
    summary="the scalar loss of a batch, from its per-token losses",
    source="DAPO (arXiv:2503.14476), section 3.3, and Dr. GRPO (arXiv:2503.20783), section 3.1: token-mean, seq-mean-*",
    inputs=(
        per_token("loss_mat", "per-token losses", "loss", differentiable=True),
        token_mask(dtype="int64", dtypes=("bool", "float32")),
        replace(AGGREGATION_INPUTS[0], default=REQUIRED, knob=True),
        *AGGREGATION_INPUTS[1:],
        per_row("weights", "weight of each sequence", "weight", default=None),
        Input("theta", "number", "the scalar parameter that multiplies every loss", default=1.0),
        Input("learning_rate", "number", "step size of the parameter update", default=0.1),
    ),
    observes=(
        Observed("loss", "the aggregated loss at theta"),
        Observed("theta_gradient", "d loss / d theta", role="other"),
        Observed("parameter_update_delta", "minus the learning rate times theta_gradient", role="other"),
        Observed("per_token_gradient", "d loss / d loss_mat", TOKENS, "gradient"),
        Observed("masked_token_gradient_abs_sum", "sum of |per_token_gradient| over masked tokens", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="masked_values_have_no_influence",
    aliases={"loss_mask": "response_mask", "token_mean_loss": "loss", "aggregated_loss": "loss"},
    laws=laws_of_tokens("a_sequence_decision_is_one_decision", "metrics_tell_the_truth", "normalisation_laws"),
    arrange=count_globally,
    parts=cut_rows,
)
