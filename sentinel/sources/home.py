"""``SENTINEL_HOME``: the one folder where mirrors, checkouts and wheels are kept. And small files, whole or not at all.

A writer holds a lock on its temporary file as long as it lives. So whoever writes into the same folder next knows
without a clock which temporary files belong to writers that were killed, and takes them away.
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


def replace_file(file: Path, text: str) -> None:
    """Write a file in the place of what is there; an error or an interruption leaves what is there."""
    remove_leftovers(file.parent)
    temporary, handle = _own(file)
    try:
        # Closed only when it has its name: the lock goes with it.
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    with suppress(OSError), os.scandir(folder) as items:
        for name in [item.name for item in items if _TEMPORARY.fullmatch(item.name)]:
            with suppress(OSError):  # its writer is alive, or was faster; or the folder cannot be written
                handle = hold(folder / name, wait=False)
                try:
                    (folder / name).unlink()
                finally:
                    os.close(handle)


def _own(file: Path) -> tuple[Path, int]:
    """Make a temporary file beside a file, and lock its descriptor."""
    while True:
        # A name of its own for each writer: two runs may write one file at once.
        temporary = file.with_name(f".{file.stem[:40]}-{secrets.token_hex(6)}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # a file system without locks, where nobody takes it for a leftover either
            lock(handle)
        if os.fstat(handle).st_nlink:
            return temporary, handle
        os.close(handle)  # before it was locked, somebody took it for a leftover


#: Called with one short line each time there is something to tell.
Progress = Callable[[str], None]

#: What a user can do about a disk that is full.
MORE_ROOM = "free some (`sentinel cache prune` removes old checkouts), or set SENTINEL_HOME to a folder on another disk"

_SMALL = 1 << 16
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Home:
    """:ivar path: the folder itself; nothing is made before something is written."""

    path: Path

    def __post_init__(self) -> None:
        # git and pip run in other folders.
        object.__setattr__(self, "path", self.path.absolute())

    @classmethod
    def default(cls) -> Home:
        """Choose ``$SENTINEL_HOME``, else ``rl-sentinel`` in the platform's user cache folder."""
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
    # The XDG specification says that a relative path there is to be ignored.
    return Path(path) if os.path.isabs(path) else Path.home() / ".cache"


def safe_name(name: str) -> str:
    """Prove that a target's or distribution's name stays in the folder that it is to stand in."""
    if not _SAFE_NAME.fullmatch(name):
        raise SentinelError(f"not a usable name: {name!r}; use letters, digits and . _ - only")
    return name


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the errors of a disk that is full, bad or cannot be written into sentences."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SentinelError(f"no space left on the disk that holds {path}; {MORE_ROOM}") from error
        if error.errno == errno.EIO:
            raise SentinelError(
                f"cannot write to {path}, or read what is there: {error.strerror}; look after that disk, or set "
                "SENTINEL_HOME to a folder on another one"
            ) from error
        raise SentinelError(
            f"cannot write to {path}: {error.strerror or error}; set SENTINEL_HOME to a folder that you can write"
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)


def read_json(path: Path) -> dict[str, Any] | None:
    """Give the object in a file, or None where there is no such file or it is not what we write."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def small_text(path: Path) -> str | None:
    """Read a small file of a folder that nobody vouches for; None where it is no regular file: a pipe would be waited
    on for ever, a device never end."""
    try:
        if not path.is_file():
            return None
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_SMALL)
    except (OSError, ValueError):
        return None


def remove_tree(path: Path) -> None:
    """Remove a folder, read-only ones inside it too; of a link the link. Nothing happens where it is not there."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):
        with suppress(FileNotFoundError):  # somebody else removes it too
            os.chmod(folder, stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def size_of(path: Path) -> int:
    """Give the bytes of all files under a folder (or of one file)."""
    if not path.is_dir():
        return path.lstat().st_size
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, files in os.walk(path) for name in files)
