"""Compare two revisions of a target. ``diff``, the gate, ``pulls`` and the nightly run use :class:`Comparison`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from sentinel.comparing.asking import Asking, Budget, find_idle_inputs, measure_again, recipes_of
from sentinel.comparing.judging import (
    add_programming_errors,
    bugs_of_one_side,
    compare_laws,
    describe_finding,
    judge_one_sided,
    judge_refused,
    keeps_numbers,
    list_findings,
    may_be_excused,
)
from sentinel.comparing.observations import AFTER, BEFORE, BESIDE, NUMBERS_STAY, SIDES, numbers_stay_for
from sentinel.comparing.patch import NO_EFFECT, describe_share
from sentinel.comparing.processes import Processes, Shared
from sentinel.comparing.reached import Place
from sentinel.comparing.results import BoundaryDiff, Broken
from sentinel.comparing.selection import Candidate, Change, Selection
from sentinel.comparing.sessions import Log, OneSided
from sentinel.comparing.units import Unit
from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.proof import NotProvenError, prove
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import SentinelError
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.boundary_search import BoundarySearch, Finding
from sentinel.search.discovery import is_about
from sentinel.targets import Target
from sentinel.targets.refs import Ref

#: Maximum number of scenarios for a boundary whose own code has not changed. It is small because such boundaries
#: include training steps, which are slow.
_CALLER = 30

#: Symptom -> sort key of a boundary's differences; 1 for all others. A report's sentence describes only the first
#: difference, so a mere difference in dtype comes last.
_ORDER = {"value": 0, "dtype": 2}

#: Number of scenarios for checking whether any call of a boundary returns.
_CALLED = 5


class Comparison:
    """A comparison of two revisions of one target.

    :param recipes: the recipes of known bugs, or a function that reads them on first use. Their scenarios are tried
        too. If a boundary differs, its recipes are run at both revisions.
    :param boundaries: globs of the boundaries to compare; empty for all of them.
    :param unchanged_too: also call boundaries that reach no changed code.
    :param shared: state shared with other comparisons, if both refs are commits of one mirror.
    :param trees: the git trees of both refs; needed only with ``shared``.
    :param until: the time by ``time.monotonic`` after which no more scenarios are drawn.
    """

    def __init__(
        self,
        catalog: Catalog,
        runner: Runner,
        target: Target,
        refs: tuple[Ref, Ref],
        recipes: Sequence[Recipe] | Callable[[], Sequence[Recipe]] = (),
        examples: int = 100,
        seed: int = 0,
        boundaries: Sequence[str] = (),
        notify: Callable[[str], None] = lambda line: None,
        unchanged_too: bool = False,
        shared: Shared | None = None,
        trees: tuple[str, str] = ("", ""),
        until: float = math.inf,
    ) -> None:
        self.catalog, self.target, self.refs = catalog, target, dict(zip(SIDES, refs))
        self._runner, self._recipe_source, self._notify = runner, recipes, notify
        self._unchanged_too = unchanged_too
        self.checkouts = {side: runner.checkout(target.name, ref) for side, ref in self.refs.items()}
        self.selection = Selection(
            catalog,
            runner,
            target,
            self.checkouts,
            lambda: self._recipes,
            boundaries,
            None if shared is None else shared.code,
            dict(zip(SIDES, trees)),
            unchanged_too,
        )
        self._shared = shared
        self.processes = Processes(runner, self.refs, self.selection, shared)
        runs = {} if shared is None else shared.runs
        budget = Budget(examples, seed, until)
        self._asking = Asking(self.selection, self.processes, lambda: self._recipes, budget, runs)
        self._results: dict[str, BoundaryDiff] = {}
        self._verdicts: dict[tuple[str, Ref], str] = {}
        self._import_failures: list[tuple[str, frozenset[Place]]] = []

    @cached_property
    def _recipes(self) -> Sequence[Recipe]:
        return self._recipe_source() if callable(self._recipe_source) else self._recipe_source

    def to_call(self) -> list[str]:
        """Return the boundaries that must be called, the nearest to changed code first: those whose own code has
        changed, then those that call changed code, sorted by the number of calls in between."""
        each_result = {name: each.result for name, each in self.selection.candidates.items()}
        names = [name for name, result in each_result.items() if result.state in ("", "new") or result.lost]
        return sorted(names, key=self._order)

    def _order(self, name: str) -> float:
        result = self.selection.candidates[name].result
        return 0 if result.state == "new" or result.lost else self.selection.distance(name)

    def run(self) -> Iterator[BoundaryDiff]:
        """Compare the boundaries one by one, and yield the results. Results that need no call come first."""
        names = self.to_call()
        yield from (each.result for name, each in self.selection.candidates.items() if name not in names)
        for number, name in enumerate(names, 1):
            self._notify(f"{number} of {len(names)}: {name}")
            yield self.compare(name)

    def compare(self, name: str) -> BoundaryDiff:
        """Compare one boundary, and return the result. Call both revisions, unless the source alone determines the
        result."""
        _ = self.selection.patch  # computed first, because sessions record which changed lines run
        if name not in self._results:
            candidate = self.selection.candidates[name]
            subject, result = candidate.subject, candidate.result
            self._results[name] = result  # set first, because comparing the callers of a recursive function reads it
            if result.state == "new":
                self._results[name] = self._check_new(candidate)
            elif result.lost:
                self._results[name] = self._check_lost(subject, result)
            elif not result.state:
                self._results[name] = self._excuse_helper(self._call_both(candidate), candidate.changed)
        return self._results[name]

    def cause_of(self, name: str) -> str:
        """Return the boundary that this boundary calls and whose difference explains its difference; empty if there is
        none."""
        candidate, own = self.selection.candidates[name], self._results.get(name)
        if own is None or own.state != "differs" or not self.selection.distance(name):
            return ""
        reached = {place for place, _, _ in candidate.changed}
        for other, result in self._results.items():
            if other != name and result.judgement == own.judgement:
                changed = {place for place, steps in self.selection.distances(other).items() if not steps}
                if changed and reached <= {place for place, _, _ in self.selection.candidates[other].changed}:
                    return other
        return ""

    def settle(self, results: Sequence[BoundaryDiff]) -> list[BoundaryDiff]:
        """Return the results with their final states, after all boundaries have been compared.

        Earlier states may change, because a changed line counts as examined if a scenario of any boundary ran it.
        """
        return [self._settle(each) for each in results]

    def _settle(self, result: BoundaryDiff) -> BoundaryDiff:
        if result.state not in ("differs", "same numbers", "not examined"):
            return result
        changed = self.selection.candidates[result.name].changed
        places, patch = [place for place, _, _ in changed], self.selection.patch
        idle = tuple(patch.find_unexamined(places))
        state, share = result.state, ""
        if state == "not examined" and not result.reason and not idle:
            state = "same numbers"
        elif state == "same numbers" and idle:
            state = "not examined"
        if state == "same numbers":
            ran, elsewhere = patch.ran_at(result.name, places)
            share = describe_share(len(ran), len(patch.lines(places)), elsewhere)
            state = state if ran or not share else "not examined"
        return replace(result, unreached=idle, state=state, share=share)

    def _call_both(self, candidate: Candidate) -> BoundaryDiff:
        subject, result, changed = candidate.subject, candidate.result, candidate.changed
        distance = self.selection.distance(subject.name)
        few = bool(distance) and not self._unchanged_too and bool(subject.laws)
        patch, distances = self.selection.patch, self.selection.distances(subject.name)
        asking = self._asking.with_examples(_CALLER) if few else self._asking
        runs_past = False
        if few and (self._shared is not None or not self.processes.are_open):
            searched = not patch.needs_search((), distances)
            runs = asking.find_run_past_changes(subject, few=searched)
            if runs is not None:
                patch.note_search((), () if searched else distances)
            if runs is not None and not self._asking.can_branch(subject, changed, runs.functions):
                return self._settle(replace(result, state="same numbers", scenarios=runs.scenarios))
            runs_past = runs is not None
        alike = self._find_import_failure(changed)
        if alike:
            reason = f"{AFTER}: it fails for the same reason as {alike}"
            return replace(result, state="not compared", failed=AFTER, reason=reason)
        sessions = self.processes.sessions(subject)
        located = {side: self.processes.locate_changes(side, subject) for side in SIDES}
        pair = self._asking.pair(subject, sessions, located)
        laws = numbers_stay_for(subject.laws)
        try:
            glimpse = distance < math.inf or not few
            search = asking.search_differences(pair, subject, laws[:1] if few else laws, few, glimpse)
            log = pair.logs.get(subject.name, Log())
            if few and not runs_past and self._needs_search(subject, search, log, located):
                few, search = False, asking.search_differences(pair, subject, laws)
            if not few and subject.laws and not any(outcome.findings for outcome in search.outcomes.values()):
                asking.search_rare_lines(pair, search, located)
            # Keep one finding for each symptom. Findings on scenarios as drawn come last in the reversed order, so they
            # replace findings that need a variant.
            outcomes = [*search.outcomes.values()][::-1]
            findings = {item.symptom: item for outcome in outcomes for item in outcome.findings}
            found = [(item.trial, item.violations, item.examples) for item in findings.values()]
            if not few and not found:
                self._note_lines(subject.name, log, located, changed)
            options = [] if few or found else asking.search_options(pair, search.subject, changed, not distance)
            turned = list(options)
            found = found or turned
            found = found or ([] if few else list(asking.search_masks(pair, search.subject)))
            again = [measure_again(pair, search.subject, each) for each in found]
            again = again if few else [find_idle_inputs(pair, search.subject, each) for each in again]
            if not few and not again:
                self._note_lines(subject.name, log, located, changed)
                again = asking.search_gradients(sessions, search.subject, log)
            if not again:
                again = asking.search_branches(sessions, search.subject, changed, log)
            confirmed = [each for each in again if each.confirmed]
            if any(each.symptom not in (BESIDE, "dtype") for each in confirmed):
                confirmed = [each for each in confirmed if each.symptom != BESIDE]
            # If the adapter fails in every call at one side, this shows only that the adapter does not fit.
            confirmed = confirmed if log.answered or log.refused else []
            differences = tuple(sorted(confirmed, key=lambda each: _ORDER.get(each.symptom, 1)))
            if log.answered:
                ran = self._note_lines(subject.name, log, located, changed)
                if not few:
                    patch.note_search(ran, distances)
                if differences and len(changed) == 1:
                    ran |= patch.note_imported([changed[0][0]])
                    if len({side for side, _, _ in ran}) == len(ran):
                        for statement in ran:  # no other changed code ran, so the difference depends on this statement
                            patch.note_influence(subject.name, statement, True)
            elif log.refused:
                return judge_refused(result, log, differences)
            trials = [*(finding.trial for finding in findings.values()), *(trial for trial, _, _ in turned)]
            scenarios = [next(iter(trial.variants.values())) for trial in trials]
            asking = asking.with_examples(0) if few else asking
            broken = compare_laws(asking, pair, sessions, search.subject, scenarios, log, subject, self._inherited)
            broken = add_programming_errors(broken, differences)
            recipes = recipes_of(subject, self._recipes) if differences or any(broken.values()) else []
            bugs = bugs_of_one_side(self._decide_bugs(subject, self._asking.select_differing(pair, subject, recipes)))
            undecided = search.undecided if subject.laws else ""
            if not log.answered and (log.unanswered or not subject.laws):
                undecided = undecided or f"every call raised: {log.unanswered}"
            if not (differences or any(broken.values()) or any(bugs.values()) or undecided):
                asking.check_influence(sessions, search.subject, log, located)
                if any(each.guard == NO_EFFECT for each in patch.find_unexamined([place for place, _, _ in changed])):
                    differences = tuple(asking.search_values(sessions, search.subject, changed, log, located))
        except OneSided as error:
            if error.whole and error.side == AFTER:
                self._import_failures.append((subject.name, _select_imported(changed)))
            return judge_one_sided(result, error)
        except Undecidable as error:
            return replace(result, state="not compared", reason=str(error))
        finally:
            pair.close()
        differs = bool(differences or any(broken.values()) or any(bugs.values()))
        reason = "" if differs else undecided
        state = "differs" if differs else "not compared" if reason else "same numbers"
        if state == "same numbers" and not subject.laws and not distance:
            names = ", ".join(recipe.bug_id for recipe in recipes_of(subject, self._recipes))
            state = "not examined"
            reason = f"no contract is bound to it, so only the scenarios of its known bugs were tried: {names}"
        if state == "same numbers" and log.undecided and not log.decided:
            state, reason = "not examined", "every number that it returns is NaN or infinite at both revisions"
        return self._settle(
            replace(
                result,
                state=state,
                reason=reason,
                places={**result.places, **self._prove_places(subject, log)},
                answered=log.answered,
                undecided={key: count for key, count in log.undecided.items() if count},
                blind=tuple(key for key, count in log.undecided.items() if count and key not in log.whole),
                scenarios=max(search.outcomes[NUMBERS_STAY].judged, len(differences)) or log.answered,
                rounding=log.rounding,
                differences=differences,
                broken=broken,
                bugs=bugs,
            )
        )

    def _needs_search(
        self, subject: Subject, search: BoundarySearch, log: Log, located: Mapping[str, Mapping[Place, Unit]]
    ) -> bool:
        """Return True if a boundary with unchanged code needs more than a few scenarios.

        A few scenarios are enough if they show a difference, or if a full search at another boundary has already
        covered the changed code.
        """
        if any(outcome.findings for outcome in search.outcomes.values()):
            return False
        patch = self.selection.patch
        ran = self._note_lines(subject.name, log, located, ())
        entered = {place for _, place, _ in ran}
        return not log.answered or patch.needs_search(ran, {*self.selection.distances(subject.name), *entered})

    def _note_lines(
        self, name: str, log: Log, located: Mapping[str, Mapping[Place, Unit]], changed: Sequence[Change]
    ) -> set[tuple[str, Place, int]]:
        patch = self.selection.patch
        imported = patch.note_imported(place for place, _, _ in changed)
        ran = {each for side, units in located.items() for each in patch.note(side, units, log.lines[side])}
        patch.note_boundary(name, ran | imported)
        return ran

    def _find_import_failure(self, changed: Sequence[Change]) -> str:
        """Return the earlier boundary whose failed import explains why this boundary's import fails; empty if there is
        none.

        The reason is the same if ``changed`` includes all changed definitions that ran in the failed import. The second
        import is then not tried.
        """
        here = _select_imported(changed)
        return next((name for name, places in self._import_failures if places and places <= here), "")

    def _check_lost(self, subject: Subject, result: BoundaryDiff) -> BoundaryDiff:
        """Check whether a boundary that was removed could be called at the base. It counts as lost only if a call at
        the base returns."""
        session = self.processes.session(BEFORE, subject)
        try:
            search = self._asking.search_laws(session, subject, subject.laws, _CALLED)
            if any(outcome.answered for outcome in search.outcomes.values()):
                return result
            why = search.undecided
        except Undecidable as error:
            why = str(error)
        finally:
            session.close()
        reason = f"{result.lost}; but its calls fail at the base, too: {why}"
        return replace(result, state="not compared", lost="", reason=reason)

    def _check_new(self, candidate: Candidate) -> BoundaryDiff:
        """Check the laws of a boundary that only the head has, and record which of its lines ran."""
        subject, result, changed = candidate.subject, candidate.result, candidate.changed
        session = self.processes.session(AFTER, subject)
        try:
            search = self._asking.search_laws(session, subject, subject.laws, self._asking.budget.examples)
        except Undecidable as error:
            return replace(result, reason=str(error))
        finally:
            session.close()
        broken: list[Broken] = []
        inherited: dict[str, None] = {}
        for finding in list_findings(search):
            bugs = [recipe.bug_id for recipe in self._recipes if self._was_there(recipe, finding)]
            inherited |= dict.fromkeys(bugs)
            broken += [] if bugs else [describe_finding(finding)]
        bugs_of_callees = f"the code that it calls has known bugs, as before: {', '.join(inherited)}"
        reason = bugs_of_callees if inherited else search.undecided
        tried = 0 if search.undecided else search.tried
        places, patch = [place for place, _, _ in changed], self.selection.patch
        if tried:
            located = {BEFORE: {}, AFTER: self.processes.locate_changes(AFTER, subject)}
            log = self._asking.note_head(subject, located[AFTER])
            self._note_lines(subject.name, log, located, changed)
        idle = tuple(patch.find_unexamined(places))
        if tried and not broken and places and not any(map(patch.ran, places)):
            tried, reason = 0, "none of its lines ran"
        broken_by = {AFTER: tuple(broken)} if broken else {}
        return replace(result, scenarios=tried, reason=reason, unreached=idle, broken=broken_by)

    def _inherited(self, finding: Finding) -> list[Recipe]:
        """Return the known bugs that may explain a finding and are present at both revisions.

        A bug also counts as present if both verdicts are ``changed``, because another bug may change the numbers of the
        recipe's scenario.
        """
        about = [recipe for recipe in self._recipes if is_about(recipe, finding, self.target)]
        self._plan(about, self.refs.values())
        verdicts = [{self._verdict(recipe, ref) for ref in self.refs.values()} for recipe in about]
        return [recipe for recipe, found in zip(about, verdicts) if found in ({"reproduced"}, {"changed"})]

    def _verdict(self, recipe: Recipe, ref: Ref) -> str:
        key = recipe.digest, ref
        if key not in self._verdicts:
            self._verdicts[key] = self._runner.decide(Job(recipe, ref)).verdict.name
        return self._verdicts[key]

    def _was_there(self, recipe: Recipe, finding: Finding) -> bool:
        """Return True if a recipe explains a finding at a new boundary and the base already has the bug."""
        about = is_about(recipe, finding, self.target)
        return about and self._verdict(recipe, self.refs[BEFORE]) == "reproduced"

    def _excuse_helper(self, result: BoundaryDiff, changed: Sequence[Change]) -> BoundaryDiff:
        """Return the result of a helper function, without broken laws that have no effect on its callers.

        Laws are dropped if the function is worse only because it raises on arguments that it accepted before, and if
        the results of all its callers stay the same.
        """
        if not may_be_excused(result):
            return result
        helpers = {name for (_, name), _, now in changed if now is not None and now.kind == "function"}
        callers = [self.selection.boundary_at(*place) for place in self.selection.callers_of(helpers)]
        stay = [self.compare(name) for name in callers if name is not None and name != result.name]
        if not stay or len(stay) != len(callers) or not all(keeps_numbers(each, helpers) for each in stay):
            return result
        names = ", ".join(each.name for each in stay)
        why = f"its parameters have changed, but the results of its callers have not: {names}"
        return replace(result, broken={**result.broken, AFTER: ()}, reason=why)

    def _decide_bugs(self, subject: Subject, recipes: Sequence[Recipe]) -> dict[str, dict[str, str]]:
        refs = {side: self.processes.open(side, subject).ref for side in SIDES}
        self._plan(recipes, refs.values())
        return {recipe.bug_id: {side: self._verdict(recipe, ref) for side, ref in refs.items()} for recipe in recipes}

    def _plan(self, recipes: Sequence[Recipe], refs: Collection[Ref]) -> None:
        pairs = [(recipe, ref) for recipe in recipes for ref in dict.fromkeys(refs)]
        self._runner.plan([Job(*pair) for pair in pairs if (pair[0].digest, pair[1]) not in self._verdicts])

    def _prove_places(self, subject: Subject, log: Log) -> dict[str, str]:
        places = {}
        for side, claim in log.claims.items():
            place = self.processes.open(side, subject)
            # Skip a process that is shared with another revision, where the lines may differ.
            if place.ref != self.refs[side]:
                continue
            with suppress(NotProvenError, SentinelError):
                provenance = prove(claim, place.checkout, place.sources)
                places[side] = f"{provenance.boundary} ({provenance.file}:{provenance.line})"
        return places


def _select_imported(changed: Sequence[Change]) -> frozenset[Place]:
    """Return the changed definitions that run during import: all except functions. If there are none, return all."""
    places = {place for place, _, other in changed if other is not None and (other.kind != "function")}
    return frozenset(places or {place for place, _, _ in changed})
