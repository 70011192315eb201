"""Ratio reports: what a policy loss says about its ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import replaced, spread
from sentinel.contracts.contract import Choose, Contract, DoesNotApply, Observed, dialect, per_token, token_mask

_METRICS = ("ratio_max", "ratio_min")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {name: float(outputs[name]) for name in _METRICS}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``exp(log pi - log pi_old)`` of the tokens that count: the largest and the smallest."""
    valid = inputs["response_mask"] != 0
    if not valid.any():
        raise DoesNotApply("no token counts")
    logs = (inputs["log_probs"] - inputs["old_log_probs"])[valid]
    bound = inputs["log_ratio_clamp"]
    ratios = (logs if bound is None else logs.clamp(-bound, bound)).exp()
    return {"ratio_max": ratios.max(), "ratio_min": ratios.min()}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Some token counts."""
    spread(inputs, "log_probs", "old_log_probs")
    mask = inputs["response_mask"]
    filled = mask.array() != 0
    filled[0, 0] |= not filled.any()
    inputs["response_mask"] = replaced(mask, filled.astype(int))
    return inputs


RATIO_REPORT = Contract(
    name="ratio_report",
    summary="the extremes of a policy loss's ratios, as they are reported",
    source="PPO (arXiv:1707.06347), section 3: the ratio of a token's probabilities, which is positive",
    inputs=(
        per_token("log_probs", "of the trained policy, in nats", "log_prob"),
        per_token("old_log_probs", "of the policy that sampled, in nats", "log_ratio"),
        token_mask(dtypes=("int64",)),
        dialect("log_ratio_clamp", None, "bound of |log-ratio|"),
    ),
    observes=(
        Observed("ratio_max", "the largest ratio", role="metric"),
        Observed("ratio_min", "the smallest ratio", role="metric"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="metrics_tell_the_truth",
    aliases={"loss_mask": "response_mask"},
    laws=(
        "masked_values_have_no_influence",
        "order_does_not_matter",
        "metrics_tell_the_truth",
        "nothing_else_is_touched",
    ),
    arrange=_arrange,
)
