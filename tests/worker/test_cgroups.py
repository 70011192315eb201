"""Create, fill and remove control groups: real ones if this machine permits it, and imitations in plain folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.worker.cgroups import Groups


def hierarchy(tmp_path: Path, membership: str, *folders: str) -> Groups:
    for folder in folders:
        (tmp_path / "root" / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "membership").write_text(membership)
    return Groups(tmp_path / "root", tmp_path / "membership")


def names(place: Path) -> set[str]:
    return {file.name for file in place.iterdir()}


def test_version_one_uses_a_folder_per_controller(tmp_path):
    groups = hierarchy(tmp_path, "5:memory:/job\n4:pids:/\n1:cpu:/\n", "memory/job", "pids", "cpu")
    group = groups.make(64, 1 << 30)
    pids, memory = group.folders
    assert (pids.parent, memory.parent) == (tmp_path / "root" / "pids", tmp_path / "root" / "memory" / "job")
    assert (pids / "pids.max").read_text() == "64"
    assert (memory / "memory.limit_in_bytes").read_text() == str(1 << 30)
    assert group.bounds == {"pids", "memory"}
    group.add(7)
    assert {(folder / "cgroup.procs").read_text() for folder in group.folders} == {"7"}


def test_a_host_path_in_a_container_is_resolved(tmp_path):
    groups = hierarchy(tmp_path, "4:pids:/docker/0123\n", "pids")
    (folder,) = groups.make(64, 0).folders
    assert folder.parent == tmp_path / "root" / "pids"
    assert groups.make(64, 0).bounds == {"pids"}


def test_version_two_uses_one_folder(tmp_path):
    """Our own group has processes, so its subgroups cannot have limits. The parent group was delegated."""
    root = tmp_path / "root"
    (root / "user.slice" / "ours").mkdir(parents=True)
    (root / "user.slice" / "cgroup.subtree_control").write_text("memory pids\n")
    (root / "user.slice" / "ours" / "cgroup.subtree_control").write_text("\n")
    group = hierarchy(tmp_path, "0::/user.slice/ours\n").make(64, 1 << 30)
    (folder,) = group.folders
    assert folder.parent == root / "user.slice"
    assert names(folder) == {"pids.max", "memory.max"}


@pytest.mark.parametrize("membership", ["", "0::/\n", "4:pids:/none\n", "9:name=systemd:/\n"])
def test_no_group_is_made_without_a_writable_hierarchy(membership, tmp_path):
    group = hierarchy(tmp_path, membership).make(64, 1)
    assert (group.folders, group.bounds) == ((), frozenset())
    group.add(os.getpid())


def test_groups_of_ended_processes_are_removed(tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left, used = f"sentinel-{int(ended.stdout)}-1", f"sentinel-{os.getppid()}-1"
    hierarchy(tmp_path, "4:pids:/\n", f"pids/{left}", f"pids/{used}", "pids/sentinel-x-1", "pids/others")
    assert names(tmp_path / "root" / "pids") == {used, "sentinel-x-1", "others"}


def test_the_kernel_enforces_the_limits():
    groups = Groups()
    group = groups.make(64, 1 << 30)
    if not group.folders:
        pytest.skip("no group can be made here")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    group.add(child.pid)
    for folder in group.folders:
        assert str(child.pid) in (folder / "cgroup.procs").read_text().split()
    groups.remove()
    assert all(folder.is_dir() for folder in group.folders)  # in use
    child.communicate()
    groups.remove()
    assert not any(folder.exists() for folder in group.folders)
