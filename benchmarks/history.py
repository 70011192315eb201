"""Measure sweeps over a framework's history, as ratios in one run: `python benchmarks/history.py`.

This needs a full mirror of verl (`sentinel mirror add verl`). It starts without stored results, and measures

1. a sweep of one recipe over every commit of main, compared with one fresh process for each commit (extrapolated from a
sample); the maximum size of working copies on disk; and the memory of the controller;
2. the same sweep again, without new commits;
3. a bisection over all commits of main, without stored results;
4. how the number of distinct closures grows with the number of commits, in ten steps;
5. with `--main-job`, sweeps of the main job's recipes over all commits of each target, without stored results.

Times are given in wall-clock seconds and in CPU seconds of all processes. Other work on the machine does not affect CPU
seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.records.bisection import bisect
from sentinel.records.history import Selection
from sentinel.records.ledger import Ledger
from sentinel.settings import Settings
from sentinel.sources import Home, MirrorStore
from sentinel.sources.home import size_of

CATALOG = bundled_catalog()

#: A script that prints a recipe's verdict at one commit. It imports torch, makes a checkout and calls the boundary.
FRESH = """
import sys
from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes import find_recipes
from sentinel.targets.refs import Ref
from sentinel.deciding.runner import Job, Runner
from sentinel.sources import open_checkout
from sentinel.worker.client import Options
catalog = bundled_catalog()
recipe = next(r for r in find_recipes(catalog, (sys.argv[1],)) if r.bug_id == sys.argv[2])
runner = Runner(catalog, lambda target, ref, pull: open_checkout(target, ref), Options())
print(runner.decide(Job(recipe, Ref("git", sys.argv[3]))).verdict.name)
runner.close()
"""


#: Target -> recipes of the main job: the bugs of the pull requests that the project started with.
MAIN_JOB = {
    "verl": ("VERL-REJECTED-ROW-G*", "VERL-REJECTED-ROW-R*", "VERL-REJECTED-GROUP-OPO"),
    "roll": ("ROLL-AGGLOSS-TOKENMEAN-MASK",),
    "areal": ("AREAL-REWARD-NORM-NO-EOS-LEAK",),
    "slime": ("SLIME-OPSM-*",),
    "skyrl": ("SKYRL-PADDING-*", "SKYRL-ROUTER-REPLAY-*", "SKYRL-ROLLOUT-KL-*", "SKYRL-KL-ESTIMATOR-UNCHECKED"),
}


def clock(action: Callable[[], Any]) -> tuple[float, float, Any]:
    """Run an action; return (wall-clock seconds, CPU seconds of all processes, its result)."""
    start, own = time.perf_counter(), time.process_time()
    with CpuTime() as below:
        result = action()
    return time.perf_counter() - start, time.process_time() - own - below.watching + below.seconds, result


class Watch(ABC):
    """A context manager that calls :meth:`look` every :attr:`every` seconds, in a thread."""

    every = 1.0

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            self.look()

    @abstractmethod
    def look(self) -> None: ...


class CpuTime(Watch):
    """Measures the CPU time of all descendants of this process, by reading /proc twenty times a second.

    ``getrusage`` counts only children that this process waits for, which excludes a worker's processes. The time that a
    process uses after the last reading is not counted.
    """

    every = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[int, str], float] = {}
        self.watching = 0.0

    @property
    def seconds(self) -> float:
        return sum(self._seen.values())

    def look(self) -> None:
        children: dict[int, list[tuple[int, str, float]]] = {}
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = place.read_text().rpartition(")")[2].split()
            except OSError:  # the process has ended
                continue
            spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(fields[1]), []).append((int(place.parent.name), fields[19], spent))
        queue = [os.getpid()]
        while queue:
            for process, born, spent in children.get(queue.pop(), ()):
                self._seen[process, born] = spent
                queue.append(process)
        self.watching = time.thread_time()


class Watcher(Watch):
    """Measures the maximum size of a folder, in bytes."""

    every = 2.0

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.most = 0

    def look(self) -> None:
        with contextlib.suppress(OSError):  # a file was removed while the folder was measured
            self.most = max(self.most, size_of(self._folder) if self._folder.is_dir() else 0)


def own_home(folder: Path) -> MirrorStore:
    """Make an empty Sentinel home that shares the user's mirrors, and return its store."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mirrors").symlink_to(Home.default().mirrors)
    return MirrorStore(Home(folder))


def fresh(recipe: Recipe, shas: list[str], home: Path) -> None:
    """Compute a recipe's verdict at each commit, each in a separate process."""
    environment = {**os.environ, "SENTINEL_HOME": str(home)}
    for sha in shas:
        command = [sys.executable, "-c", FRESH, recipe.target, recipe.bug_id, sha]
        subprocess.run(command, env=environment, check=True, capture_output=True)


def curve(record: dict[str, Any], ledger: Ledger, recipe: Recipe) -> list[tuple[int, int]]:
    """Return (number of commits, number of distinct closures among them) after each tenth of the commits."""
    _, commits, _ = ledger.select(Selection(record["source"]["ref"]))
    with ledger.decider([recipe]) as decide:
        seen: set[tuple[str, str]] = set()
        points = []
        for number, commit in enumerate(commits, 1):
            entry = decide(commit)[recipe.bug_id]
            seen.add((entry.closure, entry.answers))
            if number % max(len(commits) // 10, 1) == 0 or number == len(commits):
                points.append((number, len(seen)))
    return points


def main_job(folder: Path) -> dict[str, float]:
    """Run the main job's sweeps; return target -> seconds."""
    taken = {}
    for name, bugs in MAIN_JOB.items():
        target = CATALOG.targets[name]
        recipes = find_recipes(CATALOG, (name,), bugs)
        ledger = Ledger(CATALOG, Settings(), target, own_home(folder / name))
        sweep = partial(ledger.sweep, recipes, Selection(target.branch))
        taken[name] = round(clock(sweep)[0], 1)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="verl")
    parser.add_argument("--bug", default="VERL-REJECTED-ROW-GRPO")
    parser.add_argument(
        "--bisected", default="VERL-MASKED-MEAN-EMPTY-NAN", help="a bug that the first commit has and the last lacks"
    )
    parser.add_argument(
        "--main-job", action="store_true", help="also sweep the main job's recipes over main of all targets"
    )
    parser.add_argument(
        "--sample", type=int, default=100, help="number of commits that are each decided in a fresh process"
    )
    arguments = parser.parse_args()
    target = CATALOG.targets[arguments.target]
    recipe, bisected = (find_recipes(CATALOG, (target.name,), (bug,))[0] for bug in (arguments.bug, arguments.bisected))
    with tempfile.TemporaryDirectory() as scratch:
        store = own_home(Path(scratch, "sweep"))
        ledger = Ledger(CATALOG, Settings(), target, store)
        selection = Selection(target.branch)
        with Watcher(ledger.entries.folder / "copies") as watcher:
            first, first_cpu, account = clock(lambda: ledger.sweep([recipe], selection))
        second, second_cpu, _ = clock(lambda: ledger.sweep([recipe], selection))
        record = account.records[0]
        commits = record["commits"]
        points = curve(record, ledger, recipe)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        other = Ledger(CATALOG, Settings(), target, own_home(Path(scratch, "bisect")))
        _, line, _ = other.select(selection)

        def search() -> Any:
            with other.decider([bisected]) as decide:
                return bisect(other.mirror, line[0], line[-1], lambda c: decide(c)[bisected.bug_id])

        seconds, seconds_cpu, found = clock(search)
        steps = len(found.steps)
        main_jobs = main_job(Path(scratch, "main")) if arguments.main_job else {}
        sample = [line[n * len(line) // arguments.sample].sha for n in range(arguments.sample)]
        taken, taken_cpu, _ = clock(lambda: fresh(recipe, sample, store.home.path))
        each, each_cpu = taken / max(len(sample), 1), taken_cpu / max(len(sample), 1)
    result = {
        "target": target.name,
        "bug": recipe.bug_id,
        "commits": commits,
        "closures": record["closures"],
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[1], 1),
        "sweep_s": round(first, 1),
        "sweep_cpu_s": round(first_cpu, 1),
        "fresh_process_each_s": round(each, 2),
        "every_commit_fresh_s": round(each * commits),
        "times_faster": round(each * commits / first, 1),
        "fresh_process_each_cpu_s": round(each_cpu, 2),
        "times_less_cpu": round(each_cpu * commits / first_cpu, 1),
        "second_run_s": round(second, 2),
        "second_run_cpu_s": round(second_cpu, 2),
        "copies_most_mb": round(watcher.most / 1e6, 1),
        "controller_peak_mb": round(memory),
        "bisect_s": round(seconds, 1),
        "bisect_cpu_s": round(seconds_cpu, 1),
        "bisect_steps": steps,
        "main_job_s": main_jobs,
        "curve": points,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
