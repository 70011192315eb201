import pytest

from sentinel.errors import SentinelError
from sentinel.sources import home as module
from sentinel.sources.home import Home, safe_name, writing


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "user/.cache/rl-sentinel"),
        ("linux", {"XDG_CACHE_HOME": "{}/xdg"}, "xdg/rl-sentinel"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "user/.cache/rl-sentinel"),
        ("darwin", {}, "user/Library/Caches/rl-sentinel"),
        ("linux", {"SENTINEL_HOME": "{}/chosen"}, "chosen"),
    ],
)
def test_the_default_home_follows_the_platform(monkeypatch, tmp_path, platform, variables, expected):
    monkeypatch.delenv("SENTINEL_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(module.sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert Home.default().path == tmp_path / expected


@pytest.mark.parametrize("name", ["..", "", "a/b", "-x", ".hidden", "a\0"])
def test_an_unsafe_name_is_rejected(name):
    with pytest.raises(SentinelError, match="not a usable name"):
        safe_name(name)


@pytest.mark.parametrize(
    ("number", "says"),
    [(28, "no space left"), (122, "no space left"), (30, "cannot write to"), (13, "cannot write to")],
)
def test_disk_errors_are_reported_with_advice(tmp_path, number, says):
    with pytest.raises(SentinelError, match=f"{says}.*set SENTINEL_HOME"), writing(tmp_path):
        raise OSError(number, "said the disk")
