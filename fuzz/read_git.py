"""What git prints of a repository that strangers write to, and the files of a git directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from sentinel.errors import SentinelError
from sentinel.sources import adding as origins
from sentinel.sources import commits, git_objects, gitbinary, gitrefs, gittrees
from sentinel.tools.upstream import history

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FOLDER = Path(_KEPT.name)
(FOLDER / "objects" / "info").mkdir(parents=True)
SHA = b"0123456789abcdef0123456789abcdef01234567"


def _files(data: bytes) -> None:
    for name in ("packed-refs", "HEAD", "shallow", "commondir", "objects/info/alternates"):
        (FOLDER / name).write_bytes(data)
    refs = gitrefs.read_refs(FOLDER)
    gitrefs.write_refs(FOLDER, refs)
    assert gitrefs.read_refs(FOLDER) == refs, "what is written is what is read"
    gitrefs.head_branch(FOLDER)
    gitrefs.read_shallow(FOLDER)
    origins._object_directories(FOLDER / "objects")
    (FOLDER / ".git").write_bytes(data)
    origins._git_dir(FOLDER)


def _listing(data: bytes) -> None:
    with mock.patch.object(git_objects, "run_bounded", return_value=data):
        git_objects.listing(FOLDER, "HEAD", ["demo_rl"])


def _log(data: bytes) -> None:
    with mock.patch.object(commits, "run_checked", return_value=data):
        commits._read(FOLDER, "HEAD")


def _tags(data: bytes) -> None:
    with mock.patch.object(commits, "run_checked", return_value=data):
        commits.releases(FOLDER)


def _patch(data: bytes) -> None:
    done = mock.Mock(status=0, out=data)
    with mock.patch.object(gitbinary, "run", return_value=done):
        target, recipe = mock.Mock(roots=(), **{"binding.return_value": None}), mock.Mock(boundary="a.loss")
        history.touching(FOLDER, target, recipe, ["HEAD"])


def _tree(data: bytes) -> None:
    trees = gittrees.GitTrees(FOLDER)
    with mock.patch.object(trees._objects, "read", return_value=data):
        trees.folder("0" * 40)


def _complaint(data: bytes) -> None:
    assert "\n" not in gitbinary.reason(data.decode("utf-8", "replace"))


#: By the first byte of an input.
WAYS = (_files, _listing, _log, _tags, _patch, _tree, _complaint)

FOUND = (
    b"\0" + SHA + b" refs/tags/v1\xe2\x80\xa8x\n", b"\0" + SHA + b" refs/heads/\xff\n",
    b"\2" + b"\0".join([SHA, SHA, b"", b"9999-12-31T23:59:59-12:00", b"subject", b"\n"]),
    b"\3" + b"refs/tags/v1\xe2\x80\xa8x\0commit " + SHA + b"\0 \n",
    b"\4" + b"\x01" + SHA + b"\tref\tsubject\n@@ -1 +1 @@ def loss\n+a\x0c\x01b\n",
    b"\5" + b"100644 without an end", b"\5" + b"xx name\0" + bytes(20),
    b"\5" + b"7" * 40 + b" name\0" + bytes(20),
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    yield from FOUND
    yield b"\0" + b"# pack-refs with: peeled \n" + SHA + b" refs/heads/main\n^" + SHA + b"\n"
    yield b"\0" + b"gitdir: ../x\n"
    yield b"\1" + b"100644 blob " + SHA + b"\tdemo_rl/x.py\x00120000 blob " + SHA + b"\tdemo_rl/y\x00"
    yield b"\2" + b"\0".join([SHA, SHA, SHA, b"2026-08-21T00:00:00Z", b"subject", b"\n"])
    yield b"\3" + b"refs/tags/v1.0\0tag " + SHA + b"\0commit " + SHA + b"\n"
    yield b"\4" + b"\x01" + SHA + b"\tmain\tmend the loss\n@@ -1 +1 @@ def loss\n-a\n+b\n"
    yield b"\5" + b"40000 folder\0" + bytes(20) + b"100755 run.sh\0" + bytes(20)
    yield b"\6" + b"warning: x\nfatal: no https://me:secret@host/x\r\n"


def one(data: bytes) -> None:
    if data:
        try:
            WAYS[data[0] % len(WAYS)](data[1:])
        except SentinelError:
            return
