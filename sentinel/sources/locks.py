"""File locks that end with the process that holds them: a killed run blocks nobody. And who uses which checkout.

Each process has one file in ``checkouts/.users``: a line for each folder that it uses, locked as long as it lives. A
file whose lock is free belongs to nobody any more. ``checkouts/.lock`` is held shared while a folder is taken into
use, and alone while folders are pruned or replaced.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def lock(handle: int, shared: bool = False, wait: bool = True) -> None:
    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def hold(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Lock a file (made if need be) and give its descriptor; BlockingIOError where another has it and ``wait`` is
    false."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Through a link that somebody has put there it would make a file elsewhere.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        lock(handle, shared, wait)
    except OSError as error:
        os.close(handle)
        raise error if wait else BlockingIOError(str(error)) from error
    return handle


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock for the length of a block."""
    handle = hold(path)
    try:
        yield
    finally:
        os.close(handle)


_guard = threading.Lock()
_users: dict[tuple[int, Path], tuple[int, set[str]]] = {}


@contextmanager
def taking(checkouts: Path) -> Iterator[None]:
    """No folder is pruned while this is held. On a disk that cannot be written nothing is pruned anyway."""
    handle: int | None = None
    with suppress(OSError):
        handle = hold(checkouts / ".lock", shared=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def take(checkouts: Path, folder: Path) -> None:
    """Say that this process uses a folder from now on until it ends; to be called while :func:`taking`."""
    name = folder.relative_to(checkouts).as_posix()
    key = (os.getpid(), checkouts)
    with _guard, suppress(OSError):
        if key not in _users:
            (checkouts / ".users").mkdir(parents=True, exist_ok=True)
            _users[key] = (hold(checkouts / ".users" / f"{os.getpid()}-{os.urandom(4).hex()}"), set())
        handle, names = _users[key]
        if name not in names:
            os.write(handle, f"{name}\n".encode())
            names.add(name)


def in_use(checkouts: Path, *, forget_dead: bool = False) -> set[str]:
    """Give the folders (relative to ``checkouts``) that live processes use.

    :param forget_dead: remove the files of processes that ended; only while :func:`alone`, for a process that is
        just taking a folder has its file before it has the lock on it.
    """
    used: set[str] = set()
    for file in (checkouts / ".users").glob("*"):
        try:
            handle = hold(file, wait=False)
        except BlockingIOError:
            used.update(file.read_text(encoding="utf-8").splitlines())
        else:
            os.close(handle)
            if forget_dead:
                file.unlink(missing_ok=True)
    return used


@contextmanager
def alone(checkouts: Path) -> Iterator[None]:
    """Nobody takes a folder into use while this is held."""
    with locked(checkouts / ".lock"):
        yield
