"""Tests on real code look only in the mirror store; what is not there is skipped with its reason."""

from collections.abc import Iterator

import pytest
from demo_kit import borrowing

from sentinel.deciding.pool import contained_places
from sentinel.recipes.catalog import bundled_catalog
from sentinel.worker.client import Options, Zygote


@pytest.fixture(scope="session", autouse=True)
def _one_zygote() -> Iterator[None]:
    """Every runner of these tests borrows one zygote: torch is imported once, and what a target uses when it is asked
    for first: what is loaded makes each fork dearer."""
    warm = Zygote(Options(), [], contained_places(bundled_catalog()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sentinel.deciding.pool.Zygote", borrowing(warm))
        yield
    warm.stop()
