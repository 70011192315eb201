"""Test runners (scripts that reproduce a bug without Sentinel) on a checkout, in an environment with few packages."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from sentinel.records.basis import owners
from sentinel.worker.client import Options
from sentinel.worker.interpreters import contained_command

#: The name of the folder with the packages. dill, which datasets uses, recognises installed packages by this name.
SITE = "site-packages"

#: Time limit for one script in seconds. Most of the time goes into importing a framework and its packages.
TIMEOUT = 120.0

#: A program that imports torch and numpy once, and runs the script for each checkout in a fork of itself.
_TRIAL = """\
import json, os, runpy, sys
import numpy, torch

job = json.loads(sys.argv.pop())
here = os.path.dirname(os.path.abspath(__file__))
for checkout in job["checkouts"]:
    sys.stdout.flush()
    if os.fork() == 0:
        os.environ["TARGET_REPO"] = checkout
        try:
            runpy.run_path(here + "/run_validation.py", run_name="__main__")
        except SystemExit:
            pass
        print(job["mark"], flush=True)
        os._exit(0)
    os.wait()
"""

#: Environment variables that a trial sets, and the names of those that it inherits from the user.
_FLAGS = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")


def output_of(
    command: list[str],
    folder: Path,
    readable: Sequence[Path],
    environment: Mapping[str, str],
    timeout: float,
    contained: bool = True,
) -> str | None:
    """Run a Python command, and return its output (stdout and stderr), or None on a timeout.

    :param command: the interpreter and its arguments.
    :param folder: the working folder, which is also ``HOME`` and ``TMPDIR``.
    :param readable: further paths that the sandbox must contain.
    :param environment: variables in addition to the few that are copied from the user's environment.
    :param timeout: in seconds.
    :param contained: whether to run the command in the strict sandbox.
    """
    if contained:
        command = contained_command(command, folder, *readable, memory=Options.memory)
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    try:
        return subprocess.run(
            command,
            env={**passed, **_FLAGS, **environment, "HOME": str(folder), "TMPDIR": str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return None


@dataclass(frozen=True)
class Tried:
    """The result of running a runner.

    :ivar status: the status that the script printed, such as ``fixed``; empty if the script failed.
    :ivar output: the JSON that the script printed; its whole output if it failed.
    :ivar problem: why the script has no result; empty if it has one.
    """

    status: str
    output: str
    problem: str = ""


class Environment:
    """Runs scripts with only the distributions that they need. Call :meth:`close` at the end.

    :param python: another interpreter, which then uses all packages of its own environment; None for this one.
    """

    def __init__(self, python: str | None = None) -> None:
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="sentinel-", ignore_cleanup_errors=True)
        os.chmod(self._folder.name, 0o755)  # the sandbox may run as another user

    def close(self) -> None:
        self._folder.cleanup()

    def run(self, script: str, checkouts: Sequence[Path], needs: Iterable[str], contained: bool) -> list[Tried]:
        """Run a script once per checkout, and return the results in the same order.

        :param script: the text of ``run_validation.py``.
        :param needs: distributions that the script may use in addition to torch and numpy.
        :param contained: whether to run it in the strict sandbox, like a probe.
        """
        mark = secrets.token_hex(16)
        job = {"mark": mark, "checkouts": list(map(str, checkouts))}
        prefix, readable, environment = [self._python or sys.executable], [*checkouts], {}
        if self._python is None:
            packages = self._link_packages(tuple(sorted({"torch", "numpy", *needs})))
            environment["PYTHONPATH"] = str(packages)
            prefix += ["-S", "-s"]  # no site-packages
            readable += [packages]
        git = shutil.which("git")  # the script calls git to print the commit
        readable += [Path(git)] if git else []
        limit = TIMEOUT * len(checkouts)
        with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
            for name, text in {"run_validation.py": script, "trial.py": _TRIAL}.items():
                Path(folder, name).write_text(text, encoding="utf-8")
            command = [*prefix, f"{folder}/trial.py", json.dumps(job)]
            output = output_of(command, Path(folder), readable, environment, limit, contained)
        if output is None:
            return [Tried("", "", f"no result within {limit:g} s")] * len(checkouts)
        parts = output.split(mark)
        if len(parts) != len(checkouts) + 1:
            return [_broken(output)] * len(checkouts)
        return [_parse_output(part) for part in parts[:-1]]

    def _link_packages(self, names: tuple[str, ...]) -> Path:
        folder = Path(self._folder.name, "-".join(names))
        if not folder.exists():
            made = Path(tempfile.mkdtemp(dir=self._folder.name))
            made.chmod(0o755)
            (made / SITE).mkdir()
            for top, place in _installed_by(names).items():
                (made / SITE / top).symlink_to(place)
            with contextlib.suppress(OSError):  # another call created the folder first
                made.rename(folder)
        return folder / SITE


def distribution_of(package: str) -> str | None:
    """Return the installed distribution that contains a top-level module, or None."""
    return next(iter(owners().get(package, ())), None)


@cache
def _installed_by(names: tuple[str, ...]) -> dict[str, Path]:
    """Return top-level name -> path, for all that these distributions and their requirements install."""
    from packaging.requirements import Requirement

    queue, distributions, places = list(names), set[str](), dict[str, Path]()
    while queue:
        try:
            distribution = metadata.distribution(queue.pop())
        except metadata.PackageNotFoundError:  # a requirement that is not installed
            continue
        if distribution.name in distributions:
            continue
        distributions.add(distribution.name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            places[top] = Path(str(distribution.locate_file(top)))
        for line in distribution.requires or ():
            required = Requirement(line)
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                queue.append(required.name)
    return {top: place for top, place in places.items() if not top.endswith(".pth")}


def _parse_output(output: str) -> Tried:
    try:
        start = output.rindex('{\n "bug_id"')
        answer, end = json.JSONDecoder().raw_decode(output, start)
        return Tried(str(answer.get("status", "")), output[start:end], str(answer.get("reason", "")))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return _broken(output)


def _broken(output: str) -> Tried:
    return Tried("", output, output.strip().splitlines()[-1] if output.strip() else "no output")
