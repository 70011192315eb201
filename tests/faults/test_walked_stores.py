"""Kills and full disks at any effect of commands that write to ``SENTINEL_HOME``."""

import os
from pathlib import Path

import killing
import pytest
from demo_kit import Repository, copy_demo
from stores import PRUNE, add, contents, opened, said
from walking import Command
from wheels import wheel


@pytest.mark.slow
def test_adding_a_mirror_survives_kills_and_full_disks(walked, home, demo_repository):
    assert walked(Command(add(demo_repository), contents(home), 25, PRUNE), home)


@pytest.fixture
def moving(tmp_path: Path) -> Repository:
    """A repository that gets a commit after it was mirrored."""
    repository = Repository(tmp_path / "moving")
    repository.path.mkdir()
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit("broken", copy_demo(tmp_path / "tree"))
    return repository


@pytest.fixture
def behind(home: Path, moving: Repository, tmp_path: Path) -> Command:
    """Return the command that updates a mirror of that repository."""
    assert killing.apart(said("mirror", "add", "demo", "--from", f"file://{moving.path}")).status == 0
    moving.commit("fixed", copy_demo(tmp_path / "later", "fixed"))
    return Command(said("mirror", "update", "demo"), contents(home), 34, PRUNE)


@pytest.mark.nightly
def test_updating_a_mirror_survives_kills_and_full_disks(walked, home, behind):
    assert walked(behind, home)


@pytest.mark.nightly
def test_extending_a_mirror_survives_kills_and_full_disks(walked, home, moving, tmp_path):
    assert killing.apart(add(moving)).status == 0
    moving.commit("fixed", copy_demo(tmp_path / "later", "fixed"))
    assert walked(Command(add(moving), contents(home), 40, PRUNE), home)


def test_making_a_checkout_survives_kills_and_full_disks(walked, home, demo_repository):
    ready = add(demo_repository)
    act = opened(f"git:{demo_repository.commits['fixed']}")
    assert walked(Command(act, contents(home), 12, PRUNE, ready), home)


@pytest.mark.nightly
def test_repairing_a_checkout_survives_kills_and_full_disks(walked, home, fixed_tree):
    """A checkout that lacks a file is removed and made again."""

    def damage() -> int:
        opened(f"path:{fixed_tree}")()
        (file,) = home.glob("checkouts/demo/*/tree/demo_rl/losses.py")
        file.parent.chmod(0o755)
        file.unlink()
        return 0

    assert walked(Command(opened(f"path:{fixed_tree}"), contents(home), 15, PRUNE, damage), home)


@pytest.mark.nightly
def test_fetching_a_release_survives_kills_and_full_disks(walked, home, fixed_tree, tmp_path, monkeypatch):
    index = tmp_path / "index"
    index.mkdir()
    wheel(index, fixed_tree)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(index), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    assert walked(Command(opened("pypi:1.0"), contents(home), 40, PRUNE), home)


@pytest.mark.slow
def test_pruning_survives_kills_and_full_disks(walked, home, demo_repository, broken_tree):
    """The pruned checkout is removed; the mirror stays."""

    def ready() -> int:
        return add(demo_repository)() or opened(f"path:{broken_tree}")() or opened("git:main")()

    assert walked(Command(said("cache", "prune", "--all"), contents(home), 9, PRUNE, ready), home)
