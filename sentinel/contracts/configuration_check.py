"""The check of a configuration before training starts: what it refuses, and what it settles by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {
        "accepted": outputs["refusal"] is None,
        "refusal": outputs["refusal"],
        "settled": outputs["settled"],
    }


CONFIGURATION_CHECK = Contract(
    name="configuration_check",
    summary="whether a configuration is accepted, and the options as the check leaves them",
    source="a mistake in the configuration is refused before any GPU hour is spent, not in the first training step",
    inputs=(
        Input("configuration", "mapping", "dotted option -> value; what is left out keeps the framework's default"),
        Input("watched", "labels", "dotted options whose value after the check is observed", default=[]),
    ),
    observes=(
        Observed("accepted", "whether the check let it pass"),
        Observed("refusal", "type and message of the error, where it did not"),
        Observed("settled", "dotted option -> value after the check"),
    ),
    measure=_measure,
)
