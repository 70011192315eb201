"""Generalised advantage estimation: advantages and returns of tokens from rewards and a critic's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Observed,
    dialect,
    knob,
    per_token,
    token_mask,
)
from sentinel.contracts.normalisation import COUNT_EPSILON, LAWS_OF_TOKENS, REWARD_LAYOUT, place_rewards, whitened


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns may be None. What stands at tokens that do not count is nobody's meaning, and left out on both sides."""
    import torch

    outputs = call(**inputs)
    valid = inputs["response_mask"] != 0
    found = {key: outputs[key] for key in ("advantages", "returns")}
    return {key: None if value is None else torch.where(valid, value, 0.0) for key, value in found.items()}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Equation 16, over the tokens that count: ``A_t = sum_l (gamma lam)^l delta_{t+l}`` with
    ``delta_t = r_t + gamma V_{t+1} - V_t`` and 0 for the value after the last; the return is ``A_t + V_t``."""
    import torch

    rewards, values, gamma = inputs["token_level_rewards"], inputs["values"], inputs["gamma"]
    valid = inputs["response_mask"] != 0
    if inputs["masked_steps"] not in ("skipped", "counted"):
        raise DoesNotApply(f"no definition of masked steps as {inputs['masked_steps']!r}")
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for row, counts in enumerate(valid):
        step = counts if inputs["masked_steps"] == "skipped" else torch.ones_like(counts)
        r, v = rewards[row, step], values[row, step]
        deltas = r + gamma * torch.cat([v[1:], v.new_zeros(1)])[: len(v)] - v
        steps = torch.arange(len(v), dtype=torch.float64)
        ahead = steps[None, :] - steps[:, None]  # l, for token t (row) and t + l (column)
        weights = torch.where(ahead >= 0, (gamma * inputs["lam"]) ** ahead.clamp(min=0), 0.0)
        advantages[row, step] = weights @ deltas
        returns[row, step] = weights @ deltas + v
    if inputs["whiten"]:
        advantages = whitened(advantages, valid, inputs["count_epsilon"])
    return {"advantages": advantages, "returns": returns}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    place_rewards(inputs, choose)
    return inputs


GENERALISED_ADVANTAGE = Contract(
    name="generalised_advantage",
    summary="token-level advantages and returns from token rewards and a critic's values",
    source="GAE (arXiv:1506.02438), equation 16, for an episode that ends with the last token that counts",
    inputs=(
        per_token("token_level_rewards", "reward of each token", "reward"),
        per_token("values", "the critic's value at each token", "value"),
        token_mask("1 where a token counts, that is, is a step of the episode"),
        REWARD_LAYOUT,
        knob("gamma", "discount", (1.0, 0.5, 0.9, 0.0), REQUIRED),
        knob("lam", "GAE's lambda", (1.0, 0.5, 0.95, 0.0), REQUIRED),
        dialect(
            "whiten",
            False,
            "advantages (not returns) are centred and divided by sqrt(variance + 1e-8) over all tokens that count, the "
            "variance with n - 1",
        ),
        dialect(
            "masked_steps",
            "skipped",
            "what a token that does not count is: skipped (no step), or counted (a step with the reward and the value "
            "that stand there)",
        ),
        COUNT_EPSILON,
    ),
    observes=(
        Observed("advantages", "advantage of each token that counts; 0 elsewhere", TOKENS),
        Observed("returns", "the critic's target at each token that counts; 0 elsewhere", TOKENS),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"rewards": "token_level_rewards", "lambd": "lam", "loss_mask": "response_mask"},
    laws=LAWS_OF_TOKENS,
    arrange=_arrange,
)
