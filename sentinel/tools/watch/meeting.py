"""Open, find and remove the socket between the processes of a run and their checker.

The first process opens it, and the checker removes it.
"""

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

#: Seconds that a process of the run waits at its end for its copied calls to be checked, and seconds that the command
#: waits for a checker that is still running.
PATIENCE, LONG_PATIENCE = 20.0, 300.0
#: Seconds that a process waits for the lock while another process connects.
_PATIENCE = 5.0


def address(words: Sequence[str], packages: Sequence[str]) -> Path:
    """Return the path of the socket that this run's processes share on this machine.

    The file's name is derived from the checker's options and from the copy of the framework that is imported here. If
    ``sentinel watch`` started the run, the name begins with the run's number.

    :raises OSError: if other users can access the folder, or if it cannot be created.
    """
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        # Messages from the socket are trusted, so no other user may write to it.
        raise PermissionError(f"{folder} must belong to you, and other users must not have access to it")
    number = os.environ.get("SENTINEL_WATCH_RUN", "")
    run = [*words, number, *roots(packages)]
    return folder / f"{number}-{hashlib.sha256(repr(run).encode()).hexdigest()[:24]}"


def sockets(number: str) -> list[Path]:
    """Return the sockets that the run with this number has left. A checker removes its socket when it ends normally."""
    return [file for file in _folder().glob(f"{number}-*") if file.is_socket()]


def is_alive(socket: Path) -> bool:
    """Return True if a process listens at a socket. The file of a killed checker's socket still exists."""
    return any(line.endswith(f"/{socket.name}") for line in Path("/proc/net/unix").read_text().splitlines())


def mark_stopped(number: str, stopped: bool = True) -> None:
    """Record that the command stops a run, so that its processes are not reported as lost.

    :param stopped: False to delete the record.
    """
    mark = _folder() / f"{number}.stopped"
    if stopped:
        mark.touch()
    else:
        mark.unlink(missing_ok=True)


def is_stopped(place: Path) -> bool:
    return place.with_name(f"{place.name.partition('-')[0]}.stopped").exists()


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"sentinel-watch-{os.getuid()}"


def roots(packages: Sequence[str]) -> Iterator[str]:
    """Yield the folders from which this process imports the packages."""
    for package in packages:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            for place in (spec.submodule_search_locations or ()) if spec is not None else ():
                yield str(Path(place).parent)


def joined(place: Path, launch: Callable[[socket.socket], None]) -> Connection:
    """Connect to the checker of a run. If none is running, start it with ``launch``.

    :param launch: called with the listening socket.
    """
    ours = socket.socket(socket.AF_UNIX)
    with _alone(place) as short:
        try:
            ours.connect(short)
        except OSError:  # there is no checker, or the checker has ended
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
    """Accept a process that still waits at the socket. If none waits, remove the socket and return None."""
    with _alone(place):
        listening.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return accepted(listening)
        place.unlink(missing_ok=True)
    return None


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[str]:
    """Lock a socket while a process opens, joins or leaves it. Yield a short path of the socket.

    The path uses the descriptor of the open folder, because a socket's path is limited to 108 bytes.

    :raises BlockingIOError: if another process holds the lock for too long.
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
