"""Lock files, and record which process uses which checkout. A lock is released when its process ends.

Each process has one file in ``checkouts/.users``, with one line per folder that the process uses. The file is locked as
long as the process runs, so a file without a lock belongs to a process that has ended. ``checkouts/.lock`` is locked
shared while a folder is marked as used, and exclusively while folders are pruned or replaced.
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
    """Lock a file and return its descriptor. The file is created if needed.

    :raises BlockingIOError: if another process has locked the file and ``wait`` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # O_NOFOLLOW, because opening a symbolic link could create a file elsewhere.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        lock(handle, shared, wait)
    except OSError as error:
        os.close(handle)
        raise error if wait else BlockingIOError(str(error)) from error
    return handle


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file for the duration of a ``with`` block."""
    handle = hold(path)
    try:
        yield
    finally:
        os.close(handle)


def free_locks(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the lock files that no process has locked. Each file stays locked by this process until the next is
    requested. Each file stays locked here until the next one is requested."""
    for file in folder.glob(pattern):
        try:
            handle = hold(file, wait=False)
        except BlockingIOError:
            continue
        try:
            yield file
        finally:
            os.close(handle)


_guard = threading.Lock()
_users: dict[tuple[int, Path], tuple[int, set[str]]] = {}


@contextmanager
def no_pruning(checkouts: Path) -> Iterator[None]:
    """Prevent other processes from removing checkouts during a ``with`` block."""
    handle: int | None = None
    with suppress(OSError):
        handle = hold(checkouts / ".lock", shared=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def mark_used(checkouts: Path, folder: Path) -> None:
    """Mark a folder as used until this process ends. Call it inside :func:`no_pruning`."""
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
    """Return the folders, relative to ``checkouts``, that running processes use.

    :param forget_dead: True to remove the files of ended processes. This is safe only inside :func:`exclusive`, because
        a process creates its file before it locks the file.
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
def exclusive(checkouts: Path) -> Iterator[None]:
    """Prevent other processes from marking folders as used during a ``with`` block."""
    with locked(checkouts / ".lock"):
        yield
