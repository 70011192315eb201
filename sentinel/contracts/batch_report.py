"""Batch reports: what a trainer says about the tokens of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, DoesNotApply, Observed, per_token, token_mask

_QUANTITIES = ("advantages", "returns", "values")
_STATISTICS = ("mean", "max", "min")
_KEYS = tuple(f"{name}_{statistic}" for name in (*_QUANTITIES, "response_length") for statistic in _STATISTICS)


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {key: None if outputs.get(key) is None else float(outputs[key]) for key in _KEYS}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Mean and extremes over the tokens that count; lengths are numbers of these."""
    valid = inputs["response_mask"] != 0
    if not valid.any():
        raise DoesNotApply("no token counts")
    seen = {name: inputs[name][valid] for name in _QUANTITIES if inputs[name] is not None}
    seen["response_length"] = valid.sum(-1).double()
    return {
        f"{name}_{statistic}": float(getattr(values, statistic)())
        for name, values in seen.items()
        for statistic in _STATISTICS
    }


BATCH_REPORT = Contract(
    name="batch_report",
    summary="means and extremes of a batch's advantages, returns, values and lengths, as they are reported",
    source="a mean, a maximum and a minimum over the tokens that the policy chose",
    inputs=(
        per_token("advantages", "advantage of each token", "advantage"),
        per_token("returns", "return of each token", "value", default=None),
        per_token("values", "value of each token", "value", default=None),
        token_mask(dtype="int64", dtypes=("bool", "float32")),
    ),
    observes=tuple(Observed(key, f"the reported {key.replace('_', ' ')}", role="metric") for key in _KEYS),
    measure=_measure,
    oracle=_oracle,
    law="metrics_tell_the_truth",
    laws=(
        "masked_values_have_no_influence",
        "order_does_not_matter",
        "metrics_tell_the_truth",
        "nothing_else_is_touched",
        "representation_is_invisible",
    ),
)
