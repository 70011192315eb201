"""Sequence rejection: a sequence that is too far off policy is dropped from the loss as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed
from sentinel.values import tensor


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The rejection mask, and what a policy loss multiplied by it still lets through.

    A leaked position is a valid token of a sequence that lost another of its tokens and yet has a non-zero loss.
    """
    import torch

    outputs = call(**inputs)
    valid = inputs["response_mask"].to(torch.bool)
    kept = outputs["opsm_mask"]
    losses = outputs["policy_loss"] * kept
    rejected = ((kept == 0) & valid).any(dim=-1, keepdim=True)
    leaked = rejected & valid & (losses != 0)
    # Positions count the tokens of the batch row by row, as the frameworks concatenate them.
    positions = torch.nonzero(leaked.flatten()).flatten()
    return {
        "opsm_mask": kept,
        "opsm_clipfrac": outputs["opsm_clipfrac"],
        "masked_policy_pg_loss_tokens": losses,
        "reduced_policy_loss": losses[valid].mean(),
        "leaked_positions": positions.tolist(),
        "leaked_token_count": int(positions.numel()),
    }


def _ones(scenario: Mapping[str, Any]) -> Any:
    rows, columns = scenario["log_probs"].shape
    return tensor([[1.0] * columns for _ in range(rows)], "float32")


SEQUENCE_REJECTION = Contract(
    name="sequence_rejection",
    summary="off-policy sequence masking: which sequences the policy loss leaves out",
    source=(
        "OPSM, DeepSeek-V3.2 (arXiv:2512.02556), section 3.1: a sequence with negative "
        "advantage and mean KL over delta is masked"
    ),
    inputs=(
        Input("log_probs", "tensor", "log-probs of the current policy", shape=("batch", "tokens")),
        Input(
            "old_log_probs", "tensor", "log-probs of the policy that generated the tokens", shape=("batch", "tokens")
        ),
        Input("advantages", "tensor", "advantage of each token", shape=("batch", "tokens")),
        Input("response_mask", "tensor", "1 where a token counts", shape=("batch", "tokens"), default=_ones),
        Input("opsm_delta", "number", "threshold of the mean sequence KL, in nats"),
        Input(
            "ppo_kl",
            "tensor",
            "old minus current log-prob as the policy loss sees it",
            shape=("batch", "tokens"),
            default=_ones,
        ),
        Input("eps_clip", "number", "lower clip range of the policy loss", default=0.2),
        Input("eps_clip_high", "number", "upper clip range of the policy loss", default=0.2),
    ),
    observes=(
        Observed("opsm_mask", "0 where a token is rejected", ("batch", "tokens")),
        Observed("opsm_clipfrac", "the framework's own count of what it rejected"),
        Observed("masked_policy_pg_loss_tokens", "policy loss of each token times the mask", ("batch", "tokens")),
        Observed("reduced_policy_loss", "mean of those over the valid tokens"),
        Observed("leaked_positions", "tokens of a rejected sequence that still have a loss"),
        Observed("leaked_token_count", "how many"),
    ),
    measure=_measure,
    law="a_sequence_decision_is_one_decision",
    aliases={"full_log_probs": "log_probs", "full_old_log_probs": "old_log_probs", "loss_masks": "response_mask"},
)
