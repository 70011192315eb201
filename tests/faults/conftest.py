"""What befalls each command that writes, between any two of its effects."""

from pathlib import Path

import pytest
import walking

from sentinel.sources import pypi

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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``SENTINEL_HOME``: what is walked."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("SENTINEL_HOME", str(folder))
    monkeypatch.setattr(pypi, "_answers", {})
    walking.load_everything(monkeypatch)
    return folder
