"""Length reports: what a generator says of the lengths of the responses that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule

_STATISTICS = ("mean", "max", "min")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    outputs = call(**inputs)
    return {"lengths": torch.as_tensor(outputs["lengths"]), **{name: float(outputs[name]) for name in _STATISTICS}}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Responses are cut at the limit, and their lengths are those that they have then."""
    lengths = [min(length, inputs["max_tokens"]) for length in inputs["generated"]]
    return {"lengths": lengths, "mean": sum(lengths) / len(lengths), "max": max(lengths), "min": min(lengths)}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    inputs["generated"] = [choose.integer(1, 6) for _ in range(choose.integer(1, 3))]
    return inputs


LENGTH_REPORT = rule(
    name="length_report",
    summary="the reported lengths of the responses that a generator returns",
    source="a mean, a maximum and a minimum of what is returned",
    inputs=(
        Input("generated", "any", "tokens of each response, as the engine generated it", choices=([],)),
        Input("max_tokens", "integer", "most tokens of a response", choices=(100, 4, 2)),
    ),
    observes=(
        Observed("lengths", "tokens of each response that is returned", ("responses",)),
        *(Observed(name, f"the reported {name} of these", role="metric") for name in _STATISTICS),
    ),
    measure=_measure,
    oracle=_oracle,
    law="metrics_tell_the_truth",
    laws=("the_oracle_agrees", "metrics_tell_the_truth", "nothing_else_is_touched"),
    arrange=_arrange,
)
