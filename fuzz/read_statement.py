"""In-toto statements and their envelopes."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.export.attestation import ENVELOPE, PREDICATE, STATEMENT, attested

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FOLDER = Path(_KEPT.name)
(FOLDER / "evidence.json").write_text(
    '{"recipe": {"digest": "sha256:00"}, "adapter": "", "checkout": null, "verdict": ""}'
)

FOUND = (
    b"[" * 100_000,
    b'{"payloadType": "%s", "payload": "%s"}' % (ENVELOPE.encode(), base64.b64encode(b"[" * 100_000)),
    b'{"payloadType": "%s"}' % ENVELOPE.encode(),
)


def seeds() -> Iterator[bytes]:
    yield from FOUND
    resource = {"name": "evidence.json", "digest": {"sha256": "00"}}
    statement = {
        "_type": STATEMENT, "predicateType": PREDICATE, "subject": [{"name": "x", "digest": {"gitCommit": "00"}}],
        "predicate": {"result": "PASSED", "configuration": [resource, {"name": "adapter", "digest": {"sha256": "00"}}]},
    }  # fmt: skip
    for name in ("evidence.json", "../evidence.json", "", "\0", ".."):
        resource["name"] = name
        text = json.dumps(statement).encode()
        yield text
        envelope = {"payloadType": ENVELOPE, "payload": base64.b64encode(text).decode(), "signatures": []}
        yield json.dumps(envelope).encode()


def one(data: bytes) -> None:
    file = FOLDER / "statement.json"
    file.write_bytes(data)
    try:
        attested(file)
    except SentinelError:
        return
