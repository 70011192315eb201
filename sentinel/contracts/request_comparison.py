"""Request comparison: whether two requests may be sampled as one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule

#: Parameters that every engine samples by, with two values of each.
_VALUES: Mapping[str, tuple[Any, Any]] = {
    "temperature": (1.0, 0.5),
    "top_p": (1.0, 0.9),
    "top_k": (50, 20),
    "max_tokens": (8, 4),
    "n": (1, 2),
    "stop_token_ids": ([1], [2]),
    "presence_penalty": (0.0, 1.5),
    "frequency_penalty": (0.0, 1.5),
    "repetition_penalty": (1.0, 1.1),
    "min_p": (0.0, 0.1),
    "stop": (["."], ["?"]),
    "ignore_eos": (False, True),
}


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"alike": bool(call(**inputs)["alike"])}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"alike": inputs["first"] == inputs["second"]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Two requests that are equal, or differ in one parameter."""
    first = {name: one for name, (one, _) in _VALUES.items()}
    second = dict(first)
    changed = choose.one_of((None, *_VALUES))
    if changed is not None:
        second[changed] = _VALUES[changed][1]
    return {**inputs, "first": first, "second": second}


REQUEST_COMPARISON = rule(
    name="request_comparison",
    summary="whether two requests have the same sampling parameters",
    source="two requests may be sampled as one where nothing that sampling goes by differs",
    inputs=(
        Input("first", "mapping", "sampling parameter -> value", choices=({},)),
        Input("second", "mapping", "the same, of the other request", choices=({},)),
    ),
    observes=(Observed("alike", "whether they are taken for alike"),),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
