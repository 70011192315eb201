"""A survey: the laws of many boundaries of one target at one ref, hunted one boundary after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sentinel.catalog import Catalog
from sentinel.errors import Unavailable
from sentinel.invariants.invariant import Invariant
from sentinel.outcomes import Decision, Failure
from sentinel.refs import Ref
from sentinel.search.bench import Subject, Undecidable
from sentinel.search.checks import subjects

if TYPE_CHECKING:
    from sentinel.recipes import Recipe
    from sentinel.runner import Runner
    from sentinel.search.ground import Ground
    from sentinel.search.hunt import Finding, Hunt, Tally

#: Scenarios for each boundary, and calls that shrinking one finding may take.
LEVELS: Mapping[str, tuple[int, int]] = {"quick": (12, 25), "deep": (400, 600)}

#: How much longer a hunt goes on for a declared dialect that has not shown yet, before it is called stale.
_PATIENCE = 300


@dataclass(frozen=True)
class LawJob:
    """One question: does this boundary keep this law at this ref?

    :ivar boundary: a subject's name.
    """

    target: str
    boundary: str
    law: str
    ref: Ref


class Survey:
    """Answers law jobs. Everything about one boundary at one ref is hunted at once, when it is first asked for.

    :param level: ``quick`` or ``deep``.
    :param recipes_of: a target's recipes, whose scenarios are looked at first: what they show needs no luck and no
        shrinking.
    """

    def __init__(
        self,
        catalog: Catalog,
        runner: Runner,
        level: str,
        seed: int = 0,
        recipes_of: Callable[[str], Sequence[Recipe]] = lambda target: (),
    ) -> None:
        self._catalog, self._runner = catalog, runner
        self._examples, self._shrinking = LEVELS[level]
        self._seed = seed
        self._recipes_of = recipes_of
        self._wanted: dict[tuple[str, str, Ref], set[str]] = {}
        self._decided: dict[LawJob, Decision] = {}
        self._findings: dict[LawJob, list[Finding]] = {}
        self._grounds: dict[tuple[str, Ref], Ground] = {}

    def plan(self, jobs: Iterable[LawJob]) -> None:
        """Say which laws will be asked about, so that one hunt of a boundary serves them all."""
        for job in jobs:
            self._wanted.setdefault((job.target, job.boundary, job.ref), set()).add(job.law)

    def decide(self, job: LawJob) -> Decision:
        """The decision of a job.

        :raises WorkerError: where the worker itself does not run.
        """
        if job not in self._decided:
            self.plan([job])
            self._hunt(job)
        return self._decided[job]

    def findings(self, job: LawJob) -> list[Finding]:
        """What broke the law, after :meth:`decide`."""
        return self._findings.get(job, [])

    def _hunt(self, job: LawJob) -> None:
        from sentinel.search.decisions import of_absence, of_tally, of_undecidable  # Hypothesis takes its time
        from sentinel.search.examples import examples
        from sentinel.search.hunt import Hunt

        found, _ = subjects(self._catalog, job.target)
        subject = next(item for item in found if item.name == job.boundary and job.law in names(item.laws))
        wanted = self._wanted[job.target, job.boundary, job.ref]
        laws = [law for law in subject.laws if law.name in wanted]
        try:
            ground = self._ground(job, found)
        except Unavailable as error:
            failure = Failure(error.kind, error.reason)
            adapter = self._catalog.adapters[job.target].digest
            for law in laws:
                self._decided[_job(job, law)] = of_absence(job.target, job.ref, subject, law, failure, adapter)
            return
        hunt = Hunt(ground.bench, subject, self._seed, laws, self._shrinking)
        try:
            hunt.begin(examples(subject, self._recipes_of(job.target)))
            hunt.run(self._examples)
            self._wait_for_dialects(ground, hunt)
        except Undecidable as error:
            for law in laws:
                self._decided[_job(job, law)] = of_undecidable(ground, subject, law, error)
            return
        for law, tally in hunt.tallies.items():
            self._decided[_job(job, law)] = of_tally(ground, subject, law, tally, hunt.tried, self._seed)
            self._findings[_job(job, law)] = list(tally.findings)

    def _ground(self, job: LawJob, found: Collection[Subject]) -> Ground:
        key = (job.target, job.ref)
        if key not in self._grounds:
            self._grounds[key] = self._runner.ground(job.target, job.ref, [item.binding for item in found])
        return self._grounds[key]

    @staticmethod
    def _wait_for_dialects(ground: Ground, hunt: Hunt) -> None:
        """Few scenarios may not have shown a declared dialect; give it its chance before calling it stale."""
        from sentinel.search.decisions import stale_dialects
        from sentinel.search.hunt import Hunt

        for law, tally in hunt.tallies.items():
            if not tally.findings and stale_dialects(hunt.subject, law, tally, chances=1):
                longer = Hunt(ground.bench, hunt.subject, hunt.seed, [law], hunt.shrinking)
                more = longer.tallies[law]
                longer.run(_PATIENCE, enough=partial(_shown, more))
                tally.dialects.update(more.dialects)
                tally.dialects_open.update(more.dialects_open)
                tally.findings += more.findings


def _shown(tally: Tally) -> bool:
    return bool(tally.dialects)


def _job(job: LawJob, law: Invariant) -> LawJob:
    return LawJob(job.target, job.boundary, law.name, job.ref)


def names(laws: Iterable[Invariant]) -> list[str]:
    return [law.name for law in laws]


def law_jobs(catalog: Catalog, target: str, refs: Iterable[Ref]) -> list[LawJob]:
    """Every law of every boundary of a target at these refs."""
    found, _ = subjects(catalog, target)
    return [LawJob(target, subject.name, law.name, ref) for ref in refs for subject in found for law in subject.laws]
