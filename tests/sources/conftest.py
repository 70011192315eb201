"""Fixtures: git repositories of a target ``fake`` with two package roots."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_kit import git

from sentinel.sources import Home, MirrorStore
from sentinel.targets import PackageRoot, Target

Git = Callable[..., str]

LARGE = 3 << 20


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_", "SENTINEL_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture(name="git")
def _git() -> Git:
    return git


@pytest.fixture
def upstream(tmp_path: Path, git: Git) -> Path:
    """A clone with a work tree: two commits and a tag on main, ``refs/pull/7/head`` and ``refs/pins/one``."""
    folder = tmp_path / "upstream"
    (folder / "fake" / "deep").mkdir(parents=True)
    (folder / "gym" / "fake_gym").mkdir(parents=True)
    (folder / "fake" / "__init__.py").write_text("VALUE = 1\n")
    (folder / "fake" / "deep" / "loss.py").write_text("def loss(): return 1\n")
    (folder / "fake" / "deep" / "run.sh").write_text("echo\n")
    (folder / "fake" / "deep" / "run.sh").chmod(0o755)
    (folder / "gym" / "fake_gym" / "__init__.py").write_text("GYM = True\n")
    (folder / "README.md").write_text("outside the roots\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "-a", "v1", "-m", "v1")
    git(folder, "update-ref", "refs/pins/one", "HEAD")
    (folder / "fake" / "__init__.py").write_text("VALUE = 2\n")
    git(folder, "commit", "-qam", "two")
    git(folder, "checkout", "-q", "--detach")
    (folder / "fake" / "__init__.py").write_text("VALUE = 7\n")
    git(folder, "commit", "-qam", "seven")
    git(folder, "update-ref", "refs/pull/7/head", "HEAD")
    git(folder, "checkout", "-q", "main")
    # The server supports partial clones, as public hosts do.
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder


@pytest.fixture
def with_large_files(upstream: Path, git: Git) -> Path:
    """Upstream, whose newest commit has a large asset and a large source file."""
    (upstream / "fake" / "asset.bin").write_bytes(os.urandom(LARGE))
    (upstream / "fake" / "tables.py").write_bytes(b"# " + os.urandom(LARGE).hex().encode() + b"\nTABLE = 3\n")
    git(upstream, "add", ".")
    git(upstream, "commit", "-qm", "large")
    return upstream


@pytest.fixture
def target(upstream: Path) -> Target:
    roots = (PackageRoot("fake"), PackageRoot("gym/fake_gym", "gym"), PackageRoot("never/was_here", "never"))
    return Target("fake", f"file://{upstream}", roots, pypi="fake-dist")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def store(home: Home) -> MirrorStore:
    return MirrorStore(home)
