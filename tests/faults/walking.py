"""Kill a command before each of its effects in turn, and run it again."""

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
    """A command to disturb.

    :ivar act: runs it and returns its exit status.
    :ivar outcome: returns the result as plain data, without parts that differ between runs.
    :ivar step: disturb every ``step``-th effect.
    :ivar tidy: cleans up leftovers as a user would.
    :ivar before: runs before the command.
    :ivar whole: fails if an incomplete file could be taken for a complete one.
    :ivar refusals: exit statuses that are allowed if it could not write.
    """

    act: Callable[[], int]
    outcome: Callable[[], Any]
    step: int = 1
    tidy: Callable[[], int] = lambda: 0
    before: Callable[[], int] = lambda: 0
    whole: Callable[[], object] = lambda: None
    refusals: tuple[int, ...] = (2,)


#: Effects that need space on a disk. (Unlinking and locking do not.)
GROWS = frozenset({"open", "write", "mkdir", "symlink", "link", "rename", "truncate"})
#: A disk, or a user's quota, that is full from some effect on.
FULL = (Error(errno.ENOSPC, GROWS), Error(errno.EDQUOT, GROWS))
#: A disk that becomes full during a write.
PARTLY = Error(errno.ENOSPC, GROWS, partly=True)
#: A disk that is full or broken for a single effect.
ONCE = tuple(Error(number, GROWS, once=True) for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO))
#: Accepted messages: those of a command, and git's, which do not give the reason.
SENTENCES = (
    *("no space left on the disk that holds", "cannot write", "Out of diskspace", "could not write", "couldn't write"),
    *("unable to write", "nable to create", "nable to append", "couldn't set '", "No space left on device"),
    *("Disk quota exceeded", "Read-only file system", "Input/output error"),
)


def walk(command: Command, folder: Path) -> int:
    """Kill a command before each effect on a folder, run it again, and compare the result with an undisturbed run.

    :returns: the number of effects at which it was killed.
    """

    def again(done: killing.Run, where: str) -> bool:
        if not done.killed:  # fewer effects than before, because a time stamp was the same
            assert done.status == 0, f"{where}: {done.said}"
        return done.killed

    return _at_each_effect(command, folder, again)


def put_up_with(command: Command, folder: Path, *errors: killing.Error) -> int:
    """Let calls fail at each effect on a folder, with these errors in turn, and run the command again.

    A command that reports no error must have the right result without another run.

    :returns: the number of effects at which a call failed.
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
    """Disturb a command at each effect.

    :param again: (result, place) -> True if the command must run again; fails if it reacted wrongly.
    """
    # In another process, because this one would hold the files until pytest ends.

    def act() -> int:
        os.chdir(folder)  # each time, because the current folder may have been removed
        try:
            return command.act()
        except SentinelError as error:  # like the command line
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
    """Return the numbers of the effects to disturb; if calls are to fail, only the effects of calls that can fail."""
    assert effects, "a command without an effect is no command"
    can = [number for number, effect in enumerate(effects) if not errors or effect.split()[0] in errors[0].calls]
    return sorted({*can[::step], can[-1]})


def _differ(found: Any, wanted: Any) -> str:
    """Return the files that differ from an undisturbed run."""
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
    """Remove a folder with read-only folders in it, also as an unprivileged user."""
    for place, _, _ in os.walk(folder):
        os.chmod(place, 0o755)
    shutil.rmtree(folder)


def an_hour_later(folder: Path) -> None:
    """Make all files in a folder an hour older."""
    then = time.time() - 3700
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.utime(os.path.join(place, name), (then, then), follow_symlinks=False)


def listing(folder: Path, same: Callable[[str, bytes], Any] = lambda name, content: content) -> dict[str, Any]:
    """Return every file and folder with its content.

    :param same: (path, content) -> the part that is the same in every run; None leaves the file out.
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
    """Import modules and fill caches before the forks, because there are hundreds of them."""
    import git  # noqa: F401

    for module in pkgutil.walk_packages(sentinel.__path__, "sentinel."):
        if not module.name.startswith(("sentinel.worker.", "sentinel._bundled")):
            importlib.import_module(module.name)
    bundled_catalog()
    monkeypatch.setattr("sentinel.commands.options._with_plugins", lambda catalog: catalog)


#: ``walk(command, folder)`` returns the number of disturbed effects.
Walk = Callable[[Command, Path], int]


#: Name -> disturbance of a command. Only some effects are disturbed, each with one of the errors.
WALKS: dict[str, Walk] = {
    "killed": walk,
    "without room": lambda command, folder: put_up_with(command, folder, FULL[0], ONCE[1], PARTLY, FULL[1], *ONCE[::2]),
}


def unwalkable(name: str) -> str:
    """Return why commands cannot be disturbed on this machine; empty if they can."""
    if name != "killed" and platform.machine() != "x86_64":
        return "answers of calls are changed on x86-64 only"
    return killing.possible()
