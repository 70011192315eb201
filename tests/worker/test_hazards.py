"""Hostile code: however a probe ends, the reason is reported, and no process or file remains."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, Lab, copy_demo, failure, gone, returned

from sentinel.deciding.pool import contained_places
from sentinel.recipes.catalog import bundled_catalog
from sentinel.worker import client
from sentinel.worker.client import Options, Preloader, TargetProcess, WorkerError

HAZARDS = "demo_rl.hazards"


@pytest.fixture(params=["basic", "strict"])
def lab(
    request: pytest.FixtureRequest, preloader: Preloader, tmp_path: Path, offered: Callable[[str], str]
) -> Iterator[Lab]:
    """A lab under a level of containment."""
    laboratory = Lab(preloader, tmp_path, sandbox=offered(request.param))
    yield laboratory
    for process in laboratory.processes:
        process.close()


#: Hazards that strict containment prevents or hides from the test.
under_basic = pytest.mark.parametrize("lab", ["basic"], indirect=True)


@pytest.fixture
def demo(lab: Lab, tmp_path: Path) -> TargetProcess:
    return lab.open(copy_demo(tmp_path / "demo"), "demo_rl")


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "said"),
    [
        ("segfault", {}, "crash", "killed by SIGSEGV"),
        ("leave", {"status": 0}, "exit", "exited with status 0 before it answered"),
        ("leave", {"status": 3}, "exit", "exited with status 3 before it answered"),
        ("exit_politely", {"status": 4}, "exit", "called sys.exit(4)"),
        ("ask_for_too_much", {}, "memory", "out of memory"),
        ("ask_torch_for_too_much", {}, "memory", "out of memory"),
        ("grow", {}, "memory", "out of memory"),
        ("grow_in_small_pieces", {}, "memory", "out of memory"),
        ("answer_too_long", {}, "crash", "exceeds a limit"),
    ],
)
def test_a_failed_probe_reports_how_it_ended(name, arguments, kind, said, lab, demo):
    found = failure(lab.probe(demo, f"{HAZARDS}.{name}", **arguments))
    assert found.kind == kind, found
    assert said in found.reason


@under_basic
def test_a_probe_that_kills_its_parent_is_reported(lab, demo):
    """Under strict, the parent is the first process of a namespace, which cannot be killed from inside."""
    found = failure(lab.probe(demo, f"{HAZARDS}.kill_parent"))
    assert (found.kind, found.reason) == ("crash", "the target process ended while a probe ran")


def test_an_exception_has_upstreams_traceback(lab, demo):
    found = failure(lab.probe(demo, f"{HAZARDS}.fail"))
    assert (found.kind, found.reason) == ("raised", "the boundary raised ZeroDivisionError: no valid tokens")
    assert 'File "demo_rl/hazards.py"' in found.traceback
    assert "in _deeper" in found.traceback
    assert str(lab.folder) not in found.traceback
    assert found.provenance.boundary == f"{HAZARDS}.fail"


@pytest.mark.parametrize("name", ["hang", "hang_and_ignore_signals"])
def test_a_probe_that_hangs_is_ended(name, lab, tmp_path):
    process = lab.open(copy_demo(tmp_path / "demo"), "demo_rl", timeout=0.3)
    found = failure(lab.probe(process, f"{HAZARDS}.{name}"))
    assert (found.kind, found.reason) == ("timeout", "no answer within 0.3 s")
    process._options = lab.preloader.options  # an answer may take longer on a busy machine
    assert returned(lab.probe(process, f"{HAZARDS}.forge_on_stdout")) == 7


def test_a_printed_answer_is_ignored(lab, demo, capfd):
    assert returned(lab.probe(demo, f"{HAZARDS}.forge_on_stdout")) == 7
    assert capfd.readouterr() == ("", "")


def test_garbage_on_the_pipe_is_rejected(lab, demo):
    assert failure(lab.probe(demo, f"{HAZARDS}.garbage_on_every_descriptor")).kind in ("crash", "exit")
    assert returned(lab.probe(lab.open(lab.folder / "demo", "demo_rl"), f"{HAZARDS}.forge_on_stdout")) == 7


def test_a_forked_child_cannot_answer(lab, demo):
    assert [returned(lab.probe(demo, f"{HAZARDS}.return_twice")) for _ in range(5)] == [2] * 5


@under_basic
def test_children_of_a_probe_do_not_outlive_it(lab, demo, tmp_path):
    pids = tmp_path / "pids"
    assert returned(lab.probe(demo, f"{HAZARDS}.leave_children", pid_file=str(pids))) == 7
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) == 2
    assert all(gone(pid) for pid in left)


def test_global_state_does_not_leak_into_the_next_probe(lab, demo):
    before = returned(lab.probe(demo, f"{HAZARDS}.look_at_the_world"))
    assert returned(lab.probe(demo, f"{HAZARDS}.change_the_world")) == 1
    assert returned(lab.probe(demo, f"{HAZARDS}.change_the_world")) == 1
    assert returned(lab.probe(demo, f"{HAZARDS}.look_at_the_world")) == before


def test_a_probe_has_a_clean_environment(lab, demo, monkeypatch):
    world = returned(lab.probe(demo, f"{HAZARDS}.look_at_the_world"))
    assert (world["threads"], world["dynamo"], world["dtype"], world["gradients"]) == (1, "1", "float32", True)
    assert world["secret"] is None
    assert world["home"] != os.path.expanduser("~")
    assert Path(world["home"]) in (Path(world["folder"]), Path(world["folder"]).parent)
    again = returned(lab.probe(lab.open(lab.folder / "demo", "demo_rl"), f"{HAZARDS}.look_at_the_world"))
    assert (again["random"], again["normal"]) == (world["random"], world["normal"])


def test_a_checkout_is_read_only(decide, broken_tree):
    decision = decide(
        {
            **MASKED_TOKENS,
            "contract": "call",
            "boundary": f"{HAZARDS}.write_into_own_package",
            "scenario": {},
            "invariant": None,
            "expected_unpatched": {"returned": "written"},
            "expected_fixed": {"returned": "PermissionError"},
        },
        broken_tree,
    )
    for path in (decision.checkout.path, *decision.checkout.path.rglob("*")):
        assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH), path
    if os.geteuid() != 0:  # root can write to read-only files
        assert decision.verdict.name == "fixed"
    assert "\n\n\n\n" not in (broken_tree / "demo_rl" / "losses.py").read_text()


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("import ctypes; ctypes.string_at(0)", "crash", "SIGSEGV"),
        ("import os; os._exit(5)", "exit", "status 5"),
        ("raise SystemExit(6)", "exit", "sys.exit(6)"),
        ("raise ValueError('no GPU here')", "import", "the module does not import: ValueError: no GPU here"),
        ("x = bytearray(1 << 46)", "memory", "out of memory"),
        ("import time\nwhile True: time.sleep(60)", "timeout", "no answer within"),
        ("def f(:\n    pass", "import", "SyntaxError"),
    ],
)
def test_a_failed_import_reports_how_it_ended(body, kind, said, lab, monkeypatch):
    monkeypatch.setattr(client, "_GRACE", 0.0)
    tree = lab.write({"mod.py": f"{body}\ndef f():\n    return 7\n", "fine.py": "def f():\n    return 7\n"})
    timeout = 0.3 if kind == "timeout" else 30.0
    process = lab.open(tree, timeout=timeout)
    lab.load(process, "pkg.mod.f")
    if process.dead is not None:  # like the runner: the same failure then happens inside a probe
        process = lab.open(tree, timeout=timeout)
        monkeypatch.setattr(client, "_GRACE", 5.0)
    found = failure(lab.probe(process, "pkg.mod.f", False))
    assert found.kind == kind, found
    assert said in found.reason
    assert returned(lab.probe(process, "pkg.fine.f", False)) == 7


def test_a_run_continues_after_an_import_that_kills(decide, broken_tree):
    losses = broken_tree / "demo_rl" / "losses.py"
    good = losses.read_text()
    losses.write_text("import os\nos.kill(os.getpid(), 9)\n")
    verdict = decide(MASKED_TOKENS, broken_tree, sandbox="basic").verdict
    assert (verdict.name, verdict.kind) == ("inconclusive", "memory")
    losses.write_text(good)
    assert decide(MASKED_TOKENS, broken_tree, sandbox="basic").verdict.name == "reproduced"


@pytest.fixture
def own_preloader() -> Iterator[Preloader]:
    """A preloader that a test may kill."""
    preloader = Preloader(Options(timeout=30), [], contained_places(bundled_catalog()))
    yield preloader
    preloader.stop()


@pytest.mark.slow
def test_no_process_or_file_is_left_behind(own_preloader, tmp_path):
    lab = Lab(own_preloader, tmp_path, sandbox="basic")
    process = lab.open(copy_demo(tmp_path / "demo"), "demo_rl")
    pids = tmp_path / "pids"
    returned(lab.probe(process, f"{HAZARDS}.leave_children", pid_file=str(pids)))
    scratch = Path(returned(lab.probe(process, f"{HAZARDS}.look_at_the_world"))["home"])
    preloader_pid = own_preloader.hello()["pid"]
    assert scratch.is_dir()
    own_preloader.stop()
    assert all(gone(pid) for pid in (preloader_pid, process._leader.pid, *map(int, pids.read_text().split())))
    assert not scratch.exists()
    own_preloader.stop()
    with pytest.raises(WorkerError, match="has been stopped"):
        own_preloader.target(_checkout(tmp_path / "demo"), ("demo_rl",))


@pytest.mark.slow
def test_a_dead_preloader_is_replaced_with_its_processes(own_preloader, tmp_path):
    lab = Lab(own_preloader, tmp_path)
    process = lab.open(copy_demo(tmp_path / "demo"), "demo_rl")
    assert returned(lab.probe(process, f"{HAZARDS}.forge_on_stdout")) == 7
    first = own_preloader.hello()["pid"]
    os.kill(first, signal.SIGKILL)
    assert gone(process._leader.pid)
    found = failure(lab.probe(process, f"{HAZARDS}.forge_on_stdout"))
    assert (found.kind, "target process ended" in found.reason) == ("crash", True)
    again = lab.open(tmp_path / "demo", "demo_rl")
    assert returned(lab.probe(again, f"{HAZARDS}.forge_on_stdout")) == 7
    assert own_preloader.hello()["pid"] != first


def test_an_interpreter_without_torch_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # -S: no site-packages, so no torch
    python.chmod(0o755)
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
        pytest.skip("this interpreter has torch outside site-packages")
    preloader = Preloader(Options(python=str(python), sandbox="basic"))  # under strict no script is started
    with pytest.raises(WorkerError, match=r"has no (torch|numpy); install"):
        preloader.hello()
    preloader.stop()


def test_a_missing_interpreter_is_reported(tmp_path):
    preloader = Preloader(Options(python=str(tmp_path / "nothing")))
    with pytest.raises(WorkerError, match=r"cannot start .*nothing"):
        preloader.hello()
    preloader.stop()


def _checkout(tree: Path) -> Any:
    from sentinel.targets.checkout import Checkout
    from sentinel.targets.refs import Ref

    return Checkout("demo", Ref("path", str(tree)), tree, ("demo_rl",), (tree,), "0" * 64)
