from collections.abc import Mapping
from typing import Any

import torch

from sentinel.contracts.surgery import BATCH_SURGERY

FIELDS = {
    "sequences": torch.arange(6).reshape(2, 3),
    "loss_mask": torch.ones(2, 3),
    "rewards": torch.ones(2, dtype=torch.float64),
}


def observed(made: Mapping[str, Any] | None = None, **fields: Any) -> Mapping[str, Any]:
    inputs = {"fields": FIELDS, "optional_fields": {"values": None, **fields}, "max_tokens_per_microbatch": 3}
    answer = dict(BATCH_SURGERY.oracle(inputs))
    answer["made_rows"] = {**answer["made_rows"], **(made or {})}
    return BATCH_SURGERY.measure(lambda **_: answer, inputs)


def test_the_oracles_padding_row_has_every_field_and_no_weight():
    seen = observed(routes=torch.ones(2, 3, 4, dtype=torch.int16))
    assert seen["fields"] == ["loss_mask", "rewards", "routes", "sequences"]
    assert (seen["dropped"], seen["dtype_changed"], seen["shape_changed"]) == ([], [], [])
    assert seen["counted_tokens"] == 0.0


def test_each_wrong_padding_row_is_detected():
    seen = observed(
        {"rewards": None, "loss_mask": torch.zeros(1, 3, dtype=torch.int64), "sequences": torch.zeros(1, 2)}
    )
    assert seen["dropped"] == ["rewards"]
    assert seen["dtype_changed"] == ["loss_mask", "sequences"]
    assert seen["shape_changed"] == ["sequences"]
