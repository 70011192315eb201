"""What a contract sees of a call: by default of its own oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sentinel.contracts.contract import Contract
from sentinel.recipes.catalog import bundled_catalog

Call = Callable[..., Mapping[str, Any]]


def filled(contract: Contract, given: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario with the defaults of what it leaves out."""
    made: dict[str, Any] = {}
    for item in contract.inputs:
        default = item.default(made) if callable(item.default) else item.default
        made[item.name] = given.get(item.name, default)
    return made


def measured(name: str, call: Call | None = None, **given: Any) -> dict[str, Any]:
    """The observation of a call with these inputs, as plain data."""
    contract = bundled_catalog().contracts[name]
    oracle = contract.oracle
    assert oracle is not None
    seen = contract.measure(call or (lambda **inputs: oracle(inputs)), filled(contract, given))
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in seen.items()}
