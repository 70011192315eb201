"""Check each page of ``findings/`` as its receiver would: run its test and its runner without and with its patch.

    python benchmarks/pages.py --mirrors ~/.cache/sentinel/mirrors --python PYTHON --python nemorl=OTHER [BUG ...]

The only inputs are the page's folder and a clone of upstream at the page's commit. Each PYTHON needs pytest, torch and
the framework's own requirements.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

FINDINGS = Path(__file__).parent.parent / "findings"
LIMIT = 900  # seconds for one command
IDENTITY = ("-c", "user.name=tester", "-c", "user.email=tester@example.invalid")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bugs", nargs="*", metavar="BUG")
    parser.add_argument("--mirrors", type=Path, required=True, help="folder of <target>.git")
    parser.add_argument("--python", action="append", default=[], metavar="[TARGET=]PYTHON")
    parser.add_argument("--runner-python", default=sys.executable, help="has torch and numpy, and nothing else")
    parser.add_argument("--noconftest", action="append", default=[], metavar="TARGET", help="ignore its conftest.py")
    parser.add_argument("--logs", type=Path, help="write pytest's output into this folder")
    options = parser.parse_args()
    pythons = dict(each.split("=", 1) if "=" in each else ("", each) for each in options.python)
    pages = [page.parent for page in sorted(FINDINGS.glob("*/*/PULL_REQUEST.md"))]
    chosen = [page for page in pages if not options.bugs or page.name in options.bugs]
    if not chosen:
        print("nothing was examined: no such page", file=sys.stderr)
        return 2
    print("| page | `git am` | test before → after | runner before → after |\n| --- | --- | --- | --- |")
    failures = 0
    for page in chosen:
        target = page.parent.name
        python = str(pythons.get(target) or pythons.get("") or sys.executable)
        with tempfile.TemporaryDirectory() as folder:
            applied, test, runner = try_page(
                page,
                options.mirrors / f"{target}.git",
                Path(folder),
                [python, options.runner_python],
                target in options.noconftest,
                options.logs,
            )
        good = applied == "ok" and test[0].startswith("1:") and test[1].startswith("0:")
        good = good and runner in ([], ["1", "0"])
        failures += not good
        shown = [applied, " → ".join(test), " → ".join(runner) or "none"]
        print(f"| {page.name} | {' | '.join(shown)} |{'' if good else ' **no**'}", flush=True)
    print(f"\n{len(chosen) - failures} of {len(chosen)} pages hold")
    return 1 if failures else 0


def try_page(
    page: Path, mirror: Path, folder: Path, pythons: list[str], noconftest: bool, logs: Path | None
) -> tuple[str, list[str], list[str]]:
    """Return ("ok" or why the patch does not apply, pytest's results, the runner's exit statuses).

    The lists have one entry without the patch and one with it.

    :param pythons: the interpreter for pytest, and the one for the runner.
    """
    clone = folder / "upstream"
    patch, text = page / "fix.patch", (page / "PULL_REQUEST.md").read_text("utf-8")
    commit = patch.read_text("utf-8").split()[1]
    run(["git", "clone", "-q", "--shared", "--no-checkout", str(mirror), str(clone)], folder)
    run(["git", "checkout", "-q", "--detach", commit], clone, check=False)
    if missing := run(["git", "ls-files", "-z", "--deleted"], clone)[1]:  # a mirror may lack the largest files
        run(["git", "config", "remote.origin.promisor", "true"], clone)
        run(["git", "update-index", "--skip-worktree", *filter(None, missing.split("\0"))], clone)
    if run(["git", *IDENTITY, "am", "-q", "--keep-non-patch", str(patch.resolve())], clone, check=False)[0]:
        return "**does not apply**", ["", ""], []
    fixed = run(["git", "rev-parse", "HEAD"], clone)[1].strip()
    changed = run(["git", "diff", "--name-only", commit, fixed], clone)[1].split()
    tests = [file for file in changed if re.search(r"(^|/)tests?/", file)]
    names = text.partition("\npython -m pytest -q ")[2].partition("\n")[0].split()
    command = [
        pythons[0],
        "-m",
        "pytest",
        "-q",
        "-rA",
        "--tb=line",
        "--color=no",
        "-p",
        "no:cacheprovider",
        *["--noconftest"] * noconftest,
        *names,
    ]
    results, statuses = [], []
    for side, revision in ("before", commit), ("after", fixed):
        run(["git", "checkout", "-q", "--detach", revision], clone)
        if (page / "run_validation.py").exists():
            environment = {"TARGET_REPO": str(clone)}
            statuses.append(
                str(run([pythons[1], str((page / "run_validation.py").resolve())], folder, environment, False)[0])
            )
        run(["git", "checkout", "-q", fixed, "--", *tests], clone)
        code, out = run(
            command, clone, {"PYTHONPATH": os.pathsep.join([str(clone), os.environ.get("PYTHONPATH", "")])}, False
        )
        out = re.sub(r"\x1b\[[\d;]*m", "", out)  # some projects force colours
        if logs:
            (logs / f"{page.name}.{side}.log").write_text(out, "utf-8")
        summary = re.findall(r"(?m)^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", out)
        shown = summary[-1] if summary else " ".join(out.split())[-80:]  # one line, as a cell of a table is
        results.append(f"{code}: {re.sub(r', [0-9]+ warnings?', '', shown)}")
        run(["git", "checkout", "-q", "--force", revision], clone)
    return "ok", results, statuses


def run(
    command: list[str], folder: Path, environment: dict[str, str] | None = None, check: bool = True
) -> tuple[int, str]:
    """Run a command offline, without a GPU; return its exit status and output."""
    offline = {"HF_HUB_OFFLINE": "1", "GIT_NO_LAZY_FETCH": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **offline, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out = process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:  # a test may have started other processes, which hold the pipe open
            os.killpg(process.pid, signal.SIGKILL)
            return 124, f"{process.communicate()[0]}\ntimed out after {LIMIT} s"
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out)
    return process.returncode, out


if __name__ == "__main__":
    sys.exit(main())
