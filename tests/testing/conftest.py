"""Checks of these tests neither read nor write Hypothesis's database."""

from collections.abc import Iterator

import pytest
from hypothesis import settings


@pytest.fixture(autouse=True)
def no_database() -> Iterator[None]:
    before = settings.default
    settings.register_profile("without a database", before, database=None)
    settings.load_profile("without a database")
    yield
    settings.register_profile("as before", before)
    settings.load_profile("as before")
