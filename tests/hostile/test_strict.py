"""One attack for each promise of strict containment, compared with basic containment."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attacks import ATTACKS
from demo_kit import SECRETS, returned

from sentinel.recipes.catalog import bundled
from sentinel.worker import client, syscalls
from sentinel.worker.cgroups import Groups
from sentinel.worker.client import Options, Preloader
from sentinel.worker.containment import may_be_others, reason_against
from sentinel.worker.limits import USERS

#: No such file, read-only file system, permission denied, no such process, not a folder.
REFUSED = {"FileNotFoundError 2", "OSError 30", "PermissionError 13", "ProcessLookupError 3", "NotADirectoryError 20"}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user, outside the checkout."""
    file = tmp_path / "home" / ".ssh" / "id_ed25519"
    file.parent.mkdir(parents=True)
    file.write_text("key")
    return file


@pytest.fixture
def neighbour() -> Iterator[int]:
    """Another process of the user."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_files_of_the_user_are_absent(strict, basic, secret):
    for act in ("read", "write", "delete"):
        assert strict(act, path=str(secret)) == "FileNotFoundError 2"
    assert secret.read_text() == "key"
    # Basic containment does not promise this: the process can read whatever the user can read.
    assert basic("read", path=str(secret)) == "done"
    assert basic("write", path=str(secret)) == "done"


def test_expectations_and_other_checkouts_are_absent(strict, basic, tmp_path):
    recipe = next(bundled("recipes").glob("*/*.yaml"))
    other = tmp_path / "checkouts" / "other" / "tree" / "loss.py"
    other.parent.mkdir(parents=True)
    other.write_text("")
    for file in (recipe, other):
        assert strict("read", path=str(file)) == "FileNotFoundError 2"
        assert basic("read", path=str(file)) == "done"


def test_visible_files_cannot_be_changed(strict, tmp_path):
    own = tmp_path / "lab" / "tree" / "pkg" / "attacks.py"
    before = own.read_bytes()
    for file in (
        own,
        Path(sys.prefix) / "attacked",
        bundled("adapters") / "demo.py",
        Path("/attacked"),
        Path("/etc/passwd"),
    ):
        assert strict("write", path=str(file)) in REFUSED, file
    assert strict("delete", path=str(own)) in REFUSED
    assert own.read_bytes() == before


def test_the_scratch_folder_is_writable_and_removed(strict):
    assert strict("write", path="notes") == "done"
    assert strict("write", path="/tmp/notes") == "done"
    assert not Path("/tmp/notes").exists()


def test_the_root_has_only_the_needed_folders(strict):
    assert strict("listed", path="/dev") == ["null", "random", "urandom", "zero"]
    assert set(strict("listed", path="/etc")) <= {"ld.so.cache", "passwd"}
    assert strict("device") in ("PermissionError 1", "PermissionError 13")


def test_gpu_devices_are_visible_when_requested(lab, strict, monkeypatch):
    monkeypatch.setattr(client.glob, "glob", lambda pattern: ["/dev/full"] if pattern == "/dev/nvidia*" else [])
    process = lab.open(lab.folder / "tree", sandbox="strict", device="cuda")
    process._options = replace(process._options, device="cpu")  # without a GPU
    assert returned(lab.probe(process, "pkg.attacks.listed", path="/dev")) == [
        "full",
        "null",
        "random",
        "urandom",
        "zero",
    ]


def test_strict_is_the_default_on_a_gpu_too():
    levels = [Preloader(Options(device="cuda", sandbox=level)).sandbox for level in ("basic", "strict", "off")]
    assert levels == ["basic", "strict", "off"]
    preloader = Preloader(Options(device="cuda"))
    try:
        assert preloader.sandbox == ("strict" if reason_against() is None else "basic")
    finally:
        preloader.stop()


def test_there_is_no_network(strict, basic):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert strict("connect", port=port) == "OSError 101"  # network is unreachable
        assert basic("connect", port=port) == "done"  # not promised
    assert strict("listen") != "done"


def test_abstract_sockets_are_absent(strict, basic):
    name = f"sentinel-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        assert strict("abstract", name=name) == "ConnectionRefusedError 111"
        assert basic("abstract", name=name) == "done"  # not promised


def test_other_processes_are_invisible(strict, basic, neighbour):
    for pid in (neighbour, os.getpid()):
        assert strict("send_signal", pid=pid) == "ProcessLookupError 3"
        assert strict("read", path=f"/proc/{pid}/environ") in REFUSED
    assert strict("attach", pid=neighbour) in ("No such process", "Operation not permitted")
    assert basic("send_signal", pid=neighbour) == "done"  # not promised
    assert neighbour not in strict("everybody")


def test_no_privileges_remain(strict):
    told = strict("privileges")
    assert told.pop("NoNewPrivs") == 1
    bounding = told.pop("CapBnd")
    assert set(told.values()) == {0}
    if may_be_others():
        assert bounding == 0
        user, group, groups = strict("user")
        assert user == group
        assert (user in USERS, groups) == (True, 0)
    else:
        assert strict("user")[0] == os.geteuid()
    assert strict("mount", where="here") == "Operation not permitted"


#: Harmless calls, and their result without a filter.
CALLS = {"keyctl": (0, -3, 0), "process_vm_readv": (0, 0, 0, 0, 0, 0), "io_uring_setup": (0, 0), "unshare": (0,)}
CALLS |= {"move_pages": (0, 0, 0, 0, 0, 0), "personality": (0,), "inotify_init1": (0,)}
CALLS["prctl"] = (1, 0)  # do not end with the parent


def test_rarely_needed_system_calls_are_refused(strict, basic):
    pyseccomp = pytest.importorskip("pyseccomp")
    for name, arguments in CALLS.items():
        call = [pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name), *arguments]
        refused = "Function not implemented" if name in syscalls.ABSENT else "Operation not permitted"
        assert strict("system_call", call=call) == refused
        assert basic("system_call", call=call) != refused, name


def test_sockets_that_leave_the_namespace_are_refused(strict):
    pytest.importorskip("pyseccomp")
    for family in (16, 17, 38, 40):  # AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK
        assert strict("open_socket", family=family) in ("OSError 97", "PermissionError 1")
    for family in (1, 2, 10):
        assert strict("open_socket", family=family) == "done"


def test_socket_pairs_are_limited_to_one_family(strict, basic):
    pytest.importorskip("pyseccomp")
    assert [strict("open_pair", family=family) for family in (1, 2, 10, 30, 31, 40)] == [
        "done", *["Address family not supported by protocol"] * 5
    ]  # fmt: skip
    assert basic("open_pair", family=1) == "done"


def test_locks_carry_no_information_between_processes(strict, basic, lab):
    """The two processes that answer a request and its repetition share the checkout's files."""
    pytest.importorskip("pyseccomp")
    file = str(lab.folder / "tree" / "pkg" / "attacks.py")
    assert strict("locks", path=file) == ["done"] * 4 + ["PermissionError 1"]
    assert basic("locks", path=file) == ["done", "BlockingIOError 11", "done", "done", "done"]


def test_the_machine_name_is_hidden(strict):
    here = {os.uname().nodename, Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
    assert not here & set(strict("names_of_the_machine"))


def test_children_cannot_create_namespaces(strict, basic):
    """In a namespace they would have capabilities, and access to parts of the kernel that only root has otherwise."""
    assert strict("new_user_namespace") == "Operation not permitted"
    if os.geteuid() == 0:
        assert basic("new_user_namespace") == "done"


def test_a_fork_bomb_ends(strict):
    assert 0 < strict("fork_bomb", most=300) < 256
    assert strict("fork_bomb", most=3) == 3  # nothing is left of the previous call


def test_a_daemon_ends_with_its_probe(strict):
    before = strict("everybody")
    assert strict("daemon") == "done"
    assert len(strict("everybody")) == len(before)


def test_every_process_has_limits(strict, basic):
    for attack in (strict, basic):
        limits = attack("limits")
        assert limits.pop("RLIMIT_CORE") == 0
        assert all(0 < most < 1 << 40 for most in limits.values()), limits
    assert strict("raise_limits") == "ValueError"


def test_processes_have_a_common_limit(lab, strict, basic):
    """Five children use 400 MB each; one process may use 1.5 GB."""
    if not {"pids", "memory"} <= {folder.parts[4] for folder in Groups().make(1, 1).folders}:
        pytest.skip("no control group can be made here")
    if torch.version.cuda:
        pytest.skip("torch with CUDA maps more memory than a process may have here")
    for level, some_are_killed in (("strict", True), ("basic", False)):  # not promised under basic
        process = lab.open(lab.folder / "tree", sandbox=level, memory=1536 << 20)
        children, killed = returned(lab.probe(process, "pkg.attacks.fill_memory", children=5, megabytes=400))
        assert (children, killed > 0) == (5, some_are_killed)


def test_only_the_answer_leaves_the_process(strict, basic):
    for attack in (strict, basic):
        assert attack("descriptors") == ["/dev/null", "pipe"]


def test_file_sizes_are_limited(strict):
    assert strict("big_file", megabytes=1100) <= 1024


def test_the_scratch_folder_has_a_size_limit(strict):
    assert strict("fill_scratch", files=3, megabytes=600) == 1
    assert strict("fill_scratch", files=3, megabytes=600) in (0, 1)  # the previous probe's file is there


def test_other_processes_cannot_be_signalled(strict):
    assert strict("kill_everybody") == 0


@pytest.mark.usefixtures("_strict_is_to_be_had")
@pytest.mark.parametrize("level", ["basic", "strict"])
def test_a_process_that_hangs_in_the_kernel_is_killed(level, lab):
    process = lab.open(lab.write({"attacks.py": ATTACKS}), sandbox=level, timeout=0.5)
    answer = lab.probe(process, "pkg.attacks.hang_in_c")
    assert answer.kind == "timeout"
    process._options = replace(process._options, timeout=30.0)  # an answer may take longer on a busy machine
    assert returned(lab.probe(process, "pkg.attacks.system_call", call=[39])) == "done"  # the next probe works


def test_the_environment_has_no_secrets(strict, basic):
    for attack in (strict, basic):
        assert not set(attack("environment")) & set(SECRETS)
