"""Count the bindings of adapters that still work at later releases: `python benchmarks/ageing.py TARGET=REF[,REF…] …`.

1. A binding is counted if its boundary can be called at the base: the commit of `reports/coverage.json`, or `--base
TARGET=REF`.
2. At each later ref, a binding is in one of four states. The reasons of the last two states are listed.

   * *answer*: its boundary can be called under a path that the adapter names.
   * *found at a new path*: its boundary can be called under a path that Sentinel found by itself.
   * *removed*: the checkout has no such function, and no other file defines its class or function.
   * *break*: anything else.

Both steps run `pytest --sentinel-laws=quick` in a separate process. With `--at COMMIT` they use this project's code and
adapters at that commit. Without refs, each target is tried at `git:main`. `--markdown` prints the table for a job's
summary. `--goal SHARE` exits with 1 if fewer bindings work, as a share of those that were not removed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import MirrorStore, open_checkout
from sentinel.sources.checkouts import files
from sentinel.targets.refs import Ref

ROOT = Path(__file__).resolve().parent.parent
STATES = ("answer", "found at a new path", "removed", "break")
PATHS = (
    "import json, sys\nfrom sentinel.recipes.catalog import bundled_catalog\n"
    "target = bundled_catalog().targets[sys.argv[1]]\n"
    "print(json.dumps([path for binding in target.bindings for path in binding.paths]))"
)


def project_at(commit: str, folder: Path) -> Path:
    """Unpack this project's files at a commit, and return the folder."""
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run(project: Path, *arguments: str) -> str:
    """Run Python with this project's code and return the output."""
    environment = {**os.environ, "PYTHONPATH": str(project), "GITHUB_STEP_SUMMARY": ""}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False).stdout


def states(project: Path, target: str, ref: str, known: set[str]) -> dict[str, tuple[str, str]]:
    """Run the laws and return binding -> (state, reason).

    :param known: the paths that the adapter names.
    :raises SystemExit: if the run wrote no evidence.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = (f"--sentinel-target={target}", f"--sentinel-ref={ref}", f"--sentinel-report-dir={folder}")
        said = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "--sentinel-laws=quick")
        laws: dict[str, list[dict[str, Any]]] = {}
        for file in sorted(Path(folder).glob(f"{target}/laws/*/*/*.json")):
            laws.setdefault(file.parent.parent.name, []).append(json.loads(file.read_text(encoding="utf-8")))
    if not laws:
        raise SystemExit(f"{target} at {ref}: no laws ran: {said[-500:]}")
    return {name: state(target, ref, documents, known) for name, documents in laws.items()}


def state(target: str, ref: str, documents: list[dict[str, Any]], known: set[str]) -> tuple[str, str]:
    """Return (state, reason) of one binding.

    :param documents: the evidence files of its laws.
    """
    found = {each["boundary"]["found"] for each in documents if each["verdict"] in ("fixed", "reproduced", "changed")}
    if found:
        return ("answer" if found & known else "found at a new path"), ""
    if all(each["kind"] == "law" for each in documents):
        return "answer", ""
    first = next(each for each in documents if each["kind"] != "law")
    reason = (first["failure"] or first)["reason"]
    if not re.search(r"this version has no [\w.()]+( \(|;|$)|in this checkout", reason):
        return "break", reason
    places = elsewhere(target, ref, first["boundary"]["written"])
    return ("break", f"it has moved to {', '.join(places)}") if places else ("removed", reason)


def elsewhere(target: str, ref: str, path: str) -> list[str]:
    """Return the files that define a function (or, for a method, its class); empty if its old file still defines it."""
    checkout = open_checkout(bundled_catalog().targets[target], Ref.parse(ref), store=MirrorStore())
    *modules, name = path.split(".")
    if modules[-1][:1].isupper():
        name = modules.pop()
    definition = re.compile(rf"^\s*(class|def|async def) {name}\b", re.MULTILINE)
    found = [
        file
        for file in sorted(files(checkout))
        if file.endswith(".py") and definition.search((checkout.path / file).read_text(errors="replace"))
    ]
    return [] if any(file.endswith("/".join(modules) + ".py") for file in found) else found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("refs", nargs="*", metavar="TARGET=REF[,REF…]")
    parser.add_argument("--at", metavar="COMMIT")
    parser.add_argument("--base", action="append", default=[], metavar="TARGET=REF")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--goal", type=float, default=0.0)
    options = parser.parse_args()
    recorded = json.loads((ROOT / "reports" / "coverage.json").read_text(encoding="utf-8"))["coverage"]
    bases = {name: f"git:{each['lines']['commit']}" for name, each in recorded.items()}
    bases |= dict(text.split("=", 1) for text in options.base)
    later = dict(text.split("=", 1) for text in options.refs) or dict.fromkeys(bases, "git:main")
    causes, poor = [], False
    with tempfile.TemporaryDirectory() as folder:
        project = project_at(options.at, Path(folder)) if options.at else ROOT
        if options.markdown:
            print("\n".join("| " + " | ".join(row) + " |" for row in (("target", "ref", *STATES), ("---",) * 6)))
        for target, refs in later.items():
            known = set(json.loads(run(project, "-c", PATHS, target)))
            counted = {
                name
                for name, (kind, _) in states(project, target, bases[target], known).items()
                if kind in ("answer", "found at a new path")
            }
            for ref in refs.split(","):
                there = states(project, target, ref, known)
                there = {name: there.get(name, ("removed", "no law of it ran")) for name in counted}
                counts = Counter(kind for kind, _ in there.values())
                answering = counts["answer"] + counts["found at a new path"]
                poor |= answering < options.goal * (len(counted) - counts["removed"])
                causes += [f"{target} {ref} {name}: {kind}: {why}" for name, (kind, why) in there.items() if why]
                cells = (target, ref, *(f"{counts[kind]} ({counts[kind] / len(counted):.0%})" for kind in STATES))
                print("| " + " | ".join(cells) + " |" if options.markdown else "  ".join(cells), flush=True)
    print("", *causes, sep="\n")
    return int(poor)


if __name__ == "__main__":
    raise SystemExit(main())
