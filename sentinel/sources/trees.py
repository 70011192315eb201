"""Describe the files of a revision as git does, so that equal files from any source have the same hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from sentinel.errors import Unavailable
from sentinel.targets import PackageRoot

FILE = "100644"
LINK = "120000"
SUBMODULE = "160000"

#: Files with these suffixes count as source code, because a framework's code runs or reads them.
SOURCE_SUFFIXES = (".py", ".pyi", ".yaml", ".yml", ".json", ".toml")
#: Source code above SOURCE_LIMIT bytes and other files above BLOB_LIMIT bytes are left out.
BLOB_LIMIT = 1 << 20
SOURCE_LIMIT = 64 << 20
#: Limits of a revision. Frameworks have a few thousand files and some megabytes, but a hostile commit of one kilobyte
#: can contain nested trees with any number of files.
MOST_FILES = 100_000
MOST_BYTES = 2 << 30
#: Maximum bytes of a path and of one name: the limits of file systems, less the length of the store's folders.
_LONGEST_PATH = 1000
_LONGEST_NAME = 255
_IGNORED_NAMES = frozenset(
    {"__pycache__", ".git", ".hg", ".svn", ".DS_Store", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_IGNORED_SUFFIXES = (".pyc", ".pyo")


@dataclass(frozen=True)
class Entry:
    """One file of a revision.

    :ivar mode: ``100644`` for a regular file (the executable bit is irrelevant to an import, and wheels lose it);
        ``120000`` for a symbolic link, whose content is its target path.
    :ivar size: in bytes; None if the content is not available.
    """

    path: str
    mode: str
    blob: str
    size: int | None


def blob_id(content: bytes) -> str:
    """Return the git blob hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def tree_hash(entries: Iterable[Entry]) -> str:
    """Return the sha256 over the mode, blob hash and path of every file, sorted by path."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: entry.path):
        line = f"{entry.mode} {entry.blob} {entry.path}\0"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def is_ignored(path: str) -> bool:
    """Return True for files that are not part of the source, such as ``__pycache__``."""
    return path.endswith(_IGNORED_SUFFIXES) or not _IGNORED_NAMES.isdisjoint(path.split("/"))


def is_source(path: str) -> bool:
    return path.lower().endswith(SOURCE_SUFFIXES)


def too_large(path: str, size: int) -> str | None:
    """Return the reason why a file of this size is left out of checkouts; None if it is kept."""
    if size > SOURCE_LIMIT:
        return f"larger than {SOURCE_LIMIT} bytes"
    if size > BLOB_LIMIT and not is_source(path):
        return f"larger than {BLOB_LIMIT} bytes and not source code"
    return None


def streamed_blob_id(file: IO[bytes], size: int) -> str:
    """Return the git blob hash of a file without reading it into memory at once.

    :raises Unavailable: if the file does not have ``size`` bytes.
    """
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    length = 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        length += len(piece)
    if length != size:
        raise Unavailable(f"a file has {length} bytes instead of {size}; it changed during the read, or is damaged")
    return digest.hexdigest()


def check_path(path: str) -> str:
    """Check that a path from upstream stays in its folder and that file systems can store it; return the path.

    :raises Unavailable: if the path is not valid.
    """
    parts = path.split("/")
    if len(_bytes(path)) > _LONGEST_PATH or any(len(_bytes(part)) > _LONGEST_NAME for part in parts):
        raise Unavailable(f"the revision is rejected: the name of a file is too long: {path[:80]!r}...")
    if not path or "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        raise Unavailable(f"the revision is rejected: the name of a file leads out of its folder: {path!r}")
    return path


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def present_roots(roots: Sequence[PackageRoot], entries: Sequence[Entry]) -> tuple[PackageRoot, ...]:
    """Return the package roots that have at least one file in a revision."""
    return tuple(root for root in roots if any(entry.path.startswith(f"{root.path}/") for entry in entries))
