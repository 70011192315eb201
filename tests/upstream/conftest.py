"""Tests on real code look only in the mirror store; what is not there is skipped with its reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shipped import PINS, Decisions, pin_id, runner


@pytest.fixture(scope="session")
def decided(request: pytest.FixtureRequest) -> Iterator[Decisions]:
    """``decided(pin)``: its decision. The pins of the selected tests are worked on ahead, on every core."""
    names = {getattr(item, "callspec", None) and item.callspec.id for item in request.session.items}
    distributed = hasattr(request.config, "workerinput")  # then each worker decides what its own tests ask for
    warm = runner()
    yield Decisions(warm, () if distributed else [job for job in PINS if pin_id(job) in names])
    warm.close()
