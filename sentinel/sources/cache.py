"""What ``sentinel cache list`` and ``sentinel cache prune`` do. Mirrors are not theirs: somebody asked for those."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sentinel.sources import leases
from sentinel.sources.home import Home, read_json, remove_tree, size_of, writing


@dataclass(frozen=True)
class CacheEntry:
    """:ivar kind: ``checkout``, ``wheel``, or ``leftover``: what a run that was cut off left behind.
    :ivar owner: the target (of a wheel: the distribution).
    :ivar name: the tree hash, or the file's name.
    :ivar last_used: seconds since the epoch.
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
    """Everything in the cache, the longest unused first."""
    used = leases.in_use(home.checkouts) if home.checkouts.is_dir() else set()
    return sorted(_entries(home, used), key=lambda entry: (entry.last_used, entry.name))


def prune(home: Home, *, older_than: float | None = None, now: float | None = None) -> list[CacheEntry]:
    """Remove what was not used for so many seconds (None: everything that no live run uses).

    :returns: what was removed.
    :raises SentinelError: where the cache cannot be written.
    """
    limit = None if older_than is None else (time.time() if now is None else now) - older_than
    gone: list[CacheEntry] = []
    if not home.path.is_dir():
        return gone
    doomed: list[Path] = []
    with writing(home.path), leases.alone(home.checkouts):
        leases.in_use(home.checkouts, forget_dead=True)
        for entry in entries(home):
            if entry.in_use or (limit is not None and entry.last_used > limit):
                continue
            # Moved first, which is one step: nobody ever sees half a checkout.
            hidden = entry.path.with_name(f".gone-{os.urandom(4).hex()}")
            entry.path.rename(hidden)
            doomed.append(hidden)
            gone.append(entry)
    for path in doomed:
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
    _forget(home)
    return gone


def _entries(home: Home, used: set[str]) -> Iterator[CacheEntry]:
    for target in _children(home.checkouts):
        if target.name.startswith("."):
            continue
        for path in _children(target):
            busy = path.relative_to(home.checkouts).as_posix() in used
            record = path / "checkout.json"
            if record.is_file() and not path.name.startswith("."):
                last_used = record.stat().st_mtime
                yield CacheEntry("checkout", target.name, path.name, path, size_of(path), last_used, busy)
            elif path.name != "refs":
                last_used = path.stat().st_mtime
                yield CacheEntry("leftover", target.name, path.name, path, size_of(path), last_used, busy)
    for owner in _children(home.wheels):
        for path in _children(owner):
            kind: Literal["wheel", "leftover"] = "wheel" if path.suffix == ".whl" else "leftover"
            # A download's folder belongs to a live pip for minutes at most; a wheel is read whole when it is opened.
            busy = time.time() - path.stat().st_mtime < (60 if kind == "wheel" else 3600)
            yield CacheEntry(kind, owner.name, path.name, path, size_of(path), path.stat().st_mtime, busy)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _forget(home: Home) -> None:
    """Remove the notes on trees that are not there any more."""
    for note in home.checkouts.glob("*/refs/*.json"):
        tree = str((read_json(note) or {}).get("tree", ""))
        if not tree or not (note.parent.parent / tree).is_dir():
            note.unlink(missing_ok=True)
