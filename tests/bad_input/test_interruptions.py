"""Runs in separate processes that a signal ends. ``test_plugin_processes.py`` tests Ctrl-C."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, copy_demo, write_recipe

from sentinel.reports.store import files, load

PYTEST = [
    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
    *("--sentinel-target=demo", "--sentinel-recipes=good", "--sentinel-laws=off"),
]
LONG = 120

#: Writes to a pipe when an item begins. The previous item's evidence exists by then.
CONFTEST = """
import os
def pytest_runtest_logstart(nodeid):
    os.write(int(os.environ["BEGUN"]), nodeid.encode() + b"\\n")
"""


@pytest.fixture
def begun(here: Path) -> Iterator[tuple[int, int]]:
    (here / "conftest.py").write_text(CONFTEST)
    read, write = os.pipe()
    yield read, write
    os.close(read)


def _wait_for(read: int, text: bytes) -> None:
    said = b""
    while text not in said:
        assert select.select([read], [], [], LONG)[0], f"nothing came but {said!r}"
        part = os.read(read, 4096)
        assert part, f"the run ended after {said!r}"
        said += part


def _left_behind(scratch: Path) -> list[str]:
    """Return the processes of this run's worker: their environment names its scratch folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(scratch).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_valid_files(number, here, tmp_path, fixed_tree, begun):
    """The second item hangs. The first item's evidence is complete, and no worker process is left."""
    tree = copy_demo(tmp_path / "hanging", "fixed")
    slow = MASKED_TOKENS["boundary"].replace("agg_loss", "slow_loss")
    losses = tree / "demo_rl" / "losses.py"
    losses.write_text(losses.read_text() + "\n\ndef slow_loss(**anything):\n    import time\n    time.sleep(600)\n")
    call = {"contract": "call", "boundary": slow, "invariant": None, "scenario": {"arguments": {}}}
    values = {"expected_unpatched": {"returned": 1}, "expected_fixed": {"returned": 2}}
    write_recipe(here / "good", MASKED_TOKENS, bug_id="DEMO-SLOW", **call, **values)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    read, write = begun
    environment = {**os.environ, "TMPDIR": str(scratch), "BEGUN": str(write)}
    run = subprocess.Popen(
        [*PYTEST, f"--sentinel-repo={tree}", "--sentinel-timeout=5"],
        cwd=here, env=environment, pass_fds=[write], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    os.close(write)
    _wait_for(read, b"DEMO-SLOW")
    assert _left_behind(scratch) != []
    run.send_signal(number)
    said, _ = run.communicate(timeout=LONG)
    if number == signal.SIGTERM:  # the signal that a time limit sends
        assert run.returncode == pytest.ExitCode.INTERRUPTED
        assert "= sentinel =" in said
        assert "1 fixed" in said
    _wait_until_gone(scratch)
    assert list(scratch.iterdir()) == []
    assert "INTERNALERROR" not in said
    (evidence,) = files(here / "sentinel-reports")
    assert load(evidence)["verdict"] == "fixed"
    assert [file for file in (here / "sentinel-reports").rglob("*") if file.suffix == ".tmp"] == []
    again = subprocess.run([*PYTEST, f"--sentinel-repo={fixed_tree}", "--sentinel-bug=DEMO-M*"], cwd=here,
                           env={**os.environ, "BEGUN": "1"}, check=False, capture_output=True)  # fmt: skip
    assert again.returncode == 0, again.stdout


def _wait_until_gone(scratch: Path) -> None:
    """Wait until the worker has ended, which it does when its socket closes."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(scratch).encode() not in (process / "environ").read_bytes():
                continue
            handle = os.pidfd_open(int(process.name))
        except OSError:
            continue
        try:
            assert select.select([handle], [], [], LONG)[0], process
        finally:
            os.close(handle)
    assert _left_behind(scratch) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_gate_lists_what_was_not_compared(number, here, fixed_tree, tmp_path, begun):
    """The first boundary hangs, so nothing has been compared when the signal arrives."""
    head = copy_demo(tmp_path / "head", "fixed")
    losses = head / "demo_rl" / "losses.py"
    losses.write_text(losses.read_text().replace("    return ", "    import time\n    time.sleep(600)\n    return ", 1))
    read, write = begun
    run = subprocess.Popen(
        [*PYTEST[:5], "--sentinel-target=demo", f"--sentinel-repo={head}", f"--sentinel-against=path:{fixed_tree}"],
        cwd=here, env={**os.environ, "BEGUN": str(write)}, pass_fds=[write], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    os.close(write)
    _wait_for(read, b"agg_loss")
    run.send_signal(number)
    said, _ = run.communicate(timeout=LONG)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    assert "sentinel: the run was interrupted" in said
    assert "KeyboardInterrupt" not in said
    assert "not compared, because the run ended first: demo_rl.losses.agg_loss" in said
    assert "no signal line changed" not in said
