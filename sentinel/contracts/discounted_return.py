"""Discounted returns: what each token of a response is worth, from the rewards that come after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at tokens that do not count is nobody's meaning: it is left out on both sides.

    ``call`` returns ``returns``, and ``advantages`` where the boundary has them.
    """
    import torch

    outputs = call(**inputs)
    valid = inputs["response_mask"] != 0
    return {
        key: torch.where(valid, outputs[key], 0.0) if outputs.get(key) is not None else None
        for key in ("returns", "advantages")
    }


DISCOUNTED_RETURN = Contract(
    name="discounted_return",
    summary="token-level returns from token rewards and a KL penalty, without a critic",
    source="REINFORCE++ (arXiv:2501.03262), equations 4 to 6, on KL-regularised token rewards (arXiv:2203.02155)",
    inputs=(
        Input(
            "token_level_rewards",
            "tensor",
            "reward of each token; an outcome reward stands on the last one that counts",
            shape=("batch", "tokens"),
            domain="reward",
        ),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts, that is, is a step of the episode",
            shape=("batch", "tokens"),
            domain="mask",
            dtypes=("bool", "int64"),
        ),
        Input("gamma", "number", "discount of a step", default=1.0, choices=(1.0, 0.5, 0.9, 0.0), knob=True),
        Input(
            "kl",
            "tensor",
            "KL estimate of each token, in nats",
            shape=("batch", "tokens"),
            default=None,
            domain="log_ratio",
        ),
        Input("kl_coef", "number", "what multiplies kl", default=0.0, choices=(0.0, 0.5, 0.1), knob=True),
        Input(
            "credit",
            "string",
            "what a token's return is: discounted (the discounted rewards from it on), response (all rewards of the "
            "response, less the token's own KL penalty), segment (as discounted, with a whole run of tokens that "
            "count as one step)",
            default="discounted",
            dialect=True,
        ),
        Input(
            "masked_steps",
            "string",
            "what a token that does not count is: skipped (no step), counted (a step with the reward that stands "
            "there), end (the episode ends before it, and another begins after it)",
            default="skipped",
            dialect=True,
        ),
        Input(
            "whiten",
            "boolean",
            "advantages are the returns, centred and divided by sqrt(variance + 1e-8) over all tokens that count, the "
            "variance with n - 1; false: advantages are the returns",
            default=False,
            dialect=True,
        ),
    ),
    observes=(
        Observed("returns", "return of each token that counts; 0 elsewhere", ("batch", "tokens")),
        Observed("advantages", "advantage of each token that counts; None where not returned", ("batch", "tokens")),
    ),
    measure=_measure,
    law="the_oracle_agrees",
    aliases={"rewards": "token_level_rewards", "loss_mask": "response_mask", "discount": "gamma"},
)
