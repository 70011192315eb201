"""Measure calls as contracts do; by default, the call returns the oracle's values."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sentinel.contracts.contract import REQUIRED, Contract
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import tensor

Call = Callable[..., Mapping[str, Any]]
#: The fixture ``oracle(contract, **inputs)`` returns the float64 reference as lists and numbers.
Oracle = Callable[..., Mapping[str, Any]]


def filled(contract: Contract, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario, completed with the contract's defaults."""
    made: dict[str, Any] = {}
    for item in contract.inputs:
        default = item.default(made) if callable(item.default) else item.default
        made[item.name] = given.get(item.name, default)
    return made


def measured(name: str, call: Call | None = None, **given: Any) -> dict[str, Any]:
    """Return the observation of a call with these inputs, as plain data."""
    contract = bundled_catalog().contracts[name]
    oracle = contract.oracle
    seen = contract.measure(call or (lambda **inputs: oracle(inputs)), filled(contract, given))
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in seen.items()}


def scenario(name: str, **inputs: Any) -> dict[str, Any]:
    """Return these inputs with the contract's defaults. Lists become float64 tensors, or int64 tensors if all items are
    integers.
    """
    made: dict[str, Any] = {}
    for item in bundled_catalog().contracts[name].inputs:
        value = inputs.pop(item.name, item.default)
        assert value is not REQUIRED, item.name
        value = value(made) if callable(value) else value
        if isinstance(value, list) and item.kind == "tensor":
            integers = str(item.dtype).startswith("int") and item.domain != "mask"
            value = tensor(value, item.dtype if integers else "float64")
        made[item.name] = value
    assert not inputs, inputs
    return made
