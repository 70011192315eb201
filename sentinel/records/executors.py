"""Run the probes of a sweep, here or elsewhere. The sweep itself decides which probes run and stores the results.

A piece of work contains everything that it depends on, so it can run anywhere, and twice, with the same result. An
executor has lanes. Each lane runs its work in order, ideally at neighbouring commits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sentinel.deciding.outcomes import Decision, Provenance
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.workcopy import WorkCopy
from sentinel.reports.evidence import reason
from sentinel.sources.gittrees import GitTrees
from sentinel.sources.home import remove_tree, writing
from sentinel.sources.locks import free_locks, hold
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options


@dataclass(frozen=True)
class Work:
    """Recipes of one target to run at one commit."""

    target: str
    commit: str
    roots: tuple[tuple[str, str], ...]
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True)
class ProbeResult:
    """The result of running one recipe.

    :ivar questions: the file lookups in the checkout; None if they are unknown.
    :ivar verdict: without its closure, which follows from the lookups.
    """

    bug_id: str
    questions: tuple[str, ...] | None
    verdict: ClosureVerdict


class Executor(Protocol):
    """Runs probes for a sweep.

    :ivar lanes: the number of probes that run at the same time.
    """

    lanes: int

    def submit(self, lane: int, work: Work) -> Future[tuple[ProbeResult, ...]]:
        """Start to probe recipes at a commit in one lane, and return a future of the results."""

    def close(self) -> None:
        """Stop all probes. It is safe to call at any time."""


class Local:
    """Runs probes on this machine: one lane per core, each with a working copy that moves from commit to commit."""

    def __init__(
        self, catalog: Catalog, folder: Path, mirror: Callable[[str], Path], options: Options, lanes: int | None = None
    ) -> None:
        self.lanes = lanes or len(os.sched_getaffinity(0))
        self._catalog = catalog
        self._mirror = mirror
        self._folder = folder
        self._lock = threading.Lock()
        self._checkouts: dict[Ref, Checkout] = {}
        self._trees: dict[str, GitTrees] = {}
        self._copies: dict[tuple[int, str], WorkCopy] = {}
        self._runner = Runner(catalog, self._checkout, options, repeat=False)
        self._pools = [ThreadPoolExecutor(1, f"sentinel-lane-{lane}") for lane in range(self.lanes)]
        with writing(folder):
            sweep_leftovers(folder)
            self._hold = hold(folder / f"{os.getpid()}-{id(self):x}.lock")
        self._own = folder / f"{os.getpid()}-{id(self):x}"

    def _checkout(self, target: Target, ref: Ref, pull: int | None) -> Checkout:
        if ref not in self._checkouts:  # the ref of a pin, which would only help to explain a missing name
            raise Unavailable(f"{ref.short} is not a commit of this sweep")
        return self._checkouts[ref]

    def submit(self, lane: int, work: Work) -> Future[tuple[ProbeResult, ...]]:
        return self._pools[lane].submit(self._perform, lane, work)

    def close(self) -> None:
        self._runner.close()
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        for trees in self._trees.values():
            trees.close()
        remove_tree(self._own)
        (self._own.parent / f"{self._own.name}.lock").unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self._hold)

    def _perform(self, lane: int, work: Work) -> tuple[ProbeResult, ...]:
        target = self._catalog.targets[work.target]
        try:
            with writing(self._folder):
                checkout = self._copy(lane, target).move(work.commit, work.roots)
        except Unavailable as error:
            verdict = ClosureVerdict("", "", "unavailable", error.kind, error.reason)
            return tuple(ProbeResult(recipe.bug_id, None, verdict) for recipe in work.recipes)
        ref = checkout.ref
        self._checkouts[ref] = checkout
        try:
            results: list[ProbeResult] = []
            for group in group_by_modules(target, work.recipes):
                self._runner.discard(target.name, ref)  # start a process that has imported no other group
                results += [_result(self._runner.decide(Job(recipe, ref))) for recipe in group]
            return tuple(results)
        finally:
            self._runner.discard(target.name, ref)  # before the working copy moves
            del self._checkouts[ref]

    def _copy(self, lane: int, target: Target) -> WorkCopy:
        if (lane, target.name) not in self._copies:
            with self._lock:
                if target.name not in self._trees:
                    self._trees[target.name] = GitTrees(self._mirror(target.name))
            place = self._own / f"{target.name}-{lane}"
            self._copies[lane, target.name] = WorkCopy(place, target, self._trees[target.name])
        return self._copies[lane, target.name]


def modules_of(target: Target, recipe: Recipe) -> tuple[str, ...]:
    """Return the modules that are imported for a recipe's boundary, sorted."""
    binding = target.binding(recipe.boundary, recipe.contract)
    paths = [*binding.paths, *(f"{name}." for name in binding.imports)] if binding else [recipe.boundary]
    return tuple(sorted({path.rpartition(".")[0] for path in paths}))


def group_by_modules(target: Target, recipes: Sequence[Recipe]) -> list[list[Recipe]]:
    """Group recipes that import the same modules, so that they can share one process and one closure."""
    groups: dict[tuple[str, ...], list[Recipe]] = {}
    for recipe in recipes:
        groups.setdefault(modules_of(target, recipe), []).append(recipe)
    return list(groups.values())


def sweep_leftovers(folder: Path) -> None:
    """Remove the working copies that killed runs left in a folder."""
    for lock in free_locks(folder, "*.lock"):
        remove_tree(lock.with_suffix(""))
        lock.unlink(missing_ok=True)


def _result(decision: Decision) -> ProbeResult:
    source = decision.measurement or decision.failure
    place: Provenance | None = source.provenance if source else None
    where = {name: getattr(place, name) for name in ("boundary", "file", "line", "blob")} if place else {}
    verdict = ClosureVerdict("", "", decision.verdict.name, decision.verdict.kind, reason(decision), **where)
    return ProbeResult(decision.recipe.bug_id, source.questions if source else None, verdict)
