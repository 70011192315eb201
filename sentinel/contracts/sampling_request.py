"""Sampling requests: what an engine is asked for, of what the configuration says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import REQUIRED, Observed, knob, rule

_PARAMETERS = {
    "temperature": ("divisor of the logits", (1.0, 0.7, 1.5)),
    "top_p": ("probability of the tokens that are sampled from", (1.0, 0.9)),
    "top_k": ("number of the tokens that are sampled from", (50, 20)),
    "max_new_tokens": ("most tokens of a response", (8, 4)),
    "repetition_penalty": ("divisor of the logits of tokens that were there already", (1.0, 1.1)),
}


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a boundary has no option for is not looked at."""
    outputs = call(**inputs)
    return {name: None if inputs[name] is None else outputs.get(name) for name in _PARAMETERS}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As configured."""
    return {name: inputs[name] for name in _PARAMETERS}


SAMPLING_REQUEST = rule(
    name="sampling_request",
    summary="the sampling parameters of a request to an inference engine",
    source="log-probs and samples are of the distribution that the configuration names, whoever is asked for them",
    inputs=tuple(
        knob(
            name,
            f"{meaning}; null where the boundary has no such option",
            values,
            REQUIRED if name == "temperature" else None,
            kind="number",
        )
        for name, (meaning, values) in _PARAMETERS.items()
    ),
    observes=tuple(Observed(name, f"the request's {meaning}") for name, (meaning, _) in _PARAMETERS.items()),
    measure=_measure,
    oracle=_oracle,
    law="every_knob_counts",
    laws=("the_oracle_agrees", "every_knob_counts", "nothing_else_is_touched"),
)
