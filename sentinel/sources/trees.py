"""The files of package roots as git names them: one hash for the same files, whatever source they came from."""

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

#: A file of these kinds is always had, whatever its size: the target's code reads it.
SOURCE_SUFFIXES = (".py", ".pyi", ".yaml", ".yml", ".json", ".toml")
#: Files larger than this are left out, unless they are source code, and sources larger than that: no honest one is.
BLOB_LIMIT = 1 << 20
SOURCE_LIMIT = 64 << 20
#: What a revision may have below its package roots. The five frameworks have some thousand files of a few megabytes; a
#: tree of ten trees of ten trees ... has as many files as its author likes, in a commit of a kilobyte.
MOST_FILES = 100_000
MOST_BYTES = 2 << 30
#: Bytes of a path and of its parts: what file systems take, with room for the store's own folders.
_LONGEST_PATH = 1000
_LONGEST_NAME = 255
_IGNORED_NAMES = frozenset(
    {"__pycache__", ".git", ".hg", ".svn", ".DS_Store", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_IGNORED_SUFFIXES = (".pyc", ".pyo")


@dataclass(frozen=True)
class Entry:
    """One file of a revision.

    :ivar mode: ``100644`` for every regular file (whether it is executable means nothing to an import, and a wheel
        does not keep it), ``120000`` for a symbolic link, whose content is where it points.
    :ivar size: in bytes; None where the content is not available.
    """

    path: str
    mode: str
    blob: str
    size: int | None


def blob_id(content: bytes) -> str:
    """Give the name that git gives a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def tree_hash(entries: Iterable[Entry]) -> str:
    """sha256 over path, mode and blob name of every file, sorted by path."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: entry.path):
        line = f"{entry.mode} {entry.blob} {entry.path}\0"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def ignored(path: str) -> bool:
    """Say whether a file is left behind by tools and belongs to no revision."""
    return path.endswith(_IGNORED_SUFFIXES) or not _IGNORED_NAMES.isdisjoint(path.split("/"))


def is_source(path: str) -> bool:
    return path.lower().endswith(SOURCE_SUFFIXES)


def too_large(path: str, size: int) -> str | None:
    """Say why a file of this size is left out of checkouts; None where it is not."""
    if size > SOURCE_LIMIT:
        return f"larger than {SOURCE_LIMIT} bytes"
    if size > BLOB_LIMIT and not is_source(path):
        return f"larger than {BLOB_LIMIT} bytes and not source code"
    return None


def streamed_blob_id(file: IO[bytes], size: int) -> str:
    """Give the name that git gives a file of this size, read in pieces; Unavailable where it has another size."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    length = 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        length += len(piece)
    if length != size:
        raise Unavailable(f"a file has {length} bytes where {size} were announced: it changed, or is damaged")
    return digest.hexdigest()


def checked_path(path: str) -> str:
    """Prove that a path from elsewhere stays in the folder that it is written in, and that it can be written there."""
    parts = path.split("/")
    if len(_bytes(path)) > _LONGEST_PATH or any(len(_bytes(part)) > _LONGEST_NAME for part in parts):
        raise Unavailable(f"the revision holds a file whose name is too long: {path[:80]!r}...; it is not used")
    if not path or "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        raise Unavailable(f"the revision holds a file whose name leads out of its folder: {path!r}; it is not used")
    return path


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def present(roots: Sequence[PackageRoot], entries: Sequence[Entry]) -> tuple[PackageRoot, ...]:
    """Give the package roots that a revision has: those with at least one file below them."""
    return tuple(root for root in roots if any(entry.path.startswith(f"{root.path}/") for entry in entries))
