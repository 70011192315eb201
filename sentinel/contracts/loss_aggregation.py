"""Loss aggregation: one scalar from the per-token losses of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Aggregate twice: scaled by a scalar parameter theta, as in a training step, and with the losses as the leaf."""
    import torch

    arguments = {name: value for name, value in inputs.items() if name not in ("loss_mat", "theta", "learning_rate")}
    loss_mat = inputs["loss_mat"]
    theta = torch.nn.Parameter(torch.tensor(float(inputs["theta"]), dtype=loss_mat.dtype, device=loss_mat.device))
    loss = call(loss_mat=theta * loss_mat, **arguments)["loss"]
    loss.backward()
    assert theta.grad is not None, "the loss does not depend on theta"

    leaf = loss_mat.detach().clone().requires_grad_(True)
    call(loss_mat=leaf, **arguments)["loss"].backward()
    assert leaf.grad is not None
    masked = inputs["response_mask"].to(torch.bool).logical_not()
    return {
        "loss": loss.detach(),
        "theta_gradient": theta.grad,
        "parameter_update_delta": -float(inputs["learning_rate"]) * theta.grad.item(),
        "per_token_gradient": leaf.grad,
        "masked_token_gradient_abs_sum": leaf.grad[masked].abs().sum(),
    }


LOSS_AGGREGATION = Contract(
    name="loss_aggregation",
    summary="the scalar loss of a batch from its per-token losses",
    source="DAPO (arXiv:2503.14476), section 3.3, and Dr. GRPO (arXiv:2503.20783), section 3.1: token-mean, seq-mean-*",
    inputs=(
        Input("loss_mat", "tensor", "per-token losses", shape=("batch", "tokens"), differentiable=True),
        Input("response_mask", "tensor", "1 where a token counts", dtype="int64", shape=("batch", "tokens")),
        Input("loss_agg_mode", "string", "the loss aggregation mode, by the name the framework uses"),
        Input("batch_num_tokens", "number", "valid tokens of the global batch", default=None),
        Input("global_batch_size", "number", "valid sequences of the global batch", default=None),
        Input("dp_size", "number", "data-parallel ranks whose losses are averaged", default=None),
        Input("loss_scale_factor", "number", "constant divisor of the -norm modes", default=None),
        Input("weights", "tensor", "weight of each sequence", shape=("batch",), default=None),
        Input("theta", "number", "the scalar parameter that multiplies every loss", default=1.0),
        Input("learning_rate", "number", "step size of the parameter update", default=0.1),
    ),
    observes=(
        Observed("loss", "the aggregated loss at theta"),
        Observed("theta_gradient", "d loss / d theta"),
        Observed("parameter_update_delta", "minus the learning rate times theta_gradient"),
        Observed("per_token_gradient", "d loss / d loss_mat", ("batch", "tokens")),
        Observed("masked_token_gradient_abs_sum", "sum of |per_token_gradient| where the mask is 0"),
    ),
    measure=_measure,
    law="masked_values_have_no_influence",
    aliases={"loss_mask": "response_mask", "token_mean_loss": "loss", "aggregated_loss": "loss"},
)
