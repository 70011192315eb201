"""What befalls each command that writes, between any two of its effects."""

from __future__ import annotations

import pytest
import walking

#: Kills in every run; what else may befall a command in the nightly walks.
_WAYS = [
    pytest.param(name, id=name.replace(" ", "-"), marks=() if name == "killed" else pytest.mark.nightly)
    for name in walking.WALKS
]


@pytest.fixture(params=_WAYS)
def walked(request: pytest.FixtureRequest) -> walking.Walk:
    """``walked(command, folder)``: at how many effects it was killed, or had no room; as often as there are ways."""
    reason = walking.unwalkable(request.param)
    if reason:
        pytest.skip(reason)
    return walking.WALKS[request.param]
