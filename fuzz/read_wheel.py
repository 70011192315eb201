"""Releases, as pip has downloaded them."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from sentinel.errors import Unavailable
from sentinel.sources import Home, checkouts, pypi
from sentinel.targets import PackageRoot, Target
from sentinel.targets.refs import Ref

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FOLDER = Path(_KEPT.name)
TARGET = Target("demo", "https://example.invalid/demo.git", (PackageRoot("demo_rl"),), pypi="demo-dist")

FOUND = (b"", b"PK\5\6" + bytes(18), b"PK\5\6" + b"\xff" * 18)


def seeds() -> Iterator[bytes]:
    yield from FOUND
    for way in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", way) as archive:
            archive.writestr("demo_rl/__init__.py", "VALUE = 1\n")
            archive.writestr("demo_rl/../x.py", "VALUE = 1\n")
            archive.writestr("demo_dist-1.0.dist-info/METADATA", "Name: demo-dist\nVersion: 1.0\n")
        yield whole.getvalue()


def _written(home: Any, target: Any, ref: Any, entries: Any, contents: Any, left_out: Any = (), **facts: Any) -> Any:
    """Everything that a checkout would do with a release, but for the disk."""
    checkouts._check_amount("demo", ref, entries, {gone.path for gone in left_out})
    for entry, content in contents(entries):
        assert len(content) == entry.size
    return mock.Mock(tree="0", **facts)


def one(data: bytes) -> None:
    wheel = FOLDER / "demo_dist-1.0-py3-none-any.whl"
    wheel.write_bytes(data)
    instead = mock.patch.multiple(checkouts, materialise=_written, find=lambda *_: None, remember=lambda *_: None)
    with instead, mock.patch.object(pypi, "_wheel", return_value=wheel):
        try:
            pypi.open_pypi(TARGET, Ref("pypi", "1.0"), Home(FOLDER))
        except Unavailable:
            return
