"""Fixtures for tests on real code, which use only the user's mirrors. If a mirror is missing, the test is skipped."""

from collections.abc import Iterator

import pytest
from demo_kit import borrowing

from sentinel.deciding.pool import contained_places
from sentinel.recipes.catalog import bundled_catalog
from sentinel.worker.client import Options, Preloader


@pytest.fixture(scope="session", autouse=True)
def _one_preloader() -> Iterator[None]:
    """Let all runners of these tests share one preloader, so that torch is imported once.

    A target's packages are imported when they are needed, because each loaded package makes every fork slower.
    """
    warm = Preloader(Options(), [], contained_places(bundled_catalog()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sentinel.deciding.pool.Preloader", borrowing(warm))
        yield
    warm.stop()
