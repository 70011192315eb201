"""What befalls each command that writes, between any two of its effects."""

from __future__ import annotations

import pytest
import walking


@pytest.fixture(params=walking.WALKS, ids=lambda name: name.replace(" ", "-"))
def walked(request: pytest.FixtureRequest) -> walking.Walk:
    """``walked(command, folder)``: at how many effects it was killed, or had no room; as often as there are ways."""
    reason = walking.unwalkable(request.param)
    if reason:
        pytest.skip(reason)
    return walking.WALKS[request.param]
