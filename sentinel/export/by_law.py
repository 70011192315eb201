"""How a law decides in a runner: by its own function, on the scenario's variants."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.deciding.verdicts import by_law
from sentinel.export.head import CouldNotRun, variants_of
from sentinel.laws.law import Law
from sentinel.worker.tensors import build, observe


def judged_by_law(
    law: Law, contract: Contract, case: Mapping[str, Any], observation: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Give (status, value of each address): where the law is broken, that is the bug.

    :raises CouldNotRun: where it does not apply.
    """
    variants, oracle = variants_of(case), None
    if law.needs_oracle and contract.oracle is not None:
        oracle = {name: _reference(contract, inputs) for name, inputs in variants.items()}
    recipe: Any = SimpleNamespace(variants=variants)
    measured: Any = SimpleNamespace(observation=observation, oracle=oracle)
    verdict, broken = by_law(law, recipe, measured, contract)
    if verdict.name == "inconclusive":
        raise CouldNotRun(verdict.reason)
    values = {f"{name}.{key}" if name else key: item for name, row in observation.items() for key, item in row.items()}
    return verdict.name, {**values, **({"broken": [item.detail for item in broken]} if broken else {})}


def _reference(contract: Contract, inputs: Mapping[str, Any]) -> Any:
    """Measure the contract's float64 reference."""
    import torch

    def double(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return [double(item) for item in value] if isinstance(value, list) else value

    def reference(**inputs: Any) -> Any:
        assert contract.oracle is not None
        return contract.oracle(inputs)

    live = {key: double(build(item, str)) for key, item in inputs.items()}
    return {key: observe(item) for key, item in contract.measure(reference, live).items()}
