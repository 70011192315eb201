"""Names that a person pastes: refs, URLs, addresses of expectations; and text on its way to a reader."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.errors import SentinelError
from sentinel.recipes.addresses import AddressError, parse_address
from sentinel.reports.escaping import message, passage, visible
from sentinel.sources.trees import check_path
from sentinel.sources.urls import check_url, is_url
from sentinel.targets.refs import Ref

FOUND = (
    b"git:--upload-pack=x",
    b"ext::sh -c x",
    b"ssh://-oProxyCommand=x/y",
    b"http://[",
    b"difference(" * 1000,
    b"/" * 5000,
)


def seeds() -> Iterator[bytes]:
    yield from FOUND
    yield from (b"git:pull/7/head", b"pypi:1.0", b"path:/x", b"https://me:secret@example.invalid/x.git", b"git@host:x")
    yield from (b"difference(outlier, baseline).advantages", b"loss", b"a/b\\c", b"\x1b[31m::error::x\n##[error]")


def one(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for reader in (Ref.parse, check_url, check_path, lambda name: parse_address(name, ("baseline", "outlier"))):
        try:
            reader(text)
        except (SentinelError, AddressError):
            continue
    is_url(text)
    for shown in (visible(text), message(text), passage(text), visible(text, lines=True)):
        assert not {"\x1b", "\x9b", "\u202e", "\r", "\0"} & set(shown)
