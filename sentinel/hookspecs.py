"""Define the pytest hooks with which other packages extend Sentinel. Any pytest plugin can implement them.

Register the plugin with ``pytest_plugins`` or the ``pytest11`` entry point; see docs/adapters.md. Import only names
that ``sentinel`` itself exports; no other name is stable.
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
    """Return the paths of adapters, which are Python files that define ``TARGET``."""


@pytest.hookspec
def pytest_sentinel_contracts() -> Iterable[Contract]:  # type: ignore[empty-body]
    """Return contracts in addition to Sentinel's own. The file that defines a contract may import only the standard
    library."""


@pytest.hookspec
def pytest_sentinel_laws() -> Iterable[Law]:  # type: ignore[empty-body]
    """Return laws in addition to Sentinel's own."""


@pytest.hookspec
def pytest_sentinel_recipe_folders() -> Iterable[Path]:  # type: ignore[empty-body]
    """Return folders that contain recipes, as files ``<folder>/<target>/<BUG-ID>.yaml``."""


@pytest.hookspec
def pytest_sentinel_decided(decision: Decision) -> None:
    """Called after the evidence of a verdict is written; under xdist, in the worker that ran the item."""
