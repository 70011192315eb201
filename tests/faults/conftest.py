"""Fixtures: interrupt each command that writes, between any two of its effects."""

from pathlib import Path

import pytest
import walking

from sentinel.sources import pypi

#: Kills in every run; other disturbances in nightly runs.
_WAYS = [
    pytest.param(name, id=name.replace(" ", "-"), marks=() if name == "killed" else pytest.mark.nightly)
    for name in walking.WALKS
]


@pytest.fixture(params=_WAYS)
def walked(request: pytest.FixtureRequest) -> walking.Walk:
    """Return a function ``walked(command, folder)`` that disturbs a command at each effect, in every way, and returns
    the number of disturbed effects.
    """
    reason = walking.unwalkable(request.param)
    if reason:
        pytest.skip(reason)
    return walking.WALKS[request.param]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ``SENTINEL_HOME`` in which effects are disturbed."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("SENTINEL_HOME", str(folder))
    monkeypatch.setattr(pypi, "_answers", {})
    walking.load_everything(monkeypatch)
    return folder
