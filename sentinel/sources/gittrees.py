"""The trees of a mirror, read through one git process that stays: thousands of commits are looked into in seconds."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from sentinel.sources.gitbinary import MissingObjectError, Objects
from sentinel.sources.trees import FILE, LINK, SOURCE_LIMIT, SUBMODULE, ignored

#: As :class:`~sentinel.sources.trees.Entry` has it: whether a file is executable means nothing to an import.
TREE = "040000"
_MODES = {b"40000": TREE, b"120000": LINK}

#: What a folder holds: name -> (mode, object name).
Folder = Mapping[str, tuple[str, str]]

#: Folders that are remembered, a few kB each. Commits near each other share nearly all of theirs.
_REMEMBERED = 8192


class GitTrees:
    """Reads trees and blobs of one mirror; close it at the end. Safe to use from several threads."""

    def __init__(self, mirror: Path) -> None:
        self._mirror = mirror
        self._lock = threading.Lock()
        self._objects = Objects(mirror)
        self.folder = lru_cache(maxsize=_REMEMBERED)(self._folder)

    def close(self) -> None:
        with self._lock:
            self._objects.close()

    def _folder(self, tree: str) -> Folder:
        """Give what a tree object holds, files that tools leave behind not counted.

        :raises MissingObjectError: where the mirror does not have it.
        """
        with self._lock:
            try:
                return dict(_parsed(self._objects.read(tree, "tree", SOURCE_LIMIT)))
            except ValueError as error:
                raise MissingObjectError(f"object {tree} in {self._mirror.name} is no tree") from error

    def blob(self, name: str) -> bytes:
        """Give the content of a file."""
        with self._lock:
            return self._objects.read(name, most=SOURCE_LIMIT)

    def at(self, tree: str, path: str) -> tuple[str, str] | None:
        """Give mode and object name of what lies at a path below a tree, or None."""
        mode, name = TREE, tree
        for part in path.split("/") if path else ():
            entry = self.folder(name).get(part) if mode == TREE else None
            if entry is None:
                return None
            mode, name = entry
        return mode, name


def _mode(digits: bytes) -> str:
    """Give as git reads it: what is no file, link or folder is another repository's commit."""
    return _MODES.get(digits) or (FILE if stat.S_IFMT(int(digits, 8) & 0o177777) == stat.S_IFREG else SUBMODULE)


def _parsed(content: bytes) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give the entries of a tree object: ``<mode> <name>\\0<20 bytes>`` each."""
    at = 0
    while at < len(content):
        space = content.index(b" ", at)
        end = content.index(b"\0", space)
        name = content[space + 1 : end].decode("utf-8", "surrogateescape")
        if not ignored(name):
            yield name, (_mode(content[at:space]), content[end + 1 : end + 21].hex())
        at = end + 21
