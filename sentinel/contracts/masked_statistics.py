"""Masked statistics: mean, sum and variance of the tokens that count, and values whitened with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import (
    TOKENS,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    per_token,
    token_mask,
)
from sentinel.contracts.normalisation import COUNT_EPSILON, LAWS_OF_TOKENS, mean, root, runs, variance


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns one output, under any name. It is a scalar, one number a row, or one a token.

    What stands at tokens that do not count is nobody's meaning: it is left out on both sides.
    """
    import torch

    (result,) = call(**inputs).values()
    mask = inputs["response_mask"]
    whitened = row_statistic = statistic = None
    if inputs["statistic"] in ("whiten", "segment_mean"):
        whitened = torch.where(mask != 0, result.reshape(mask.shape), 0.0)
    elif inputs["axis"] == "token":
        row_statistic = result.reshape(mask.shape[0])
    else:
        statistic = result.reshape(())
    return {"statistic": statistic, "row_statistic": row_statistic, "whitened": whitened}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Over the tokens that count of the batch, or of each row: ``sum x``, ``mean = sum x / n``, ``var = sum (x -
    mean)^2 / (n - 1)`` (or ``/ n``), and ``whiten = (x - mean) / sqrt(var + epsilon)``, plus ``mean`` without
    ``shift_mean``. Of no token, all of them are 0; so is the variance of one token."""
    import torch

    values, valid, statistic = inputs["values"], inputs["response_mask"] != 0, inputs["statistic"]
    if statistic == "segment_mean":
        return {"result": _segment_means(values, valid, inputs)}
    rows = list(zip(values, valid)) if inputs["axis"] == "token" else [(values, valid)]
    results = [_statistic(statistic, x, counts, inputs) for x, counts in rows]
    return {"result": torch.stack(results) if inputs["axis"] == "token" else results[0]}


def _statistic(statistic: str, values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    import torch

    x = values[valid]
    centre = mean(x, inputs["count_epsilon"])
    var = variance(x, inputs["unbiased"], inputs["count_epsilon"])
    if statistic == "sum":
        return x.sum()
    if statistic == "mean":
        return centre
    if statistic == "var":
        return var
    if statistic == "whiten":
        scale = root(var, inputs["epsilon"], inputs["epsilon_placement"])
        return torch.where(valid, (values - centre) / scale + (0.0 if inputs["shift_mean"] else centre), 0.0)
    raise DoesNotApply(f"no definition of the statistic {statistic!r}")


def _segment_means(values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    import torch

    means = torch.zeros_like(values)
    for x, counts, result in zip(values, valid, means):
        for run in runs(counts.tolist()):
            result[run] = mean(x[run], inputs["count_epsilon"])
    return means


MASKED_STATISTICS = Contract(
    name="masked_statistics",
    summary="statistics of the tokens that count",
    source="the definitions of the sample mean and the sample variance; whitening as in PPO (arXiv:2006.05990, C67)",
    inputs=(
        per_token("values", "a value of each token", "value"),
        token_mask(),
        Input(
            "statistic",
            "string",
            "mean, sum, var, whiten (centred, divided by the standard deviation), or segment_mean (each token has the "
            "mean of the run of tokens that count in which it stands)",
        ),
        knob("axis", "over what: None for all tokens of the batch, token for those of each row", (None, "token")),
        knob("unbiased", "whether the variance has n - 1 (or n) in its denominator", (True, False)),
        knob("shift_mean", "whiten: whether the result is centred at 0, or at the mean it had", (True, False)),
        knob("epsilon", "whiten: see epsilon_placement", (1e-8, 0.5)),
        dialect(
            "epsilon_placement",
            "inside",
            "inside (sqrt(variance + epsilon)), outside (sqrt(variance) + epsilon), floor (sqrt(max(variance, "
            "epsilon)))",
        ),
        COUNT_EPSILON,
    ),
    observes=(
        Observed("statistic", "mean, sum or var over the batch; else None"),
        Observed("row_statistic", "mean, sum or var of each row; else None", ("batch",)),
        Observed("whitened", "whiten and segment_mean, at each token that counts; 0 elsewhere", TOKENS),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"loss_mask": "response_mask", "mask": "response_mask"},
    laws=LAWS_OF_TOKENS,
)
