"""Compares a target's boundaries at two revisions: which are there, which reach changed code, and what they answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

from sentinel.comparing.pairs import (
    AFTER,
    BEFORE,
    BESIDE,
    NUMBERS_STAY,
    SIDES,
    Ahead,
    Alone,
    Log,
    OneSided,
    Pair,
    ahead,
    inputs_of,
    numbers_stay_for,
    part,
)
from sentinel.comparing.patch import Patch, Unexamined
from sentinel.comparing.reached import (
    Code,
    Modules,
    Place,
    Reached,
    Unit,
    changed_effect,
    changes_of,
    names_in,
    signal_changes,
)
from sentinel.contracts.call import CALL
from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import SETTINGS, LawSession, Plan, Subject, Trial, Undecidable, widened
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.proof import NotProvenError, prove
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import SentinelError
from sentinel.laws.law import Law, Violation
from sentinel.laws.metrics import metrics_tell_the_truth
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.bindings import ALIKE, Definition, Sighting, sighting
from sentinel.search.boundary_search import BoundarySearch, Example, Finding, glimpses
from sentinel.search.checks import matches, subjects
from sentinel.search.coverage import CheckoutTrees
from sentinel.search.discovery import is_about
from sentinel.search.options import options
from sentinel.search.survey import LEVELS
from sentinel.targets import Binding, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.values.literals import HALVES, Tensor, from_array
from sentinel.worker.answers import Failed, Reply

_OTHER = {BEFORE: AFTER, AFTER: BEFORE}

#: How many times as many scenarios are drawn where a revision refuses some.
_REFUSED = 5

#: Scenarios that tell whether a boundary answers at all.
_CALLED = 5

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
class BoundaryDiff:
    """One boundary at both revisions.

    :ivar state: ``same code`` (nothing that it reaches has changed), ``same numbers`` (and every changed line that it
        reaches ran), ``not examined`` (no number differs, and some changed lines did not run, or no number was finite),
        ``differs``, ``new``, ``gone``, ``not compared``.
    :ivar failed: the side that cannot be called if the other one can; empty if both or neither can.
    :ivar places: by side: ``dotted.path (file:line)``.
    :ivar parameters: by side, where they are not the same.
    :ivar changed: the definitions that it reaches and that are not the same.
    :ivar unreached: the changed lines of them that no scenario ran.
    :ivar undecided: part of its answer -> scenarios in which it was not finite at both revisions; and of these parts,
        ``blind``, those that were finite in no scenario.
    :ivar bugs: by side: the known bugs of the boundary that are there, and are known not to be on the other.
    :ivar lost: what was removed, if that is worse; empty if a function was removed together with all its callers.
    """

    name: str
    contract: str
    state: str
    reason: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unreached: tuple[Unexamined, ...] = ()
    failed: str = ""
    undecided: Mapping[str, int] = field(default_factory=dict)
    blind: tuple[str, ...] = ()
    scenarios: int = 0
    rounding: float = 0.0
    differences: tuple[Difference, ...] = ()
    broken: Mapping[str, tuple[Broken, ...]] = field(default_factory=dict)
    bugs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lost: str = ""

    @property
    def judgement(self) -> str:
        """``worse``, ``better``, ``mixed``, or ``other`` where no law and no known bug tells, or only ``beside`` what
        its contract observes; empty where it is the same."""
        worse, better = (bool(self.broken.get(side) or self.bugs.get(side)) for side in (AFTER, BEFORE))
        worse = worse or bool(self.lost)
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
    """Which functions run in the scenarios of a boundary, by their names."""

    reached: Reached
    functions: frozenset[str]
    scenarios: int


@dataclass
class Shared:
    """What comparisons of one target in one mirror have in common.

    A boundary of which a revision reaches the same code as another one's answers there as it does here: a process that
    has one of them will do for both. So most heads need no process for the revision they come from.

    :ivar places: the processes that are there, the one that was used last at the end.
    """

    code: Code
    runs: dict[str, list[Runs]] = field(default_factory=dict)
    places: list[tuple[str, OpenTarget]] = field(default_factory=list)

    def like(self, reached: Reached, binding: Binding) -> tuple[str, OpenTarget] | None:
        """Give a process of a revision in which a boundary reaches just this."""
        for place in self.places[::-1]:
            here = self.code.reached(place[0], binding)
            where = sighting(self.code.definitions, place[0], binding)
            if here is not None and not where.lacks and (here is reached or not here.changed(reached)):
                self.places.remove(place)
                self.places.append(place)
                return place
        return None


#: A definition that is not the same at both revisions: where it is, and what it is at each.
Change = tuple[Place, Unit | None, Unit | None]

#: A boundary, as the code of both revisions tells, with what has changed of what it reaches.
State = tuple[Subject, BoundaryDiff, list[Change]]


class Comparison:
    """Two revisions of one target.

    :param recipes: known bugs, whose scenarios are tried first, and which are decided where code has changed; or what
        reads them, which is asked where anything is.
    :param whatever: whether boundaries are asked that reach no changed code, too.
    :param shared: what other comparisons have in common with it, where both refs are commits of one mirror.
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
        self.scope = ", ".join(boundaries)
        self._whatever, self._shared, self.trees = whatever, shared, dict(zip(SIDES, trees))
        self._runs = {} if shared is None else shared.runs
        self.target, self.refs = target, dict(zip(SIDES, refs))
        self.catalog, self._runner, self._recipe_source = catalog, runner, recipes
        self._examples, self._seed, self._tell = examples, seed, tell
        self.checkouts: dict[str, Checkout] = {
            side: runner.checkout(target.name, ref) for side, ref in self.refs.items()
        }
        self._modules = Modules(target.name) if shared is None else None
        self.codes = {
            side: Code(target, CheckoutTrees(checkout), self._modules) if shared is None else shared.code
            for side, checkout in self.checkouts.items()
        }
        by_name: dict[str, Subject] = {}
        self.left_out: dict[str, str] = {}
        for checkout in self.checkouts.values():
            subjects_, omitted = subjects(catalog, target.name, boundaries, checkout)
            by_name |= {subject.name: subject for subject in subjects_}
            self.left_out |= {item.boundary: item.reason for item in omitted if not item.law}
        self.subjects = list(by_name.values())
        self._places: dict[tuple[str, str], OpenTarget] = {}
        self._moved: dict[str, Mapping[str, str]] = {}
        self._results: dict[str, BoundaryDiff] = {}
        self._import_failures: list[tuple[str, frozenset[Place]]] = []

    def static(self) -> list[State]:
        """Compare every boundary of both revisions by its code, with what has changed of what it reaches. Those
        whose state is empty are to be asked."""
        states: list[State] = []
        one_, other_ = (self.codes[side].files(self.trees[side]) for side in SIDES)
        identical = one_ == other_
        every = self.subjects if identical else [*self.subjects, *self._called()]
        bindings = [subject.binding for subject in every]
        sightings = {
            side: [sighting(code.definitions, self.trees[side], binding) for binding in bindings]
            for side, code in self.codes.items()
        }
        for place, subject in enumerate(every):
            sides = {side: sightings[side][place] for side in SIDES}
            if sides[BEFORE].bound and sides[AFTER].definition is None:
                subject, sides[AFTER] = self._followed(subject)
            there = [side for side in SIDES if sides[side].definition is not None and not sides[side].lacks]
            compared = _described(subject, sides)
            if not there or (not subject.laws and len(there) == 1):
                continue
            units = [
                self._unit(side, where.definition) for side, where in sides.items() if where.definition is not None
            ]
            if len(there) == 1 and len(units) == 2 and units[0] is not None and units[0].like(units[1]):
                lacking = _OTHER[there[0]]  # the function was there, and what its adapter asks it with was not
                reason = f"{lacking}: not in this version: the checkout has no {sides[lacking].lacks}"
                lost = f"it can no longer be asked: {sides[AFTER].lacks} is removed" if lacking == AFTER else ""
                states.append((subject, replace(compared, state="not compared", reason=reason, lost=lost), []))
                continue
            if len(there) == 1:
                state = "new" if there == [AFTER] else "gone"
                if state == "gone":
                    callers = self._callers(subject)
                    lost = f"it is removed, and what called it is still there: {', '.join(callers)}" if callers else ""
                    alike = tuple(self._alike(subject, there[0]))
                    compared = replace(compared, renamed=alike, lost=lost, reason=lost)
                states.append((subject, replace(compared, state=state), []))
                continue
            changed: list[Change] = []
            if not identical:
                one, other = (self.reached(side, subject) for side in SIDES)
                changed = one.changed(other) if one is not None and other is not None else []
            if not changed and not self._whatever:
                states.append((subject, replace(compared, state="same code"), []))
            else:
                states.append((subject, replace(compared, changed=_named(changed)), changed))
        if self._modules is not None:
            self._modules.save()
        return states

    def _followed(self, subject: Subject) -> tuple[Subject, Sighting]:
        """Give a boundary that has moved its place in the later revision: one of this name, with nearly this body."""
        older = [self.checkouts[BEFORE]]
        lack = self._runner.absence(self.target.name, subject.binding, self.checkouts[AFTER], older)
        if lack is not None and lack.moved:
            self._moved[subject.name] = lack.moved
            formerly = (*subject.binding.formerly, lack.place)
            subject = replace(subject, binding=replace(subject.binding, formerly=formerly))
        return subject, sighting(self.codes[AFTER].definitions, self.trees[AFTER], subject.binding)

    def _callers(self, subject: Subject) -> list[str]:
        """List functions of the earlier revision that name a boundary, and that the later one still has; three at
        most."""
        before, after = (self.codes[side] for side in SIDES)
        own = before.definitions
        definition = next(filter(None, (own.find(self.trees[BEFORE], path) for path in subject.binding.paths)), None)
        name = subject.boundary.rpartition(".")[2]
        later = dict(after.definitions.sources(self.trees[AFTER]))
        callers = []
        for file, blob in sorted(own.sources(self.trees[BEFORE])):
            still = after.module(later[file]).units if file in later else {}
            for path, unit in before.module(blob).units.items():
                itself = definition is not None and definition.place == (blob, unit.span)
                names = name in unit.names or name in unit.attributes
                if names and not itself and unit.kind == "function" and path in still:
                    callers.append(f"{self.target.module_of(file)}.{path}")
        return callers[:3]

    def _called(self) -> list[Subject]:
        """Give what known bugs call as it stands: there are no laws for it, and no scenarios but theirs."""
        adapter = str(self.catalog.adapters[self.target.name].file)
        bound = {subject.name for subject in self.subjects}
        callees = []
        for name in dict.fromkeys(recipe.boundary for recipe in self._recipes if recipe.contract == CALL.name):
            plain = Binding(name, CALL.name, moved=self.target.moved)
            binding = self.target.binding(name, CALL.name) or plain
            if matches(binding, self._boundaries):
                self.left_out.pop(binding.boundary, None)
                callees.append(Subject(binding, CALL, (), adapter, f"{name}({CALL.name})" if name in bound else name))
        return callees

    @cached_property
    def patch(self) -> Patch:
        """The changed definitions that a boundary reaches, and the changed signal functions that none does."""
        bound = {}
        for place in {change[0] for _, _, changed in self.states.values() for change in changed}:
            both = self._defined(BEFORE, place), self._defined(AFTER, place)  # reached or not
            if both[0] is None or not both[0].like(both[1]):
                bound[place] = both
        return Patch({**({} if self._boundaries else self._signal_changes()), **bound}, bound)

    def _changed_files(self) -> Iterator[tuple[str, tuple[Code, str | None], tuple[Code, str | None]]]:
        one, other = (self.codes[side].files(self.trees[side]) for side in SIDES)
        for file in sorted(one.keys() | other.keys()):
            if one.get(file) != other.get(file):
                yield file, (self.codes[BEFORE], one.get(file)), (self.codes[AFTER], other.get(file))

    @cached_property
    def effects(self) -> list[str]:
        """List changed module-level code that may change what functions elsewhere compute: ``file:line``.

        The text does not tell what such code does, so it leaves no proof that signal code is the same.
        """
        places = []
        after = self.codes[AFTER].files(self.trees[AFTER])
        for file, before, now in self._changed_files():
            line = changed_effect(before, now)
            if line is not None:
                places.append(f"{file}:{line}")
            elif before[1] is None and file.endswith("/__init__.py") and f"{file[:-12]}.py" in after:
                places.append(f"{file}:1")  # a package takes the place of a module
        return places

    @cached_property
    def other_changes(self) -> list[str]:
        """List the changed functions that carry no training signal by the inventory's rule, and that no boundary
        reaches: ``file:line name``."""
        if self._boundaries:
            return []
        known = self.patch.places
        return [
            f"{file}:{unit.span[0]} {name}"
            for file, before, after in self._changed_files()
            for (_, name), (one, other) in changes_of(file, before, after).items()
            if (unit := other or one) is not None and unit.kind == "function" and (file, name) not in known
        ]

    def _defined(self, side: str, place: Place) -> Unit | None:
        """Give a definition as it stands in the tree of one side."""
        code, (file, name) = self.codes[side], place
        blob = code.files(self.trees[side]).get(file)
        return None if blob is None else code.module(blob).units.get(name)

    def _signal_changes(self) -> dict[Place, tuple[Unit | None, Unit | None]]:
        """Find the signal functions that are not the same, but for boundaries that are new or gone: these are listed
        by themselves."""
        changes: dict[Place, tuple[Unit | None, Unit | None]] = {}
        for file, before, after in self._changed_files():
            changes |= signal_changes(file, before, after)
        listed = {
            (definition.file, definition.name.span)
            for subject, compared, _ in self.states.values()
            for side in SIDES
            if compared.state in ("new", "gone")
            for path in subject.binding.paths
            if (definition := self.codes[side].definitions.find(self.trees[side], path)) is not None
        }
        return {
            place: both
            for place, both in changes.items()
            if not any(unit is not None and (place[0], unit.span) in listed for unit in both)
        }

    def settled(self, results: Sequence[BoundaryDiff]) -> list[BoundaryDiff]:
        """Take account of what later boundaries ran: a changed line is examined if it ran in any comparison."""
        return [self._settled(each) for each in results]

    def _settled(self, compared: BoundaryDiff) -> BoundaryDiff:
        if compared.state not in ("differs", "same numbers", "not examined"):
            return compared
        idle = tuple(self.patch.unexamined([place for place, _, _ in self.states[compared.name][2]]))
        state = compared.state
        if state == "not examined" and not compared.reason and not idle:
            state = "same numbers"
        elif state == "same numbers" and idle:
            state = "not examined"
        return replace(compared, unreached=idle, state=state)

    def _located(self, side: str, subject: Subject) -> Mapping[Place, Unit]:
        """Return the changed definitions, located in the tree whose process answers for this side."""
        units, place = self.patch.units(side), self.place(side, subject)
        if place.ref == self.refs[side] or self._shared is None:
            return units
        tree = next(tree for tree, each in self._shared.places if each.ref == place.ref)
        reached = self.codes[side].reached(tree, subject.binding)
        return {key: unit for key, unit in reached.units.items() if key in units} if reached is not None else {}

    def _session(self, side: str, subject: Subject) -> LawSession:
        """Open a session for this side. If importing its modules ends the process, the session reports that."""
        place = self.place(side, subject)
        failure = place.load(subject.binding)
        return place.law_session.fresh() if failure is None else Ended(failure)

    def reached(self, side: str, subject: Subject) -> Reached | None:
        return self.codes[side].reached(self.trees[side], subject.binding)

    def beside(self, subject: Subject) -> list[str]:
        """Give the functions that it reaches and that have other code now, by dotted path."""
        changed = self.states[subject.name][2]
        return [
            f"{self.target.module_of(file)}.{name}"
            for (file, name), one, other in changed
            if one is not None and other is not None and other.kind == "function"
        ]

    def _unit(self, side: str, definition: Definition) -> Unit | None:
        units = self.codes[side].module(definition.blob).units.values()
        return next((unit for unit in units if unit.span == definition.name.span), None)

    def _alike(self, subject: Subject, side: str) -> Iterator[str]:
        """Find what may be a boundary under another name: a function that is in the other revision alone, and has
        half its lines in common with it."""
        own, other = self.codes[side], self.codes[_OTHER[side]]
        here, there = self.trees[side], self.trees[_OTHER[side]]
        definition = next(filter(None, (own.definitions.find(here, path) for path in subject.binding.paths)), None)
        if definition is None:
            return
        before = dict(own.definitions.sources(here))
        sought = _lines(self._unit(side, definition))
        for file, blob in sorted(other.definitions.sources(there)):
            if before.get(file) == blob:
                continue
            units_before = own.module(before[file]).units if file in before else {}
            for name, unit in other.module(blob).units.items():
                common = sought & _lines(unit)
                if (
                    unit.kind == "function"
                    and name not in units_before
                    and len(common) >= ALIKE * max(len(sought), len(_lines(unit)), 2)
                ):
                    yield f"{self.target.module_of(file)}.{name} ({file}:{unit.span[0]})"

    def run(self) -> Iterator[BoundaryDiff]:
        """Compare, boundary by boundary; those that need no process first."""
        undecided = [item for item in self.states.values() if item[1].state in ("", "new")]
        yield from (compared for _, compared, _ in self.states.values() if compared.state not in ("", "new"))
        for number, (subject, _, _) in enumerate(undecided, 1):
            self._tell(f"{number} of {len(undecided)}: {subject.name}")
            yield self.compared(subject.name)

    @cached_property
    def _recipes(self) -> Sequence[Recipe]:
        return self._recipe_source() if callable(self._recipe_source) else self._recipe_source

    @cached_property
    def states(self) -> dict[str, State]:
        """What the code tells of each boundary, by its name."""
        return {item[0].name: item for item in self.static()}

    def compared(self, name: str) -> BoundaryDiff:
        """Compare one boundary; ask both revisions where its code does not tell."""
        _ = self.patch  # every session records which of its lines run
        if name not in self._results:
            subject, compared, changed = self.states[name]
            self._results[name] = compared  # of what calls itself, nothing is known while it is asked
            if compared.state == "new":
                self._results[name] = self._new(subject, compared)
            elif compared.lost:
                self._results[name] = self._lost(subject, compared)
            elif not compared.state and not subject.laws:
                self._results[name] = self._by_bugs(subject, compared)
            elif not compared.state:
                answer = self._ask_both(subject, compared, changed)
                self._results[name] = self._in_another_form(answer, changed)
        return self._results[name]

    def place(self, side: str, subject: Subject) -> OpenTarget:
        """Say where a boundary can be asked: processes that import what will be, or such of another revision in
        which it reaches the same code."""
        key = side, subject.name
        if key not in self._places:
            self._runner.start([self.target.name])
            reached = self.reached(side, subject)
            like = self._shared.like(reached, subject.binding) if self._shared and reached else None
            own = next((each for (where, _), each in self._places.items()
                        if where == side and each.ref == self.refs[side]), None)  # fmt: skip
            if like is not None or own is None:
                ref = like[1].ref if like is not None else self.refs[side]
                place = self._runner.open_target(self.target.name, ref, [])
            else:
                place = own
            if self._shared is not None and like is None and own is None:
                self._shared.places.append((self.trees[side], place))
            if side == AFTER and subject.name in self._moved:
                self._runner.follow(self.target.name, place.ref, self._moved[subject.name], subject.contract.name)
            self._places[key] = place
        return self._places[key]

    # -- one boundary -------------------------------------------------------------------------------------------------

    def _ask_both(self, subject: Subject, compared: BoundaryDiff, changed: Sequence[Change]) -> BoundaryDiff:
        runs = None if self._whatever else self._passing_by(subject)
        if runs is not None:
            return self._settled(replace(compared, state="same numbers", scenarios=runs.scenarios))
        alike = self._fails_alike(changed)
        if alike:
            return replace(compared, state="not compared", failed=AFTER, reason=f"{AFTER}: it fails as {alike} does")
        sessions = {side: self._session(side, subject) for side in SIDES}
        located = {side: self._located(side, subject) for side in SIDES}
        pair = Pair(sessions[BEFORE], sessions[AFTER], beside=self.beside(subject), lines=_spans(located))
        laws = numbers_stay_for(subject.laws)
        search = BoundarySearch(pair, subject, self._seed, laws, _SHRINKING, shrink_further=False, glimpse=True)
        outcome = search.outcomes[NUMBERS_STAY]

        def enough() -> bool:
            return any("value" in each.symptoms for each in search.outcomes.values())

        try:
            self._draw(search, enough)
            with suppress(Undecidable):
                pair.try_(search.subject, glimpses(search.subject, self._seed, [NUMBERS_STAY])[:4], describe=True)
            log = pair.logs.get(subject.name, Log())
            findings = {item.symptom: item for each in laws[::-1] for item in search.outcomes[each].findings}
            ways = [(item.trial, item.violations, item.examples) for item in findings.values()]
            ways = ways or list(self._turned(pair, search.subject, changed))
            again = (self._difference(pair, search.subject, *each) for each in ways)
            confirmed = [each for each in again if each.shown]
            differences = tuple([each for each in confirmed if each.symptom != BESIDE] or confirmed)
            if log.answered:
                for side, units in located.items():
                    self.patch.note(side, units, log.lines[side])
                self.patch.imported(place for place, _, _ in changed)
            if not log.answered and log.refused:
                return _refused(compared, log, differences)
            scenarios = [next(iter(finding.trial.variants.values())) for finding in findings.values()]
            broken = _with_slips(self._laws(sessions, search.subject, scenarios, log, subject), differences)
        except OneSided as error:
            if error.whole and error.side == AFTER:
                self._import_failures.append((subject.name, _imported(changed)))
            return _one_sided(compared, error)
        except Undecidable as error:
            return replace(compared, state="not compared", reason=str(error))
        finally:
            pair.close()
        undecided = search.undecided
        # The scenarios of known bugs were among those that were asked.
        bugs = _of_one_side(self._verdicts(subject)) if differences or any(broken.values()) else {}
        differs = bool(differences or any(broken.values()) or any(bugs.values()))
        state, reason = ("differs", "") if differs else ("not compared" if undecided else "same numbers", undecided)
        if state == "same numbers" and log.undecided and not log.decided:
            state, reason = "not examined", "no number that it returns is finite at either revision"
        answer = replace(
            compared,
            state=state,
            reason=reason,
            places={**compared.places, **self._proven(subject, log)},
            undecided={key: count for key, count in log.undecided.items() if count},
            blind=tuple(key for key, count in log.undecided.items() if count and key not in log.decided),
            scenarios=max(outcome.spoken, len(differences)),
            rounding=log.rounding,
            differences=differences,
            broken=broken,
            bugs=bugs,
        )
        return self._settled(answer)

    def _fails_alike(self, changed: Sequence[Change]) -> str:
        """Name a boundary whose import failed at the head, if all changed code that ran at its import would run at this
        import, too: a head that does not import costs its failure once."""
        here = _imported(changed)
        return next((name for name, places in self._import_failures if places and places <= here), "")

    def _by_bugs(self, subject: Subject, compared: BoundaryDiff) -> BoundaryDiff:
        """Judge a function by its known bugs alone: whether their verdicts are the same."""
        verdicts = self._verdicts(subject)
        decided = [
            by_side for by_side in verdicts.values() if set(by_side.values()) <= {"reproduced", "fixed", "changed"}
        ]
        if len(decided) < len(verdicts):
            return replace(compared, state="not compared", reason="a known bug of it cannot be decided at both")
        bugs = _of_one_side(verdicts)
        differs = any(len(set(by_side.values())) > 1 for by_side in decided)
        state, reason = "differs", ""
        if not differs:  # which lines ran is not known, and no scenario but theirs
            state, reason = "not examined", f"only its known bugs were asked; they are as before: {', '.join(verdicts)}"
        return replace(compared, state=state, reason=reason, scenarios=len(decided), bugs=bugs)

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
        """Find what runs in the scenarios, where that passes by all that has changed; None where it does not, or the
        code does not tell. One revision alone is asked then, and none where it is known already."""
        one, other = (self.reached(side, subject) for side in SIDES)
        if one is None or other is None:
            return None
        runs_here = self._runs.setdefault(subject.name, [])
        for runs in runs_here:
            if all(runs.reached.apart_from(each, runs.functions) for each in (one, other)):
                return runs
        if not one.apart_from(other, _names_of(subject.binding)):
            return None
        alone = Alone(self._session(BEFORE, subject))
        search = BoundarySearch(alone, subject, self._seed, numbers_stay_for(subject.laws), _SHRINKING, glimpse=True)

        def ran() -> frozenset[str]:
            paths = alone.logs.get(subject.name, Log()).functions.get(BEFORE, set())
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
        runs_here.insert(0, runs)
        return runs

    def _new(self, subject: Subject, compared: BoundaryDiff) -> BoundaryDiff:
        """Check the laws of a boundary that has nothing to be compared with."""
        session = self._session(AFTER, subject)
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
        reason = f"with {', '.join(inherited)} of what it calls, as before" if inherited else search.undecided
        tried = 0 if search.undecided else search.tried
        return replace(compared, scenarios=tried, reason=reason, broken={AFTER: tuple(broken)} if broken else {})

    def _lost(self, subject: Subject, compared: BoundaryDiff) -> BoundaryDiff:
        """Call a boundary that the later revision lacks at the earlier one: it is lost only if it answered there."""
        session = self._session(BEFORE, subject)
        try:
            search = self._searched(session, subject, subject.laws, _CALLED)
            if any(outcome.answered for outcome in search.outcomes.values()):
                return compared
            why = search.undecided
        except Undecidable as error:
            why = str(error)
        finally:
            session.close()
        reason = f"{compared.lost or compared.reason}; and before, it did not answer: {why}"
        return replace(compared, state="not compared", lost="", reason=reason)

    def _was_there(self, recipe: Recipe, finding: Finding) -> bool:
        """Say whether what is found in new code is a known bug of code that was there before, which it calls."""
        about = is_about(recipe, finding, self.target)
        return about and self._runner.decide(Job(recipe, self.refs[BEFORE])).verdict.name == "reproduced"

    def _turned(
        self, pair: Pair, subject: Subject, changed: Sequence[Change]
    ) -> Iterator[tuple[Trial, tuple[Violation, ...], tuple[str, ...]]]:
        """Find what differs where an option that no scenario draws is set otherwise."""
        ran = frozenset(
            path.rpartition(".")[2] for paths in pair.logs[subject.name].functions.values() for path in paths
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
        """Give some scenarios with one option after the other set otherwise: those that the changed functions decide
        by, or, where none of these runs, those that decide in what runs and names one of them."""
        units = [each for _, *both in changed for each in both if each is not None and each.kind == "function"]
        names = {unit.name.rpartition(".")[2] for unit in units}
        if not names & {*ran}:
            reached = self.reached(BEFORE, subject)
            there = reached.units.values() if reached is not None else ()
            running = [each for each in there if each.kind == "function" and each.name.rpartition(".")[2] in ran]
            units = [each for each in running if names & (each.names | each.attributes)]
        values_of: dict[str, list[Any]] = {}
        for name, values in (each for unit in units for each in options(unit.text).items()):
            values_of.setdefault(name, []).extend(value for value in values if value not in values_of[name])
        turns = [{name: value} for name, values in values_of.items() for value in values[:_VALUES]][:_TURNS]
        plans = glimpses(subject, self._seed, [NUMBERS_STAY])[:count] if turns else []
        for settings in turns:
            if not self._late():
                yield [(law, {"": {**inputs[""], SETTINGS: settings}}) for law, inputs in plans]

    def _difference(
        self, pair: Pair, subject: Subject, trial: Trial, violations: Sequence[Violation], examples: tuple[str, ...]
    ) -> Difference:
        inputs, symptom = inputs_of(trial), violations[0].symptom
        details = {item.key: item.detail for item in violations}
        by_side = pair.both(subject, {"": inputs})
        answers, double = _answers(by_side, details if symptom == BESIDE else ()), None
        failed = (next(iter(sat.answers.values())).refused for sat in by_side.values())
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
        """Search so many scenarios for what breaks some laws of a boundary."""
        shrinking = LEVELS["quick"][1]
        search = BoundarySearch(session, subject, self._seed, laws, shrinking, shrink_further=False, glimpse=True)
        search.try_recipes(self._recipes)
        search.run(examples, enough=self._late)
        return search

    def _search_one(self, session: LawSession, subject: Subject, inputs: Inputs) -> BoundarySearch:
        """Let the laws look at one scenario."""
        search = BoundarySearch(session, subject, self._seed)
        search.begin([Example({"": inputs}, tuple(law.name for law in subject.laws))])
        return search

    def _laws(
        self,
        sessions: Mapping[str, LawSession],
        subject: Subject,
        scenarios: Sequence[Inputs],
        log: Log,
        with_own_inputs: Subject,
    ) -> dict[str, tuple[Broken, ...]]:
        """Find the laws that one side breaks on a scenario on which the other keeps them: on those that differ, and on
        any that a search comes by, which looks for nothing else: what both break somewhere may be broken in more places
        since. Where no number differs, a law may still tell that a call leaves something behind. An option or a choice
        that came with the change answers for its laws, as new code does.
        """
        whole = bool(scenarios) or log.came
        laws = subject.laws if whole else [law for law in subject.laws if law.watches]
        examples = min(self._examples, _LOOKED) if whole else LEVELS["quick"][0]

        def searches(side: str) -> list[Finding]:
            session = Ahead(sessions[side].fresh(), sessions[_OTHER[side]].fresh())
            with closing(session):
                single = [self._search_one(session, subject, inputs) for inputs in scenarios]
                return _findings(*single, self._searched(session, subject, laws, examples))

        def came(side: str) -> list[Finding]:
            subjects_ = [subject, with_own_inputs] if side == AFTER and with_own_inputs != subject else [subject]
            return _findings(*(self._searched(sessions[side], each, laws, examples) for each in subjects_))

        broken_by: dict[str, dict[tuple[str, str], Broken]] = {side: {} for side in SIDES}
        with ThreadPoolExecutor(2, "sentinel-laws") as pool:
            findings_by = dict(zip(SIDES, pool.map(searches, SIDES)))
            ever = dict(zip(SIDES, pool.map(came, SIDES))) if log.came else {}
        for side, findings in findings_by.items():
            for finding in findings:
                broken = _broken(finding, log.spoken[_OTHER[side]] - log.spoken[side])
                broken_by[side].setdefault((broken.law, broken.symptom), broken)
        before = {(each.law.name, each.symptom) for each in ever.get(BEFORE, ())}
        for finding in ever.get(AFTER, ()):
            key = finding.law.name, finding.symptom
            fresh = _of_what_came(sessions, finding) if key not in before and key not in broken_by[AFTER] else None
            if fresh is not None:
                broken_by[AFTER][key] = replace(_broken(fresh, log.spoken[BEFORE] - log.spoken[AFTER]), came=True)
        return {side: tuple(broken.values()) for side, broken in broken_by.items()}

    def _in_another_form(self, compared: BoundaryDiff, changed: Sequence[Change]) -> BoundaryDiff:
        """Acquit a helper that refuses what it took before, or answers it by another definition, while all that call
        it are boundaries whose numbers stay: it takes its arguments in another form, and nobody gives it the former
        one."""
        refuses = any(each.symptom == "raises" for each in compared.differences)
        speak = [each for each in compared.broken.get(AFTER, ()) if not each.defined and each.law != ANSWERED]
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
        """Say where functions of these names are named in the later revision, outside of themselves."""
        code, last = self.codes[AFTER], {name.rpartition(".")[2] for name in helpers}
        for file, blob in code.definitions.sources(self.trees[AFTER]):
            if code.names(blob, last):
                for unit in code.module(blob).units.values():
                    if unit.name not in helpers and last & (unit.names | unit.attributes):
                        yield file, unit

    def _boundary_at(self, file: str, unit: Unit) -> str | None:
        place = f"({file}:{unit.span[0]})"
        return next((n for n, each in self.states.items() if each[1].places.get(AFTER, "").endswith(place)), None)

    def _verdicts(self, subject: Subject) -> dict[str, dict[str, str]]:
        """Decide each known bug of a boundary at both sides."""
        refs = {side: self.place(side, subject).ref for side in SIDES}
        return {
            recipe.bug_id: {side: self._runner.decide(Job(recipe, ref)).verdict.name for side, ref in refs.items()}
            for recipe in self._recipes
            if recipe.contract == subject.contract.name and recipe.boundary in subject.binding.paths
        }

    def _proven(self, subject: Subject, log: Log) -> dict[str, str]:
        places = {}
        for side, claim in log.claims.items():
            place = self.place(side, subject)
            if place.ref != self.refs[side]:  # of the same code in another revision the line may be another
                continue
            with suppress(NotProvenError, SentinelError):
                provenance = prove(claim, place.checkout, place.sources)
                places[side] = f"{provenance.boundary} ({provenance.file}:{provenance.line})"
        return places


def _of_one_side(verdicts: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Give, by side, the known bugs of a boundary that are there and not at the other."""
    return {
        side: tuple(
            bug for bug, by_side in verdicts.items() if (by_side[side], by_side[other]) == ("reproduced", "fixed")
        )
        for side, other in _OTHER.items()
    }


class Ended(LawSession):
    """A session of a process that ends while it imports the boundary's modules: every question has that answer."""

    def __init__(self, failure: Failed) -> None:
        self._failure = failure

    def close(self) -> None:
        pass

    def fresh(self) -> LawSession:
        return self

    def _ask(self, *_: Any) -> NoReturn:
        raise Undecidable(self._failure)


def _spans(located: Mapping[str, Mapping[Place, Unit]]) -> dict[str, dict[str, list[tuple[int, int]]]]:
    """Give the lines of some functions by side and file."""
    spans: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for side, units in located.items():
        for (file, _), unit in units.items():
            if unit.kind == "function":
                spans.setdefault(side, {}).setdefault(file, []).append(unit.span)
    return spans


def _imported(changed: Sequence[Change]) -> frozenset[Place]:
    """Give the changed definitions that run at an import; all of them, where none does."""
    places = {place for place, _, other in changed if other is not None and (other.kind != "function")}
    return frozenset(places or {place for place, _, _ in changed})


#: Failures that say more of this machine or of the adapter than of the code.
_ELSEWHERE = ("drift", "ghost", "harness", "not-in-this-version", "python")


def _one_sided(compared: BoundaryDiff, error: OneSided) -> BoundaryDiff:
    """Judge a boundary that one side answers, and that ends, hangs or does not import at the other."""
    failure = error.failure
    if failure.kind in _ELSEWHERE or failure.lacks:
        return replace(compared, state="not compared", reason=failure.reason, failed=error.side)
    broken = Broken(ANSWERED, _STATEMENT, "raises", failure.reason, {"": error.inputs})
    return replace(compared, state="differs", failed=error.side, broken={error.side: (broken,)})


def _lines(unit: Unit | None) -> frozenset[str]:
    return frozenset(line.strip() for line in unit.text.splitlines() if line.strip()) if unit else frozenset()


def _described(subject: Subject, sides: Mapping[str, Sighting]) -> BoundaryDiff:
    """Give what the syntax says of a boundary at both revisions."""
    definitions = {side: where.definition for side, where in sides.items() if where.definition is not None}
    parameters = {side: tuple(sorted(each.name.parameters)) for side, each in definitions.items()}
    return BoundaryDiff(
        subject.name,
        subject.contract.name,
        "",
        places={side: f"{each.path} ({each.file}:{each.name.span[0]})" for side, each in definitions.items()},
        parameters=parameters if len(set(parameters.values())) > 1 else {},
    )


def _named(changed: Sequence[Change]) -> tuple[str, ...]:
    """Give ``file:line name`` of changed definitions, as they are after; says what was added or taken away."""
    texts = []
    for (file, name), one, other in changed:
        unit = other or one
        assert unit is not None
        word = "" if one and other else " (new)" if other else " (gone)"
        texts.append(f"{file}:{unit.span[0]} {name or 'the module'}{word}")
    return tuple(texts)


def _names_of(binding: Binding) -> frozenset[str]:
    """Give the names that an adapter uses of a boundary's code."""
    paths = (*binding.paths, *binding.imports, *binding.twins, *binding.requires)
    called = names_in(binding.call) if binding.call is not None else ()
    return frozenset(called).union(*(path.split(".") for path in paths))


def _answers(by_side: Mapping[str, Any], beside: Collection[str] = ()) -> dict[str, Mapping[str, Any] | str]:
    """Give by side what was observed, or raised; of ``beside``, what is handed on beside the contract."""
    answers: dict[str, Mapping[str, Any] | str] = {}
    for side, sat in by_side.items():
        called: Reply = next(iter(sat.answers.values()))
        refused = called.refused.reason if called.refused is not None else "no answer"
        values = {key: called.beside.get(key) for key in beside} if beside else called.observation
        answers[side] = refused if called.observation is None or values is None else values
    return answers


def _in_single(inputs: Inputs) -> Inputs:
    return {
        name: from_array(value.array(), "float32", value.requires_grad)
        if isinstance(value, Tensor) and value.dtype in HALVES
        else value
        for name, value in inputs.items()
    }


def _broken(finding: Finding, silenced: Collection[str] = ()) -> Broken:
    """Describe a finding.

    :param silenced: what this side alone always calls 0: that is no definition of anything, and neither is a metric
    of 0 where there is something to count."""
    first = finding.violations[0]
    detail = f"{first.key}: {first.detail}" if first.key else first.detail
    keys = {part(item.key) for item in finding.violations}
    empty = finding.law is metrics_tell_the_truth and any(item.observed in (0, None) for item in finding.violations)
    defined = finding.law.rank == 1 and finding.symptom == "value" and not empty and not keys & set(silenced)
    return Broken(finding.law.name, finding.law.statement, finding.symptom, detail, finding.trial.variants, defined)


#: The law that a side breaks if it cannot be called and the other side can.
ANSWERED, _STATEMENT = "a_call_is_answered", "a call of its contract is answered"


def _with_slips(
    broken: Mapping[str, tuple[Broken, ...]], differences: Sequence[Difference]
) -> dict[str, tuple[Broken, ...]]:
    with_slips = dict(broken)
    for each in (item for item in differences if item.slip):
        side = next(side for side, answer in each.answers.items() if isinstance(answer, str))
        what = _STATEMENT, "raises", str(each.answers[side])
        with_slips[side] = (*with_slips.get(side, ()), Broken(ANSWERED, *what, {"": each.inputs}))
    return with_slips


def _refused(compared: BoundaryDiff, log: Log, differences: Sequence[Difference]) -> BoundaryDiff:
    """Judge what raises in every call at one side alone: it was decidable, and is not. With other parameters it may be
    called as its adapter does not know; unless a name is not defined, which no caller can mend."""
    side, why = next(iter(log.refused.items()))
    reason = f"{side}: every call raised: {why}"
    if side == BEFORE and not any(each.slip for each in differences):
        return replace(compared, state="not compared", reason=reason, failed=side)
    if compared.parameters and "NameError" not in {each.slip for each in differences}:
        reason += " (its parameters have changed; the adapter may not know how it is called)"
        return replace(compared, state="not compared", reason=reason, failed=side)
    inputs = differences[0].inputs if differences else {}
    broken = _with_slips({}, differences) or {side: (Broken(ANSWERED, _STATEMENT, "raises", why, {"": inputs}),)}
    return replace(
        compared,
        state="differs",
        scenarios=len(differences),
        differences=tuple(differences),
        broken=broken,
        failed=side,
    )


def _stays(caller: BoundaryDiff, helpers: Collection[str]) -> bool:
    """Say whether a caller's numbers are what they were, in scenarios that ran what has changed."""
    ran = not any(each.name in helpers and not each.called for each in caller.unreached)
    same = caller.state in ("same numbers", "not examined") or {each.symptom for each in caller.differences} <= {
        "dtype",
        BESIDE,
    }
    return ran and same and not caller.broken.get(AFTER) and not caller.bugs.get(AFTER)


def _findings(*searches: BoundarySearch) -> list[Finding]:
    return [finding for own in searches for outcome in own.outcomes.values() for finding in outcome.findings]


def _of_what_came(sessions: Mapping[str, LawSession], finding: Finding) -> Finding | None:
    """Keep a finding, where the side before has not the option or the choice that its scenario asks for, and what is
    broken is right without that option."""
    with suppress(Undecidable):
        [before] = sessions[BEFORE].try_(finding.subject, [(finding.law, finding.trial.variants)])
        if before.unknown_input:
            without = {name: {**each, before.unknown_input: None} for name, each in finding.trial.variants.items()}
            [bare] = sessions[AFTER].try_(finding.subject, [(finding.law, without)])
            fresh = ahead(replace(finding.trial, violations=finding.violations), bare)
            return replace(finding, violations=fresh) if fresh else None
        return finding if before.refusal == "not-in-this-version" else None
    return None
