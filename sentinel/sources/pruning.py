"""List and remove stored checkouts and wheels for ``sentinel cache``. Mirrors are never removed here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sentinel.sources import locks
from sentinel.sources.home import Home, read_json, remove_tree, size_of, writing


@dataclass(frozen=True)
class CacheEntry:
    """A checkout or wheel in the cache.

    :ivar kind: ``checkout``, ``wheel``, or ``leftover`` of an interrupted run.
    :ivar last_used: seconds since the epoch.
    :ivar in_use: True if a running process uses the entry, which is then never pruned.
    """

    kind: Literal["checkout", "wheel", "leftover"]
    owner: str
    name: str
    path: Path
    size: int
    last_used: float
    in_use: bool


def entries(home: Home) -> list[CacheEntry]:
    """Return the entries of the cache, the least recently used first."""
    used = locks.in_use(home.checkouts) if home.checkouts.is_dir() else set()
    return sorted(_entries(home, used), key=lambda entry: (entry.last_used, entry.name))


def prune(home: Home, *, older_than: float | None = None, now: float | None = None) -> list[CacheEntry]:
    """Remove leftovers of interrupted runs, and old entries that no running process uses. Return the removed entries.

    :param older_than: seconds since the last use after which an entry is old; None if every entry is old.
    """
    limit = None if older_than is None else (time.time() if now is None else now) - older_than
    removals: list[CacheEntry] = []
    if not home.path.is_dir():
        return removals
    paths: list[Path] = []
    with writing(home.path), locks.exclusive(home.checkouts):
        locks.in_use(home.checkouts, forget_dead=True)
        for entry in entries(home):
            recent = limit is not None and entry.last_used > limit
            if entry.in_use or (recent and entry.kind != "leftover"):
                continue
            # Rename first, which is atomic, so that no reader sees an incomplete checkout.
            hidden = entry.path.with_name(f".gone-{os.urandom(4).hex()}")
            with suppress(FileNotFoundError):  # another prune has removed it, or the download has ended
                entry.path.rename(hidden)
                paths.append(hidden)
                removals.append(entry)
    for path in paths:
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
    _forget_removed_checkouts(home)
    return removals


def _entries(home: Home, used: set[str]) -> Iterator[CacheEntry]:
    for target in _children(home.checkouts):
        if target.name.startswith("."):
            continue
        for path in _children(target):
            busy = path.relative_to(home.checkouts).as_posix() in used
            record = path / "checkout.json"
            if record.is_file() and not path.name.startswith("."):
                yield from _entry("checkout", path, record, busy=busy)
            elif path.name != "refs":
                yield from _entry("leftover", path, path, busy=busy)
    for owner in _children(home.wheels):
        for path in _children(owner):
            if path.suffix == ".whl":  # a wheel is read completely when it is opened
                yield from _entry("wheel", path, path, busy_for=60)
            else:  # pip uses the folder of a download for a few minutes at most
                yield from _entry("leftover", path, path, busy_for=3600)


def _entry(
    kind: Literal["checkout", "wheel", "leftover"], path: Path, touched: Path, busy: bool = False, busy_for: float = 0
) -> Iterator[CacheEntry]:
    """Yield the description of a cache entry; nothing if another process has removed the entry.

    :param busy_for: the entry counts as used if its mtime is less than this many seconds ago, or less than this many
        seconds in the future. Without the second limit, a clock that was set back could keep a leftover for years.
    """
    with suppress(FileNotFoundError):
        last_used = touched.stat().st_mtime
        busy = busy or abs(time.time() - last_used) < busy_for
        yield CacheEntry(kind, path.parent.name, path.name, path, size_of(path), last_used, busy)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _forget_removed_checkouts(home: Home) -> None:
    for note in home.checkouts.glob("*/refs/*.json"):
        tree = str((read_json(note) or {}).get("tree", ""))
        if not tree or not (note.parent.parent / tree).is_dir():
            note.unlink(missing_ok=True)
