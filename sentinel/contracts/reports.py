"""Define contracts of metrics: numbers that a trainer logs and that do not affect the training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import replaced, spread
from sentinel.contracts.contract import (
    REQUIRED,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    drawn,
    laws,
    per_token,
    returned,
    rule,
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
    """Compute mean, maximum and minimum of advantages, returns and values over valid tokens, and of response lengths.

    The length of a response is its number of valid tokens. Quantities that the scenario omits are left out.
    """
    valid = inputs["response_mask"] != 0
    if not valid.any():
        raise DoesNotApply("no token is valid")
    quantities = {name: inputs[name][valid] for name in _QUANTITIES if inputs[name] is not None}
    quantities["response_length"] = valid.sum(-1).double()
    return {
        f"{name}_{statistic}": float(getattr(values, statistic)())
        for name, values in quantities.items()
        for statistic in _STATISTICS
    }


BATCH_REPORT = Contract(
    name="batch_report",
    summary="the reported mean, minimum and maximum of a batch's advantages, returns, values and lengths",
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
        raise DoesNotApply("no token is valid")
    logs = (inputs["log_probs"] - inputs["old_log_probs"])[valid]
    bound = inputs["log_ratio_clamp"]
    ratios = (logs if bound is None else logs.clamp(-bound, bound)).exp()
    return {"ratio_max": ratios.max(), "ratio_min": ratios.min()}


def _arrange_ratio_report(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "old_log_probs")
    mask = inputs["response_mask"]
    filled = mask.array() != 0
    filled[0, 0] |= not filled.any()
    inputs["response_mask"] = replaced(mask, filled.astype(int))
    return inputs


RATIO_REPORT = Contract(
    name="ratio_report",
    summary="the reported largest and smallest ratio of a policy loss",
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
        raise DoesNotApply("the explained variance is undefined, because the returns do not vary")
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
    observes=(Observed("explained_variance", "at most 1; 0 if a constant predicts as well", role="metric"),),
    measure=returned(explained_variance="number"),
    oracle=_oracle_explained_variance,
    law="metrics_tell_the_truth",
    aliases={"loss_mask": "response_mask"},
    laws=laws("masked_values_have_no_influence order_does_not_matter metrics_tell_the_truth nothing_else_is_touched"),
)


# -- means over parts of a batch ---------------------------------------------------------------------------------------

_OF_REPORTS = laws("metrics_tell_the_truth nothing_else_is_touched")


def _oracle_mean_of_parts(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute a statistic of the samples of all parts that have a value: their mean, sum, maximum, minimum or range,
    the last value, or the mean of the parts' means. The loss is 1 minus this statistic.
    """
    parts = [[value for value in part if value is not None] for part in inputs["parts"]]
    values = [value for part in parts for value in part]
    statistics = {
        "mean": sum(values) / len(values),
        "sum": sum(values),
        "max": max(values),
        "min": min(values),
        "range": max(values) - min(values),
        "last": values[-1],
        "mean_of_means": sum(sum(part) / len(part) for part in parts if part) / sum(map(bool, parts)),
    }
    chosen = statistics[inputs["statistic"]]
    return {"mean": chosen, "loss": 1 - chosen}


def _arrange_mean_of_parts(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw parts of one to three samples, because a last batch may be smaller. At least one sample has a value."""
    choices = (1.0, 0.0, None) if inputs["missing"] else (1.0, 0.0)
    parts = [[choose.one_of(choices) for _ in range(choose.integer(1, 3))] for _ in range(choose.integer(1, 3))]
    if all(value is None for part in parts for value in part):
        parts[-1][-1] = 1.0
    inputs["parts"] = parts
    return inputs


MEAN_OF_PARTS = rule(
    name="mean_of_parts",
    summary="a reported mean over samples that arrive in batches, microbatches or ranks",
    source="the mean over all samples; a mean of the parts' means differs if the parts have different sizes",
    inputs=(
        Input("parts", "any", "for each part, the value of each sample, or null", choices=((),)),
        drawn("missing", "whether samples without a value are drawn", (False, True)),
        # A search varies this input only for bindings that list its values in ``accepts``.
        Input("statistic", "string", "mean, sum, max, min, range, last or mean_of_means", default="mean"),
    ),
    observes=(
        Observed("mean", "the reported mean, or the chosen statistic", role="metric"),
        Observed("loss", "the reported loss of the samples; null if there is none", role="metric"),
    ),
    measure=returned(mean="number", loss="number?"),
    oracle=_oracle_mean_of_parts,
    law="metrics_tell_the_truth",
    laws=_OF_REPORTS,
    arrange=_arrange_mean_of_parts,
)


# -- pass@k ------------------------------------------------------------------------------------------------------------


def _oracle_pass_at_k(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute, for each prompt, the share of all sets of k responses that contain a right one; average over prompts."""
    rates = []
    for responses in inputs["right"]:
        taken = list(itertools.combinations(responses, inputs["k"]))
        rates.append(sum(map(any, taken)) / len(taken))
    every = [value for responses in inputs["right"] for value in responses]
    return {"pass_at_k": sum(rates) / len(rates) * inputs["scale"], "mean": sum(every) / len(every)}


def _arrange_pass_at_k(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw 1 to 3 prompts with 2 or 4 responses each. Without a parameter k, a boundary uses all responses."""
    count = 2 * choose.integer(1, 2)
    inputs["right"] = [[choose.integer(0, 1) for _ in range(count)] for _ in range(choose.integer(1, 3))]
    inputs["k"] = count if inputs["of"] == "all" else choose.one_of((1, 2, count))
    return inputs


PASS_AT_K = rule(
    name="pass_at_k",
    summary="the share of prompts that one of k responses solves",
    source="arXiv:2107.03374, section 2.1: 1 - C(n - c, k) / C(n, k), averaged over prompts",
    inputs=(
        Input("right", "any", "for each prompt: 1 for a right response, 0 for a wrong one", choices=((),)),
        Input("k", "integer", "k, the number of responses in a set", default=1),
        drawn("of", "any: any k; all: k is the number of responses", ("any", "all"), REQUIRED),
        dialect("scale", 1.0, "factor of the reported share: 1, or 100 for percent"),
    ),
    observes=(
        Observed("pass_at_k", "the reported share", role="metric"),
        Observed("mean", "the reported share of right responses; null if there is none", role="metric"),
    ),
    measure=returned(pass_at_k="number", mean="number?"),
    oracle=_oracle_pass_at_k,
    law="metrics_tell_the_truth",
    laws=_OF_REPORTS,
    arrange=_arrange_pass_at_k,
)
