"""Implement ``sentinel doctor``, which checks the installation: packages, worker process, git and sandbox."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import sentinel
from sentinel.commands.console import Commands, command, echo, echo_json, echo_table, json_option, progress, size
from sentinel.commands.mirror import state
from sentinel.commands.options import DISTRIBUTION, catalog_and_settings
from sentinel.errors import INSTALL, SentinelError
from sentinel.recipes import catalog
from sentinel.records.basis import list_owners
from sentinel.run.selection import why_not_writable
from sentinel.settings import Settings, read_file
from sentinel.sources import Home, MirrorStore
from sentinel.worker import client, interpreters, syscalls
from sentinel.worker.cgroups import Groups
from sentinel.worker.containment import reason_against

GROUP = "begin"
SUMMARY = "check that everything that a run needs is installed"

_EXAMPLE = """\
  sentinel doctor          each requirement: ok, note (optional) or missing, with advice
  sentinel doctor --json

exit status: 1 if something is missing that every run needs
"""
_LITTLE = 2_000_000_000
_WAIT = 120

#: This code runs in a separate process, because torch must not initialise CUDA here or in a process that forks.
_DEVICES = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps(names))
"""


@dataclass(frozen=True)
class Check:
    """The result of checking one requirement.

    :ivar state: ``ok``, ``note`` (optional) or ``missing`` (every run needs it).
    :ivar advice: what to do; empty if nothing needs to be done.
    """

    name: str
    found: str
    advice: str = ""
    state: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", self.state or ("note" if self.advice else "ok"))


def declare(commands: Commands) -> None:
    parser = command(commands, "doctor", _doctor, SUMMARY, _EXAMPLE)
    json_option(parser)


def _doctor(arguments: argparse.Namespace) -> int:
    with progress() as notify:
        notify("starting the worker")
        parts = (_python, _worker, _extras, _git, _home, _mirrors, _names, _settings, _device)
        checks = [check for part in parts for check in part()]
    if arguments.json:
        echo_json([asdict(check) for check in checks])
    else:
        echo_table(("", "", "", ""), [(check.state, check.name, check.found, check.advice) for check in checks])
    missing = [check.name for check in checks if check.state == "missing"]
    if not arguments.json:
        if missing:
            echo(f"missing: {', '.join(missing)}")
        echo(f"next: {_next_step(checks)}")
    return 1 if missing else 0


def _next_step(checks: Sequence[Check]) -> str:
    for check in checks:
        if check.state == "missing":
            return f"{check.advice}; then run `sentinel doctor` again"
    mirrors = [mirror.target for mirror in MirrorStore().list() if mirror.whole]
    if mirrors:
        target = mirrors[0]
        return f"`pytest --sentinel-target={target}` checks {target} for known bugs; `sentinel` lists all commands"
    target = _with_most_recipes()
    run = f"`pytest --sentinel-target={target}` checks its releases on PyPI for known bugs"
    return f"{run}; to check any commit, run `sentinel mirror add {target}` first"


def _with_most_recipes() -> str:
    bundled = catalog.bundled_catalog()

    def count(name: str) -> int:
        return sum(1 for folder in bundled.recipe_folders for _ in (folder / name).glob("*.yaml"))

    return max(bundled.targets, key=count)


def _python() -> Iterator[Check]:
    yield Check("sentinel", f"{sentinel.__version__} in {Path(sentinel.__file__).resolve().parent}")
    advice = "" if sys.version_info >= (3, 10) else "use 3.10 or newer"
    yield Check("python", platform.python_version(), advice, "missing" if advice else "ok")
    if hasattr(os, "fork"):
        yield Check("fork", "available")
    else:
        yield Check("fork", "none", "use Linux, or WSL", "missing")


def _worker() -> Iterator[Check]:
    """Start a worker process, and report the versions of torch and numpy in it, or why it does not start."""
    preload = [name for target in catalog.bundled_catalog().targets.values() for name in target.preload]
    preloader = client.Preloader(client.Options(), preload)
    try:
        hello = preloader.hello()
    except client.WorkerError as error:
        for name in ("torch", "numpy"):
            if version := _version(name):
                yield Check(name, version, state="note")
            else:
                yield Check(name, "not installed", f"pip install {name}", "missing")
        yield Check("worker", str(error), "run `python -c 'import torch, numpy'` and fix its error", "missing")
        return
    finally:
        preloader.stop()
    yield Check("torch", hello["torch"])
    yield Check("numpy", hello["numpy"])
    yield Check("worker", "starts")


def _extras() -> Iterator[Check]:
    """Check the packages of the extra ``targets``, which frameworks import. Without them, some recipes cannot run."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Check("targets extra", f"{DISTRIBUTION} was not installed by pip", "pip install .")
        return
    lacking, there = [], []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or not re.search(r"extra\s*==\s*['\"]targets['\"]", line):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            lacking.append(f"{requirement.name}{requirement.specifier}{f' (installed: {version})' if version else ''}")
        else:
            there.append(f"{requirement.name} {version}")
    text = f"without {', '.join(lacking)}" if lacking else ", ".join(there)
    yield Check("targets extra", text, INSTALL.format("targets") if lacking else "")


def _git() -> Iterator[Check]:
    advice = "install git 2.30 or newer; without git, only pypi:, path: and installed refs can be checked"
    place = shutil.which("git")
    if place is None:
        yield Check("git", "not on PATH", advice)
        return
    try:
        version = subprocess.run([place, "--version"], capture_output=True, text=True, timeout=_WAIT, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        yield Check("git", f"does not run: {error}", advice)
        return
    numbers = re.search(r"(\d+)\.(\d+)", version)
    old = numbers is not None and tuple(map(int, numbers.groups())) < (2, 30)
    yield Check("git", version.strip(), advice if old else "")


def _home() -> Iterator[Check]:
    home = Home.default().path
    trouble = why_not_writable(home)
    if trouble:
        advice = "set SENTINEL_HOME to a folder that you can write"
        yield Check("SENTINEL_HOME", f"{home} is not writable: {trouble}", advice, "missing")
        return
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    advice = "free some space; `sentinel cache prune` removes old checkouts" if free < _LITTLE else ""
    yield Check("SENTINEL_HOME", f"{home}, {size(free)} free", advice)


def _mirrors() -> Iterator[Check]:
    mirrors = {mirror.target: mirror for mirror in MirrorStore().list()}
    good = [name for name, mirror in mirrors.items() if mirror.whole]
    lacking = [name for name in sorted(catalog.bundled_catalog().targets) if name not in good and name != "demo"]
    advice = f"run `sentinel mirror add {lacking[0]}` to check its git refs" if lacking else ""
    names = ", ".join(good) or "none"
    yield Check("mirrors", f"{names}; not {', '.join(lacking)}" if lacking else names, advice)
    for name, mirror in mirrors.items():
        if state(mirror):
            yield Check(f"mirror {name}", state(mirror), state="note")


def _names() -> Iterator[Check]:
    """Check that no other installed project has files in the package ``sentinel``."""
    owners = list_owners().get("sentinel", [])
    others = sorted({name for name in owners if canonicalize_name(name) != DISTRIBUTION})
    if others:
        advice = f"pip uninstall {' '.join(others)}, then reinstall {DISTRIBUTION}"
        yield Check("import name", f"`sentinel` also contains files of {', '.join(others)}", advice, "missing")
    else:
        yield Check("import name", "`sentinel` contains only files of this project")


def _settings() -> Iterator[Check]:
    try:
        file = read_file(Path.cwd())[1]
        settings = catalog_and_settings()[1]
    except SentinelError as error:
        yield Check("settings", str(error), "fix the file", "missing")
        settings, file = Settings(), None
    else:
        yield Check("settings", file.name if file else "no file in this folder; the defaults apply")
    yield from _sandbox(settings.sandbox)


#: Descriptions of the levels of containment.
_LEVELS = {
    "strict": "separate file system, process tree and network; no privileges, no access to your files",
    "basic": "clean environment, limits on memory and time, a process for each probe",
    "off": "your environment, no limits",
}


def _sandbox(chosen: str) -> Iterator[Check]:
    reason = reason_against()
    level = chosen or ("strict" if reason is None else "basic")
    yield Check("sandbox", f"{level}{'' if chosen else ' (default)'}: {_LEVELS[level]}")
    if reason is not None:
        advice = "run untrusted pull requests on another machine: `basic` does not protect against malicious code"
        state = "missing" if chosen == "strict" else "note"
        yield Check("strict sandbox", f"not available: {reason}", advice, state)
        return
    yield Check("strict sandbox", "available")
    try:
        syscalls.program()
        yield Check("system call filter", f"{len(syscalls.REFUSED) + len(syscalls.ABSENT)} calls are refused")
    except syscalls.NoFilterError as error:
        fix = "optional: pip install pyseccomp, and install the system's libseccomp (Debian: libseccomp2)"
        yield Check("system call filter", f"not available: {error}", fix)
    groups = Groups()
    missing = sorted({"pids", "memory"} - groups.make(1, 1 << 30).bounds)
    groups.remove()
    if missing:
        advice = "without control groups, limits apply to each process separately"
        yield Check("control groups", f"none for {' and '.join(missing)}", advice)
    else:
        yield Check("control groups", "a target's processes share limits on their number and memory")
    reason = interpreters.reason_against()
    if reason is None:
        yield Check("other interpreters", "start in containment (--sentinel-python, --python)")
    else:
        fix = "use --sentinel-python only with environments whose code you trust"
        yield Check("other interpreters", f"not contained while they start: {reason}", fix)


def _device() -> Iterator[Check]:
    try:
        names = interpreters.ask(None, "-I", "-c", _DEVICES)
    except interpreters.InterpreterError:  # the check of the worker has already reported this
        names = []
    yield Check("devices", f"cpu; cuda: {', '.join(names)}" if names else "cpu; no CUDA device")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
