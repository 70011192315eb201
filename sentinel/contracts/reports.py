"""Define contracts of metrics that are logged and not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import replaced, spread
from sentinel.contracts.contract import (
    Choose,
    Contract,
    DoesNotApply,
    Observed,
    dialect,
    laws,
    per_token,
    returned,
    token_mask,
)

# -- batch reports -----------------------------------------------------------------------------------------------------


_QUANTITIES = ("advantages", "returns", "values")
_STATISTICS = ("mean", "max", "min")
_KEYS = tuple(f"{name}_{statistic}" for name in (*_QUANTITIES, "response_length") for statistic in _STATISTICS)


def _measure_batch_report(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {key: None if outputs.get(key) is None else float(outputs[key]) for key in _KEYS}


def _oracle_batch_report(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the mean, minimum and maximum over valid tokens; a response's length is its number of valid tokens."""
    valid = inputs["response_mask"] != 0
    if not valid.any():
        raise DoesNotApply("no token counts")
    quantities = {name: inputs[name][valid] for name in _QUANTITIES if inputs[name] is not None}
    quantities["response_length"] = valid.sum(-1).double()
    return {
        f"{name}_{statistic}": float(getattr(values, statistic)())
        for name, values in quantities.items()
        for statistic in _STATISTICS
    }


BATCH_REPORT = Contract(
    name="batch_report",
    summary="reported means and extremes of a batch's advantages, returns, values and lengths",
    source="mean, maximum and minimum over the tokens that the policy generated",
    inputs=(
        per_token("advantages", "advantage of each token", "advantage"),
        per_token("returns", "return of each token", "value", default=None),
        per_token("values", "value of each token", "value", default=None),
        token_mask(dtype="int64", dtypes=("bool", "float32")),
    ),
    observes=tuple(Observed(key, f"the reported {key.replace('_', ' ')}", role="metric") for key in _KEYS),
    measure=_measure_batch_report,
    oracle=_oracle_batch_report,
    law="metrics_tell_the_truth",
    laws=laws(
        "masked_values_have_no_influence order_does_not_matter metrics_tell_the_truth nothing_else_is_touched "
        "representation_is_invisible"
    ),
)


# -- ratio reports -----------------------------------------------------------------------------------------------------


def _oracle_ratio_report(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the largest and the smallest ratio ``exp(log pi - log pi_old)`` over valid tokens."""
    valid = inputs["response_mask"] != 0
    if not valid.any():
        raise DoesNotApply("no token counts")
    logs = (inputs["log_probs"] - inputs["old_log_probs"])[valid]
    bound = inputs["log_ratio_clamp"]
    ratios = (logs if bound is None else logs.clamp(-bound, bound)).exp()
    return {"ratio_max": ratios.max(), "ratio_min": ratios.min()}


def _arrange_ratio_report(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Make at least one token valid."""
    spread(inputs, "log_probs", "old_log_probs")
    mask = inputs["response_mask"]
    filled = mask.array() != 0
    filled[0, 0] |= not filled.any()
    inputs["response_mask"] = replaced(mask, filled.astype(int))
    return inputs


RATIO_REPORT = Contract(
    name="ratio_report",
    summary="the reported extremes of a policy loss's ratios",
    source="PPO (arXiv:1707.06347), section 3: the ratio of a token's probabilities, which is positive",
    inputs=(
        per_token("log_probs", "log-probs of the trained policy, in nats", "log_prob"),
        per_token("old_log_probs", "log-probs of the policy that sampled, in nats", "log_ratio"),
        token_mask(dtypes=("int64",)),
        dialect("log_ratio_clamp", None, "bound of |log-ratio|"),
    ),
    observes=(
        Observed("ratio_max", "the largest ratio", role="metric"),
        Observed("ratio_min", "the smallest ratio", role="metric"),
    ),
    measure=returned(ratio_max="number", ratio_min="number"),
    oracle=_oracle_ratio_report,
    law="metrics_tell_the_truth",
    aliases={"loss_mask": "response_mask"},
    laws=laws("masked_values_have_no_influence order_does_not_matter metrics_tell_the_truth nothing_else_is_touched"),
    arrange=_arrange_ratio_report,
)


# -- explained variance ------------------------------------------------------------------------------------------------


def _oracle_explained_variance(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the explained variance over valid tokens, ``1 - Var(returns - values) / Var(returns)``."""
    valid = inputs["response_mask"] != 0
    returns = inputs["returns"][valid]
    if len(returns) < 2 or bool((returns == returns[0]).all()):
        raise DoesNotApply("the returns do not vary")
    return {"explained_variance": 1 - (returns - inputs["values"][valid]).var() / returns.var()}


EXPLAINED_VARIANCE = Contract(
    name="explained_variance",
    summary="the reported share of the returns' variance that the critic's values explain",
    source="the coefficient of determination of a prediction without bias: 1 - Var(y - f) / Var(y)",
    inputs=(
        per_token("values", "the critic's value of each token", "value"),
        per_token("returns", "the return of each token", "value"),
        token_mask(dtypes=("bool", "int64")),
    ),
    observes=(Observed("explained_variance", "at most 1; 0 if a constant explains as much", role="metric"),),
    measure=returned(explained_variance="number"),
    oracle=_oracle_explained_variance,
    law="metrics_tell_the_truth",
    aliases={"loss_mask": "response_mask"},
    laws=laws("masked_values_have_no_influence order_does_not_matter metrics_tell_the_truth nothing_else_is_touched"),
)
