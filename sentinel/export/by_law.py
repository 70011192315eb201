"""How a law decides in a runner: by its own function, on the scenario's variants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.contracts.contract import Contract, DoesNotApply
from sentinel.export.head import CouldNotRun, decoded, observed, variants_of
from sentinel.laws.law import Case, Law
from sentinel.worker.tensors import from_torch


def by_law(
    law: Law, contract: Contract, case: Mapping[str, Any], found: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """(status, value of each address): where the law is broken, that is the bug."""
    variants = {name: decoded(inputs, str) for name, inputs in variants_of(case).items()}
    oracle = None
    if law.needs_oracle and contract.oracle is not None:
        oracle = {name: _as_data(_reference(contract, inputs)) for name, inputs in variants.items()}
    try:
        violations = law.check(Case(_as_data(variants), _as_data(found), oracle, contract))
    except DoesNotApply as error:
        raise CouldNotRun(f"the law {law.name} does not apply: {error}") from error
    values = {f"{name}.{key}" if name else key: item for name, row in found.items() for key, item in row.items()}
    broken = {"broken": [violation.detail for violation in violations]} if violations else {}
    return "reproduced" if violations else "fixed", {**values, **broken}


def _reference(contract: Contract, inputs: Mapping[str, Any]) -> Any:
    """What the contract's measure observes of its float64 reference."""
    import torch

    def double(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return [double(item) for item in value] if isinstance(value, list) else value

    def reference(**given: Any) -> Any:
        assert contract.oracle is not None
        return contract.oracle(given)

    live = {key: double(item) for key, item in inputs.items()}
    return {key: observed(item) for key, item in contract.measure(reference, live).items()}


def _as_data(value: Any) -> Any:
    """Tensors as laws look at them."""
    import torch

    if isinstance(value, dict):
        return {key: _as_data(item) for key, item in value.items()}
    return from_torch(value) if isinstance(value, torch.Tensor) else value
