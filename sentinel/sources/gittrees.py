"""Read many git trees through one running git process, which is much faster than one process for each tree."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from sentinel.sources.gitbinary import MissingObjectError, Objects
from sentinel.sources.trees import FILE, LINK, SOURCE_LIMIT, SUBMODULE, is_ignored

#: Modes as in :class:`~sentinel.sources.trees.Entry`, without the executable bit, which an import does not need.
TREE = "040000"
_MODES = {b"40000": TREE, b"120000": LINK}

#: The entries of a folder: name -> (mode, object name).
Folder = Mapping[str, tuple[str, str]]

#: Number of cached folders, a few kB each. Neighbouring commits share nearly all of their folders.
_CACHED = 8192


class GitTrees:
    """Reads the trees and blobs of one mirror. Thread-safe; call :meth:`close` at the end."""

    def __init__(self, mirror: Path) -> None:
        self._mirror = mirror
        self._lock = threading.Lock()
        self._objects = Objects(mirror)
        self.folder = lru_cache(maxsize=_CACHED)(self._folder)

    def close(self) -> None:
        with self._lock:
            self._objects.close()

    def _folder(self, tree: str) -> Folder:
        """Return the entries of a tree object, without files such as ``__pycache__``.

        :raises MissingObjectError: if the mirror lacks the tree.
        """
        with self._lock:
            try:
                return dict(_parse(self._objects.read(tree, "tree", SOURCE_LIMIT)))
            except ValueError as error:
                raise MissingObjectError(f"object {tree} in {self._mirror.name} is not a tree") from error

    def blob(self, name: str) -> bytes:
        """Return the content of a file, given its blob hash.

        :raises MissingObjectError: if the mirror lacks the blob, or the blob is too large.
        """
        with self._lock:
            return self._objects.read(name, most=SOURCE_LIMIT)

    def at(self, tree: str, path: str) -> tuple[str, str] | None:
        """Return the mode and object name of the entry at a path in a tree; None if the path does not exist."""
        mode, name = TREE, tree
        for part in path.split("/") if path else ():
            entry = self.folder(name).get(part) if mode == TREE else None
            if entry is None:
                return None
            mode, name = entry
        return mode, name


def _parse(content: bytes) -> Iterator[tuple[str, tuple[str, str]]]:
    r"""Yield the entries of a tree object; each is ``<mode> <name>\0<20 bytes>``."""
    at = 0
    while at < len(content):
        space = content.index(b" ", at)
        end = content.index(b"\0", space)
        name = content[space + 1 : end].decode("utf-8", "surrogateescape")
        if not is_ignored(name):
            digits = content[at:space]
            is_file = stat.S_IFMT(int(digits, 8) & 0o177777) == stat.S_IFREG
            mode = _MODES.get(digits) or (FILE if is_file else SUBMODULE)  # as git does
            yield name, (mode, content[end + 1 : end + 21].hex())
        at = end + 21
