"""What ``sentinel cache list`` and ``sentinel cache prune`` do. Mirrors are not theirs: somebody asked for those."""

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
    """:ivar kind: ``checkout``, ``wheel``, or ``leftover``: what a run that was cut off left behind.
    :ivar in_use: whether a run that is alive uses it; such a one is never pruned.
    """

    kind: Literal["checkout", "wheel", "leftover"]
    owner: str
    name: str
    path: Path
    size: int
    last_used: float
    in_use: bool


def entries(home: Home) -> list[CacheEntry]:
    """List the cache, the longest unused first."""
    used = locks.in_use(home.checkouts) if home.checkouts.is_dir() else set()
    return sorted(_entries(home, used), key=lambda entry: (entry.last_used, entry.name))


def prune(home: Home, *, older_than: float | None = None, now: float | None = None) -> list[CacheEntry]:
    """Remove what was not used for so many seconds (None: everything that no live run uses), and every leftover; give
    it."""
    limit = None if older_than is None else (time.time() if now is None else now) - older_than
    removals: list[CacheEntry] = []
    if not home.path.is_dir():
        return removals
    paths: list[Path] = []
    with writing(home.path), locks.alone(home.checkouts):
        locks.in_use(home.checkouts, forget_dead=True)
        for entry in entries(home):
            recent = limit is not None and entry.last_used > limit
            if entry.in_use or (recent and entry.kind != "leftover"):
                continue
            # Moved first, which is one step: nobody ever sees half a checkout.
            hidden = entry.path.with_name(f".gone-{os.urandom(4).hex()}")
            with suppress(FileNotFoundError):  # another prune, or the download that it belongs to, was faster
                entry.path.rename(hidden)
                paths.append(hidden)
                removals.append(entry)
    for path in paths:
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
    _forget(home)
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
            if path.suffix == ".whl":  # read whole when it is opened
                yield from _entry("wheel", path, path, busy_for=60)
            else:  # a download's folder belongs to a live pip for minutes at most
                yield from _entry("leftover", path, path, busy_for=3600)


def _entry(
    kind: Literal["checkout", "wheel", "leftover"], path: Path, touched: Path, busy: bool = False, busy_for: float = 0
) -> Iterator[CacheEntry]:
    """Describe a path; nothing where it has gone meanwhile.

    :param busy_for: it is in use for so many seconds after it was touched. The difference counts, whichever sign it
        has: a clock that was set back must not make a leftover live for years.
    """
    with suppress(FileNotFoundError):
        last_used = touched.stat().st_mtime
        busy = busy or abs(time.time() - last_used) < busy_for
        yield CacheEntry(kind, path.parent.name, path.name, path, size_of(path), last_used, busy)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _forget(home: Home) -> None:
    """Remove the notes on trees that are not there any more."""
    for note in home.checkouts.glob("*/refs/*.json"):
        tree = str((read_json(note) or {}).get("tree", ""))
        if not tree or not (note.parent.parent / tree).is_dir():
            note.unlink(missing_ok=True)
