"""Sequence rejection: a sequence that is too far off policy is dropped from the loss as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import log_ratio, replaced, row_mean, spread
from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    knob,
    laws_of_tokens,
    per_token,
    token_mask,
)
from sentinel.values.lazy import torch
from sentinel.values.literals import tensor


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the rejection mask, and what a policy loss multiplied by it still lets through.

    A leaked position is a valid token of a sequence that lost another of its tokens and yet has a non-zero loss.
    """
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
        "reduced_policy_loss": losses[valid].mean() if valid.any() else losses.new_zeros(()),
        "leaked_positions": positions.tolist(),
        "leaked_token_count": int(positions.numel()),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``M = 0`` for a sequence with ``A < 0`` and ``1/|y| sum_t (log p_old - log p) > delta``, else 1; the loss of a
    token is PPO's ``-min(r A, clip(r, 1 - e_low, 1 + e_high) A)`` with ``r = exp(-ppo_kl)``.

    :raises DoesNotApply: where advantages of one sequence differ in sign; the paper has one advantage a sequence.
    """
    valid, advantages = inputs["response_mask"] != 0, inputs["advantages"]
    negative = (advantages < 0) & valid
    if (negative.any(-1) & ((advantages >= 0) & valid).any(-1)).any():
        raise DoesNotApply("a sequence with advantages of both signs has no decision in the paper")
    distance = -row_mean(log_ratio(inputs["log_probs"], inputs["old_log_probs"], valid), valid)
    rejected = negative.any(-1) & (distance[:, 0] > inputs["opsm_delta"])
    ratio = torch.exp(-inputs["ppo_kl"])
    bounded = ratio.clamp(1 - inputs["eps_clip"], 1 + inputs["eps_clip_high"])
    return {
        "opsm_mask": (~rejected).double()[:, None].expand(valid.shape),
        "opsm_clipfrac": rejected.double().sum(),
        "policy_loss": -torch.minimum(ratio * advantages, bounded * advantages),
    }


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw advantages of sequences, or each token's own: with both signs in one, only the laws have a say. A
    threshold as given, or about half or one and a half times what a row has: a sum for a mean, a mean of other tokens,
    falls on its other side."""
    spread(inputs, "log_probs", "old_log_probs")
    if choose.integer(0, 1) == 0:
        values = inputs["advantages"].array().copy()
        values[:] = values[:, :1]
        inputs["advantages"] = replaced(inputs["advantages"], values)
    factor = choose.one_of((None, 1.47, 0.53))  # of numbers in eighths: no other row is exactly at the threshold
    if factor is not None:
        current, old = (inputs[name].array().astype(np.float64) for name in ("log_probs", "old_log_probs"))
        valid = inputs["response_mask"].array() != 0
        far = ((old - current) * valid).sum(-1) / np.maximum(valid.sum(-1), 1)
        above = [float(distance) for distance in far if 0 < distance < np.inf]
        inputs["opsm_delta"] = factor * choose.one_of(above) if above else inputs["opsm_delta"]
    return inputs


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
        per_token("log_probs", "log-probs of the current policy", "log_prob"),
        per_token("old_log_probs", "log-probs of the policy that generated the tokens", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(default=_ones),
        knob("opsm_delta", "threshold of the mean sequence KL, in nats", (0.11, 0.07, 0.31, 1.13), REQUIRED),
        per_token("ppo_kl", "old minus current log-prob as the policy loss sees it", default=_ones),
        Input("eps_clip", "number", "lower clip range of the policy loss", default=0.2),
        Input("eps_clip_high", "number", "upper clip range of the policy loss", default=0.2),
    ),
    observes=(
        Observed("opsm_mask", "0 where a token is rejected", TOKENS, "decision"),
        Observed("opsm_clipfrac", "the framework's own count of the sequences it rejected", role="metric"),
        Observed("masked_policy_pg_loss_tokens", "policy loss of each token times the mask", TOKENS),
        Observed("reduced_policy_loss", "mean of those over the valid tokens"),
        Observed("leaked_positions", "tokens of a rejected sequence that still have a loss", role="other"),
        Observed("leaked_token_count", "how many", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="a_sequence_decision_is_one_decision",
    aliases={"full_log_probs": "log_probs", "full_old_log_probs": "old_log_probs", "loss_masks": "response_mask"},
    laws=laws_of_tokens("parts_add_up", "normalisation_laws", "gradients_stay_where_they_belong"),
    arrange=_arrange,
)
