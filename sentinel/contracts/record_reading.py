"""Record reading: a sample that is made of a dictionary, which stays what it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``fields``: the sample, written as a dictionary again."""
    record = inputs["record"]
    before = copy.deepcopy(record)
    fields = call(**inputs)["fields"]
    return {
        "altered": sum(fields.get(name) != value for name, value in before.items()),
        "kept": int(record == before),
        "rewritten": sorted(name for name in record if name not in before or record[name] != before[name]),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What is read is what was written."""
    return {"fields": dict(inputs["record"])}


RECORD_READING = rule(
    name="record_reading",
    summary="a sample that is made of a dictionary",
    source="reading is not writing",
    inputs=(Input("record", "mapping", "field of the framework's own sample -> value", choices=({},)),),
    observes=(
        Observed("altered", "how many fields the sample has otherwise than the dictionary had"),
        Observed("kept", "1 where the caller's dictionary is what it was", role="other"),
        Observed("rewritten", "fields of the caller's dictionary that are others afterwards", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="nothing_else_is_touched",
)
