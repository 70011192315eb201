"""Evidence documents, as ``verify``, a baseline, reports and the site read them; what is valid can also be shown."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.reports import baseline, markdown, sarif, store, summary

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FILE = Path(_KEPT.name) / "evidence.json"
DATA = Path(__file__).resolve().parents[1] / "reports"

FOUND = (
    b"", b"{}", b'{"schema_version": 1}', b'{"schema_version": ' + b"9" * 5000 + b"}", b"[" * 100_000, b'{"a": NaN}',
    b'{"a": 1, "a": 2}', b"\xff", b'{"schema_version": "\\ud800"}',
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    yield from FOUND
    shown: set[bytes] = set()
    for file in sorted(DATA.glob("[a-z]*/*/*.json")):  # one of each verdict, the shortest ways to say it
        text = file.read_bytes()
        kind = text.partition(b'"verdict":')[2].partition(b",")[0]
        if kind not in shown and len(text) < 20_000:
            shown.add(kind)
            yield text


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        document = store.load(FILE)
    except SentinelError:
        return
    assert baseline.difference(document, document) == []
    results = [(document, "failed")]
    summary.summary(results)
    markdown.markdown(results)
    sarif.sarif(results, {})
