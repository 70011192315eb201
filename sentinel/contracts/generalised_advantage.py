"""Generalised advantage estimation: advantages and returns of tokens from rewards and a critic's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at tokens that do not count is nobody's meaning: it is left out on both sides."""
    import torch

    outputs = call(**inputs)
    valid = inputs["response_mask"] != 0
    return {key: torch.where(valid, outputs[key], 0.0) for key in ("advantages", "returns")}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Equation 16, over the tokens that count: ``A_t = sum_l (gamma lam)^l delta_{t+l}`` with
    ``delta_t = r_t + gamma V_{t+1} - V_t`` and 0 for the value after the last; the return is ``A_t + V_t``."""
    import torch

    rewards, values, gamma = inputs["token_level_rewards"], inputs["values"], inputs["gamma"]
    valid = inputs["response_mask"] != 0
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for row, counts in enumerate(valid):
        r, v = rewards[row, counts], values[row, counts]
        deltas = r + gamma * torch.cat([v[1:], v.new_zeros(1)])[: len(v)] - v
        steps = torch.arange(len(v), dtype=torch.float64)
        ahead = steps[None, :] - steps[:, None]  # l, for token t (row) and t + l (column)
        weights = torch.where(ahead >= 0, (gamma * inputs["lam"]) ** ahead.clamp(min=0), 0.0)
        advantages[row, counts] = weights @ deltas
        returns[row, counts] = weights @ deltas + v
    if inputs["whiten"]:
        all_of_them = advantages[valid]
        advantages = (advantages - all_of_them.mean()) / torch.sqrt(all_of_them.var(correction=1) + 1e-8)
    return {"advantages": advantages, "returns": returns}


GENERALISED_ADVANTAGE = Contract(
    name="generalised_advantage",
    summary="token-level advantages and returns from token rewards and a critic's values",
    source="GAE (arXiv:1506.02438), equation 16, for an episode that ends with the last token that counts",
    inputs=(
        Input("token_level_rewards", "tensor", "reward of each token", shape=("batch", "tokens")),
        Input("values", "tensor", "the critic's value at each token", shape=("batch", "tokens")),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts, that is, is a step of the episode",
            dtype="float32",
            shape=("batch", "tokens"),
        ),
        Input("gamma", "number", "discount"),
        Input("lam", "number", "GAE's lambda"),
        Input(
            "whiten",
            "boolean",
            "dialect: advantages (not returns) are centred and divided by sqrt(variance + 1e-8) over all tokens "
            "that count, the variance with n - 1; a statement about the boundary, which has no such option",
            default=False,
        ),
    ),
    observes=(
        Observed("advantages", "advantage of each token that counts; 0 elsewhere", ("batch", "tokens")),
        Observed("returns", "the critic's target at each token that counts; 0 elsewhere", ("batch", "tokens")),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"rewards": "token_level_rewards", "lambd": "lam", "loss_mask": "response_mask"},
)
