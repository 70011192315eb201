"""Find other valid settings of a contract, to tell a different choice from a bug."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.scenarios import declared
from sentinel.testing.binding import Bound
from sentinel.testing.forms import concerns


def candidates(contract: Contract, bound: Bound, chosen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield settings with one alternative value each.

    Alternatives of a choice are the values that adapters declare for functions of the contract and a setting's own
    choices; those of a number are also the constants in the function's code.
    """
    values: dict[str, list[Any]] = {}
    constants = _constants(bound.function.f)
    for item in contract.inputs:
        if item.name in chosen or item.name in bound.names or not (item.dialect or item.knob or item.choices):
            continue
        if not concerns(contract, item, chosen):
            continue
        several = [*item.choices, *declared(bundled_catalog().targets.values(), contract, item.name)]
        if item.kind == "number":
            several = [*constants, *several]
        several = [value for value in several if not isinstance(value, str) or value in item.meaning or item.choices]
        default = bound.binding.fixed.get(item.name, item.default)
        options = [value for value in several if value != default]
        if options:
            values[item.name] = list(dict.fromkeys(options))
    return ({name: value} for name, of in values.items() for value in of)


def _constants(f: Any) -> list[float]:
    """Return the numbers in a function's code and its defaults."""
    f = getattr(f, "func", f)
    inner = getattr(f, "forward", f)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    defaults = [*(getattr(inner, "__defaults__", None) or ()), *(getattr(inner, "__kwdefaults__", None) or {}).values()]
    found: list[float] = [each for each in defaults if type(each) in (int, float)]
    stack = [code] if isinstance(code, CodeType) else []
    while stack:
        for constant in stack.pop().co_consts:
            if isinstance(constant, CodeType):
                stack.append(constant)
            elif isinstance(constant, (int, float)) and not isinstance(constant, bool):
                found.append(constant)
    return found
