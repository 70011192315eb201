"""Run the probes of a sweep. :mod:`sentinel.records.sweep` chooses the probes and stores the results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from sentinel.deciding.outcomes import Decision, Verdict
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.records.workcopy import WorkCopy
from sentinel.sources.gittrees import GitTrees
from sentinel.sources.home import remove_tree, writing
from sentinel.sources.locks import free_locks, hold
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: The package roots of a revision: path -> git tree.
Roots = tuple[tuple[str, str], ...]


class Executor:
    """Runs the probes of one target in several lanes in parallel.

    Each lane has a working copy that moves from commit to commit. A lane is fastest if it gets neighbouring commits.

    :param folder: the folder for the working copies.
    :ivar lanes: the number of probes that run at the same time; by default one per core.
    """

    def __init__(
        self, catalog: Catalog, target: Target, mirror: Path, folder: Path, options: Options, lanes: int | None = None
    ) -> None:
        self.lanes = lanes or len(os.sched_getaffinity(0))
        self._target = target
        self._folder = folder
        self._trees = GitTrees(mirror)
        self._copies: dict[int, WorkCopy] = {}
        self._checkouts: dict[Ref, Checkout] = {}
        self._runner = Runner(catalog, self._checkout, options, repeat=False)
        self._pools = [ThreadPoolExecutor(1, f"sentinel-lane-{lane}") for lane in range(self.lanes)]
        self._own = folder / f"{os.getpid()}-{id(self):x}"
        with writing(folder):
            sweep_leftovers(folder)
            self._hold = hold(self._own.with_suffix(".lock"))

    def submit(self, lane: int, commit: str, roots: Roots, recipes: Sequence[Recipe]) -> Future[list[Decision]]:
        """Queue probes of recipes at a commit in a lane. Return a future of the decisions."""
        return self._pools[lane].submit(self._perform, lane, commit, roots, recipes)

    def close(self) -> None:
        """Stop all probes and remove the working copies. This is safe at any time."""
        self._runner.close()
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        self._trees.close()
        remove_tree(self._own)
        self._own.with_suffix(".lock").unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self._hold)

    def _checkout(self, target: Target, ref: Ref, pull: int | None) -> Checkout:
        if ref not in self._checkouts:  # such as the ref of a pin, requested to explain a missing name
            raise Unavailable(f"{ref.short} is not a commit of this sweep")
        return self._checkouts[ref]

    def _perform(self, lane: int, commit: str, roots: Roots, recipes: Sequence[Recipe]) -> list[Decision]:
        ref = Ref("git", commit)
        try:
            with writing(self._folder):
                if lane not in self._copies:
                    self._copies[lane] = WorkCopy(self._own / str(lane), self._target, self._trees)
                self._checkouts[ref] = self._copies[lane].move(commit, roots)
        except Unavailable as error:
            return [Decision(recipe, ref, Verdict("unavailable", error.reason, error.kind)) for recipe in recipes]
        try:
            decisions: list[Decision] = []
            for group in group_by_modules(self._target, recipes):
                self._runner.discard(self._target.name, ref)  # one process per group, so that closures stay separate
                decisions += [self._runner.decide(Job(recipe, ref)) for recipe in group]
            return decisions
        finally:
            self._runner.discard(self._target.name, ref)  # no process may run in a working copy while it moves
            del self._checkouts[ref]


def modules_of(target: Target, recipe: Recipe) -> tuple[str, ...]:
    """Return, sorted, the modules to import for a recipe's boundary."""
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
