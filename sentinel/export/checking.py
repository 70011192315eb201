"""Exported files tried out: on the real checkout, in a process that cannot see Sentinel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkout import Checkout
from sentinel.worker import walls
from sentinel.worker.client import Options
from sentinel.worker.contained import contained_command

#: Seconds for one script; importing a framework with its packages takes most of it.
TIMEOUT = 120.0

_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([A-Za-z0-9_]+)", re.MULTILINE)


@dataclass(frozen=True)
class Tried:
    """What a script did.

    :ivar status: what a runner prints as its status, ``passed`` or ``failed`` of a test, or empty where it broke down.
    :ivar output: standard output.
    :ivar missing: a package without which it cannot be imported.
    """

    status: str
    output: str
    problem: str = ""
    missing: str = ""


def run(script: str, checkout: Checkout, python: str | None = None, contained: bool = False) -> Tried:
    """Run a runner on a checkout.

    :param contained: whether strictly contained, as what it imports is when Sentinel itself measures.
    """
    with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
        Path(folder, "run_validation.py").write_text(script, encoding="utf-8")
        finished = _process([f"{folder}/run_validation.py"], folder, checkout, python, contained)
    if isinstance(finished, str):
        return Tried("", "", finished)
    printed = finished.stdout[max(finished.stdout.rfind('{\n  "bug_id"'), 0) :]  # the target may have printed before
    try:
        status = str(json.loads(printed)["status"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return _broken(finished)
    return Tried(status, printed)


def run_test(
    name: str, text: str, setting: str, checkout: Checkout, python: str | None = None, contained: bool = False
) -> Tried:
    """Run a regression test on a checkout.

    :param setting: what a runner does before it imports the target; on upstream's machines nothing of it is needed.
    """
    with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
        Path(folder, "conftest.py").write_text(setting, encoding="utf-8")
        Path(folder, name).write_text(text, encoding="utf-8")
        quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:sentinel", "--tb=short"]
        command = ["-m", "pytest", *quiet, f"--rootdir={folder}", f"{folder}/{name}"]
        finished = _process(command, folder, checkout, python, contained)
    if isinstance(finished, str):
        return Tried("", "", finished)
    if finished.returncode not in (0, 1):
        return _broken(finished)
    return Tried("passed" if finished.returncode == 0 else "failed", finished.stdout)


def _process(
    command: list[str], folder: str, checkout: Checkout, python: str | None, contained: bool
) -> subprocess.CompletedProcess[str] | str:
    command = [python or sys.executable, *command]
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    # A script's own folder is its sys.path[0]; nothing else of this process is seen, Sentinel's source tree included.
    environment |= {"TARGET_REPO": str(checkout.path), "HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    if contained:
        git = shutil.which("git")  # a runner asks it for the commit
        readable = [checkout.path, *([Path(git)] if git else [])]
        command = contained_command(command, Path(folder), *readable, memory=Options.memory)
        if python is not None:
            command = walls.walled(command, [folder, *map(str, readable)])
    try:
        return subprocess.run(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT:g} s"


def _broken(finished: subprocess.CompletedProcess[str]) -> Tried:
    said = (finished.stdout + finished.stderr).strip()
    missing = _MISSING.search(said) or re.search(r"No module named '([A-Za-z0-9_]+)", said)
    last = said.splitlines()[-1] if said else f"it ended with status {finished.returncode} and said nothing"
    return Tried("", finished.stdout, last, missing.group(1) if missing else "")
