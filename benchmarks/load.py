"""Measure behaviour under load, as ratios in one run: `python benchmarks/load.py`. Needs only this machine and git.

On the demo framework, each with its own worker:

1. 1,000 recipes in one run of pytest, in one process: seconds per item, and the memory of the controller after a tenth
and at the end.
2. 10,000 probes of one recipe: seconds per probe at the beginning and at the end, and the memory.
3. 100 refs of one recipe, a commit each: seconds per ref at the beginning and at the end, and the memory.
4. An observation of 200 MB: the verdict, and the memory that it adds.

After each, leftover processes, threads, descriptors and temporary files are counted.

Measured on 2026-11-21, on two cores that others used too (load 5 to 9): 10,000 probes left nothing; the controller had
80.3 MB after a fifth of them and 80.2 MB at the end; the CPU time of a probe did not grow over the first 1,250.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import Recipe, load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import MirrorStore, open_checkout
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

FRAMEWORK = Path(__file__).resolve().parent.parent / "tests" / "demo_framework"
LARGE = "\n\ndef large():\n    import torch\n    return torch.zeros(50_000_000)\n"
RECIPE = {
    "recipe_version": 1,
    "title": "masked tokens move the loss",
    "target": "demo",
    "contract": "loss_aggregation",
    "boundary": "demo_rl.losses.agg_loss",
    "scenario": {
        "loss_agg_mode": "token-mean",
        "loss_mat": [[1.0, 100.0], [1.0, -50.0]],
        "response_mask": [[1, 0], [1, 0]],
    },
    "expected_unpatched": {"loss": 26.0},
    "expected_fixed": {"loss": 1.0},
}


def megabytes() -> float:
    """Return the memory of this process in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def held() -> dict[str, int]:
    own = Path("/proc/self")
    children = [pid for task in own.glob("task/*/children") for pid in task.read_text().split()]
    return {
        "processes": len(children),
        "threads": threading.active_count(),
        "descriptors": len(list((own / "fd").iterdir())),
        "temporary files": len(os.listdir(tempfile.gettempdir())),
    }


@contextmanager
def counted(told: dict[str, Any]) -> Iterator[None]:
    """Print the resources that a block leaves behind.

    One descriptor, the lease on checkouts in use, is held to the end.
    """
    before = held()
    yield
    told["left"] = {name: count - before[name] for name, count in held().items()}


def tree(folder: Path, *revisions: str) -> Path:
    for revision in ("broken", *revisions):
        shutil.copytree(FRAMEWORK / revision, folder, dirs_exist_ok=True)
    return folder


def recipe(folder: Path, bug_id: str, **changes: Any) -> Path:
    file = folder / f"{bug_id}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump({**RECIPE, "bug_id": bug_id, **changes}, sort_keys=False))
    return file


class Sampler:
    """A pytest plugin that records memory and time when items end."""

    def __init__(self, items: int) -> None:
        self.samples: dict[int, tuple[float, float]] = {}
        self._seen = 0
        self._at = (items // 10, items)

    def pytest_runtest_logfinish(self) -> None:
        self._seen += 1
        if self._seen in self._at:
            self.samples[self._seen] = (time.perf_counter(), megabytes())


def recipes(folder: Path, count: int) -> dict[str, Any]:
    for number in range(count):
        recipe(folder / "mine", f"DEMO-{number:05d}")
    sampler = Sampler(count)
    options = ["-p", "no:cacheprovider", "-p", "no:terminal", "--sentinel-target=demo", "--sentinel-laws=off"]
    options += [f"--sentinel-recipes={folder / 'mine'}", f"--sentinel-repo={tree(folder / 'fixed', 'fixed')}"]
    start = time.perf_counter()
    status = pytest.main([*options, f"--sentinel-report-dir={folder / 'reports'}", f"--rootdir={folder}"], [sampler])
    (_, early), (_, late) = sampler.samples.values()
    written = len(list((folder / "reports" / "demo").glob("*/*.json")))
    seconds = time.perf_counter() - start
    return {
        "status": int(status),
        "evidence": written,
        "ms_each": round(seconds / count * 1e3, 1),
        "mb_after_a_tenth": early,
        "mb_at_the_end": late,
        "times": round(late / early, 3),
    }


def repeated(count: int, once: Callable[[int], str]) -> dict[str, Any]:
    """Repeat an action; return its speed in the second tenth and in the last, and the memory at their ends."""
    marks, verdicts = {}, set()
    for number in range(count):
        if number in (count // 10, count // 5, count - count // 10):
            marks[number] = (time.perf_counter(), megabytes())
        verdicts.add(once(number))
    end = (time.perf_counter(), megabytes())
    second, third, last = marks.values()
    early, late = third[0] - second[0], end[0] - last[0]
    tenth = count // 10
    return {
        "verdicts": sorted(verdicts),
        "ms_each_early": round(early / tenth * 1e3, 1),
        "ms_each_late": round(late / tenth * 1e3, 1),
        "times_slower": round(late / early, 2),
        "mb_early": third[1],
        "mb_late": end[1],
        "times": round(end[1] / third[1], 3),
    }


def probes(folder: Path, runner: Runner, count: int) -> dict[str, Any]:
    job = Job(loaded(recipe(folder / "one", "DEMO-ONE")), Ref("path", str(tree(folder / "tree"))))
    return repeated(count, lambda number: runner.decide(job).verdict.name)


def refs(folder: Path, runner: Runner, count: int) -> dict[str, Any]:
    repository = tree(folder / "repository")

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), "-c", "user.name=A", "-c", "user.email=a@example.invalid", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for number in range(count):
        (repository / "demo_rl" / "number.py").write_text(f"NUMBER = {number}\n")
        git("add", "--all")
        git("commit", "-qm", str(number))
        commits.append(git("rev-parse", "HEAD"))
    MirrorStore().add(bundled_catalog().targets["demo"], str(repository))
    one = loaded(recipe(folder / "one", "DEMO-ONE"))

    def at(number: int) -> str:
        ref = Ref("git", commits[number])
        try:
            return runner.decide(Job(one, ref)).verdict.name
        finally:
            runner.discard("demo", ref)

    return repeated(count, at)


def observation(folder: Path, runner: Runner, _: int) -> dict[str, Any]:
    large = tree(folder / "large")
    losses = large / "demo_rl" / "losses.py"
    losses.write_text(losses.read_text() + LARGE)
    call = {"contract": "call", "boundary": "demo_rl.losses.large", "scenario": {"arguments": {}}}
    values = {"expected_unpatched": {"returned": 1}, "expected_fixed": {"returned": 2}}
    file = recipe(folder / "one", "DEMO-LARGE", **call, **values)
    before, start = megabytes(), time.perf_counter()
    verdict = runner.decide(Job(loaded(file), Ref("path", str(large)))).verdict
    return {
        "verdict": f"{verdict.name}: {verdict.reason}",
        "s": round(time.perf_counter() - start, 1),
        "mb_more": round(megabytes() - before, 1),
    }


def loaded(file: Path) -> Recipe:
    return load_recipe(file, bundled_catalog())


def _opened(target: Target, ref: Ref, pull: int | None) -> Checkout:
    return open_checkout(target, ref)


def with_runner(action: Callable[[Path, Runner, int], dict[str, Any]]) -> Callable[[Path, int], dict[str, Any]]:
    def run(folder: Path, count: int) -> dict[str, Any]:
        runner = Runner(bundled_catalog(), _opened, Options(), repeat=False)
        try:
            return action(folder, runner, count)
        finally:
            runner.close()

    return run


ACTIONS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "recipes": recipes,
    "probes": with_runner(probes),
    "refs": with_runner(refs),
    "an observation of 200 MB": with_runner(observation),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in (("recipes", 1_000), ("probes", 10_000), ("refs", 100)):
        parser.add_argument(f"--{name}", type=int, default=count)
    counts: Mapping[str, int] = vars(parser.parse_args())
    result: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[1], 1)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "scratch").mkdir()
        os.environ.update(SENTINEL_HOME=str(folder / "home"), TMPDIR=str(folder / "scratch"))
        tempfile.tempdir = None
        bundled_catalog()
        os.chdir(folder)
        for name, action in ACTIONS.items():
            told: dict[str, Any] = {}
            with counted(told):
                found = action(folder, counts.get(name, 1))
            result[f"{counts[name]} {name}" if name in counts else name] = {**found, **told}
            print(f"{name}: done", file=sys.stderr)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
