"""File locks that end with the process that holds them, so that a killed run blocks nobody."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock(handle: int, shared: bool = False, wait: bool = True) -> None:
    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def hold(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Lock a file (made if need be) and return its descriptor; closing that lets go.

    :raises BlockingIOError: where somebody else has it and ``wait`` is false.
    """
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
