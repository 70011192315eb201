"""Signals reach the intended process or group, and no other."""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.worker import client
from sentinel.worker.processes import Leader

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no process descriptors here")

#: A script that leads a process group, has a child that keeps the pipe open, and ends on request.
LEADER = """
import os, sys, time
if os.fork() == 0:
    time.sleep(600)
os.write(1, b"x")
sys.stdin.read()
"""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.read(1) == b"x"
    yield process
    Leader(process.pid).kill()
    process.communicate()


def ended(process: subprocess.Popen[bytes]) -> bool:
    """Return True if neither the leader nor its child has its output open."""
    return bool(select.select([process.stdout], [], [], 20)[0]) and process.stdout.read() == b""


def test_a_group_ends_with_its_leader(leader):
    handle = Leader(leader.pid)
    handle.kill()
    assert ended(leader)
    handle.kill()


def test_a_second_kill_does_not_hit_a_reused_pid(leader):
    first = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    handle = Leader(first.pid)
    handle.kill()
    first.communicate()
    handle.pid = leader.pid
    handle.kill()
    assert leader.poll() is None


def test_a_group_without_a_leader_ends(leader):
    handle = Leader(leader.pid)
    leader.stdin.close()
    leader.wait()
    leader.stdin = None
    handle.kill()
    assert ended(leader)


def test_processes_that_are_not_descendants_are_not_killed():
    """The kernel may reuse the number between a session's first byte and the descriptor."""
    lines = "import os\nif os.fork():\n    os._exit(0)\nprint(os.getpid(), flush=True)\ninput()"
    parent = subprocess.Popen(
        [sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    orphan = int(parent.stdout.readline())
    parent.wait()
    Leader(orphan).kill()
    assert not select.select([parent.stdout], [], [], 0)[0], "it goes on"
    parent.stdin = parent.stdin and parent.stdin.close()
    assert parent.stdout.read() == b""


def test_abandoned_folders_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept, handle = client._locked_folder()
    left, other = client._locked_folder()
    os.close(other)  # as the kernel does for a killed process
    Path(left, "preloader.log").touch()
    (tmp_path / "sentinel-worker-file").touch()
    (tmp_path / "sentinel-worker-link").symlink_to(kept)
    last, another = client._locked_folder()
    assert {kept, last} == {str(path) for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()}
    os.close(handle)
    os.close(another)


def test_a_reused_pid_is_not_killed(leader):
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    handle = Leader(gone.pid)
    gone.communicate()
    handle.pid = leader.pid  # as the kernel does when process ids wrap around
    handle.kill()
    assert leader.poll() is None
    assert leader.stdout is not None
    assert not select.select([leader.stdout], [], [], 0)[0]
