"""Resampled statistics: metrics that draw random numbers, and what other code draws afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import DoesNotApply, Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The statistic, and what numpy's global generator gives next, with and without the call before it."""
    import numpy

    drawn = {}
    for name in ("without", "after"):
        numpy.random.seed(inputs["seed"])
        if name == "after":
            statistic = float(call(**inputs)["mean"])
        drawn[name] = float(numpy.random.random_sample())
    return {"mean": statistic, **drawn}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The mean of samples of equal values is that value; of others it is a random number."""
    if len(set(inputs["values"])) > 1:
        raise DoesNotApply("the statistic is a random number")
    return {"mean": inputs["values"][0]}


RESAMPLED_STATISTIC = rule(
    name="resampled_statistic",
    summary="the mean of means of resampled values (bootstrap)",
    source="the bootstrap (Efron, 1979): samples are drawn with replacement, from a generator that is nobody else's",
    inputs=(
        Input("values", "any", "what is resampled: a list of numbers", choices=([3, 3, 3], [0.5, 0.5])),
        Input("subset_size", "integer", "values of one sample", choices=(2, 1, 3)),
        Input("seed", "integer", "of numpy's global generator, before the call", default=123, choices=(123, 7)),
    ),
    observes=(
        Observed("mean", "the statistic"),
        Observed("without", "the next number of the global generator, had there been no call", role="other"),
        Observed("after", "the next number of the global generator after the call", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="nothing_else_is_touched",
)
