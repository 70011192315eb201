"""The shipped contracts with another ``measure``: how a probe is run to be watched instead of judged."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import sentinel.contracts
from sentinel.contracts.contract import Contract

Measure = Callable[..., Mapping[str, Any]]


def wrapped_contracts(wrap: Callable[[Measure], Measure]) -> dict[str, Contract]:
    """Contract name -> the contract with what ``wrap`` makes of its ``measure``."""
    found: dict[str, Contract] = {}
    for info in pkgutil.iter_modules(sentinel.contracts.__path__):
        module = importlib.import_module(f"sentinel.contracts.{info.name}")
        for value in vars(module).values():
            if isinstance(value, Contract):
                found[value.name] = replace(value, measure=wrap(value.measure))
    return found
