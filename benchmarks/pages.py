"""Check each page of ``findings/`` as its receiver would: run its test and its runner without and with its patch.

    pip install uv
    UV_TORCH_BACKEND=cpu python benchmarks/pages.py --mirrors ~/.cache/sentinel/mirrors --environments FOLDER [BUG ...]

The only inputs are the page's folder and a clone of upstream at the page's commit. FOLDER/TARGET is the virtual
environment of a target. uv makes it if it is missing, and installs the packages that `pages.yaml` lists for the target.
uv takes the versions of Python that `pages.yaml` names from `PATH`, or downloads them.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

FINDINGS = Path(__file__).parent.parent / "findings"
NEEDS = Path(__file__).with_suffix(".yaml")
LIMIT = 900  # seconds for one command
IDENTITY = ("-c", "user.name=tester", "-c", "user.email=tester@example.invalid")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bugs", nargs="*", metavar="BUG")
    parser.add_argument("--mirrors", type=Path, required=True, help="folder with the mirrors, <target>.git")
    parser.add_argument("--environments", type=Path, required=True, help="folder of virtual environments, by target")
    parser.add_argument("--runner-python", default=sys.executable, help="an interpreter with only torch and numpy")
    parser.add_argument("--workers", type=int, default=1, help="pages that are tried at the same time")
    parser.add_argument("--logs", type=Path, help="write pytest's output into this folder")
    options = parser.parse_args()
    needs = yaml.safe_load(NEEDS.read_text("utf-8"))
    pages = [page.parent for page in sorted(FINDINGS.glob("*/*/PULL_REQUEST.md"))]
    chosen = [page for page in pages if not options.bugs or page.name in options.bugs]
    if not chosen:
        print("nothing was examined: no such page", file=sys.stderr)
        return 2
    print("| page | `git am` | test before → after | runner before → after |\n| --- | --- | --- | --- |")
    targets = {page.parent.name for page in chosen}
    pythons = {target: build_environment(options.environments.absolute() / target, needs[target]) for target in targets}

    def examine(page: Path) -> tuple[str, list[str], list[str]]:
        target = page.parent.name
        with tempfile.TemporaryDirectory() as folder:
            return try_page(
                page,
                options.mirrors / f"{target}.git",
                Path(folder),
                [pythons[target], options.runner_python],
                needs[target],
                options.logs,
            )

    failures = 0
    with ThreadPoolExecutor(options.workers) as pool:
        for page, (applied, test, runner) in zip(chosen, pool.map(examine, chosen), strict=True):
            good = applied == "ok" and test[0].startswith("1:") and test[1].startswith("0:")
            good = good and " failed" in test[0] and " passed" in test[1]  # skipped tests alone have the status 0, too
            good = good and runner in ([], ["1", "0"])
            failures += not good
            shown = [applied, " → ".join(test), " → ".join(runner) or "none"]
            print(f"| {page.name} | {' | '.join(shown)} |{'' if good else ' **no**'}", flush=True)
    print(f"\n{len(chosen) - failures} of {len(chosen)} pages hold")
    return 1 if failures else 0


def build_environment(folder: Path, needs: dict[str, Any]) -> str:
    """Make the environment, if there is none, and install what it lacks; return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run(["uv", "venv", "-q", "--python", needs.get("python", "3.11"), str(folder)], check=True)
    subprocess.run(["uv", "pip", "install", "-q", "--python", str(python), *needs["packages"]], check=True)
    return str(python)


def try_page(
    page: Path, mirror: Path, folder: Path, pythons: list[str], needs: dict[str, Any], logs: Path | None
) -> tuple[str, list[str], list[str]]:
    """Return ("ok" or why the patch does not apply, pytest's results, the runner's exit statuses).

    Each list has two entries: the first without the patch, the second with it.

    :param pythons: the interpreter for pytest, and the one for the runner.
    :param needs: the target's entry of `pages.yaml`.
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
        *needs.get("options", []),
        *names,
    ]
    paths = os.pathsep.join(str(clone / path) for path in [".", *needs.get("paths", [])])
    results, statuses = [], []
    for side, revision in ("before", commit), ("after", fixed):
        run(["git", "checkout", "-q", "--detach", revision], clone)
        if (page / "run_validation.py").exists():
            environment = {"TARGET_REPO": str(clone)}
            statuses.append(
                str(run([pythons[1], str((page / "run_validation.py").resolve())], folder, environment, False)[0])
            )
        run(["git", "checkout", "-q", fixed, "--", *tests], clone)
        code, out = run(command, clone, {"PYTHONPATH": paths}, False)
        out = re.sub(r"\x1b\[[\d;]*m", "", out)  # some projects force colours
        if logs:
            (logs / f"{page.name}.{side}.log").write_text(out, "utf-8")
        summary = re.findall(r"(?m)^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", out)
        shown = summary[-1] if summary else " ".join(out.split())[-80:]  # one line, to fit into a cell of the table
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
