"""Scenarios of responses that go by their length."""

from __future__ import annotations

from typing import Any

from sentinel.contracts.aggregation import replaced


def with_a_token(inputs: dict[str, Any]) -> dict[str, Any]:
    """The scenario, in which every response has a token that counts: a response of no token was never sampled."""
    mask = inputs["response_mask"]
    filled = mask.array() != 0
    filled[:, 0] |= ~filled.any(-1)
    inputs["response_mask"] = replaced(mask, filled.astype(int))
    return inputs
