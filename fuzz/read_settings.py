"""``sentinel.toml``, from reading to the options of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.settings import NAMED, read_file, settle

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FOLDER = Path(_KEPT.name)

FOUND = (
    b"timeout = " + b"9" * 400, b"timeout = " + b"9" * 5000, b"timeout = nan", b"timeout = 1e999",
    b"a = " + b"[" * 10_000,
    b'report-dir = "~nobody-of-that-name/x"', b'recipes = ["\\u0000"]', b'repo = "demo=\\u0000"', b"\xff",
    b'python = "~nobody-of-that-name/python"', b'repo = ["~nobody-of-that-name"]', b'baseline = "~nobody-of-that-name"',
    b"a" + b".a" * 5000 + b" = 1", b"target" + b".a" * 1000 + b" = 1",
    b'repo = "' + b"a" * 5000 + b'"',
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    yield from FOUND
    for key, option in NAMED.items():
        value = ["demo", "all"] if option.many else "x"
        yield f"{key} = {value!r}\n".encode()
    yield b'target = "demo"\nref = ["git:main", "demo=pypi:1.0", "path:."]\ntimeout = 5\nlaws = "quick"\n'
    yield b'device = "cuda:1"\nsandbox = "strict"\nsarif = "x.sarif"\n'


def one(data: bytes) -> None:
    (FOLDER / "sentinel.toml").write_bytes(data)
    try:
        values, file = read_file(FOLDER)
        settle({}, values, ["demo", "verl"], file.parent if file else FOLDER)
    except SentinelError:
        return
