"""Bindings for the metrics that ROLL reports about a batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import Binding
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .containers import CONTAINER, PROTOCOL

_METRICS = "roll.utils.metrics.metrics_manager.MetricsManager"
_QUANTITIES = ("advantages", "returns", "values")
_STATISTICS = ("mean", "max", "min")


def _batch(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return a batch with the columns that ROLL's metrics read. No two columns are equal, and scores alternate."""
    mask, advantages = inputs["response_mask"], inputs["advantages"]
    rows, width = mask.shape
    whole = kit.prepend_prompt(mask.long())
    columns = {name: inputs[name] for name in _QUANTITIES if inputs[name] is not None}
    columns.setdefault("returns", advantages * 3)
    made = {
        **columns,
        "raw_advantages": advantages * 2 + 1,
        "token_level_rewards": advantages * 0.5 - 1,
        "scores": 1.0 - torch.arange(rows) % 2,
        "response_mask": whole,
        "final_response_mask": mask.long(),
        "prompt_mask": 1 - whole,
        "responses": torch.zeros(rows, width, dtype=torch.long),
    }
    return CONTAINER(boundary, made, {"agg_entropy": torch.tensor(0.375)})


def _reported(method: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ROLL's metrics for advantages, returns, values and response lengths."""
    rows, manager = len(inputs["advantages"]), boundary.owner()
    batch = _batch(boundary, inputs)
    if method == "add_all_metrics":
        boundary.function(manager, 3, batch, n_sample=rows if rows % 2 else rows // 2)
    else:
        boundary.function(manager, batch)
    told = manager.get_metrics()
    found = {f"{name}_{one}": told.get(f"critic/{name}/{one}") for name in _QUANTITIES for one in _STATISTICS}
    found |= {f"response_length_{one}": told.get(f"token/response_length/{one}") for one in _STATISTICS}
    without = [name for name in _QUANTITIES if inputs[name] is None]
    return {key: None if key.rpartition("_")[0] in without else value for key, value in found.items()}


BINDINGS = tuple(
    Binding(f"{_METRICS}.{name}", "batch_report", call=partial(_reported, name), imports=(PROTOCOL,))
    for name in ("add_values_metrics", "add_token_metrics", "add_all_metrics")
)
