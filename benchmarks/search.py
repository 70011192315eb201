"""Measure searches, as ratios in one run: `python benchmarks/search.py`.

It needs the mirrors of five targets (`sentinel mirror add TARGET`), and makes four measurements:

1. Scenarios per second of an isolated search, in which boundary and oracle run in processes of their own, compared with
a loop in one process without isolation: same scenarios, boundary, oracle and laws.
2. Seconds of `--sentinel-laws=quick`, for each target at one ref, and for all five together.
3. Seconds for all five targets with `-n 2`, compared with `-n 1`, and with a run without xdist, which searches on all
cores.
4. Time to compare a function with a changed copy that returns equal numbers, divided by the time to run the same
scenarios at one revision.
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.comparing.comparison import Comparison
from sentinel.deciding.law_session import LawSession, Subject
from sentinel.deciding.runner import Runner
from sentinel.laws.oracle import the_oracle_agrees
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.boundary_search import BoundarySearch
from sentinel.search.checks import subjects
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.answers import Replies, of_session
from sentinel.worker.client import Options

CATALOG = bundled_catalog()

#: The newest commits of August 2026.
MAIN = {
    "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
    "roll": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "areal": "cbff54d645d2cd8ee1f1c358a82f3f473588433d",
    "slime": "624b824a898ab0ec1fcb4d373004c7f3852bf515",
    "skyrl": "a9564572eb8e91076be43c1bd5e4615e3de17265",
}
BOUNDARIES = ("agg_loss", "compute_rloo_outcome_advantage", "kl_penalty", "compute_value_loss", "masked_whiten")


class LocalBench(LawSession):
    """Calls the boundary and the oracle in this process."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        from sentinel.worker.serving import Server

        self._measuring_here, self._consulting_here = Server(roots, None), Server((), None)

    def close(self) -> None:
        pass

    def fresh(self) -> LawSession:
        return self

    def _exchange(
        self, request: Mapping[str, Any], calls: Mapping[str, Any], consultations: Mapping[str, Any]
    ) -> tuple[Replies, Replies]:
        request = {**request, "device": "cpu"}
        reference = of_session(self._consulting_here.answer({**request, "calls": consultations}), consultations)
        answer = of_session(self._measuring_here.answer({**request, "calls": calls}), calls)
        assert isinstance(answer, Replies)
        assert isinstance(reference, Replies)
        return answer, reference


def chosen() -> list[Subject]:
    return subjects(CATALOG, "verl", BOUNDARIES)[0]


def rate(law_session: LawSession, examples: int) -> float:
    """Return scenarios per second over the chosen boundaries.

    The first scenario of each boundary is not timed, because it imports the module.
    """
    searches = [BoundarySearch(law_session, subject, 0) for subject in chosen()]
    for search in searches:
        search.run(1)
    tried = sum(search.tried for search in searches)
    start = time.perf_counter()
    for search in searches:
        search.run(examples)
    return (sum(search.tried for search in searches) - tried) / (time.perf_counter() - start)


def isolated(examples: int) -> float:
    run = Runner(CATALOG, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options())
    try:
        open_target = run.open_target("verl", Ref("git", MAIN["verl"]), [subject.binding for subject in chosen()])
        return rate(open_target.law_session, examples)
    finally:
        run.close()


def compared(examples: int) -> float:
    """Return the time to compare functions with copies of them, divided by the time to search at one revision.

    The copies contain one additional statement without effect, so the numbers are equal.
    """
    target, ref = CATALOG.targets["verl"], Ref("git", MAIN["verl"])
    first, *others = BOUNDARIES
    run = Runner(CATALOG, lambda name, ref, pull: open_checkout(name, ref, pull=pull), Options())
    with tempfile.TemporaryDirectory() as folder, closing(run):
        checkout = open_checkout(target, ref)
        for root in checkout.roots:
            shutil.copytree(checkout.path / root, Path(folder, root))
        for file in {subject.binding.boundary.rpartition(".")[0].replace(".", "/") for subject in chosen()}:
            source = Path(folder, f"{file}.py").read_text(encoding="utf-8")
            tree = ast.parse(source)
            for function in (node for node in ast.walk(tree) if getattr(node, "name", "") in BOUNDARIES):
                function.body.insert(0, ast.parse("unused = None").body[0])  # type: ignore[attr-defined]
            Path(folder, f"{file}.py").write_text(ast.unparse(tree), encoding="utf-8")
        seconds = dict.fromkeys(("both", "one"), 0.0)
        comparison = Comparison(CATALOG, run, target, (ref, Ref("path", folder)), [], examples)
        for name in sorted(comparison.to_call(), key=lambda name: not name.endswith(f".{first}")):
            start = time.perf_counter()
            result = comparison.compare(name)
            if name.rpartition(".")[2] in others:
                assert result.state == "same numbers", result
                seconds["both"] += time.perf_counter() - start
        bindings = [subject.binding for subject in chosen()]
        searches = [
            # This law calls the function once per scenario; a comparison calls it once per scenario at each revision.
            BoundarySearch(
                run.open_target("verl", ref, bindings).law_session, replace(subject, laws=(the_oracle_agrees,)), 0
            )
            for subject in chosen()
            if subject.name.rpartition(".")[2] in others
        ]
        for search in searches:
            search.run(1)
        start = time.perf_counter()
        for search in searches:
            search.run(examples)
        seconds["one"] = time.perf_counter() - start
    return seconds["both"] / seconds["one"]


def bare(examples: int) -> float:
    """Run :func:`bare_here` in a new process, because it imports torch and the target."""
    command = [sys.executable, __file__, "--bare", str(examples)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def bare_here(examples: int) -> float:
    import importlib

    checkout = open_checkout(CATALOG.targets["verl"], Ref("git", MAIN["verl"]))
    from sentinel.worker import stubs

    for name in CATALOG.targets["verl"].preload:
        importlib.import_module(name)
    roots = tuple(str(root) for root in checkout.import_roots)
    sys.path[:0] = roots
    packages = tuple(str(checkout.path / root) + "/" for root in checkout.roots)
    stubs.ImportRecorder(packages, CATALOG.targets["verl"].packages).install()
    return rate(LocalBench(roots), examples)


def quick(targets: tuple[str, ...], *options: str) -> float:
    """Return the seconds of a pytest run with quick laws, whether or not laws are broken."""
    with tempfile.TemporaryDirectory() as folder:
        refs = [f"--sentinel-ref={target}=git:{MAIN[target]}" for target in targets]
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--sentinel-target={','.join(targets)}"),
            *(*refs, "--sentinel-laws=quick", f"--sentinel-report-dir={folder}", *options),
        ]
        start = time.perf_counter()
        finished = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if finished.returncode not in (0, 1):
            raise SystemExit(finished.stdout[-2000:] + finished.stderr[-2000:])
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="scenarios per boundary (default: 100)")
    parser.add_argument("--only", choices=("rate", "quick"), help="run only this measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare is not None:
        print(bare_here(arguments.bare))
        return
    figures: dict[str, float] = {}
    if arguments.only != "quick":
        figures["scenarios a second, isolated"] = isolated(arguments.examples)
        figures["scenarios a second, bare"] = bare(arguments.examples)
        figures["isolated / bare (at least 0.5)"] = (
            figures["scenarios a second, isolated"] / figures["scenarios a second, bare"]
        )
        figures["comparison / one side (at most 2.5)"] = compared(arguments.examples)
    if arguments.only != "rate":
        for target in MAIN:
            figures[f"quick, {target}, seconds (at most 20)"] = quick((target,))
        figures["quick, all five, seconds (at most 90)"] = quick(tuple(MAIN))
        # Without -n, one process searches on every core; under xdist, each process searches on one core.
        one, two = (quick(tuple(MAIN), "-n", number) for number in "12")
        figures["quick, all five, -n 1, seconds"] = one
        figures["quick, all five, -n 2, seconds"] = two
        figures["-n 2 / -n 1"] = two / one
        figures["-n 2 / without -n"] = two / figures["quick, all five, seconds (at most 90)"]
    for name, value in figures.items():
        print(f"{name:45} {value:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
