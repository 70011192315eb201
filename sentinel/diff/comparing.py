"""Compares a target's boundaries at two revisions: which are there, which reach changed code, and what they answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sentinel.contracts.call import CALL
from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import SETTINGS, LawSession, Plan, Subject, Trial, Undecidable, widened
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.proof import NotProvenError, prove
from sentinel.deciding.runner import Job, Runner
from sentinel.diff.modules import Modules
from sentinel.diff.pairs import (
    AFTER,
    BEFORE,
    BESIDE,
    NUMBERS_STAY,
    SIDES,
    Ahead,
    Alone,
    Pair,
    Seen,
    ahead,
    asked,
    numbers_stay_for,
    part,
)
from sentinel.diff.reached import Code, Place, Reached, Unit, names_in
from sentinel.errors import SentinelError
from sentinel.history.bindings import ALIKE, Definition, Sighting, sighting
from sentinel.history.commits import Commit
from sentinel.history.coverage import CheckoutTrees
from sentinel.laws.law import Law, Violation
from sentinel.laws.metrics import metrics_tell_the_truth
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.boundary_search import BoundarySearch, Finding, glimpses
from sentinel.search.checks import matches, subjects
from sentinel.search.discovery import is_about
from sentinel.search.examples import Example
from sentinel.search.signatures import options
from sentinel.search.survey import LEVELS
from sentinel.targets import Binding, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.values.literals import HALVES, Tensor, from_array
from sentinel.worker.answers import Called

_OTHER = {BEFORE: AFTER, AFTER: BEFORE}

#: How many times as many scenarios are drawn where a revision refuses some.
_REFUSED = 5

#: Scenarios that laws look at where something differs, at most.
_LOOKED = 30

#: Values of one option that are tried, and how many in all.
_VALUES, _TURNS = 3, 36

#: Calls that shrinking one difference may take.
_SHRINKING = 300


@dataclass(frozen=True)
class Difference:
    """One way in which the two differ, on the smallest scenario that shows it, seen again in fresh processes.

    :ivar symptom: ``value``, ``non-finite``, ``masked`` (only where the mask is 0), ``shape``, ``dtype``, ``answer``,
        ``raises`` or ``no longer raises``; ``beside``, where all that the contract observes is the same.
    :ivar answers: by side: what was observed, or what was raised.
    :ivar details: key -> where and by how much.
    :ivar double: the same in float64, where the scenario is of a coarser dtype: what is observed there, by side.
    :ivar recipes: whose scenario it is; none where it was drawn.
    :ivar slip: of what one side raises: see :func:`sentinel.worker.slips.slip`.
    """

    symptom: str
    inputs: Inputs
    answers: Mapping[str, Mapping[str, Any] | str]
    details: Mapping[str, str]
    double: Mapping[str, Mapping[str, Any]] | None = None
    recipes: tuple[str, ...] = ()
    slip: str = ""

    @property
    def shown(self) -> bool:
        """Whether it was seen again: a call that was refused is."""
        refused = any(isinstance(answer, str) for answer in self.answers.values())
        return refused or self.symptom not in ("raises", "no longer raises")


@dataclass(frozen=True)
class Broken:
    """A law that one side breaks and the other keeps, on the same variants.

    :ivar defined: whether the contract's definition alone is against it: then it may be what the change means.
    :ivar came: whether it takes an option or a choice that the other side has not.
    """

    law: str
    statement: str
    symptom: str
    detail: str
    variants: Mapping[str, Inputs]
    defined: bool = False
    came: bool = False


@dataclass(frozen=True)
class Compared:
    """One boundary at both revisions.

    :ivar state: ``same code`` (nothing that it reaches has changed), ``same numbers``, ``differs``, ``new``, ``gone``,
        ``not compared``.
    :ivar reason: why it was not compared.
    :ivar places: by side: ``dotted.path (file:line)``.
    :ivar parameters: by side, where they are not the same.
    :ivar renamed: what may be it under another name.
    :ivar changed: the definitions that it reaches and that are not the same.
    :ivar unreached: those of them that no scenario ran.
    :ivar rounding: the largest difference that rounding explains.
    :ivar broken: by side: the laws that this side breaks, and the other does not.
    :ivar bugs: by side: the known bugs of the boundary that are there, and are known not to be on the other.
    :ivar commit: the one with which it came to differ; None where that is not known, for the reason ``no_commit``.
    """

    name: str
    contract: str
    state: str
    reason: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    scenarios: int = 0
    rounding: float = 0.0
    differences: tuple[Difference, ...] = ()
    broken: Mapping[str, tuple[Broken, ...]] = field(default_factory=dict)
    bugs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    commit: Commit | None = None
    no_commit: str = ""

    @property
    def judgement(self) -> str:
        """``worse``, ``better``, ``mixed``, or ``other`` where no law and no known bug tells, or only ``beside`` what
        its contract observes; empty where it is the same."""
        worse, better = (bool(self.broken.get(side) or self.bugs.get(side)) for side in (AFTER, BEFORE))
        if worse or better:
            return "mixed" if worse and better else "worse" if worse else "better"
        beside = {each.symptom for each in self.differences} == {BESIDE}
        return ("beside" if beside else "other") if self.state == "differs" else ""

    @property
    def redefines(self) -> bool:
        """Whether all that speaks against what it is now is the definition of its contract."""
        broken = self.broken.get(AFTER, ())
        return bool(broken) and not self.bugs.get(AFTER) and all(each.defined for each in broken)


@dataclass(frozen=True)
class Runs:
    """Which functions run in the scenarios of a boundary, by their names.

    :ivar reached: what the boundary reached where that was seen.
    """

    reached: Reached
    functions: frozenset[str]
    scenarios: int


@dataclass
class Shared:
    """What comparisons of one target in one mirror have in common.

    A boundary of which a revision reaches the same code as another one's answers there as it does here: a process that
    has one of them will do for both. So most heads need no process for the revision they come from.

    :ivar code: of every revision's tree.
    :ivar runs: which functions run, by boundary.
    :ivar places: the processes that are there, the one that was used last at the end.
    """

    code: Code
    runs: dict[str, list[Runs]] = field(default_factory=dict)
    places: list[tuple[str, OpenTarget]] = field(default_factory=list)

    def like(self, reached: Reached, binding: Binding) -> tuple[str, OpenTarget] | None:
        """A process of a revision in which a boundary reaches just this."""
        for place in self.places[::-1]:
            here = self.code.reached(place[0], binding)
            seen = sighting(self.code.definitions, place[0], binding)
            if here is not None and not seen.lacks and (here is reached or not here.changed(reached)):
                self.places.remove(place)
                self.places.append(place)
                return place
        return None


#: A definition that is not the same at both revisions: where it is, and what it is at each.
Change = tuple[Place, Unit | None, Unit | None]

#: A boundary, as the code of both revisions tells, with what has changed of what it reaches.
Known = tuple[Subject, Compared, list[Change]]


class Comparison:
    """Two revisions of one target.

    :param recipes: known bugs, whose scenarios are tried first, and which are decided where code has changed; or what
        reads them, which is asked where anything is.
    :param examples: scenarios that are drawn for each boundary that reaches changed code.
    :param boundaries: globs over dotted paths; empty for all.
    :param tell: told what is being compared.
    :param whatever: whether boundaries are asked that reach no changed code, too.
    :param shared: what other comparisons have in common with it, where both refs are commits of one mirror.
    :param trees: of these commits.
    :param until: when no more is drawn, by ``time.monotonic``: what hangs would be asked for each scenario else.
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
        tell: Callable[[str], None] = lambda line: None,
        whatever: bool = False,
        shared: Shared | None = None,
        trees: tuple[str, str] = ("", ""),
        until: float = math.inf,
    ) -> None:
        self._until, self._boundaries = until, boundaries
        self._whatever, self._shared, self.trees = whatever, shared, dict(zip(SIDES, trees))
        self._runs = {} if shared is None else shared.runs
        self.target, self.refs = target, dict(zip(SIDES, refs))
        self.catalog, self._runner, self._given = catalog, runner, recipes
        self._examples, self._seed, self._tell = examples, seed, tell
        self.checkouts: dict[str, Checkout] = {
            side: runner.checkout(target.name, ref) for side, ref in self.refs.items()
        }
        self._modules = Modules(target.name) if shared is None else None
        self.codes = {
            side: Code(target, CheckoutTrees(checkout), self._modules) if shared is None else shared.code
            for side, checkout in self.checkouts.items()
        }
        found: dict[str, Subject] = {}
        self.left_out: dict[str, str] = {}
        for checkout in self.checkouts.values():
            subjects_, omitted = subjects(catalog, target.name, boundaries, checkout)
            found |= {subject.name: subject for subject in subjects_}
            self.left_out |= {item.boundary: item.reason for item in omitted if not item.law}
        self.subjects = list(found.values())
        self._places: dict[tuple[str, str], OpenTarget] = {}
        self._told: dict[str, Compared] = {}

    def static(self) -> list[Known]:
        """Every boundary of either revision, as its code tells, with what has changed of what it reaches. Those whose
        state is empty are to be asked."""
        found: list[Known] = []
        one_, other_ = (self.codes[side].files(self.trees[side]) for side in SIDES)
        identical = one_ == other_
        asked = self.subjects if identical else [*self.subjects, *self._called()]
        bindings = [subject.binding for subject in asked]
        seen = {
            side: [sighting(code.definitions, self.trees[side], binding) for binding in bindings]
            for side, code in self.codes.items()
        }
        for place, subject in enumerate(asked):
            sides = {side: seen[side][place] for side in SIDES}
            there = [side for side in SIDES if sides[side].found is not None and not sides[side].lacks]
            compared = _described(subject, sides)
            if not there or (not subject.laws and len(there) == 1):
                continue
            units = [self._unit(side, seen.found) for side, seen in sides.items() if seen.found is not None]
            if len(there) == 1 and len(units) == 2 and units[0] is not None and units[0].like(units[1]):
                lacking = _OTHER[there[0]]  # the function was there, and what its adapter asks it with was not
                reason = f"{lacking}: not in this version: the checkout has no {sides[lacking].lacks}"
                found.append((subject, replace(compared, state="not compared", reason=reason), []))
                continue
            if len(there) == 1:
                state = "new" if there == [AFTER] else "gone"
                alike = tuple(self._alike(subject, there[0])) if state == "gone" else ()
                found.append((subject, replace(compared, state=state, renamed=alike), []))
                continue
            changed: list[Change] = []
            if not identical:
                one, other = (self.reached(side, subject) for side in SIDES)
                changed = one.changed(other) if one is not None and other is not None else []
            if not changed and not self._whatever:
                found.append((subject, replace(compared, state="same code"), []))
            else:
                found.append((subject, replace(compared, changed=_named(changed)), changed))
        if self._modules is not None:
            self._modules.save()
        return found

    def _called(self) -> list[Subject]:
        """What known bugs call as it stands: there are no laws for it, and no scenarios but theirs."""
        adapter = str(self.catalog.adapters[self.target.name].file)
        bound = {subject.name for subject in self.subjects}
        found = []
        for name in dict.fromkeys(recipe.boundary for recipe in self._recipes if recipe.contract == CALL.name):
            plain = Binding(name, CALL.name, moved=self.target.moved)
            binding = self.target.binding(name, CALL.name) or plain
            if matches(binding, self._boundaries):
                self.left_out.pop(binding.boundary, None)
                found.append(Subject(binding, CALL, (), adapter, f"{name}({CALL.name})" if name in bound else name))
        return found

    def reached(self, side: str, subject: Subject) -> Reached | None:
        return self.codes[side].reached(self.trees[side], subject.binding)

    def beside(self, subject: Subject) -> list[str]:
        """The functions that it reaches and that have other code now, by dotted path."""
        changed = self.known[subject.name][2]
        return [
            f"{self.target.module_of(file)}.{name}"
            for (file, name), one, other in changed
            if one is not None and other is not None and other.kind == "function"
        ]

    def _unit(self, side: str, found: Definition) -> Unit | None:
        units = self.codes[side].module(found.blob).units.values()
        return next((unit for unit in units if unit.span == found.name.span), None)

    def _alike(self, subject: Subject, side: str) -> Iterator[str]:
        """What may be a boundary under another name: a function that is in the other revision alone, and has half its
        lines in common with it."""
        own, other = self.codes[side], self.codes[_OTHER[side]]
        here, there = self.trees[side], self.trees[_OTHER[side]]
        found = next(filter(None, (own.definitions.find(here, path) for path in subject.binding.paths)), None)
        if found is None:
            return
        before = dict(own.definitions.sources(here))
        sought = _lines(self._unit(side, found))
        for file, blob in sorted(other.definitions.sources(there)):
            if before.get(file) == blob:
                continue
            known = own.module(before[file]).units if file in before else {}
            for name, unit in other.module(blob).units.items():
                common = sought & _lines(unit)
                if (
                    unit.kind == "function"
                    and name not in known
                    and len(common) >= ALIKE * max(len(sought), len(_lines(unit)), 2)
                ):
                    yield f"{self.target.module_of(file)}.{name} ({file}:{unit.span[0]})"

    def run(self) -> Iterator[Compared]:
        """Compare, boundary by boundary; those that need no process first.

        :raises WorkerError: where the worker itself does not run.
        """
        asked = [item for item in self.known.values() if item[1].state in ("", "new")]
        yield from (compared for _, compared, _ in self.known.values() if compared.state not in ("", "new"))
        for number, (subject, _, _) in enumerate(asked, 1):
            self._tell(f"{number} of {len(asked)}: {subject.name}")
            yield self.compared(subject.name)

    @cached_property
    def _recipes(self) -> Sequence[Recipe]:
        return self._given() if callable(self._given) else self._given

    @cached_property
    def known(self) -> dict[str, Known]:
        """What the code tells of each boundary, by its name."""
        return {item[0].name: item for item in self.static()}

    def compared(self, name: str) -> Compared:
        """One boundary; asks both revisions where its code does not tell.

        :raises WorkerError: where the worker itself does not run.
        """
        if name not in self._told:
            subject, compared, changed = self.known[name]
            self._told[name] = compared  # of what calls itself, nothing is known while it is asked
            if compared.state == "new":
                self._told[name] = self._new(subject, compared)
            elif not compared.state and not subject.laws:
                self._told[name] = self._by_bugs(subject, compared)
            elif not compared.state:
                asked = self._asked(subject, compared, changed)
                self._told[name] = self._in_another_form(asked, changed)
        return self._told[name]

    def place(self, side: str, subject: Subject) -> OpenTarget:
        """Where a boundary can be asked: processes that import what will be, or such of another revision in which it
        reaches the same code."""
        key = side, subject.name
        if key not in self._places:
            self._runner.start([self.target.name])
            asked = {"", "new"} if side == AFTER else {""}
            wanted = {name: each[0] for name, each in self.known.items() if each[1].state in asked}
            reached = self.reached(side, subject)
            like = self._shared.like(reached, subject.binding) if self._shared and reached else None
            if like is not None:
                wanted = {subject.name: subject}
            ref = like[1].ref if like is not None else self.refs[side]
            place = self._runner.open_target(self.target.name, ref, [each.binding for each in wanted.values()])
            if self._shared is not None and like is None:
                self._shared.places.append((self.trees[side], place))
            for name in wanted:
                self._places.setdefault((side, name), place)
        return self._places[key]

    # -- one boundary -------------------------------------------------------------------------------------------------

    def _asked(self, subject: Subject, compared: Compared, changed: Sequence[Change]) -> Compared:
        runs = None if self._whatever else self._passing_by(subject)
        if runs is not None:
            return replace(compared, state="same numbers", scenarios=runs.scenarios, unreached=_named(changed))
        sessions = {side: self.place(side, subject).law_session.fresh() for side in SIDES}
        pair = Pair(sessions[BEFORE], sessions[AFTER], beside=self.beside(subject))
        laws = numbers_stay_for(subject.laws)
        search = BoundarySearch(pair, subject, self._seed, laws, _SHRINKING, shrink_further=False, glimpse=True)
        outcome = search.outcomes[NUMBERS_STAY]

        def enough() -> bool:
            return any("value" in each.symptoms for each in search.outcomes.values())

        try:
            self._draw(search, enough)
            with suppress(Undecidable):
                pair.try_(search.subject, glimpses(search.subject, self._seed, [NUMBERS_STAY])[:4], describe=True)
            seen = pair.seen.get(subject.name, Seen())
            findings = {item.symptom: item for each in laws[::-1] for item in search.outcomes[each].findings}
            told = [(item.trial, item.violations, item.examples) for item in findings.values()]
            told = told or list(self._turned(pair, search.subject, changed))
            seen_again = (self._difference(pair, search.subject, *each) for each in told)
            shown = [each for each in seen_again if each.shown]
            differences = tuple([each for each in shown if each.symptom != BESIDE] or shown)
            if not seen.answered and seen.refused:
                return _refused(compared, seen, differences)
            scenarios = [next(iter(finding.trial.variants.values())) for finding in findings.values()]
            broken = _with_slips(self._laws(sessions, search.subject, scenarios, seen, subject), differences)
        except Undecidable as error:
            return replace(compared, state="not compared", reason=str(error))
        finally:
            pair.close()
        undecided = search.undecided
        # The scenarios of known bugs were among those that were asked.
        bugs = _of_one_side(self._verdicts(subject)) if differences or any(broken.values()) else {}
        differs = bool(differences or any(broken.values()) or any(bugs.values()))
        state = "differs" if differs else "not compared" if undecided else "same numbers"
        return replace(
            compared,
            state=state,
            reason="" if differs else undecided,
            places={**compared.places, **self._proven(subject, seen)},
            unreached=self._unreached(seen, changed),
            scenarios=max(outcome.spoken, len(differences)),
            rounding=seen.rounding,
            differences=differences,
            broken=broken,
            bugs=bugs,
        )

    def _by_bugs(self, subject: Subject, compared: Compared) -> Compared:
        """What known bugs alone tell of a function: whether their verdicts are the same."""
        verdicts = self._verdicts(subject)
        decided = [told for told in verdicts.values() if set(told.values()) <= {"reproduced", "fixed", "changed"}]
        if len(decided) < len(verdicts):
            return replace(compared, state="not compared", reason="a known bug of it cannot be decided at both")
        bugs = _of_one_side(verdicts)
        differs = any(len(set(told.values())) > 1 for told in decided)
        return replace(compared, state="differs" if differs else "same numbers", scenarios=len(decided), bugs=bugs)

    def _draw(self, search: BoundarySearch, enough: Callable[[], bool]) -> None:
        outcome = search.outcomes[NUMBERS_STAY]
        search.try_recipes(self._recipes)

        def over() -> bool:
            return self._late() or enough()

        while not over() and outcome.spoken < self._examples and search.tried < _REFUSED * self._examples:
            tried = search.tried
            search.run(self._examples - outcome.spoken, enough=over)
            if search.tried == tried:
                break

    def _late(self) -> bool:
        return time.monotonic() > self._until

    def _passing_by(self, subject: Subject) -> Runs | None:
        """What runs in the scenarios, where that passes by all that has changed; None where it does not, or the code
        does not tell. One revision alone is asked then, and none where it is known already."""
        one, other = (self.reached(side, subject) for side in SIDES)
        if one is None or other is None:
            return None
        known = self._runs.setdefault(subject.name, [])
        for runs in known:
            if all(runs.reached.apart_from(each, runs.functions) for each in (one, other)):
                return runs
        if not one.apart_from(other, _names_of(subject.binding)):
            return None
        alone = Alone(self.place(BEFORE, subject).law_session.fresh())
        search = BoundarySearch(alone, subject, self._seed, numbers_stay_for(subject.laws), _SHRINKING, glimpse=True)

        def ran() -> frozenset[str]:
            paths = alone.seen.get(subject.name, Seen()).functions.get(BEFORE, set())
            return _names_of(subject.binding).union(*(path.split(".") for path in paths))

        try:
            self._draw(search, lambda: not one.apart_from(other, ran()))
            for plans in self._set_otherwise(alone, subject, one.changed(other), ran(), 1):
                if not one.apart_from(other, ran()):
                    break
                alone.try_(subject, plans)
        except Undecidable:
            return None
        finally:
            alone.close()
        runs = Runs(one, ran(), search.outcomes[NUMBERS_STAY].spoken)
        if search.undecided or not one.apart_from(other, runs.functions):
            return None
        known.insert(0, runs)
        return runs

    def _new(self, subject: Subject, compared: Compared) -> Compared:
        """A boundary that has nothing to be compared with answers for its laws."""
        session = self.place(AFTER, subject).law_session.fresh()
        try:
            search = self._searched(session, subject, subject.laws, self._examples)
        except Undecidable as error:
            return replace(compared, reason=str(error))
        finally:
            session.close()
        broken: list[Broken] = []
        inherited: dict[str, None] = {}
        for finding in (item for outcome in search.outcomes.values() for item in outcome.findings):
            bugs = [recipe.bug_id for recipe in self._recipes if self._was_there(recipe, finding)]
            inherited |= dict.fromkeys(bugs)
            broken += [] if bugs else [_broken(finding)]
        said = f"with {', '.join(inherited)} of what it calls, as before" if inherited else search.undecided
        return replace(compared, scenarios=search.tried, reason=said, broken={AFTER: tuple(broken)} if broken else {})

    def _was_there(self, recipe: Recipe, finding: Finding) -> bool:
        """Whether what is found in new code is a known bug of code that was there before, which it calls."""
        about = is_about(recipe, finding, self.target)
        return about and self._runner.decide(Job(recipe, self.refs[BEFORE])).verdict.name == "reproduced"

    def _turned(
        self, pair: Pair, subject: Subject, changed: Sequence[Change]
    ) -> Iterator[tuple[Trial, tuple[Violation, ...], tuple[str, ...]]]:
        """What differs where an option that no scenario draws is set otherwise."""
        ran = frozenset(
            path.rpartition(".")[2] for paths in pair.seen[subject.name].functions.values() for path in paths
        )
        for plans in self._set_otherwise(pair, subject, changed, ran, 2):
            for plan, trial in zip(plans, pair.try_(subject, plans)):
                if trial.violations and not trial.violations[0].symptom.endswith("raises"):
                    with closing(pair.fresh()) as fresh:
                        [again] = fresh.try_(subject, [plan])
                    if again.violations:
                        yield again, again.violations, ()
                        return

    def _set_otherwise(
        self, session: LawSession, subject: Subject, changed: Sequence[Change], ran: Collection[str], count: int
    ) -> Iterator[list[Plan]]:
        """Some scenarios with one option after the other set otherwise: those that the changed functions decide by, or,
        where none of these runs, those that decide in what runs and names one of them."""
        units = [each for _, *both in changed for each in both if each is not None and each.kind == "function"]
        names = {unit.name.rpartition(".")[2] for unit in units}
        if not names & {*ran}:
            reached = self.reached(BEFORE, subject)
            there = reached.units.values() if reached is not None else ()
            running = [each for each in there if each.kind == "function" and each.name.rpartition(".")[2] in ran]
            units = [each for each in running if names & (each.names | each.attributes)]
        found: dict[str, list[Any]] = {}
        for name, values in (each for unit in units for each in options(unit.text).items()):
            found.setdefault(name, []).extend(value for value in values if value not in found[name])
        turns = [{name: value} for name, values in found.items() for value in values[:_VALUES]][:_TURNS]
        drawn = glimpses(subject, self._seed, [NUMBERS_STAY])[:count] if turns else []
        for settings in turns:
            if not self._late():
                yield [(law, {"": {**inputs[""], SETTINGS: settings}}) for law, inputs in drawn]

    def _difference(
        self, pair: Pair, subject: Subject, trial: Trial, violations: Sequence[Violation], examples: tuple[str, ...]
    ) -> Difference:
        inputs, symptom = asked(trial), violations[0].symptom
        details = {item.key: item.detail for item in violations}
        told = pair.both(subject, {"": inputs})
        answers, double = _answers(told, details if symptom == BESIDE else ()), None
        failed = (next(iter(sat.answers.values())).refused for sat in told.values())
        slip = next((each.slip for each in failed if each is not None), "")
        wide = widened(subject.contract, {"": inputs})
        if symptom == "value" and wide is not None:
            with suppress(Undecidable):
                closer = _answers(pair.both(subject, wide[0]))
                double = {side: each for side, each in closer.items() if not isinstance(each, str)}
        single = _in_single(inputs)
        if slip and single != inputs:
            with suppress(Undecidable):  # what half precision alone is refused, its caller may never have
                answered = _answers(pair.both(subject, {"": single})).values()
                slip = slip if any(isinstance(each, str) for each in answered) else ""
        return Difference(symptom, inputs, answers, details, double, examples, slip)

    def _searched(self, session: LawSession, subject: Subject, laws: Sequence[Law], examples: int) -> BoundarySearch:
        """What a search for so many scenarios shows of some laws of a boundary."""
        shrinking = LEVELS["quick"][1]
        search = BoundarySearch(session, subject, self._seed, laws, shrinking, shrink_further=False, glimpse=True)
        search.try_recipes(self._recipes)
        search.run(examples, enough=self._late)
        return search

    def _looked(self, session: LawSession, subject: Subject, inputs: Inputs) -> BoundarySearch:
        """What the laws say of one scenario."""
        search = BoundarySearch(session, subject, self._seed)
        search.begin([Example({"": inputs}, tuple(law.name for law in subject.laws))])
        return search

    def _laws(
        self,
        sessions: Mapping[str, LawSession],
        subject: Subject,
        scenarios: Sequence[Inputs],
        seen: Seen,
        all_: Subject,
    ) -> dict[str, tuple[Broken, ...]]:
        """The laws that one side breaks on a scenario on which the other keeps them: on those that differ, and on any
        that a search comes by, which looks for nothing else: what both break somewhere may be broken in more places
        since. Where no number differs, a law may still tell that a call leaves something behind.
        An option or a choice that came with the change answers for its laws, as new code does.

        :param all_: the boundary with the inputs that one side alone takes.
        """
        whole = bool(scenarios) or seen.came
        laws = subject.laws if whole else [law for law in subject.laws if law.watches]
        examples = min(self._examples, _LOOKED) if whole else LEVELS["quick"][0]

        def searches(side: str) -> list[Finding]:
            session = Ahead(sessions[side].fresh(), sessions[_OTHER[side]].fresh())
            with closing(session):
                looked = [self._looked(session, subject, inputs) for inputs in scenarios]
                return _findings(*looked, self._searched(session, subject, laws, examples))

        def came(side: str) -> list[Finding]:
            asked_ = [subject, all_] if side == AFTER and all_ != subject else [subject]
            return _findings(*(self._searched(sessions[side], each, laws, examples) for each in asked_))

        found: dict[str, dict[tuple[str, str], Broken]] = {side: {} for side in SIDES}
        with ThreadPoolExecutor(2, "sentinel-laws") as pool:
            told = dict(zip(SIDES, pool.map(searches, SIDES)))
            ever = dict(zip(SIDES, pool.map(came, SIDES))) if seen.came else {}
        for side, findings in told.items():
            for finding in findings:
                broken = _broken(finding, seen.spoken[_OTHER[side]] - seen.spoken[side])
                found[side].setdefault((broken.law, broken.symptom), broken)
        before = {(each.law.name, each.symptom) for each in ever.get(BEFORE, ())}
        for finding in ever.get(AFTER, ()):
            key = finding.law.name, finding.symptom
            fresh = _of_what_came(sessions, finding) if key not in before and key not in found[AFTER] else None
            if fresh is not None:
                found[AFTER][key] = replace(_broken(fresh, seen.spoken[BEFORE] - seen.spoken[AFTER]), came=True)
        return {side: tuple(broken.values()) for side, broken in found.items()}

    def _in_another_form(self, compared: Compared, changed: Sequence[Change]) -> Compared:
        """A helper that refuses what it took before, or answers it by another definition, while all that call it are
        boundaries whose numbers stay: it takes its arguments in another form, and nobody gives it the former one."""
        refuses = any(each.symptom == "raises" for each in compared.differences)
        speak = [each for each in compared.broken.get(AFTER, ()) if not each.defined and each.law != _ANSWERED]
        if not refuses or speak or compared.bugs.get(AFTER):
            return compared
        helpers = {name for (_, name), _, now in changed if now is not None and now.kind == "function"}
        callers = [self._boundary_at(*place) for place in self._calling(helpers)]
        stay = [self.compared(name) for name in callers if name is not None and name != compared.name]
        if not stay or len(stay) != len(callers) or not all(_stays(each, helpers) for each in stay):
            return compared
        names = ", ".join(each.name for each in stay)
        why = f"it takes its arguments in another form; what calls it keeps its numbers: {names}"
        return replace(compared, broken={**compared.broken, AFTER: ()}, reason=why)

    def _calling(self, helpers: Collection[str]) -> Iterator[tuple[str, Unit]]:
        """Where functions of these names are named in the later revision, outside of themselves."""
        code, last = self.codes[AFTER], {name.rpartition(".")[2] for name in helpers}
        for file, blob in code.definitions.sources(self.trees[AFTER]):
            if code.names(blob, last):
                for unit in code.module(blob).units.values():
                    if unit.name not in helpers and last & (unit.names | unit.attributes):
                        yield file, unit

    def _boundary_at(self, file: str, unit: Unit) -> str | None:
        place = f"({file}:{unit.span[0]})"
        return next((n for n, each in self.known.items() if each[1].places.get(AFTER, "").endswith(place)), None)

    def _verdicts(self, subject: Subject) -> dict[str, dict[str, str]]:
        """Known bug of a boundary -> its verdict, by side."""
        return {
            recipe.bug_id: {side: self._decided(recipe, side, subject) for side in SIDES}
            for recipe in self._recipes
            if recipe.contract == subject.contract.name and recipe.boundary in subject.binding.paths
        }

    def _decided(self, recipe: Recipe, side: str, subject: Subject) -> str:
        return self._runner.decide(Job(recipe, self.place(side, subject).ref)).verdict.name

    def _proven(self, subject: Subject, seen: Seen) -> dict[str, str]:
        places = {}
        for side, claim in seen.claims.items():
            place = self.place(side, subject)
            if place.ref != self.refs[side]:  # of the same code in another revision the line may be another
                continue
            with suppress(NotProvenError, SentinelError):
                told = prove(claim, place.checkout, place.sources)
                places[side] = f"{told.boundary} ({told.file}:{told.line})"
        return places

    def _unreached(self, seen: Seen, changed: Sequence[Change]) -> tuple[str, ...]:
        """The changed functions that ran at neither revision."""
        ran = {path for paths in seen.functions.values() for path in paths}
        left = []
        for change in changed:
            (file, name), *units = change
            module = self.target.module_of(file)
            paths = {f"{module}.{name}", f"{module}.{name.rpartition('.')[2]}"}  # Python 3.10 knows no qualified name
            if all(unit is None or unit.kind == "function" for unit in units) and not paths & ran:
                left.append(change)
        return _named(left)


def _of_one_side(verdicts: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """By side: the known bugs of a boundary that are there, and not at the other."""
    return {
        side: tuple(bug for bug, told in verdicts.items() if (told[side], told[other]) == ("reproduced", "fixed"))
        for side, other in _OTHER.items()
    }


def _lines(unit: Unit | None) -> frozenset[str]:
    return frozenset(line.strip() for line in unit.text.splitlines() if line.strip()) if unit else frozenset()


def _described(subject: Subject, sides: Mapping[str, Sighting]) -> Compared:
    """What the syntax says of a boundary at both revisions."""
    found = {side: seen.found for side, seen in sides.items() if seen.found is not None}
    parameters = {side: tuple(sorted(each.name.parameters)) for side, each in found.items()}
    return Compared(
        subject.name,
        subject.contract.name,
        "",
        places={side: f"{each.path} ({each.file}:{each.name.span[0]})" for side, each in found.items()},
        parameters=parameters if len(set(parameters.values())) > 1 else {},
    )


def _named(changed: Sequence[Change]) -> tuple[str, ...]:
    """``file:line name`` of changed definitions, as they are after; with a word for what was added or taken away."""
    said = []
    for (file, name), one, other in changed:
        unit = other or one
        assert unit is not None
        word = "" if one and other else " (new)" if other else " (gone)"
        said.append(f"{file}:{unit.span[0]} {name or 'the module'}{word}")
    return tuple(said)


def _names_of(binding: Binding) -> frozenset[str]:
    """The names that an adapter uses of a boundary's code."""
    paths = (*binding.paths, *binding.imports, *binding.twins, *binding.requires)
    called = names_in(binding.call) if binding.call is not None else ()
    return frozenset(called).union(*(path.split(".") for path in paths))


def _answers(told: Mapping[str, Any], beside: Collection[str] = ()) -> dict[str, Mapping[str, Any] | str]:
    """:param beside: what is asked for of what is handed on beside the contract, if anything is."""
    answers: dict[str, Mapping[str, Any] | str] = {}
    for side, sat in told.items():
        called: Called = next(iter(sat.answers.values()))
        refused = called.refused.reason if called.refused is not None else "no answer"
        said = {key: called.beside.get(key) for key in beside} if beside else called.observation
        answers[side] = refused if called.observation is None or said is None else said
    return answers


def _in_single(inputs: Inputs) -> Inputs:
    return {
        name: from_array(value.array(), "float32", value.requires_grad)
        if isinstance(value, Tensor) and value.dtype in HALVES
        else value
        for name, value in inputs.items()
    }


def _broken(finding: Finding, silenced: Collection[str] = ()) -> Broken:
    """:param silenced: what this side alone always calls 0: that is no definition of anything, and neither is a metric
    of 0 where there is something to count."""
    first = finding.violations[0]
    detail = f"{first.key}: {first.detail}" if first.key else first.detail
    keys = {part(item.key) for item in finding.violations}
    empty = finding.law is metrics_tell_the_truth and any(item.observed in (0, None) for item in finding.violations)
    defined = finding.law.rank == 1 and finding.symptom == "value" and not empty and not keys & set(silenced)
    return Broken(finding.law.name, finding.law.statement, finding.symptom, detail, finding.trial.variants, defined)


#: What a side breaks that refuses, by a slip, what the other one answers.
_ANSWERED = "a_call_is_answered"


def _with_slips(
    broken: Mapping[str, tuple[Broken, ...]], differences: Sequence[Difference]
) -> dict[str, tuple[Broken, ...]]:
    found = dict(broken)
    for each in (item for item in differences if item.slip):
        side = next(side for side, answer in each.answers.items() if isinstance(answer, str))
        said = "a call of its contract is answered", "raises", str(each.answers[side])
        found[side] = (*found.get(side, ()), Broken(_ANSWERED, *said, {"": each.inputs}))
    return found


def _refused(compared: Compared, seen: Seen, differences: Sequence[Difference]) -> Compared:
    """What refuses every call at one side alone. A name that nobody defined is for the worse, and so is an argument
    that no function takes; but one of another signature may be called as its adapter does not know."""
    side, why = next(iter(seen.refused.items()))
    slips = {each.slip for each in differences}
    if slips & {"NameError", "TypeError"} and not (compared.parameters and "TypeError" in slips):
        broken, count = _with_slips({}, differences), len(differences)
        return replace(compared, state="differs", scenarios=count, differences=tuple(differences), broken=broken)
    reason = f"{side}: every call was refused: {why}"
    if compared.parameters:
        reason += " (its parameters have changed; the adapter may not know how it is called)"
    return replace(compared, state="not compared", reason=reason)


def _stays(caller: Compared, helpers: Collection[str]) -> bool:
    """Whether a caller's numbers are what they were, in scenarios that ran what has changed."""
    ran = not any(line.endswith(f" {name}") for line in caller.unreached for name in helpers)
    same = caller.state == "same numbers" or {each.symptom for each in caller.differences} <= {"dtype", BESIDE}
    return ran and same and not caller.broken.get(AFTER) and not caller.bugs.get(AFTER)


def _findings(*searches: BoundarySearch) -> list[Finding]:
    return [finding for own in searches for outcome in own.outcomes.values() for finding in outcome.findings]


def _of_what_came(sessions: Mapping[str, LawSession], finding: Finding) -> Finding | None:
    """A finding, where the side before has not the option or the choice that its scenario asks for, and what is broken
    is right without that option."""
    with suppress(Undecidable):
        [before] = sessions[BEFORE].try_(finding.subject, [(finding.law, finding.trial.variants)])
        if before.unknown_input:
            without = {name: {**each, before.unknown_input: None} for name, each in finding.trial.variants.items()}
            [bare] = sessions[AFTER].try_(finding.subject, [(finding.law, without)])
            fresh = ahead(replace(finding.trial, violations=finding.violations), bare)
            return replace(finding, violations=fresh) if fresh else None
        return finding if before.refusal == "not-in-this-version" else None
    return None
