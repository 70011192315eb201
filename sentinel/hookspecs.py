"""The hooks by which other packages add to Sentinel. They are pytest hooks: implement them in any pytest plugin.

Registered with ``pytest_plugins`` or the ``pytest11`` entry point; see docs/adapters.md. What they need to import is in
``sentinel`` itself, and no other name is promised to stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sentinel import Contract, Decision, Law


@pytest.hookspec
def pytest_sentinel_adapters() -> Iterable[Path]:  # type: ignore[empty-body]
    """Return adapter files: Python files that define ``TARGET``. They are loaded by path, here and in the worker."""


@pytest.hookspec
def pytest_sentinel_contracts() -> Iterable[Contract]:  # type: ignore[empty-body]
    """Return contracts. The file that defines a contract must import with the standard library alone."""


@pytest.hookspec
def pytest_sentinel_laws() -> Iterable[Law]:  # type: ignore[empty-body]
    """Return laws."""


@pytest.hookspec
def pytest_sentinel_recipe_folders() -> Iterable[Path]:  # type: ignore[empty-body]
    """Return folders of recipes, ``<folder>/<target>/<BUG-ID>.yaml``."""


@pytest.hookspec
def pytest_sentinel_decided(decision: Decision) -> None:
    """Called in the process that writes reports, once for each verdict, after its evidence was written."""
