"""The files of one mirror beside git's own: its record and its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sentinel.sources import gitrefs
from sentinel.sources.home import read_json, size_of, write_atomically
from sentinel.sources.urls import redacted

#: Written last: a mirror without it was cut off half-way.
RECORD = "sentinel.json"
#: The objects that were left out, one name a line.
ABSENT = "absent"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n\tbare = true\n"


@dataclass(frozen=True)
class Mirror:
    """:ivar url: where more of it is fetched from when somebody asks for that.
    :ivar origins: what it was made of, one line each.
    :ivar whole: False for what a run that was cut off left behind; ``mirror add`` makes it anew.
    :ivar absent: how many objects were left out when it was made.
    """

    target: str
    path: Path
    url: str = ""
    origins: tuple[str, ...] = ()
    refs: int = 0
    absent: int = 0
    updated: str = ""
    size: int = 0
    whole: bool = True


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_atomically(path / RECORD, json.dumps({**record, "updated": now}, indent=1, sort_keys=True) + "\n")


def is_whole(path: Path) -> bool:
    """Whether a mirror was finished: its record is there, and is one. A machine that goes down may leave it empty."""
    return read_json(path / RECORD) is not None


def describe(target: str, path: Path) -> Mirror:
    """What ``mirror list`` shows of a mirror, whole or not."""
    record = read_json(path / RECORD)
    if record is None:
        return Mirror(target, path, size=size_of(path), whole=False)
    return Mirror(
        target,
        path,
        url=redacted(str(record.get("url", ""))),
        origins=tuple(map(str, record.get("origins", ()))),
        refs=len(gitrefs.read_refs(path)),
        absent=int(record.get("absent", 0)),
        updated=str(record.get("updated", "")),
        size=size_of(path),
    )


def make_blank(path: Path) -> None:
    """A bare git directory with nothing in it, and a configuration that names no remote and never will."""
    for folder in ("objects/pack", "objects/info", "refs/heads"):
        (path / folder).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text(_CONFIG)


def remove_half_packs(path: Path) -> None:
    """Remove what a transfer or a copy that was cut off has left among a mirror's objects.

    A pack is there when its index is: that comes last. A ``.keep`` is git's own lock for the length of a fetch.
    """
    packs = path / "objects" / "pack"
    for file in [*path.glob("objects/*/tmp_*"), *packs.glob("pack-*")]:
        if file.suffix == ".keep" or not file.with_suffix(".idx").exists():
            file.unlink(missing_ok=True)
