"""Discounted returns: what each token of a response is worth, from the rewards that come after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import (
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
from sentinel.contracts.normalisation import COUNT_EPSILON, LAWS_OF_TOKENS, REWARD_LAYOUT, place_rewards, runs, whitened


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at tokens that do not count is nobody's meaning: it is left out on both sides.

    ``call`` returns ``returns``, and ``advantages`` where these are not the returns.
    """
    import torch

    outputs = {**call(**inputs)}
    outputs.setdefault("advantages", outputs["returns"])
    valid = inputs["response_mask"] != 0
    return {key: torch.where(valid, outputs[key], 0.0) for key in ("returns", "advantages")}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """With the KL in the rewards (arXiv:2203.02155, equation 2), ``r_t - kl_coef * kl_t`` at each token that counts:
    the return ``G_t = sum_{k >= t} gamma^(k - t) (r_k - kl_coef * kl_k)`` (REINFORCE++, arXiv:2501.03262, whose
    advantage is the return, normalised over the global batch)."""
    import torch

    valid = inputs["response_mask"] != 0
    penalty = inputs["kl_coef"] * inputs["kl"] if inputs["kl"] is not None and inputs["kl_coef"] else None
    returns = torch.zeros_like(inputs["token_level_rewards"])
    for row, counts in enumerate(valid):
        rewards = inputs["token_level_rewards"][row]
        own = torch.zeros_like(rewards) if penalty is None else torch.where(counts, penalty[row], 0.0)
        returns[row] = torch.where(counts, _returns(rewards, own, counts, inputs), 0.0)
    return {
        "returns": returns,
        "advantages": whitened(returns, valid, inputs["count_epsilon"]) if inputs["whiten"] else returns,
    }


def _returns(rewards: Any, penalty: Any, counts: Any, inputs: Mapping[str, Any]) -> Any:
    """The returns of one response, [tokens]; only those at tokens that count mean anything."""
    import torch

    credit, gamma = inputs["credit"], inputs["gamma"]
    earned = torch.where(counts, rewards, 0.0)
    if credit == "response":
        return earned.sum() - penalty
    returns = torch.zeros_like(rewards)
    segments = runs(counts.tolist())
    if credit == "segment":
        steps = torch.stack([(earned - penalty)[run].sum() for run in segments]) if segments else rewards[:0]
        for run, value in zip(segments, _discounted(steps, gamma)):
            returns[run] = value
        return returns
    if credit != "discounted":
        raise DoesNotApply(f"no definition of the credit {credit!r}")
    if inputs["masked_steps"] == "counted":
        return _discounted(rewards - penalty, gamma)
    if inputs["masked_steps"] == "end":
        for run in segments:
            returns[run] = _discounted((earned - penalty)[run], gamma)
    elif inputs["masked_steps"] == "skipped":
        returns[counts] = _discounted((earned - penalty)[counts], gamma)
    else:
        raise DoesNotApply(f"no definition of masked steps as {inputs['masked_steps']!r}")
    return returns


def _discounted(rewards: Any, gamma: float) -> Any:
    """``sum_{k >= t} gamma^(k - t) r_k`` for each step t of ``rewards`` [steps]."""
    import torch

    steps = torch.arange(len(rewards), dtype=torch.float64)
    ahead = steps[None, :] - steps[:, None]
    return torch.where(ahead >= 0, gamma ** ahead.clamp(min=0), 0.0).to(rewards) @ rewards


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    place_rewards(inputs, choose)
    return inputs


DISCOUNTED_RETURN = Contract(
    name="discounted_return",
    summary="token-level returns from token rewards and a KL penalty, without a critic",
    source="REINFORCE++ (arXiv:2501.03262), on KL-regularised token rewards (arXiv:2203.02155, equation 2)",
    inputs=(
        per_token(
            "token_level_rewards",
            "reward of each token; an outcome reward stands on the last one that counts",
            "reward",
        ),
        token_mask("1 where a token counts, that is, is a step of the episode"),
        REWARD_LAYOUT,
        knob("gamma", "discount of a step", (1.0, 0.5, 0.9, 0.0)),
        per_token("kl", "KL estimate of each token, in nats", "log_ratio", default=None),
        knob("kl_coef", "what multiplies kl", (0.0, 0.5, 0.1)),
        dialect(
            "credit",
            "discounted",
            "what a token's return is: discounted (the discounted rewards from it on), response (all rewards of the "
            "response, less the token's own KL penalty), segment (as discounted, with a whole run of tokens that "
            "count as one step)",
        ),
        dialect(
            "masked_steps",
            "skipped",
            "what a token that does not count is: skipped (no step), counted (a step with the reward that stands "
            "there, without KL penalty), end (the episode ends before it, and another begins after it)",
        ),
        dialect(
            "whiten",
            False,
            "advantages are the returns, centred and divided by sqrt(variance + 1e-8) over all tokens that count, the "
            "variance with n - 1; false: advantages are the returns",
        ),
        COUNT_EPSILON,
    ),
    observes=(
        Observed("returns", "return of each token that counts; 0 elsewhere", TOKENS),
        Observed("advantages", "advantage of each token that counts; 0 elsewhere", TOKENS),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"rewards": "token_level_rewards", "loss_mask": "response_mask", "discount": "gamma"},
    laws=LAWS_OF_TOKENS,
    arrange=_arrange,
)
