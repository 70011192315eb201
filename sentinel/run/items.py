"""Define the pytest items for recipes and laws, and collect them.

A recipe file is a collector with one item per ref. A boundary is a collector with one item per law and ref; it has no
file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sentinel.deciding.outcomes import UNDECIDED, Decision
from sentinel.deciding.runner import Job
from sentinel.errors import RecipeError, SentinelError, nearest
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import bundled
from sentinel.reports.explain import explain
from sentinel.reports.summary import cause_of
from sentinel.run.differences import differences
from sentinel.run.passing import complaint, expected_unavailable, headline
from sentinel.run.results import FIXES
from sentinel.run.session import Run
from sentinel.search.survey import LawJob, law_jobs
from sentinel.sources import MirrorStore
from sentinel.targets.refs import Ref

#: A ref to pass when all laws of a target are listed. Any ref gives the same list.
_ANY_REF = (Ref("git", "main"),)


class SentinelWarning(pytest.PytestWarning):
    """Warns that a part of a recipe is ignored."""


class VerdictError(Exception):
    """Raised if an item's verdict is not the expected one. pytest prints the headline as the first line."""

    def __init__(self, decision: Decision, headline: str) -> None:
        super().__init__(headline)
        self.decision = decision
        self.headline = headline


class ExpectedFailure(VerdictError):
    """Raised if a known bug is still present. The plugin reports ``xfailed`` with the bug's title as the reason."""


class Item(pytest.Item):
    """A pytest item for one recipe or law at one revision."""

    job: Job | LawJob
    run: Run
    evidence_file: Path | None = None
    examined = False
    seconds: float = 0.0

    @classmethod
    def make(cls, parent: pytest.Collector, name: str, run: Run, job: Job | LawJob, *markers: str) -> Item:
        item: Item = cls.from_parent(parent, name=name)
        item.run, item.job = run, job
        for marker in ("sentinel", *markers):
            item.add_marker(marker)
        return item

    def runtest(self) -> None:
        decision = self.decide()
        self.seconds = decision.seconds
        self.evidence_file = self.run.results.record(decision)
        self.examined = decision.verdict.name not in UNDECIDED or expected_unavailable(decision)
        self.judge(decision)
        if decision.verdict.name == "unavailable" and not expected_unavailable(decision):
            pytest.skip(decision.verdict.reason)

    def decide(self) -> Decision:
        raise NotImplementedError

    def judge(self, decision: Decision) -> None:
        """Fail the item if its verdict is not the expected one."""
        why = complaint(decision, self.run.settings.baseline)
        if why is not None:
            self.fail(decision, why)

    def fail(self, decision: Decision, headline: str) -> None:
        raise VerdictError(decision, headline)

    def fail_once(self, decision: Decision, headline: str) -> None:
        """Fail the item. If another item of this run has failed for the same cause, skip it instead."""
        job, verdict = self.job, decision.verdict
        target = job.target if isinstance(job, LawJob) else job.recipe.target
        cause = target, job.ref, cause_of(verdict.reason)
        if cause in self.run.failed_causes:
            pytest.skip(f"another item has already failed for the same cause ({verdict.kind}): {verdict.reason}")
        self.run.failed_causes.add(cause)
        raise VerdictError(decision, headline)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        error = excinfo.value
        if isinstance(error, VerdictError):
            return f"{error.headline}\n\n{explain(error.decision, self.run.results.command(self.nodeid))}"
        if isinstance(error, SentinelError):
            return f"sentinel: {error}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        job = self.job
        what = job.recipe.bug_id if isinstance(job, Job) else f"{job.boundary} {job.law}"
        return self.path, 0, f"{what} at {job.ref.short}"


class RecipeItem(Item):
    """A pytest item for one recipe at one ref."""

    job: Job

    def decide(self) -> Decision:
        return self.run.decide(self.job)

    def judge(self, decision: Decision) -> None:
        verdict, bases = decision.verdict, self.run.decide_bases(self.job)
        why = complaint(decision, self.run.settings.baseline, bases)
        if why is not None:
            self.fail(decision, why)
        if verdict.name == "reproduced" or (bases and verdict.name == "changed"):
            raise ExpectedFailure(decision, f"{headline(decision)}: {verdict.name}, as expected")
        if bases and verdict.name == "inconclusive":
            pytest.skip(f"inconclusive here and at {bases[0].ref.short}: {verdict.reason}")
        refs = [base.ref.short for base in bases if base.verdict.name == "reproduced"]
        if refs and verdict.name == "fixed":
            self.user_properties.append((FIXES, f"reproduced at {', '.join(refs)}"))

    def fail(self, decision: Decision, headline: str) -> None:
        if decision.verdict.name == "inconclusive" and self.job.expect is None and self.run.settings.baseline is None:
            self.fail_once(decision, headline)
        super().fail(decision, headline)


class LawItem(Item):
    """A pytest item for one law of one boundary at one ref."""

    job: LawJob

    def decide(self) -> Decision:
        return self.run.decide_law(self.job)

    def fail(self, decision: Decision, headline: str) -> None:
        verdict = decision.verdict
        if verdict.kind in ("adapter", "drift"):
            self.fail_once(decision, headline)
        excuse = self.run.excuse(self.job)
        bugs = ", ".join(excuse.bugs)
        why = excuse.holds or excuse.hidden
        if why and self.run.reported(excuse.bugs, self.job.ref):  # so that each bug fails only once
            pytest.skip(f"{decision.verdict.name}; known bugs that were already reported: {bugs}; {why}")
        if excuse.unknown is not None and bugs:
            headline += f", in a scenario that triggers none of the known bugs ({bugs})"
        elif bugs:
            headline += f" (known: {'; '.join(filter(None, (bugs, excuse.doubt, excuse.hidden)))})"
        raise VerdictError(decision, headline)


class RecipeFile(pytest.Collector):
    """Collects the items of one recipe file.

    It is not a ``pytest.File``, because ``--lf`` looks for files only below the root folder, and bundled recipes are
    elsewhere.

    :ivar recipe: the recipe, if the run has already loaded it.
    """

    run: Run
    recipe: Recipe | None

    def collect(self) -> Iterable[pytest.Item]:
        try:
            recipe = self.recipe or self.run.questions.load(self.path)
            for note in recipe.notes:
                self.warn(SentinelWarning(note))
            for job in self.run.questions.jobs(recipe):
                law = [recipe.invariant] if recipe.invariant else []
                item = RecipeItem.make(self, job.ref.short, self.run, job, recipe.target, *law)
                item.extra_keyword_matches.add(recipe.bug_id)  # for -k, because a published JSON file may have any name
                yield item
        except (RecipeError, SentinelError) as error:
            raise self.CollectError(str(error)) from None


class RecipeFolder(pytest.Directory):
    """Collects the selected recipes of a folder.

    pytest would scan the folder once for each file that is an argument, which takes minutes for a thousand files.
    When pytest collects the folder, it also loads the folder's ``conftest.py``.
    """

    files: Sequence[RecipeFile]

    def collect(self) -> Iterable[RecipeFile]:
        return self.files


class LawBoundary(pytest.Collector):
    """Collects one item for each law of one boundary."""

    run: Run
    jobs: Sequence[LawJob]

    def collect(self) -> Iterable[pytest.Item]:
        for job in self.jobs:
            item = LawItem.make(self, f"{job.law}[{job.ref.short}]", self.run, job, job.target, job.law)
            if self.config.pluginmanager.hasplugin("xdist"):  # `Run.configure` registers these markers
                # With --dist=loadgroup, xdist then runs all laws of a boundary in one worker, where they share one
                # search.
                item.add_marker(pytest.mark.xdist_group(self.nodeid))
            yield item


def collector(run: Run, path: Path, parent: pytest.Collector) -> RecipeFile:
    # Cache resolved paths, because pytest calls this function again for every file of a folder, once per argument.
    if path not in run.places:
        run.places[path] = path.resolve()
    place = run.places[path]
    recipes = bundled("recipes").resolve()
    if str(place).startswith(f"{recipes}{os.sep}"):
        nodeid = f"recipes/{place.relative_to(recipes).as_posix()}"
    else:
        nodeid = Path(os.path.relpath(path, parent.config.rootpath)).as_posix()
    file: RecipeFile = RecipeFile.from_parent(parent, name=path.name, path=path, nodeid=nodeid)
    file.run, file.recipe = run, run.questions.recipes.get(place)
    return file


def uncollected_items(run: Run, session: pytest.Session, items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items that pytest itself does not collect: remaining recipes, laws and comparisons.

    pytest does not collect a recipe if its folder is also an argument, or if it is in a virtual environment.
    """
    ids = {item.nodeid for item in items}
    by_id = {arg.partition("::")[0] for arg in run.config.args if "::" in arg}
    collected = set(run.places.values())
    folders: dict[Path, list[Path]] = {}
    for path in run.questions.invited:
        if path.resolve() not in collected or str(path) in by_id:
            folders.setdefault(path.absolute().parent, []).append(path.absolute())
    for folder, recipes in folders.items():
        directory: RecipeFolder = RecipeFolder.from_parent(session, path=folder)
        directory.files = [collector(run, recipe, directory) for recipe in recipes]
        yield from (item for item in session.genitems(directory) if item.nodeid not in ids)
    # Laws come last, because the verdicts of recipes may explain broken laws.
    groups: dict[tuple[str, str], list[LawJob]] = {}
    for job in _law_jobs(run):
        groups.setdefault((job.target, job.boundary), []).append(job)
    for (target, name), jobs in groups.items():
        nodeid = f"laws/{target}/{name}"
        boundary: LawBoundary = LawBoundary.from_parent(session, name=name, nodeid=nodeid, path=session.path)
        boundary.run, boundary.jobs = run, jobs
        yield from session.genitems(boundary)
    yield from differences(run, session)


def deselect_without_mirror(run: Run, items: list[pytest.Item]) -> None:
    """Deselect pins whose target has no mirror, unless a pytest argument names their recipe."""
    if run.questions.is_restricted or run.settings.baseline is not None:
        return
    pins = [item for item in items if isinstance(item, RecipeItem) and item.job.expect and item.job.ref.kind == "git"]
    store = MirrorStore()
    lacking = {name for name in {item.job.recipe.target for item in pins} if not store.has(name)}
    others = {item: (item.job.recipe.target, item.job.ref) for item in pins if item.job.recipe.target in lacking}
    if others:
        run.config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]
        run.results.without_mirror = Counter(target for target, _ in set(others.values()))


def _law_jobs(run: Run) -> list[LawJob]:
    jobs: list[LawJob] = []
    questions = run.questions
    for target in dict.fromkeys([*(i.target for i in questions.law_ids), *run.settings.targets]):
        if target not in run.catalog.adapters:
            raise pytest.UsageError(
                f"sentinel: unknown target {target!r}{nearest(target, run.catalog.adapters)}; "
                f"known: {', '.join(run.catalog.adapters)}"
            )
        if questions.law_ids or questions.has_laws:
            candidates = law_jobs(
                run.catalog, target, questions.law_refs(target), partial(run.registry_checkout, target)
            )
            ids = questions.law_ids
            jobs += [job for job in candidates if not ids or any(i.selects(job) for i in ids)]
    for law_id in questions.law_ids:
        if not any(law_id.selects(job) for job in jobs):
            refs = [ref.short for ref in questions.law_refs(law_id.target)]
            there = law_jobs(run.catalog, law_id.target, _ANY_REF)
            raise pytest.UsageError(
                f"sentinel: {law_id.explain_nothing(run.catalog.targets[law_id.target], there, refs)}"
            )
    return jobs
