"""Measure how fast Sentinel decides recipes: `python benchmarks/main_job.py`.

It needs the mirrors of all targets (`sentinel mirror add TARGET`). Baselines are measured in the same run:

1. The time for all recipes at all their git pins, when checkouts and byte code exist already, divided by that of two
baselines. The first baseline is a fresh process for each verdict, as in the runner scripts of published reports (import
torch, import the boundary's module, call it); a sample of verdicts is timed and scaled up. The second is a lower bound
for any design: one import of torch, plus each distinct import of a target, spread over the cores.
2. pytest's start-up: the CPU time that the installed but unused plugin adds, compared with `-p no:sentinel`.
3. The time for one more recipe on an imported target, divided by the time in which the same process forks, runs a
backward pass and exits.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sentinel.deciding.outcomes import Verdict
from sentinel.deciding.runner import Job, Runner
from sentinel.deciding.verdicts import NOT_HERE
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options, Preloader

CATALOG = bundled_catalog()
TARGETS = tuple(name for name in CATALOG.targets if name != "demo")


def clock(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def git_jobs() -> list[Job]:
    recipes = find_recipes(CATALOG, TARGETS)
    return [Job(recipe, pin.ref, pin.expect) for recipe in recipes for pin in recipe.pins if pin.ref.kind == "git"]


def runner(catalog: Catalog = CATALOG) -> Runner:
    return Runner(catalog, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options())


def verdicts(jobs: list[Job]) -> list[Verdict]:
    """Return the verdict of every job, computed by the runner as in a pytest run."""
    run = runner()
    run.start(TARGETS)
    run.plan(jobs)
    found = [run.decide(job).verdict for job in jobs]
    run.close()
    return found


def decidable(jobs: list[Job]) -> list[Job]:
    """Return the jobs that can run on this machine. Some code needs a newer Python."""
    return [job for job, verdict in zip(jobs, verdicts(jobs)) if verdict.kind not in NOT_HERE]


def decide_all(jobs: list[Job]) -> None:
    """Compute all verdicts.

    :raises SystemExit: if a verdict differs from the one that its pin expects.
    """
    wrong = [job for job, verdict in zip(jobs, verdicts(jobs)) if verdict.name != job.expect]
    if wrong:
        raise SystemExit(
            f"{len(wrong)} verdicts are not what their pins expect; the timings of wrong verdicts would be meaningless"
        )


def fresh_process_each(jobs: list[Job]) -> None:
    """Compute each verdict in a fresh process, one after the other.

    The process imports torch and the boundary's module, but not the packages that a target preloads.
    """
    adapters = {name: replace(a, target=replace(a.target, preload=())) for name, a in CATALOG.adapters.items()}
    catalog = replace(CATALOG, adapters=adapters)
    for job in jobs:
        run = runner(catalog=catalog)
        decision = run.decide(job)
        run.close()
        if decision.verdict.name != job.expect:
            raise SystemExit(f"{job.recipe.bug_id} at {job.ref.short}: {decision.verdict}")


def torch_import() -> float:
    return clock(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True))


def target_imports(jobs: list[Job]) -> float:
    """Return the seconds that all imports of targets take: preloaded packages, and modules of boundaries at each ref.

    The imports run one after the other, in forks of one preloader, because parallel imports slow each other down.
    Preloaded packages count only once, although each fresh process would import them again, so this is a lower bound.
    """
    groups: dict[tuple[str, Ref], list[Recipe]] = {}
    for job in jobs:
        groups.setdefault((job.recipe.target, job.ref), []).append(job.recipe)
    preload = [name for target in TARGETS for name in CATALOG.targets[target].preload]
    torch_alone, with_packages = Preloader(Options()), Preloader(Options(), preload)
    alone = clock(torch_alone.hello)
    total = clock(with_packages.hello) - alone
    torch_alone.stop()
    for (name, ref), recipes in groups.items():
        adapter = CATALOG.adapters[name]
        checkout = open_checkout(adapter.target, ref, pull=recipes[0].upstream.get("pull"))
        process = with_packages.target(checkout, adapter.target.packages)
        for recipe in {recipe.boundary: recipe for recipe in recipes}.values():
            binding = adapter.target.binding(recipe.boundary, recipe.contract)
            paths = [*binding.paths, *binding.imports] if binding else [recipe.boundary]
            contract = CATALOG.contracts[recipe.contract]
            file = contract.file
            start = time.perf_counter()
            process.load(paths, str(adapter.file), file, contract.name)
            total += time.perf_counter() - start
        process.close()
    with_packages.stop()
    return total


def one_more_recipe(jobs: list[Job], repeats: int) -> tuple[float, float]:
    """Return (median seconds of one recipe's verdict, median seconds of a bare fork, backward pass and exit).

    Both run in the same target process.
    """
    job = next(job for job in jobs if job.recipe.contract == "loss_aggregation")
    run = runner()
    run.start([job.recipe.target])
    run.decide(job)
    loaded = run._processes._loaded[job.recipe.target, job.ref]
    probes, bare = [], []
    for _ in range(repeats):
        probes.append(clock(lambda: run.decide(job)))
        bare.append(clock(lambda: loaded.process.bare()))
    run.close()
    return statistics.median(probes), statistics.median(bare)


def startup(repeats: int) -> float:
    """Return the CPU seconds that the plugin adds to `pytest` on one empty test, as the median of pairs.

    CPU seconds do not depend on other work on the machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]

        def once(*more: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*command, *more], check=True, capture_output=True, cwd=folder)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        return statistics.median(once() - once("-p", "no:sentinel") for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=25, help="repetitions of the two small measurements")
    parser.add_argument(
        "--sample", type=int, default=12, help="number of verdicts that are timed, each in a fresh process"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    jobs = decidable(git_jobs())  # also warms up checkouts and byte code
    whole = statistics.median(clock(lambda: decide_all(jobs)) for _ in range(3))
    stride = max(1, len(jobs) // options.sample)
    sample = jobs[::stride]
    fresh = clock(lambda: fresh_process_each(sample)) * len(jobs) / len(sample)
    cores = os.cpu_count() or 1
    torch_once = statistics.median(torch_import() for _ in range(3))
    floor = torch_once + target_imports(jobs) / cores
    probe, bare = one_more_recipe(jobs, options.repeats)
    result = {
        "verdicts": len(jobs),
        "cores": cores,
        "whole_set_s": round(whole, 2),
        "fresh_process_each_s": round(fresh, 1),
        "times_faster_than_fresh_processes": round(fresh / whole, 1),
        "floor_s": round(floor, 2),
        "times_the_floor": round(whole / floor, 2),
        "probe_ms": round(probe * 1e3, 1),
        "bare_fork_ms": round(bare * 1e3, 1),
        "times_a_bare_fork": round(probe / bare, 2),
        "startup_extra_ms": round(startup(options.repeats) * 1e3, 1),
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
