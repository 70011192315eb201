"""Disks that are read-only or full."""

import errno
import tempfile

import killing
import pytest
from demo_kit import returned
from killing import Error
from stores import add, opened
from walking import FULL, GROWS, unwalkable

from sentinel.worker.client import Options, Preloader, WorkerError

pytestmark = pytest.mark.skipif(bool(unwalkable("without room")), reason=unwalkable("without room") or "it can be had")

READ_ONLY = Error(errno.EROFS, GROWS | {"unlink", "rmdir", "chmod", "utime"})


@pytest.mark.slow
def test_a_read_only_cache_is_used(home, demo_repository):
    """Existing checkouts are used; making a new one fails with a message."""
    sha, other = demo_repository.commits["fixed"], demo_repository.commits["broken"]
    warm = opened(f"git:{sha}")
    assert killing.apart(lambda: add(demo_repository)() or warm()).status == 0
    assert killing.run(warm, home, 0, error=READ_ONLY).status == 0
    cold = killing.run(opened(f"git:{other}"), home, 0, error=READ_ONLY)
    assert f"SentinelError: cannot write to {home}: Read-only file system; set SENTINEL_HOME" in cold.said


def test_a_worker_without_temporary_space_is_reported(tmp_path, monkeypatch):
    """No file remains, and the message names the folder that needs space."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def act() -> int:
        preloader = Preloader(Options())
        try:
            preloader.start()
        finally:
            preloader.stop()
        return 0

    for number in (0, 1):  # the folder, and the first file in it
        done = killing.run(act, scratch, number, error=FULL[0])
        assert "WorkerError: the worker cannot write its temporary files: No space left on device" in done.said
        assert list(scratch.iterdir()) == []


def test_a_target_process_without_temporary_space_is_reported(lab, monkeypatch):
    """Only the target process fails; the preloader continues to run."""
    tree, pid = lab.write({"mod.py": "def f():\n    return 7\n"}), lab.preloader.hello()["pid"]

    def full(**place: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(WorkerError, match="cannot write its temporary files: No space left on device"):
            lab.open(tree)
    assert returned(lab.probe(lab.open(tree), "pkg.mod.f")) == 7
    assert lab.preloader.hello()["pid"] == pid
