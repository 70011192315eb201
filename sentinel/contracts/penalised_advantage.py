"""Penalised advantages: GAE on rewards that a KL penalty is part of, and the KL that is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import replaced, spread
from sentinel.contracts.contract import (
    AS_DEFINED,
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    Observed,
    knob,
    per_row,
    per_token,
    token_mask,
)
from sentinel.contracts.generalised_advantage import GENERALISED_ADVANTAGE


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    outputs = call(**inputs)
    valid = inputs["response_mask"] != 0
    return {key: torch.where(valid, outputs[key], 0.0) for key in ("advantages", "kl")}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Token rewards are ``-kl_coef k1``, and the outcome on the last token (arXiv:2203.02155, equation 2)."""
    import torch

    valid = inputs["response_mask"] != 0
    kl = torch.where(valid, inputs["log_probs"] - inputs["ref_log_probs"], 0.0)
    rewards = -inputs["kl_coef"] * kl
    last = valid.shape[1] - 1 - valid.flip(-1).int().argmax(-1)
    rewards[torch.arange(len(rewards)), last] += torch.where(valid.any(-1), inputs["rewards"], 0.0)
    gae = GENERALISED_ADVANTAGE.oracle
    assert gae is not None
    defaults = {item.name: item.default for item in GENERALISED_ADVANTAGE.inputs}
    return {**gae({**defaults, **inputs, "token_level_rewards": rewards}), "kl": kl}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Every response has a token."""
    spread(inputs, "log_probs", "ref_log_probs")
    mask = inputs["response_mask"]
    filled = mask.array() != 0
    filled[:, 0] |= ~filled.any(-1)
    inputs["response_mask"] = replaced(mask, filled.astype(int))
    return inputs


PENALISED_ADVANTAGE = Contract(
    name="penalised_advantage",
    summary="advantages of outcome rewards with a KL penalty, and the KL that is reported beside them",
    source="GAE (arXiv:1506.02438), equation 16, on the KL-regularised rewards of arXiv:2203.02155, equation 2",
    inputs=(
        per_token("log_probs", "of the trained policy, in nats", "log_prob"),
        per_token("ref_log_probs", "of the reference, in nats", "log_ratio"),
        per_token("values", "the critic's value at each token", "value"),
        token_mask(dtypes=()),
        per_row("rewards", "outcome reward of each response", "reward"),
        knob("kl_coef", "coefficient of the penalty", (0.5, 0.1), REQUIRED),
        knob("gamma", "discount", (1.0, 0.5)),
        knob("lam", "GAE's lambda", (1.0, 0.5)),
    ),
    observes=(
        Observed("advantages", "advantage of each token that counts; 0 elsewhere", TOKENS),
        Observed("kl", "the reported KL estimate (k1) of each of these", TOKENS, "metric"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="metrics_tell_the_truth",
    laws=("groups_are_isolated", "order_does_not_matter", "metrics_tell_the_truth", "every_knob_counts", *AS_DEFINED),
    arrange=_arrange,
)
