"""Records of histories, as ``sentinel report history`` and the site read them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.records import history

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FILE = Path(_KEPT.name) / "verl.jsonl"
DATA = Path(__file__).resolve().parents[1] / "reports" / "history"

FOUND = (b"[" * 100_000, b"{}", b'{"schema_version": ' + b"9" * 5000 + b"}", b"\xff")


def seeds() -> Iterator[bytes]:
    yield from FOUND
    yield from sorted((file.read_bytes() for file in DATA.glob("*.jsonl")), key=len)[:3]


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        history.load_all(FILE.parent)
    except SentinelError:
        return
