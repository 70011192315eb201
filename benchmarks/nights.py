"""Run the shell steps of the nightly workflow for several past days, on mirrors that are reset to each day.

    python benchmarks/nights.py FOLDER FIRST_DAY NIGHTS [--targets slime,roll] [--longest SECONDS]

FOLDER gets a clean clone of this repository, a Sentinel home, and copies of the mirrors. In these copies, the branch
ends with the last commit of the day, and later tags are removed. The day before FIRST_DAY runs too, because each night
is compared with the previous one. After each night, its evidence is accepted as the new baseline. --longest replaces
the time limits of the workflow (`timeout`). For each night, one line lists the steps that failed, the lines of the
summary with numbers, and the time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import yaml

from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import MirrorStore

ROOT = Path(__file__).resolve().parent.parent
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def put_back(seed: Path, mirror: Path, day: date) -> str:
    """Reset a copy of a mirror to the end of a day: its branch, and the tags that existed by then.

    :param seed: the copy, which is made if it does not exist.
    :return: the last commit of the branch on that day.
    """
    if not seed.exists():
        git(mirror.parent, "clone", "-q", "--mirror", "--shared", str(mirror), str(seed))
    until = f"{day.isoformat()}T23:59:59Z"
    branch = git(seed, "symbolic-ref", "HEAD")
    last = git(seed, "rev-list", "-1", "--first-parent", f"--before={until}", git(mirror, "rev-parse", branch))
    git(seed, "update-ref", branch, last)
    for line in git(mirror, "for-each-ref", "--format=%(refname) %(objectname) %(creatordate:unix)", "refs/tags").split(
        "\n"
    ):
        name, sha, seconds = line.split()
        there = float(seconds) < time.mktime((day + timedelta(1)).timetuple())
        git(seed, "update-ref", *([name, sha] if there else ["-d", name]))
    return last


def tools(folder: Path, longest: int) -> Path:
    folder.mkdir(parents=True)
    for name, module in {"python": "", "pytest": "-m pytest", "sentinel": "-m sentinel.cli"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
    (folder / "timeout").write_text(f'#!/bin/sh\nshift 2\nexec /usr/bin/timeout --signal=INT {longest} "$@"\n')
    for file in folder.iterdir():
        file.chmod(0o755)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("first", type=date.fromisoformat)
    parser.add_argument("nights", type=int)
    parser.add_argument("--targets", default="slime")
    parser.add_argument("--longest", type=int, default=60)
    options = parser.parse_args()
    folder, store, catalog = options.folder.resolve(), MirrorStore(), bundled_catalog()
    copy = folder / "repository"
    git(ROOT, "clone", "-q", "--shared", str(ROOT), str(copy))
    job = yaml.safe_load((copy / ".github/workflows/nightly.yml").read_text())["jobs"]["upstream-main"]
    steps = [
        step
        for step in job["steps"]
        if "run" in step and "pip install" not in step["run"] and "sysctl" not in step["run"]
    ]
    environment = {
        "PATH": f"{tools(folder / 'bin', options.longest)}:{os.environ['PATH']}",
        "HOME": str(folder / "user"),
        "PYTHONPATH": str(copy),
        "RUNNER_TEMP": str(folder / "temp"),
        "SENTINEL_HOME": str(folder / "home"),
        "SENTINEL_MIRROR_SEED": str(folder / "seeds"),
        "TARGETS": options.targets,
    }
    for name in ("user", "temp", "seeds"):
        (folder / name).mkdir()
    for night in range(-1, options.nights):
        day = options.first + timedelta(night)
        heads = {
            name: put_back(folder / "seeds" / name, store.path(catalog.targets[name].name), day)
            for name in options.targets.split(",")
        }
        summary = folder / f"summary-{day}.md"
        summary.touch()
        began, failed = time.monotonic(), {}
        for step in steps:
            assert not EXPRESSION.search(step["run"])
            finished = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                env={**environment, "GITHUB_STEP_SUMMARY": str(summary)},
                cwd=copy,
                capture_output=True,
                text=True,
                check=False,
            )
            (folder / f"{day}.log").open("a").write(f"## {step['name']}\n{finished.stdout}{finished.stderr}\n")
            if finished.returncode:
                failed[step["name"]] = finished.returncode
        accepted = [str(folder / "bin" / "sentinel"), "report", "accept", "--from", "nightly"]
        subprocess.run(accepted, env=environment, cwd=copy, capture_output=True, check=False)
        said: dict[str, Any] = {"night": str(day), "main": heads, "failed": failed}
        said["numbers"] = re.findall(r"^(\w+ from git:.*)$", summary.read_text(), re.M)
        said["pulls"] = re.findall(r"^(.* open pull requests?: .*)$", summary.read_text(), re.M)
        print(json.dumps({**said, "seconds": round(time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
