"""The trees of a mirror, read through one git process that stays: thousands of commits are looked into in seconds."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import IO

from sentinel.sources.gitbinary import GitError, conversation
from sentinel.sources.trees import FILE, LINK, SOURCE_LIMIT, SUBMODULE, ignored

#: As :class:`~sentinel.sources.trees.Entry` has it: whether a file is executable means nothing to an import.
TREE = "040000"
_MODES = {b"40000": TREE, b"120000": LINK}

#: What a folder holds: name -> (mode, object name).
Folder = Mapping[str, tuple[str, str]]

#: Folders that are remembered, a few kB each. Commits near each other share nearly all of theirs.
_REMEMBERED = 8192
_PIECE = 1 << 20


class MissingObjectError(GitError):
    """The mirror does not have an object: it is shallow, was made without large files, or is damaged."""


class LargeObjectError(MissingObjectError):
    """A file too large to be looked into: as good as absent."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"object {name} is larger than {SOURCE_LIMIT} bytes")
        self.size = size


class GitTrees:
    """Reads trees and blobs of one mirror; close it at the end. Safe to use from several threads."""

    def __init__(self, mirror: Path) -> None:
        self._mirror = mirror
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._files: tuple[IO[bytes], IO[bytes]] | None = None
        self.folder = lru_cache(maxsize=_REMEMBERED)(self._folder)

    def close(self) -> None:
        with self._lock:
            self._stack.close()
            self._files = None

    def _folder(self, tree: str) -> Folder:
        """Give what a tree object holds, files that tools leave behind not counted.

        :raises MissingObjectError: where the mirror does not have it.
        """
        with self._lock:
            try:
                return dict(_parsed(self._read(tree, b"tree")))
            except ValueError as error:
                raise MissingObjectError(f"object {tree} in {self._mirror.name} is no tree") from error

    def blob(self, name: str) -> bytes:
        """Give the content of a file."""
        with self._lock:
            return self._read(name, b"blob")

    def at(self, tree: str, path: str) -> tuple[str, str] | None:
        """Give mode and object name of what lies at a path below a tree, or None."""
        mode, name = TREE, tree
        for part in path.split("/") if path else ():
            entry = self.folder(name).get(part) if mode == TREE else None
            if entry is None:
                return None
            mode, name = entry
        return mode, name

    def _read(self, name: str, kind: bytes) -> bytes:
        if self._files is None:
            self._files = self._stack.enter_context(conversation(self._mirror, "cat-file", "--batch"))
        asking, answering = self._files
        try:
            asking.write(name.encode() + b"\n")
            asking.flush()
            header = answering.readline().split()
        except (OSError, ValueError) as error:
            raise GitError(f"git ended while {self._mirror.name} was read: {error}") from error
        if not header:
            raise GitError(f"git ended while {self._mirror.name} was read; it may be damaged")
        size = int(header[2]) if len(header) == 3 else 0
        if size > SOURCE_LIMIT:
            for at in range(0, size + 1, _PIECE):
                answering.read(min(_PIECE, size + 1 - at))
            raise LargeObjectError(name, size)
        content = answering.read(size)
        if len(header) == 3:
            answering.read(1)
        if len(header) != 3 or header[1] != kind:
            raise MissingObjectError(f"object {name} is absent from {self._mirror.name}")
        return content


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
