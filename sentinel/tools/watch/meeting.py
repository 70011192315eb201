"""Where the processes of one run meet their checker: the first of them opens a socket for it, and it removes that."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

#: Seconds that the end of a run waits for what was copied to be checked.
PATIENCE = 20.0
#: Seconds that a process waits for another one that is meeting the checker.
_PATIENCE = 5.0


def address(words: Sequence[str], packages: Sequence[str]) -> Path:
    """Return the path of this run's socket on this machine.

    Its name starts with the run's number, if a command started the run, and is derived from what the checker is asked
    to do and from the copy of the framework that is imported here.

    :raises OSError: if the folder is not this user's alone.
    """
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")  # what comes through the socket is believed
    number = os.environ.get("SENTINEL_WATCH_RUN", "")
    run = [*words, number, *roots(packages)]
    return folder / f"{number}-{hashlib.sha256(repr(run).encode()).hexdigest()[:24]}"


def sockets(number: str) -> list[Path]:
    """Return the sockets of the run of this number; a checker removes its own when it ends by itself."""
    return [file for file in _folder().glob(f"{number}-*") if file.is_socket()]


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"sentinel-watch-{os.getuid()}"


def roots(packages: Sequence[str]) -> Iterator[str]:
    """Give the folders that packages are imported from here."""
    for package in packages:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            for place in (spec.submodule_search_locations or ()) if spec is not None else ():
                yield str(Path(place).parent)


def joined(place: Path, launch: Callable[[socket.socket], None]) -> Connection:
    """Connect to the checker of a run, which is launched where there is none.

    :param launch: starts a process that has the socket.
    """
    ours = socket.socket(socket.AF_UNIX)
    with _alone(place) as short:
        try:
            ours.connect(short)
        except OSError:  # nobody is there, or no longer
            place.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(short)
                listening.listen(128)
                ours.connect(short)
                launch(listening)
    return Connection(ours.detach())


def accepted(listening: socket.socket) -> Connection:
    return Connection(listening.accept()[0].detach())


def last_call(listening: socket.socket, place: Path) -> Connection | None:
    """Accept whoever still waits at a socket; where nobody does, remove it."""
    with _alone(place):
        listening.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return accepted(listening)
        place.unlink(missing_ok=True)
    return None


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[str]:
    """Be the only one of this user's processes that opens, joins or leaves a socket.

    :return: the socket's path through the open folder: a longer one than 108 bytes is none.
    """
    folder = os.open(place.parent, os.O_RDONLY)
    until = time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)
