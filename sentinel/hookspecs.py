"""Define the pytest hooks with which other packages extend Sentinel. Any pytest plugin can implement them.

Register the plugin with ``pytest_plugins`` or the ``pytest11`` entry point; see docs/adapters.md. Import from
``sentinel`` itself only; no other name is stable.
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
    """Return adapter files: Python files that define ``TARGET``. Controller and worker load them by path."""


@pytest.hookspec
def pytest_sentinel_contracts() -> Iterable[Contract]:  # type: ignore[empty-body]
    """Return contracts. The file that defines a contract may import only the standard library."""


@pytest.hookspec
def pytest_sentinel_laws() -> Iterable[Law]:  # type: ignore[empty-body]
    """Return laws."""


@pytest.hookspec
def pytest_sentinel_recipe_folders() -> Iterable[Path]:  # type: ignore[empty-body]
    """Return folders of recipes, ``<folder>/<target>/<BUG-ID>.yaml``."""


@pytest.hookspec
def pytest_sentinel_decided(decision: Decision) -> None:
    """Called once per verdict, after its evidence was written, in the process that writes reports."""
