"""Manage ``SENTINEL_HOME``, the folder of mirrors, checkouts and wheels, and write small files atomically.

A writer keeps its temporary file locked until it has finished or its process ends. A temporary file without a lock was
left by a killed writer, and the next writer in the same folder removes it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.sources.locks import hold, lock

_TEMPORARY = re.compile(r"\..*-[0-9a-f]{12}\.tmp")


def write_atomically(file: Path, text: str) -> None:
    """Write a file atomically, so that no reader sees an incomplete file. Create the folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(file.parent)
    temporary, handle = _create_temporary(file)
    try:
        # Closed only after renaming, because closing releases the lock.
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes left."""
    with suppress(OSError), os.scandir(folder) as items:
        for name in [item.name for item in items if _TEMPORARY.fullmatch(item.name)]:
            with suppress(OSError):  # the writer is alive, another process removed the file, or the folder is read-only
                handle = hold(folder / name, wait=False)
                try:
                    (folder / name).unlink()
                finally:
                    os.close(handle)


def _create_temporary(file: Path) -> tuple[Path, int]:
    while True:
        # Each writer needs its own name: two runs may write the same file at once.
        temporary = file.with_name(f".{file.stem[:40]}-{secrets.token_hex(6)}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # some file systems have no locks
            lock(handle)
        if os.fstat(handle).st_nlink:
            return temporary, handle
        os.close(handle)  # another run has removed the file before it was locked


#: Called with one short line of text at each slow step.
Progress = Callable[[str], None]

#: Advice if a disk is full.
MORE_ROOM = "free some (`sentinel cache prune` removes old checkouts), or set SENTINEL_HOME to a folder on another disk"

_SMALL = 1 << 16
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Home:
    """``SENTINEL_HOME``. Nothing is created before the first write."""

    path: Path

    def __post_init__(self) -> None:
        # Absolute, because git and pip run in other folders.
        object.__setattr__(self, "path", self.path.absolute())

    @classmethod
    def default(cls) -> Home:
        """Return ``$SENTINEL_HOME`` if it is set, otherwise ``rl-sentinel`` in the platform's user cache folder."""
        path = os.environ.get("SENTINEL_HOME")
        return cls(Path(path).expanduser() if path else _user_cache() / "rl-sentinel")

    @property
    def mirrors(self) -> Path:
        return self.path / "mirrors"

    @property
    def checkouts(self) -> Path:
        return self.path / "checkouts"

    @property
    def wheels(self) -> Path:
        return self.path / "wheels"

    def mirror(self, target: str) -> Path:
        return self.mirrors / f"{safe_name(target)}.git"


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    path = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that a relative path is ignored.
    return Path(path) if os.path.isabs(path) else Path.home() / ".cache"


def safe_name(name: str) -> str:
    """Return the name of a target or distribution if it is safe as a file name.

    :raises SentinelError: if a file of this name could lie outside its folder.
    """
    if not _SAFE_NAME.fullmatch(name):
        raise SentinelError(f"not a usable name: {name!r}; use letters, digits and . _ - only")
    return name


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise disk errors (full, damaged, not writable) as :class:`SentinelError` with advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SentinelError(f"no space left on the disk that holds {path}; {MORE_ROOM}") from error
        if error.errno == errno.EIO:
            raise SentinelError(
                f"cannot read or write {path}: {error.strerror}; check that disk, or set SENTINEL_HOME to a "
                "folder on another disk"
            ) from error
        raise SentinelError(
            f"cannot write to {path}: {error.strerror or error}; set SENTINEL_HOME to a writable folder"
        ) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is missing or does not contain an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def small_text(path: Path) -> str | None:
    """Return the first 64 KiB of a regular file; None if it is not one. A named pipe, for example, could block."""
    try:
        if not path.is_file():
            return None
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_SMALL)
    except (OSError, ValueError):
        return None


def remove_tree(path: Path) -> None:
    """Remove a folder, including read-only ones, or a symbolic link. Do nothing if it does not exist."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):
        with suppress(FileNotFoundError):  # another process is removing the folder too
            os.chmod(folder, stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of all files under a folder."""
    if not path.is_dir():
        return path.lstat().st_size
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, files in os.walk(path) for name in files)
