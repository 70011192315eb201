"""Check the laws of many boundaries in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.outcomes import Decision, Failure
from sentinel.deciding.proof import NotProvenError, Sources, prove
from sentinel.errors import SentinelError, Unavailable
from sentinel.laws.law import Law
from sentinel.recipes import load_copy
from sentinel.recipes.catalog import Catalog
from sentinel.reports.evidence import ref_text
from sentinel.reports.lines import Recipes
from sentinel.reports.store import law_folder, recorded
from sentinel.search.checks import subjects
from sentinel.search.guards import Constants, constants_at
from sentinel.search.inventory import limit_resources
from sentinel.targets import PackageRoot
from sentinel.targets.refs import Ref

if TYPE_CHECKING:
    from sentinel.deciding.absence import Absence
    from sentinel.deciding.law_session import LawSession
    from sentinel.deciding.open_target import OpenTarget
    from sentinel.deciding.runner import Runner
    from sentinel.recipes import Recipe
    from sentinel.search.boundary_search import BoundarySearch, Finding, LawOutcome
    from sentinel.search.known import Others
    from sentinel.targets.checkout import Checkout

#: Level -> (number of scenarios for each boundary, maximum number of calls for shrinking one finding).
LEVELS: Mapping[str, tuple[int, int]] = {"quick": (6, 12), "deep": (400, 600)}

#: A declared dialect that has not occurred yet is reported as stale only after this many further scenarios.
_PATIENCE = 300


@dataclass(frozen=True)
class LawJob:
    """A law to check for one boundary at one ref."""

    target: str
    boundary: str
    law: str
    ref: Ref

    @property
    def place(self) -> Place:
        return self.target, self.boundary, self.ref


#: The unit of a search: (target, boundary, ref).
Place = tuple[str, str, Ref]


class Survey:
    """Checks laws of many boundaries. One search per boundary checks all of its laws.

    :param level: a key of :data:`LEVELS`.
    :param recipes_of: returns a target's recipes. Their scenarios are tried first and are not shrunk.
    :param baseline: a folder of evidence. The failing scenarios in it are tried next, so that a recorded violation is
        found as long as it exists. Without them, it would depend on chance and on the version of Hypothesis whether a
        short search finds it.
    :param searchers: the number of boundaries that are searched at the same time; the results do not depend on it.
    """

    def __init__(
        self,
        catalog: Catalog,
        runner: Runner,
        level: str,
        seed: int = 0,
        recipes_of: Callable[[str], Sequence[Recipe]] = lambda target: (),
        searchers: int = 1,
        baseline: Path | None = None,
    ) -> None:
        self._catalog, self._runner = catalog, runner
        self._examples, self._shrinking = LEVELS[level]
        self._seed = seed
        self._recipes_of = recipes_of
        self._baseline = baseline
        self._searchers = searchers
        self._pool = ThreadPoolExecutor(max_workers=searchers, thread_name_prefix="sentinel-search")
        self._drawer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sentinel-draw")
        self._parser = parser_process()
        self._ahead: dict[Place, Future[None]] = {}
        self._searches: dict[Place, Future[None]] = {}
        self._wanted: dict[Place, set[str]] = {}
        self._decided: dict[LawJob, Decision] = {}
        self._outcomes: dict[LawJob, LawOutcome] = {}
        self._tried: dict[Place, int] = {}
        self._open_targets: dict[tuple[str, Ref], OpenTarget] = {}
        self._opening_locks: dict[tuple[str, Ref], Lock] = {}
        self._subjects: dict[tuple[str, Ref], Mapping[str, Subject]] = {}

    def plan(self, jobs: Iterable[LawJob]) -> None:
        """Announce jobs before they are decided, so that one search checks all wanted laws of a boundary.

        With several searchers, the searches start now. With one, a search starts when its first result is needed.
        """
        jobs = list(jobs)
        for job in jobs:
            self._wanted.setdefault(job.place, set()).add(job.law)
        if self._searchers > 1:
            for place in dict.fromkeys(job.place for job in jobs):
                if place not in self._searches:
                    self._ahead[place] = self._drawer.submit(self._draw_first_scenarios, place)
                self._start_search(place)

    def decide(self, job: LawJob) -> Decision:
        """Return the decision about a job's law. If its boundary has not been searched yet, search it first."""
        if job not in self._decided:
            self.plan([job])
            self._start_search(job.place).result()
            if job not in self._decided:  # the law was not planned when the boundary was searched
                self._search(job.place)
        return self._decided[job]

    def findings(self, job: LawJob) -> list[Finding]:
        """Return the findings that break the job's law. Call :meth:`decide` first."""
        return self._outcomes[job].findings if job in self._outcomes else []

    def jobs_of_boundary(self, job: LawJob) -> list[LawJob]:
        """Return all announced jobs of the same boundary."""
        return [replace(job, law=law) for law in sorted(self._wanted[job.place])]

    def search_others(self, place: Place, bugs: Mapping[str, Sequence[Recipe]]) -> dict[LawJob, Others]:
        """Check laws of a boundary on scenarios that do not trigger the known bugs of these laws.

        Return an empty result if the boundary cannot be called.

        :param bugs: name of a law -> recipes of the bugs that break it.
        """
        from sentinel.search.known import search_others

        target, boundary, ref = place
        subject = self._subjects_of(target, ref)[boundary]
        laws = {law: bugs[law.name] for law in subject.laws if law.name in bugs}
        if not laws:
            return {}
        law_session = self._open_target(target, ref).law_session.fresh()
        try:
            outcomes = search_others(law_session, subject, self._seed, laws, self._shrinking)
        except Undecidable:
            return {}
        finally:
            law_session.close()
        return {LawJob(target, boundary, law.name, ref): others for law, others in outcomes.items()}

    def decide_by(self, job: LawJob, finding: Finding) -> Decision:
        """Return the decision that a law is broken, with ``finding`` as the evidence."""
        from sentinel.search.decisions import of_outcome

        others = [item for item in self.findings(job) if item is not finding]
        outcome = replace(self._outcomes[job], findings=[finding, *others])
        open_target = self._open_target(job.target, job.ref)
        return of_outcome(open_target, finding.subject, finding.law, outcome, self._tried[job.place], self._seed)

    def close(self) -> None:
        """Cancel planned searches and wait for running ones, which end soon if the runner was closed before."""
        self._drawer.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._parser.shutdown(wait=True, cancel_futures=True)

    def _draw_first_scenarios(self, place: Place) -> None:
        from sentinel.search.boundary_search import drawn_scenarios  # importing Hypothesis takes about 0.3 s

        target, boundary, ref = place
        drawn_scenarios(self._subjects_of(target, ref)[boundary], self._seed, 0, self._examples)

    def _start_search(self, place: Place) -> Future[None]:
        if place not in self._searches:
            self._searches[place] = self._pool.submit(self._search, place)
        return self._searches[place]

    def _search(self, place: Place) -> None:
        from sentinel.search.decisions import of_absence, of_outcome, of_undecidable  # imports Hypothesis: about 0.3 s

        target, boundary, ref = place
        planned = set(self._wanted[place])
        subjects_here = self._subjects_of(target, ref)
        subject = subjects_here[boundary]
        laws = [law for law in subject.laws if law.name in planned]
        jobs = {law: LawJob(target, boundary, law.name, ref) for law in laws}
        try:
            open_target = self._open_target(target, ref)
        except Unavailable as error:
            failure = Failure(error.kind, error.reason)
            adapter = self._catalog.adapters[target].digest
            for law, job in jobs.items():
                self._decided[job] = of_absence(target, ref, subject, law, failure, adapter)
            return
        ahead = self._ahead.pop(place, None)
        if ahead is not None and not ahead.cancel():
            ahead.result()
        lack: Absence | None = None
        while True:
            try:
                search = self._search_boundary(open_target, subject, laws, jobs)
                break
            except Undecidable as error:
                again, lack = lack is None, self._find_absence(open_target, subject, error)
                if again and lack is not None and lack.moved:
                    self._runner.follow(target, ref, lack.moved, subject.contract.name)
                    continue
                for law, job in jobs.items():
                    self._decided[job] = of_undecidable(open_target, subject, law, error, lack)
                return
        answered = any(outcome.answered for outcome in search.outcomes.values())
        self._tried[place] = search.tried
        for law, outcome in search.outcomes.items():
            if search.ended is not None and not outcome.findings:
                self._decided[jobs[law]] = of_undecidable(open_target, subject, law, search.ended, lack)
                continue
            self._outcomes[jobs[law]] = outcome
            self._decided[jobs[law]] = of_outcome(
                open_target, subject, law, outcome, search.tried, self._seed, answered=answered
            )

    def _search_boundary(
        self, open_target: OpenTarget, subject: Subject, laws: Sequence[Law], jobs: Mapping[Law, LawJob]
    ) -> BoundarySearch:
        from sentinel.search.boundary_search import BoundarySearch

        law_session = open_target.law_session.fresh()
        # An evidence file has one scenario per law, that of the first symptom. So only this scenario is shrunk.
        search = BoundarySearch(
            law_session,
            subject,
            self._seed,
            laws,
            self._shrinking,
            shrink_further=False,
            glimpse=True,
            constants=constants_of(self._parser, law_session, subject, open_target.checkout, open_target.sources),
        )
        try:
            search.try_recipes(self._recipes_of(open_target.target), list(self._baseline_scenarios(subject, jobs)))
            search.run(self._examples)
            self._wait_for_dialects(law_session, search)
        except Undecidable as error:
            if not any(outcome.findings for outcome in search.outcomes.values()):
                raise
            search.ended = error  # keep the findings from before the error
        finally:
            law_session.close()
        return search

    def _find_absence(self, open_target: OpenTarget, subject: Subject, error: Undecidable) -> Absence | None:
        """Return the name that the checkout lacks if the error is about a missing name; otherwise None."""
        cause, binding = error.failure, subject.binding
        if cause.kind not in ("drift", "not-in-this-version") or cause.provenance is not None:
            return None
        recipes = (recipe for recipe in self._recipes_of(open_target.target) if recipe.boundary in binding.paths)
        older = self._runner.checkouts_of_pins(open_target.target, recipes)
        return self._runner.absence(open_target.target, binding, open_target.checkout, older)

    def _baseline_scenarios(
        self, subject: Subject, jobs: Mapping[Law, LawJob]
    ) -> Iterator[tuple[Law, Mapping[str, Inputs]]]:
        if self._baseline is None:
            return
        for law, job in jobs.items():
            with suppress(SentinelError):  # invalid files are reported by the comparison with the baseline
                folder = law_folder(job.target, subject.name, law.name)
                for document in recorded(self._baseline, Recipes(self._catalog), folder).values():
                    if document["verdict"] == "reproduced" and document["ref"] == ref_text(job.ref):
                        yield law, load_copy(document["recipe"]["document"], self._catalog).variants
                        break

    def _subjects_of(self, target: str, ref: Ref) -> Mapping[str, Subject]:
        key = (target, ref)
        if key not in self._subjects:
            here, _ = subjects(self._catalog, target, checkout=checkout_to_read(self._runner, self._catalog, *key))
            self._subjects[key] = {item.name: item for item in here}
        return self._subjects[key]

    def _open_target(self, target: str, ref: Ref) -> OpenTarget:
        key = (target, ref)
        with self._opening_locks.setdefault(key, Lock()):
            if key not in self._open_targets:
                bindings = [item.binding for item in self._subjects_of(target, ref).values()]
                self._open_targets[key] = self._runner.open_target(target, ref, bindings)
            return self._open_targets[key]

    @staticmethod
    def _wait_for_dialects(law_session: LawSession, search: BoundarySearch) -> None:
        """Search longer if the violation of a declared dialect has not occurred yet.

        A dialect is not stale merely because its violation did not occur in a few scenarios.
        """
        from sentinel.search.boundary_search import BoundarySearch
        from sentinel.search.decisions import stale_dialects

        for law, outcome in search.outcomes.items():
            if not outcome.findings and stale_dialects(search.subject, law, outcome, chances=1):
                longer = BoundarySearch(law_session, search.subject, search.seed, [law], search.shrinking)
                more = longer.outcomes[law]
                longer.run(_PATIENCE, enough=partial(bool, more.dialects))
                outcome.dialects.update(more.dialects)
                outcome.dialects_open.update(more.dialects_open)
                outcome.findings += more.findings


def parser_process() -> ProcessPoolExecutor:
    """Return an executor for :func:`constants_of`. Its process starts with the first task.

    In a process, the time and memory of parsing are limited, and other threads need not wait.
    """
    return ProcessPoolExecutor(1, get_context("spawn"), limit_resources)


def constants_of(
    parser: ProcessPoolExecutor, law_session: LawSession, subject: Subject, checkout: Checkout, sources: Sources
) -> Constants:
    """Return the constants in a boundary's code, or none if the code cannot be found or read."""
    with suppress(Undecidable, NotProvenError, SentinelError, OSError, BrokenProcessPool):
        provenance = prove(law_session.find(subject), checkout, sources)
        base, roots = str(checkout.path), package_roots(checkout)
        return parser.submit(constants_at, base, roots, provenance.file, provenance.line).result()
    return Constants()


def package_roots(checkout: Checkout) -> tuple[PackageRoot, ...]:
    """Return the package roots of a checkout, each with the folder from which it is imported."""
    above = sorted((str(each.relative_to(checkout.path)) for each in checkout.import_roots), key=len, reverse=True)
    above = ["" if each == "." else each for each in above]
    return tuple(
        PackageRoot(root, next((each for each in above if not each or root.startswith(f"{each}/")), ""))
        for root in checkout.roots
    )


def checkout_to_read(runner: Runner, catalog: Catalog, target: str, ref: Ref) -> Checkout | None:
    """Return the checkout that determines which bindings a target has at a ref.

    Return None if the bindings are the same at every revision, or if the ref is not available here.
    """
    if not catalog.adapters[target].target.depends_on_code:
        return None
    try:
        return runner.checkout(target, ref)
    except Unavailable:  # every law item reports this
        return None


def law_jobs(
    catalog: Catalog, target: str, refs: Iterable[Ref], checkout: Callable[[Ref], Checkout | None] = lambda ref: None
) -> list[LawJob]:
    """Return a job for each ref, boundary and law of a target."""
    return [
        LawJob(target, subject.name, law.name, ref)
        for ref in refs
        for subject in subjects(catalog, target, checkout=checkout(ref))[0]
        for law in subject.laws
    ]
