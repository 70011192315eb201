"""The walk: a command is killed before each of its effects in turn, and done again."""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import killing
import pytest

import sentinel
from sentinel.catalog import bundled_catalog

#: Every effect of every command is walked where this is set (an hour); else one in so many, the last one always.
ALL = "SENTINEL_ALL_FAULTS" in os.environ  # read now: no test sees a variable of this name


@dataclass(frozen=True)
class Command:
    """:ivar act: what is killed; its exit status.
    :ivar outcome: what is there when it has been done, in plain data, without what varies from run to run.
    :ivar step: by default only every so manieth effect is walked.
    :ivar tidy: what a user does about what is left over.
    :ivar before: what has been done already where it begins.
    :ivar whole: fails where something that is only half made can be taken for whole.
    """

    act: Callable[[], int]
    outcome: Callable[[], Any]
    step: int = 1
    tidy: Callable[[], int] = lambda: 0
    before: Callable[[], int] = lambda: 0
    whole: Callable[[], object] = lambda: None


def walk(command: Command, folder: Path, alone: bool = False) -> int:
    """Kill a command before each effect on a folder, do it again, and compare with one that nobody has killed.

    :returns: at how many effects it was killed.
    """
    # Nothing of this is done in this process itself: it would hold what it uses as long as pytest lives.

    def act() -> int:
        os.chdir(folder)  # anew each time: the one that pytest stands in may be gone
        return command.act()

    usual = folder.with_name(f"{folder.name}-usual")
    ready = killing.apart(command.before)
    assert ready.status == 0, ready.said
    shutil.copytree(folder, usual, symlinks=True)
    undisturbed = killing.run(act, folder)
    assert undisturbed.status == 0, undisturbed.said
    assert killing.apart(command.tidy).status == 0
    wanted = command.outcome()
    killed = 0
    for number in _chosen(len(undisturbed.effects), command.step):
        _put_back(usual, folder)
        cut_off = killing.run(act, folder, number, alone)
        if not cut_off.killed:  # it had fewer effects this time: a time stamp that was the same
            assert cut_off.status == 0, cut_off.said
            continue
        killed += 1
        where = f"killed before effect {number}, {undisturbed.effects[number]}"
        command.whole()
        again = killing.apart(act)
        assert again.status == 0, f"{where}: {again.said}"
        an_hour_later(folder)
        tidied = killing.apart(command.tidy)
        assert tidied.status == 0, f"{where}: {tidied.said}"
        found = command.outcome()
        assert found == wanted, f"{where}: {_differ(found, wanted)}"
    print(f"killed before {killed} of {len(undisturbed.effects)} effects")
    return killed


def put_up_with(command: Command, folder: Path, error: killing.Error, sentences: tuple[str, ...]) -> int:
    """Let calls fail from each effect on a folder on; then do it again where nothing fails.

    :param sentences: one of them is what the command says, with status 2; none: it does not even notice.
    :returns: at how many effects something failed.
    """

    def act() -> int:
        os.chdir(folder)
        return command.act()

    undisturbed = killing.run(act, folder)
    assert undisturbed.status == 0, undisturbed.said
    killing.apart(command.tidy)
    wanted = command.outcome()
    failed = 0
    for number in _chosen(len(undisturbed.effects), command.step):
        remove(folder)
        folder.mkdir()
        done = killing.run(act, folder, number, error=error)
        where = f"{errno.errorcode[error.number]} from effect {number}, {undisturbed.effects[number]}: {done.said}"
        assert "Traceback" not in done.said, where
        if sentences and done.status != 0:  # what comes last may be what cleans up, and that may fail
            assert done.status == 2, where
            assert any(sentence in done.said.splitlines()[-1] for sentence in sentences), where
            failed += 1
            assert killing.apart(act).status == 0, where
        else:
            assert done.status == 0, where
            failed += not sentences
        assert killing.apart(command.tidy).status == 0, where
        found = command.outcome()
        assert found == wanted, f"{where}: {_differ(found, wanted)}"
    print(f"failed from {failed} of {len(undisturbed.effects)} effects on")
    return failed


def _chosen(total: int, step: int) -> Iterable[int]:
    assert total, "a command without an effect is no command"
    step = 1 if ALL else step
    return sorted({*range(0, total, step), total - 1})


def _differ(found: Any, wanted: Any) -> str:
    """Which files are not as they are without a kill."""
    if not (isinstance(found, dict) and isinstance(wanted, dict)):
        return f"{found!r} instead of {wanted!r}"
    names = sorted(name for name in {*found, *wanted} if found.get(name, ...) != wanted.get(name, ...))
    return "\n".join(
        f"{name}: {found.get(name, 'absent')!r} instead of {wanted.get(name, 'absent')!r}" for name in names
    )


def _put_back(usual: Path, folder: Path) -> None:
    remove(folder)
    shutil.copytree(usual, folder, symlinks=True)


def remove(folder: Path) -> None:
    """Remove a folder that has read-only ones in it; the tests may run as somebody who is not root."""
    for place, _, _ in os.walk(folder):
        os.chmod(place, 0o755)
    shutil.rmtree(folder)


def an_hour_later(folder: Path) -> None:
    """Make everything in a folder an hour older."""
    then = time.time() - 3700
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.utime(os.path.join(place, name), (then, then), follow_symlinks=False)


def listing(folder: Path, same: Callable[[str, bytes], Any] = lambda name, content: content) -> dict[str, Any]:
    """Every file of a folder and what is in it; folders too.

    :param same: (path, content) -> what of it is the same in every run; None leaves the file out.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = None
        else:
            kept = same(name, path.read_bytes())
            if kept is not None:
                found[name] = kept
    return found


def load_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is a fork of this process: what is imported here, and looked up, costs hundreds of runs nothing."""
    import git  # noqa: F401

    for module in pkgutil.walk_packages(sentinel.__path__, "sentinel."):
        if not module.name.startswith(("sentinel.worker.", "sentinel._bundled", "sentinel.history.ray_executor")):
            importlib.import_module(module.name)
    bundled_catalog()
    monkeypatch.setattr("sentinel.commands.known._with_plugins", lambda catalog: catalog)


needs_tracing = pytest.mark.skipif(bool(killing.possible()), reason=killing.possible() or "processes can be traced")
