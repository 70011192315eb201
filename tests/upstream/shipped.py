"""Decide the bundled recipes at their pins, once per session, with the user's mirrors."""

from collections.abc import Callable, Hashable, Iterable
from importlib.util import find_spec
from typing import Any

import pytest

from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import MirrorStore, open_checkout
from sentinel.worker.client import Options

#: The user's mirrors and releases, located before fixtures hide them.
MIRRORS = MirrorStore()

RECIPES = {recipe.bug_id: recipe for recipe in find_recipes(bundled_catalog())}
PINS = [Job(recipe, pin.ref, pin.expect) for recipe in RECIPES.values() for pin in recipe.pins]


def skip_in_pack(target: str) -> None:
    """Skip a test that needs the history or files outside of packages, which a CI pack lacks."""
    if (MIRRORS.home.mirror(target) / "shallow").is_file():
        pytest.skip(f"the mirror of {target} is a pack, which has only some files")


def pin_id(job: Job) -> str:
    return f"{job.recipe.bug_id}-{job.ref.short}"


def first_of(jobs: Iterable[Job], kind: Callable[[Job], Hashable]) -> list[Any]:
    """Return jobs as parameters: the first of each kind in every run, the others in nightly runs."""
    seen: set[Hashable] = set()
    params = []
    for job in jobs:
        params.append(pytest.param(job, id=pin_id(job), marks=pytest.mark.nightly if kind(job) in seen else ()))
        seen.add(kind(job))
    return params


def runner() -> Runner:
    """A runner that uses only the mirror store and fetches no pull request."""
    catalog = bundled_catalog()
    return Runner(catalog, lambda target, ref, pull: open_checkout(target, ref, store=MIRRORS), Options())


class Decisions:
    """The decisions of a runner, each made once.

    Tests are skipped if the code is not available or needs another Python.
    """

    def __init__(self, runner: Runner, ahead: Iterable[Job] = ()) -> None:
        self._runner = runner
        self._decided: dict[str, Decision] = {}
        runner.plan(list(ahead))

    def __call__(self, job: Job) -> Decision:
        name = pin_id(job)
        if name not in self._decided:
            self._decided[name] = self._runner.decide(job)
        decision = self._decided[name]
        if decision.verdict.kind in ("ref", "python"):
            pytest.skip(decision.verdict.reason)
        wanted = bundled_catalog().adapters[job.recipe.target].target.preload
        missing = [name for name in wanted if decision.verdict.kind == "ghost" and find_spec(name) is None]
        if missing:
            pytest.skip(f"{job.recipe.target} wants {', '.join(missing)}: pip install '.[trl]'")
        return decision
