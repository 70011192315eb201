"""Disks that are full, over quota, read-only, interrupted, from each effect on in turn: a sentence, nothing lost."""

from __future__ import annotations

import errno
import platform
from collections.abc import Callable
from pathlib import Path

import killing
import pytest
from demo_kit import Repository
from killing import Error
from stores import PRUNE, add, contents, opened, said
from walking import Command, load_everything, needs_tracing, put_up_with

from sentinel.errors import SentinelError
from sentinel.site import folder as site

pytestmark = [
    needs_tracing,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="answers of calls are changed on x86-64 only"),
]

#: What needs space. A rename, an unlink and a lock do not.
GROWS = frozenset({"open", "write", "mkdir", "symlink", "link"})
FULL, QUOTA = Error(errno.ENOSPC, GROWS), Error(errno.EDQUOT, GROWS)
READ_ONLY = Error(errno.EROFS, GROWS | {"rename", "unlink", "rmdir", "chmod", "utime", "truncate"})
#: Calls that a signal may interrupt.
INTERRUPTED = Error(errno.EINTR, frozenset({"open", "write", "lock"}), once=True)

SENTENCES = (
    *("no space left on the disk that holds", "cannot write to"),
    *("No space left on device", "Disk quota exceeded", "Read-only file system"),  # git's, in its own sentences
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("SENTINEL_HOME", str(folder))
    load_everything(monkeypatch)
    return folder


def told(action: Callable[[], int]) -> Callable[[], int]:
    """As the command line does: what went wrong is a sentence and the status 2."""

    def telling() -> int:
        try:
            return action()
        except SentinelError as error:
            print(f"sentinel: {error}")
            return 2

    return telling


@pytest.mark.parametrize("error", [FULL, QUOTA, READ_ONLY], ids=["full", "quota", "read-only"])
def test_making_a_mirror(error: Error, home: Path, demo_repository: Repository) -> None:
    act = said("mirror", "add", "demo", "--from", f"file://{demo_repository.path}")
    assert put_up_with(Command(act, contents(home), 60, PRUNE), home, error, SENTENCES)


@pytest.mark.parametrize("error", [FULL, QUOTA, READ_ONLY], ids=["full", "quota", "read-only"])
def test_making_a_checkout(error: Error, home: Path, fixed_tree: Path) -> None:
    act = told(opened(f"path:{fixed_tree}"))
    assert put_up_with(Command(act, contents(home), 12, PRUNE), home, error, SENTENCES)


def test_a_site(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()

    def build() -> int:
        site.write(tmp_path / "site" / "own", {"index.html": "1", "bugs/a.html": "a" * 20_000}.items())
        return 0

    act = Command(told(build), lambda: sorted(tmp_path.rglob("*.html")), 3)
    assert put_up_with(act, tmp_path / "site", FULL, ("cannot write reports to",))


def test_calls_that_are_interrupted(home: Path, demo_repository: Repository) -> None:
    """EINTR is no error: whoever is interrupted does it again."""
    act = said("mirror", "add", "demo", "--from", str(demo_repository.path))
    assert put_up_with(Command(act, contents(home), 40, PRUNE), home, INTERRUPTED, ())


def test_a_cache_that_is_there_and_read_only(home: Path, demo_repository: Repository) -> None:
    """What was made before is as good; what was not is refused with a sentence."""
    sha, other = demo_repository.commits["fixed"], demo_repository.commits["broken"]
    warm = opened(f"git:{sha}")
    assert killing.apart(lambda: add(demo_repository)() or warm()).status == 0
    assert killing.run(warm, home, 0, error=READ_ONLY).status == 0
    cold = killing.run(told(opened(f"git:{other}")), home, 0, error=READ_ONLY)
    assert cold.status == 2
    assert cold.said.startswith(f"sentinel: cannot write to {home}: Read-only file system; set SENTINEL_HOME")
