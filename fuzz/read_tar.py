"""Tars of mirrors."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.sources.adding import open_tar
from sentinel.sources.home import remove_tree

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FOLDER = Path(_KEPT.name)

FOUND = (b"", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", bytes(10_240))


def seeds() -> Iterator[bytes]:
    yield from FOUND
    for way in ("w", "w:gz", "w:xz"):
        for style in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            whole = io.BytesIO()
            with tarfile.open(fileobj=whole, mode=way, format=style) as tar:
                for name in ("x.git/HEAD", "x.git/objects/ab/" + "c" * 38, "x.git/" + "n" * 120):
                    member = tarfile.TarInfo(name)
                    member.size = 5
                    tar.addfile(member, io.BytesIO(b"ref: "))
            yield whole.getvalue()


def one(data: bytes) -> None:
    tar, scratch = FOLDER / "x.tar", FOLDER / "scratch"
    tar.write_bytes(data)
    scratch.mkdir()
    try:
        open_tar(tar, scratch)
    except SentinelError:
        return
    finally:
        remove_tree(scratch)
