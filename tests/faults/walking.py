"""The walk: a command is killed before each of its effects in turn, and done again."""

import errno
import importlib
import os
import pkgutil
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import killing
import pytest
from killing import Error

import sentinel
from sentinel.errors import SentinelError
from sentinel.recipes.catalog import bundled_catalog


@dataclass(frozen=True)
class Command:
    """:ivar act: what is killed; its exit status.
    :ivar outcome: what is there when it has been done, in plain data, without what varies from run to run.
    :ivar step: by default only every so manieth effect is walked.
    :ivar tidy: what a user does about what is left over.
    :ivar before: what has been done already where it begins.
    :ivar whole: fails where something that is only half made can be taken for whole.
    :ivar refusals: how it may end where it could not write.
    """

    act: Callable[[], int]
    outcome: Callable[[], Any]
    step: int = 1
    tidy: Callable[[], int] = lambda: 0
    before: Callable[[], int] = lambda: 0
    whole: Callable[[], object] = lambda: None
    refusals: tuple[int, ...] = (2,)


#: What needs room on a disk. An unlink and a lock do not.
GROWS = frozenset({"open", "write", "mkdir", "symlink", "link", "rename", "truncate"})
#: A disk that is full from some effect on, and a user's part of one.
FULL = (Error(errno.ENOSPC, GROWS), Error(errno.EDQUOT, GROWS))
#: One that becomes full in the middle of a write.
PARTLY = Error(errno.ENOSPC, GROWS, partly=True)
#: One that is full, or bad, at one effect alone.
ONCE = tuple(Error(number, GROWS, once=True) for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO))
#: What a command says then, or git, which does not say why: one of these.
SENTENCES = (
    *("no space left on the disk that holds", "cannot write", "Out of diskspace", "could not write", "couldn't write"),
    *("unable to write", "nable to create", "nable to append", "couldn't set '", "No space left on device"),
    *("Disk quota exceeded", "Read-only file system", "Input/output error"),
)


def walk(command: Command, folder: Path) -> int:
    """Kill a command before each effect on a folder, do it again, and compare with one that nobody has killed.

    :returns: at how many effects it was killed.
    """

    def again(done: killing.Run, where: str) -> bool:
        if not done.killed:  # it had fewer effects this time: a time stamp that was the same
            assert done.status == 0, f"{where}: {done.said}"
        return done.killed

    return _at_each_effect(command, folder, again)


def put_up_with(command: Command, folder: Path, *errors: killing.Error) -> int:
    """Let calls fail at each effect on a folder, with these errors in turn; then do it again where nothing fails. A
    command that says nothing of it is taken at its word: nothing is done again then.

    :returns: at how many effects something failed.
    """

    def again(done: killing.Run, where: str) -> bool:
        where = f"{where}: {done.said}"
        assert "Traceback" not in done.said, where
        assert "INTERNALERROR" not in done.said, where
        told = any(sentence in done.said for sentence in SENTENCES)
        assert done.status in (command.refusals if told else (0,)), where
        return told

    return _at_each_effect(command, folder, again, errors)


def _at_each_effect(
    command: Command, folder: Path, again: Callable[[killing.Run, str], bool], errors: tuple[killing.Error, ...] = ()
) -> int:
    """:param again: (what became of it, where) -> whether it is to be done again; fails where it took that badly."""
    # Nothing of this is done in this process itself: it would hold what it uses as long as pytest lives.

    def act() -> int:
        os.chdir(folder)  # anew each time: the one that pytest stands in may be gone
        try:
            return command.act()
        except SentinelError as error:  # as the command line does
            print(f"sentinel: {error}")
            return 2

    usual = folder.with_name(f"{folder.name}-usual")
    ready = killing.apart(command.before)
    assert ready.status == 0, ready.said
    shutil.copytree(folder, usual, symlinks=True)
    undisturbed = killing.run(act, folder)
    assert undisturbed.status == 0, undisturbed.said
    assert killing.apart(command.tidy).status == 0
    wanted = command.outcome()
    met = 0
    for count, number in enumerate(_chosen(undisturbed.effects, command.step, errors)):
        _put_back(usual, folder)
        error = errors[count % len(errors)] if errors else None
        done = killing.run(act, folder, number, error)
        what = "killed before" if error is None else f"{errno.errorcode[error.number]} {'at' if error.once else 'from'}"
        met += done.killed or done.failed
        where = f"{what} effect {number}, {undisturbed.effects[number]}"
        command.whole()
        if again(done, where):
            repeated = killing.apart(act)
            assert repeated.status == 0, f"{where}: {done.said}: {repeated.said}"
        if error is None:
            an_hour_later(folder)
        tidied = killing.apart(command.tidy)
        assert tidied.status == 0, f"{where}: {tidied.said}"
        found = command.outcome()
        assert found == wanted, f"{where}: {done.said}: {_differ(found, wanted)}"
    print(f"disturbed at {met} of {len(undisturbed.effects)} effects")
    return met


def _chosen(effects: Sequence[str], step: int, errors: tuple[killing.Error, ...]) -> Iterable[int]:
    """The effects to disturb, by their numbers; where calls are to fail, those of calls that can."""
    assert effects, "a command without an effect is no command"
    can = [number for number, effect in enumerate(effects) if not errors or effect.split()[0] in errors[0].calls]
    return sorted({*can[::step], can[-1]})


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
        if not module.name.startswith(("sentinel.worker.", "sentinel._bundled", "sentinel.tools.sweep.ray_executor")):
            importlib.import_module(module.name)
    bundled_catalog()
    monkeypatch.setattr("sentinel.commands.options._with_plugins", lambda catalog: catalog)


#: ``walk(command, folder)``: at how many effects something befell it.
Walk = Callable[[Command, Path], int]


#: Name -> what can befall a command. Not all effects are walked, and all the errors share those that are.
WALKS: dict[str, Walk] = {
    "killed": walk,
    "without room": lambda command, folder: put_up_with(command, folder, FULL[0], ONCE[1], PARTLY, FULL[1], *ONCE[::2]),
}


def unwalkable(name: str) -> str:
    """Why a walk cannot be taken on this machine; empty where it can."""
    if name != "killed" and platform.machine() != "x86_64":
        return "answers of calls are changed on x86-64 only"
    return killing.possible()
