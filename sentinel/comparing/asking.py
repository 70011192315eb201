"""Search for scenarios on which two revisions of a boundary differ.

Scenarios are drawn in the same way as for a check of laws. Additional scenarios set options, arguments and conditions
to make more changed lines run.
"""

from __future__ import annotations

import ast
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sentinel.comparing.branches import (
    Calls,
    Condition,
    called_name,
    conditions_around,
    conditions_inside,
    locate,
    part_of,
)
from sentinel.comparing.influence import Influence, find_sites, names_read, pair_values, parameters_in
from sentinel.comparing.observations import (
    AFTER,
    BEFORE,
    BESIDE,
    NUMBERS_STAY,
    SIDES,
    flatten,
    numbers_stay_for,
)
from sentinel.comparing.patch import PARTS, Unexamined, changed_nodes
from sentinel.comparing.processes import Processes, Runs
from sentinel.comparing.reached import Place, names_in
from sentinel.comparing.results import Difference
from sentinel.comparing.selection import Change, Selection
from sentinel.comparing.sessions import Alone, Log, Pair
from sentinel.comparing.units import Unit
from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import SETTINGS, AlteredSession, LawSession, Plan, Subject, Trial, Undecidable, widen
from sentinel.laws.law import Law, Violation
from sentinel.recipes import Recipe
from sentinel.search.boundary_search import BoundarySearch, draw_around, example, glimpses, turn
from sentinel.search.guards import (
    CALLS_AWAY,
    Constants,
    Setting,
    constants,
    merge,
    options,
    options_in,
    other_kinds,
    parse_values,
    ways_from,
)
from sentinel.search.scenarios import MASK_STYLES, Around, distinct
from sentinel.search.survey import LEVELS
from sentinel.targets import Binding, Target
from sentinel.values.literals import HALVES, Tensor, from_array
from sentinel.worker import protocol
from sentinel.worker.answers import ANOTHER, NUMBERS, TEXTS, Replies, Reply

#: Maximum number of drawn scenarios, as a multiple of the requested number. More are drawn because scenarios on which a
#: revision raises do not count.
_REFUSED = 5

#: Maximum number of values that are tried for one option, and maximum number of settings that are tried in total.
_VALUES, _TURNS = 3, 36

#: Number of scenarios in which an option is set to another value: ``_TURNED`` for a boundary whose own code has
#: changed, ``_TURNED_OF_CALLER`` for its callers. Several are needed: an option such as a fraction of all tokens rarely
#: has an effect on a scenario's few tokens. First, every option is set in ``_TURNED_OF_CALLER`` scenarios. The others
#: may take ``_SECONDS`` in all, because a call of a whole trainer can take a tenth of a second.
_TURNED, _TURNED_OF_CALLER, _SECONDS = 16, 2, 10.0

#: Number of scenarios for each mask style that the adapter excludes, such as masks with gaps.
_MASKS = 8

#: Number of scenarios for each setting that may make changed lines run.
_GUARDED = 4

#: Limits for changed lines that did not run: at most ``_BRANCHES`` branches are forced at one boundary, the same lines
#: are tried at ``_BOUNDARIES`` boundaries at most, and each branch is forced in ``_TAKEN`` scenarios.
_BRANCHES, _BOUNDARIES, _TAKEN = 4, 3, 6

#: The values of changed expressions are compared in ``_VALUED`` scenarios. In addition, up to ``_OTHERS`` arguments and
#: options are set to another value, each of them in ``_IN_OTHERS`` scenarios.
_VALUED, _OTHERS, _IN_OTHERS = 16, 6, 3

#: If a changed statement ran in fewer than ``_OFTEN`` scenarios, more scenarios are drawn: ``_TOGETHER`` in each round,
#: for at most ``_ROUNDS_OF_RARE`` rounds.
_OFTEN, _TOGETHER, _ROUNDS_OF_RARE = 32, 32, 6

#: Maximum number of calls to shrink the scenario of one difference.
_SHRINKING = 300

#: A short comparison uses ``_FEW`` drawn scenarios, the scenarios of ``_FEW`` known bugs, and the scenarios of
#: :func:`~sentinel.search.boundary_search.glimpses`.
_FEW = 5

#: A difference: the trial that shows it, the trial's violations, and the known bugs that have the same scenario.
Finding = tuple[Trial, tuple[Violation, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Budget:
    """The limits of a comparison.

    :ivar examples: scenarios per boundary.
    :ivar until: the time by ``time.monotonic`` after which no more scenarios are drawn.
    """

    examples: int
    seed: int
    until: float

    def over(self) -> bool:
        return time.monotonic() > self.until


class Asking:
    """Searches for scenarios on which the two revisions of a boundary differ: drawn ones, and those of known bugs."""

    def __init__(
        self,
        selection: Selection,
        processes: Processes,
        recipes: Callable[[], Sequence[Recipe]],
        budget: Budget,
        runs: dict[str, list[Runs]],
    ) -> None:
        self._selection, self._processes, self._recipes = selection, processes, recipes
        self.budget, self._runs = budget, runs
        self._taken: Counter[Unexamined] = Counter()

    @property
    def targets(self) -> Iterable[Target]:
        """Return all targets: their adapters declare the values that a choice in a contract's definition may have."""
        return self._selection.catalog.targets.values()

    def pair(self, subject: Subject, sessions: Mapping[str, LawSession], located: Mapping[str, Any]) -> Pair:
        """Return a session that calls both revisions and records which of the changed lines ran."""
        beside = self._selection.changed_functions(subject.name)
        return Pair(sessions[BEFORE], sessions[AFTER], beside=beside, lines=_spans(located))

    def note_head(self, subject: Subject, located: Mapping[Place, Unit]) -> Log:
        """Call only the head on a few scenarios, and return the log of these calls."""
        lines = _spans({AFTER: located})
        alone = Alone(self._processes.session(AFTER, subject), side=AFTER, lines=lines)
        with closing(alone), suppress(Undecidable):
            self.search_differences(alone, subject, numbers_stay_for(subject.laws)[:1], few=True)
        return alone.logs.get(subject.name, Log())

    def with_examples(self, examples: int) -> Asking:
        """Return a copy that draws at most ``examples`` scenarios per boundary."""
        budget = replace(self.budget, examples=min(examples, self.budget.examples))
        other = Asking(self._selection, self._processes, self._recipes, budget, self._runs)
        other._taken = self._taken
        return other

    def search_differences(
        self, pair: Pair, subject: Subject, laws: Sequence[Law], few: bool = False, glimpse: bool = True
    ) -> BoundarySearch:
        """Search for scenarios on which the two revisions return different numbers.

        If no contract is bound to the boundary, only the scenarios of its known bugs are tried.

        :param few: try only a few scenarios, and do not shrink the scenario of a difference.
        :param glimpse: also try the scenarios of :func:`~sentinel.search.boundary_search.glimpses`.
        """
        search = self._new_search(pair, subject, laws, 0 if few else _SHRINKING, glimpse)
        self._draw(search, lambda: any("value" in each.symptoms for each in search.outcomes.values()), few)
        return search

    def _new_search(
        self, session: LawSession, subject: Subject, laws: Sequence[Law], shrinking: int, glimpse: bool = True
    ) -> BoundarySearch:
        """Return a search that also draws values close to the constants in the changed code."""
        constants, seed = self._constants(subject), self.budget.seed
        return BoundarySearch(
            session,
            subject,
            seed,
            laws,
            shrinking,
            shrink_further=False,
            lesser=(BESIDE,),
            glimpse=glimpse,
            constants=constants,
        )

    def search_rare_lines(
        self, pair: Pair, search: BoundarySearch, located: Mapping[str, Mapping[Place, Unit]]
    ) -> None:
        """Draw more scenarios for changed statements that ran in only a few scenarios. At the first difference, shrink
        its scenario and stop.

        Each new scenario copies the choices of a scenario that ran the statement, except for one choice, which is drawn
        again.
        """
        subject, patch = search.subject, self._selection.patch
        log, seen = pair.logs.get(subject.name, Log()), 0
        chosen = [each.name for each in subject.contract.inputs if each.choices and not (each.domain or each.dialect)]
        scenarios: dict[tuple[str, Place, int], list[Inputs]] = defaultdict(list)
        for round_ in range(_ROUNDS_OF_RARE):
            for inputs, ran in log.scenarios[seen:]:
                for statement in {each for side in SIDES for each in patch.note(side, located[side], ran[side])}:
                    scenarios[statement].append(inputs)
            seen = len(log.scenarios)
            rare = [each for each in scenarios if len(scenarios[each]) < _OFTEN]
            if not rare or self.budget.over():
                return
            plans: list[Plan] = []
            for place in range(_TOGETHER):
                known = scenarios[rare[place % len(rare)]]
                choices = {name: known[place // len(rare) % len(known)][name] for name in chosen}
                if chosen:
                    del choices[chosen[(round_ * _TOGETHER + place) % len(chosen)]]
                around = Around(search.constants.near if place % 2 else (), choices=choices)
                inputs = draw_around(subject, self.budget.seed, f"rare {round_} {place}", around)
                plans += [(NUMBERS_STAY, {"": inputs})] if inputs else []
            for (law, variants), trial in zip(plans, pair.try_(subject, plans)):
                if trial.violations:
                    search.shrink(law, variants[""], trial.violations[0].symptom)
                    return

    def check_influence(
        self,
        sessions: Mapping[str, LawSession],
        subject: Subject,
        log: Log,
        located: Mapping[str, Mapping[Place, Unit]],
    ) -> None:
        """Record, for each changed statement that ran, whether a compared result depends on it (:class:`Influence`)."""
        patch = self._selection.patch
        scenarios: dict[tuple[str, Place, int], list[Inputs]] = defaultdict(list)
        for inputs, ran in log.scenarios:
            for statement in {each for side in SIDES for each in patch.note(side, located[side], ran[side])}:
                scenarios[statement].append(inputs)
        influence = {side: Influence(sessions[side], subject, log) for side in SIDES}
        try:
            self._check_places(subject, influence, scenarios, located)
        finally:
            for each in influence.values():
                each.close()

    def _check_places(
        self,
        subject: Subject,
        influence: Mapping[str, Influence],
        scenarios: Mapping[tuple[str, Place, int], Sequence[Inputs]],
        located: Mapping[str, Mapping[Place, Unit]],
    ) -> None:
        patch = self._selection.patch
        for place in sorted({place for _, place, _ in scenarios}):
            units = [located[side].get(place) for side in SIDES]
            matters: dict[tuple[str, Place, int], bool] = {}
            for site in find_sites(*units):
                (side, number), own = site.number, site.own
                key, there = (side, place, number), scenarios.get((own[0], place, own[1]), [])
                unit = units[SIDES.index(own[0])]
                if there and unit is not None and matters.get(key, True):
                    if self.budget.over():
                        return
                    matters[key] = influence[own[0]].of(site, place[0], unit.span[0], there)
            for key, each in matters.items():
                patch.note_influence(subject.name, key, each)

    def _constants(self, subject: Subject) -> Constants:
        changed = self._selection.candidates[subject.name].changed
        found: list[Constants] = []
        for place, side in enumerate(SIDES):
            units = [(one, other)[place] for _, one, other in changed]
            functions = [part.node for each in units if each is not None and (part := part_of(each)) is not None]
            if functions:
                found.append(constants(functions, self._module_values(side, subject)))
        return merge(found)

    def _module_values(self, side: str, subject: Subject) -> dict[str, ast.expr]:
        reached = self._selection.reached(side, subject)
        return parse_values(each.text for each in reached.units.values() if each.kind == "value") if reached else {}

    def _draw(self, search: BoundarySearch, enough: Callable[[], bool], few: bool = False) -> None:
        outcome, examples = search.outcomes[NUMBERS_STAY], self.budget.examples
        examples = min(examples, _FEW) if few else examples
        recipes = recipes_of(search.subject, self._recipes())
        if few:
            search.try_recipes(recipes[:_FEW])

        def over() -> bool:
            return self.budget.over() or enough()

        if not search.subject.laws:
            search.try_recipes(recipes)
            return
        while not over() and outcome.judged < examples and search.tried < _REFUSED * examples:
            tried = search.tried
            search.run(examples - outcome.judged, enough=over)
            if search.tried == tried:
                break
        # Scenarios of known bugs come last, because a difference on a drawn scenario can be shrunk and rarely comes
        # from a known bug.
        if not few and not over():
            search.try_recipes(recipes)

    def select_differing(self, pair: Pair, subject: Subject, recipes: Sequence[Recipe]) -> Sequence[Recipe]:
        """Return the recipes whose verdicts may differ between the revisions.

        These are the recipes on whose scenarios the results differ or a revision raises. If both revisions return the
        same numbers, they also get the same verdict.
        """
        scenarios = [(recipe, inputs) for recipe in recipes for inputs in example(subject, recipe).variants.values()]
        try:
            trials = pair.try_(subject, [(NUMBERS_STAY, {"": inputs}) for _, inputs in scenarios])
        except Undecidable:
            return recipes
        differing = {
            recipe.bug_id for (recipe, _), trial in zip(scenarios, trials) if trial.violations or trial.refused
        }
        return [recipe for recipe in recipes if recipe.bug_id in differing]

    def search_laws(self, session: LawSession, subject: Subject, laws: Sequence[Law], examples: int) -> BoundarySearch:
        """Search for scenarios on which a boundary breaks laws at one revision."""
        search = self._new_search(session, subject, laws, LEVELS["quick"][1])
        examples = min(examples, self.budget.examples)
        if examples:
            search.try_recipes(self._recipes())
            search.run(examples, enough=self.budget.over)
        return search

    def find_run_past_changes(self, subject: Subject, few: bool) -> Runs | None:
        """If the source proves that a boundary's scenarios run no changed code, return the functions that they run;
        otherwise return None.

        At most one revision is called.

        :param few: try only a few scenarios.
        """
        one, other = (self._selection.reached(side, subject) for side in SIDES)
        if one is None or other is None:
            return None
        runs_here = self._runs.setdefault(subject.name, [])
        for runs in runs_here:
            if all(runs.reached.apart_from(each, runs.functions) for each in (one, other)):
                return runs
        if not one.apart_from(other, _names_of(subject.binding)):
            return None
        alone = Alone(self._processes.session(BEFORE, subject))
        laws = numbers_stay_for(subject.laws)
        search = BoundarySearch(alone, subject, self.budget.seed, laws, _SHRINKING, glimpse=True)

        def ran() -> frozenset[str]:
            paths = alone.logs.get(subject.name, Log()).functions.get(BEFORE, set())
            return _names_of(subject.binding).union(*(path.split(".") for path in paths))

        try:
            self._draw(search, lambda: not one.apart_from(other, ran()), few)
            changed = one.changed(other)
            for plans in self._set_options(subject, changed, ran(), 1):
                if not one.apart_from(other, ran()):
                    break
                alone.try_(subject, plans)
        except Undecidable:
            return None
        finally:
            alone.close()
        runs = Runs(one, ran(), search.outcomes[NUMBERS_STAY].judged)
        if search.undecided or not one.apart_from(other, runs.functions):
            return None
        runs_here.insert(0, runs)
        return runs

    def search_options(
        self, pair: Pair, subject: Subject, changed: Sequence[Change], many: bool = True
    ) -> Iterator[Finding]:
        """Yield the first difference that needs an option value which ordinary scenarios never set.

        :param many: True if the boundary's own code has changed. Each value is then tried in more scenarios.
        """
        functions = pair.logs.get(subject.name, Log()).functions.values()  # empty if the time limit has passed
        ran = frozenset(path.rpartition(".")[2] for paths in functions for path in paths)
        count = _TURNED if many else _TURNED_OF_CALLER
        for plans in self._set_options(subject, changed, ran, count):
            if finding := next(_confirmed(pair, subject, plans), None):
                yield finding
                return

    def search_masks(self, pair: Pair, subject: Subject) -> Iterator[Finding]:
        """Yield the first difference that needs a mask style which the adapter excludes, such as masks with gaps.

        The contract's definition may not hold for such a mask. Therefore no law judges the difference, and exceptions
        are ignored.
        """
        plans: list[Plan] = []
        for item in (each for each in subject.contract.inputs if each.domain == "mask"):
            for style in [each for each in MASK_STYLES if each not in item.choices]:
                around = Around(choices={item.name: style})
                drawn = (draw_around(subject, self.budget.seed, f"{style} {place}", around) for place in range(_MASKS))
                plans += [(NUMBERS_STAY, {"": inputs}) for inputs in drawn if inputs]
        returned = (each for each in _confirmed(pair, subject, plans) if not each[1][0].symptom.endswith("raises"))
        with suppress(Undecidable):
            yield from islice(returned, 1)

    def search_gradients(self, sessions: Mapping[str, LawSession], subject: Subject, log: Log) -> list[Difference]:
        """Return a difference in the gradients of all returned values. A contract observes only some of these
        gradients."""
        chosen = [inputs for inputs, _ in log.scenarios[-_TAKEN:]]
        if not any(isinstance(each, Tensor) for inputs in chosen for each in inputs.values()):
            return []
        for inputs_of_gradient in ("declared", "all"):
            logs = {subject.name: Log(steady=log.steady)}
            pair = Pair(sessions[BEFORE].fresh(), sessions[AFTER].fresh(), logs, [], gradients=inputs_of_gradient)
            with closing(pair), suppress(Undecidable):
                for trial in pair.try_(subject, [(NUMBERS_STAY, {"": inputs}) for inputs in chosen]):
                    # With "all", an exception is no difference: the code may change in place what it is given.
                    if trial.violations and (inputs_of_gradient == "declared" or trial.violations[0].symptom == BESIDE):
                        return [measure_again(pair, subject, (trial, trial.violations, ()))]
        return []

    def can_branch(self, subject: Subject, changed: Sequence[Change], ran: Collection[str]) -> bool:
        """Return True if a changed line that has not run may run when conditions are forced to be true or false.

        :param ran: the names of functions that ran, without class and module.
        """
        calls = self._calls(subject)
        return any(
            self._taken[item] < _BOUNDARIES and self._conditions(item, calls[item.side], ran)
            for item in self._selection.patch.find_unexamined([place for place, _, _ in changed])
            if item.side in calls
        )

    def search_branches(
        self, sessions: Mapping[str, LawSession], subject: Subject, changed: Sequence[Change], log: Log
    ) -> list[Difference]:
        """Return a difference in a branch that no scenario enters. To enter the branch, force its conditions to be true
        or false.

        Only conditions that both revisions have can be forced.
        """
        usual: list[Inputs] = []
        calls = self._calls(subject)
        units = {side: each.units for side, each in calls.items()}
        for item, conditions, spans in self._branches(calls, changed, log):
            usual = usual or self._scenarios(subject, log)
            settings = {str(each): True for each in conditions}
            taken: list[Inputs] = [{**inputs, SETTINGS: {**inputs.get(SETTINGS, {}), **settings}} for inputs in usual]
            taken += self._with_others(taken, [(item.file, item.name)], units)
            values = self._values([(item.file, item.name)], units)
            if found := self._search_altered(sessions, subject, log, spans, values, [taken]):
                return found
        return []

    def search_values(
        self,
        sessions: Mapping[str, LawSession],
        subject: Subject,
        changed: Sequence[Change],
        log: Log,
        located: Mapping[str, Mapping[Place, Unit]],
    ) -> list[Difference]:
        """Return a difference in the values of changed expressions on which no compared result depends.

        Some scenarios are repeated with other values of the arguments and options that these expressions read.
        """
        places = [place for place, _, _ in changed]
        values = self._values(places, located)
        chosen = [inputs for inputs, _ in log.scenarios]
        chosen = [chosen[at * len(chosen) // _VALUED] for at in range(_VALUED)] if len(chosen) > _VALUED else chosen
        if not all(values.values()) or not chosen or self.budget.over():
            return []
        batches = [chosen, self._with_others(chosen, places, located)]
        return self._search_altered(sessions, subject, log, dict.fromkeys(SIDES, ()), values, batches)

    def _search_altered(
        self,
        sessions: Mapping[str, LawSession],
        subject: Subject,
        log: Log,
        conditions: Mapping[str, Sequence[Any]],
        values: Mapping[str, Sequence[Any]],
        batches: Iterable[Sequence[Inputs]],
    ) -> list[Difference]:
        """Return the first difference in scenarios for which conditions are forced and values of expressions are
        recorded.

        :param conditions: side -> the place and the required truth value of each condition.
        :param values: side -> the expressions whose values are recorded; see :meth:`_values`.
        :param batches: groups of scenarios; a group is run only if the earlier groups show no difference.
        """
        one, other = (
            AlteredSession(sessions[side], {"conditions": [*conditions[side]], "values": [*values[side]]})
            for side in SIDES
        )
        pair = Pair(one, other, {subject.name: Log(steady=log.steady)}, self._selection.changed_functions(subject.name))
        with closing(pair), suppress(Undecidable):
            for batch in batches:
                for finding in _confirmed(pair, subject, [(NUMBERS_STAY, {"": inputs}) for inputs in batch]):
                    return [measure_again(pair, subject, finding)]
        return []

    def _with_others(
        self, scenarios: Sequence[Inputs], places: Sequence[Place], located: Mapping[str, Mapping[Place, Unit]]
    ) -> list[Inputs]:
        """Return copies of a few scenarios, each with another value for one argument or option that an unexamined
        expression reads."""
        patch, names = self._selection.patch, dict[str, None]()
        for place in places:
            if any(patch.list_not_run(side, place) for side in SIDES):
                names |= dict.fromkeys(names_read(*(located.get(side, {}).get(place) for side in SIDES)))
        return [
            {**inputs, SETTINGS: {**inputs.get(SETTINGS, {}), name: ANOTHER}}
            for name in [*names][:_OTHERS]
            for inputs in scenarios[:_IN_OTHERS]
        ]

    def _values(
        self, places: Sequence[Place], located: Mapping[str, Mapping[Place, Unit]]
    ) -> dict[str, list[list[Any]]]:
        """Return, for each side, where unexamined changed statements compute values that both revisions compute.

        Each place is a list ``[file, position of the expression, function, name, part]``. If the value is an argument
        of a call, ``part`` is the argument's text; otherwise it is empty.
        """
        values: dict[str, list[list[Any]]] = {side: [] for side in SIDES}
        for place in places:
            units = [located.get(side, {}).get(place) for side in SIDES]
            idle = [set(self._selection.patch.list_not_run(side, place)) for side in SIDES]
            for value in pair_values(*units):
                if any(number in each for number, each in zip(value.numbers, idle)):
                    for side, unit, (line, column, last, end) in zip(SIDES, units, value.spans):
                        assert unit is not None
                        first = unit.span[0]
                        span = [line + first, column, last + first, end]
                        values[side].append([place[0], span, place[1], value.name, value.part])
        return values

    def _calls(self, subject: Subject) -> dict[str, Calls]:
        reached = {side: self._selection.reached(side, subject) for side in SIDES}
        return {side: Calls(each.units) for side, each in reached.items() if each is not None}

    def _branches(
        self, calls: Mapping[str, Calls], changed: Sequence[Change], log: Log
    ) -> Iterator[tuple[Unexamined, list[Condition], dict[str, list[Any]]]]:
        """Yield changed lines that did not run, with conditions under which they may run, and the places of these
        conditions.

        The places are given per side, as a list of file, position and required truth value for each condition.
        """
        patch, tried = self._selection.patch, list[list[str]]()
        ran = {side: frozenset(path.rpartition(".")[2] for path in log.functions.get(side, ())) for side in SIDES}
        for item in patch.find_unexamined([place for place, _, _ in changed]) if len(calls) == 2 else ():
            self._taken[item] += 1
            for conditions in (
                self._conditions(item, calls[item.side], ran[item.side]) if self._taken[item] <= _BOUNDARIES else ()
            ):
                if self.budget.over() or list(map(str, conditions)) in tried or len(tried) == _BRANCHES:
                    continue
                spans = {
                    side: [
                        [each.place[0], list(span), each.truth]
                        for each in conditions
                        if (span := locate(each, calls[side].units.get(each.place))) is not None
                    ]
                    for side in SIDES
                }
                if {len(each) for each in spans.values()} == {len(conditions)}:
                    tried.append(list(map(str, conditions)))
                    yield item, conditions, spans

    def _conditions(self, item: Unexamined, calls: Calls, ran: Collection[str]) -> list[list[Condition]]:
        """Return the alternatives that may make a line run, each as a list of conditions that must all be met."""
        place = item.file, item.name
        unit = calls.units.get(place) or self._selection.patch.units(item.side).get(place)
        if unit is None or unit.kind != "function":
            return []
        line = item.lines[0] - unit.span[0]
        if item.guard in PARTS:
            return [each for each in conditions_inside(place, unit, line) if each]
        found: list[list[Condition]] = []
        for chain in calls.chains(place, line, ran, CALLS_AWAY):
            names = [*(called_name(at) for at, _ in chain[1:]), ""]
            steps = [
                each
                for (at, there), name in zip(chain, names)
                for each in conditions_around(at, calls.units.get(at, unit), there, name)
            ]
            own = steps[-1:] if len(chain) == 1 else []
            found += [each for each in (own, steps) if each and each not in found]
        return found

    def _scenarios(self, subject: Subject, log: Log) -> list[Inputs]:
        """Return scenarios of which at most half ran changed code; the rest are ordinary scenarios."""
        ran = [inputs for inputs, _ in log.scenarios][: _TAKEN // 2]
        return [*ran, *self._usual(subject, _TAKEN - len(ran))]

    def _set_options(
        self, subject: Subject, changed: Sequence[Change], ran: Collection[str], count: int
    ) -> Iterator[list[Plan]]:
        """Yield groups of scenarios in which options have other values.

        Values that may make changed lines run come first. A parameter that only one revision has is never set, because
        the other revision could not be called with the same value.
        """
        usual: list[Inputs] = []  # drawn when they are first needed
        ways: list[Setting] = []
        renamed = {name for _, *both in changed for name in parameters_in(both[0]) ^ parameters_in(both[1])}
        for way in self._pass_guards(subject, changed, ran):
            ways.append(way)
            usual = usual or self._usual(subject, count)
            if renamed.isdisjoint(way):
                yield self._with(subject, way, usual[:_GUARDED])
        again: list[Setting] = []
        for settings in self._turn_options(subject, changed, ran, ways):
            usual = usual or self._usual(subject, count)
            if not self.budget.over() and renamed.isdisjoint(settings):
                few = not settings.keys().isdisjoint((TEXTS, NUMBERS))
                yield self._with(subject, settings, usual[: _GUARDED if few else _TURNED_OF_CALLER])
                again += [] if few else [settings]
        until = time.monotonic() + _SECONDS
        for settings in again if len(usual) > _TURNED_OF_CALLER else ():
            if not self.budget.over() and time.monotonic() < until:
                yield self._with(subject, settings, usual[_TURNED_OF_CALLER:])

    def _usual(self, subject: Subject, count: int) -> list[Inputs]:
        if not subject.laws:
            recipes = recipes_of(subject, self._recipes())
            return [each for recipe in recipes for each in example(subject, recipe).variants.values()][:count]
        return [inputs[""] for _, inputs in glimpses(subject, self.budget.seed, [NUMBERS_STAY])[:count]]

    def _with(self, subject: Subject, way: Setting, usual: Sequence[Inputs]) -> list[Plan]:
        return [(NUMBERS_STAY, {"": inputs}) for inputs in turn(subject, self.budget.seed, way, usual)]

    def _pass_guards(self, subject: Subject, changed: Sequence[Change], ran: Collection[str]) -> Iterator[Setting]:
        """Yield settings that may make further changed lines run. A setting fixes options, arguments, sizes or dtypes.

        A setting meets the conditions that guard a line. If the line's function was not called, the setting also meets
        the conditions that guard the calls of this function.
        """
        patch, tried = self._selection.patch, list[Setting]()
        calls = self._calls(subject)
        for item in patch.find_unexamined([place for place, _, _ in changed]):
            place = item.file, item.name
            unit = patch.units(item.side).get(place)
            part = part_of(unit) if unit is not None and item.side in calls else None
            if part is None:
                continue
            callers = calls[item.side].callers(place, CALLS_AWAY)
            ways = ways_from(part, item.lines[0], callers, ran, CALLS_AWAY, item.guard in PARTS)
            for way in [each for each in ways[:_VALUES] if each not in tried][: _TURNS - len(tried)]:
                tried.append(way)
                if self.budget.over():
                    return
                if item not in patch.find_unexamined([place]):
                    break
                yield way

    def _turn_options(
        self, subject: Subject, changed: Sequence[Change], ran: Collection[str], ways: Sequence[Setting]
    ) -> Iterator[Setting]:
        """Yield settings, each of which changes one option that a changed function tests, in changed statements first.

        If no changed function ran, use the options that its possible callers test: functions that ran and whose code
        contains the name of a changed function.

        :param ways: settings that may make changed lines run. Each option is also combined with these settings, because
            an option may have no effect alone. For example, the group size of a normalization has no effect while the
            normalization is off.
        """
        units = [each for _, *both in changed for each in both if each is not None and each.kind == "function"]
        names = {unit.name.rpartition(".")[2] for unit in units}
        if not names & {*ran}:
            reached = self._selection.reached(BEFORE, subject)
            there = reached.units.values() if reached is not None else ()
            running = [each for each in there if each.kind == "function" and each.name.rpartition(".")[2] in ran]
            units = [each for each in running if names & (each.names | each.attributes)]
        values_of: dict[str, list[Any]] = {}
        found = [options_in(node, parameters_in(unit)) for unit, node in changed_nodes(changed)]
        found += [options(unit.text) for unit in units]
        for name, values in (each for options_here in found for each in options_here.items()):
            values_of.setdefault(name, []).extend(value for value in values if value not in values_of[name])
        turns = [{name: value} for name, values in values_of.items() for value in values[:_VALUES]][:_TURNS]
        yield from turns
        named = {**self._module_values(BEFORE, subject), **self._module_values(AFTER, subject)}
        kinds = [
            each for unit in units if (part := part_of(unit)) is not None for each in other_kinds(part.node, named)
        ]
        yield from ({**way, **each} for each in distinct(kinds) for way in ({}, *ways[:1]))
        yield from [{**way, **each} for way in ways for each in turns if not way.keys() & each.keys()][:_TURNS]


def _confirmed(pair: Pair, subject: Subject, plans: Sequence[Plan]) -> Iterator[Finding]:
    """Try scenarios, and yield the differences that appear again in fresh processes."""
    for plan, trial in zip(plans, pair.try_(subject, plans)):
        if trial.violations:
            with closing(pair.fresh()) as fresh:
                [again] = fresh.try_(subject, [plan])
            if again.violations:
                yield again, again.violations, ()


def recipes_of(subject: Subject, recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return the recipes for a boundary."""
    named = [recipe for recipe in recipes if recipe.contract == subject.contract.name]
    return [recipe for recipe in named if recipe.boundary in subject.binding.paths]


def measure_again(pair: Pair, subject: Subject, finding: Finding) -> Difference:
    """Call both revisions again on the scenario of a difference, and return the difference with both results.

    If values differ, also call both revisions in float64.
    """
    trial, violations, recipes = finding
    inputs, symptom = list(trial.variants.values())[-1], violations[0].symptom
    details = {item.key: item.detail for item in violations}
    replies = pair.both(subject, {"": inputs})
    answers, double = _observations(replies, details if symptom == BESIDE else ()), None
    answers = {
        side: each if isinstance(each, str) else flatten(subject.contract, each) for side, each in answers.items()
    }
    if symptom == BESIDE:
        one, other = (answer if isinstance(answer, Mapping) else {} for answer in answers.values())
        again = {key for key in details if protocol.encode(one.get(key)) != protocol.encode(other.get(key))}
        details = {key: detail for key, detail in details.items() if key in again} or details
    refused = (next(iter(each.answers.values())).refused for each in replies.values())
    mistake = next((each.programming_error for each in refused if each is not None), "")
    wide = widen(subject.contract, {"": inputs})
    if symptom == "value" and wide is not None:
        with suppress(Undecidable):
            closer = _observations(pair.both(subject, wide[0]))
            double = {side: each for side, each in closer.items() if not isinstance(each, str)}
    single = _in_single(inputs)
    # Perhaps no caller sets an option of SETTINGS, so a programming error in a call with such an option does not count.
    mistake = "" if SETTINGS in inputs else mistake
    if mistake and single != inputs:
        # A programming error on float16 or bfloat16 inputs counts only if it also occurs on float32 inputs, because
        # callers may never use half precision.
        with suppress(Undecidable):
            answered = _observations(pair.both(subject, {"": single})).values()
            mistake = mistake if any(isinstance(each, str) for each in answered) else ""
    return Difference(symptom, inputs, answers, details, double, recipes, mistake)


def find_idle_inputs(pair: Pair, subject: Subject, difference: Difference) -> Difference:
    """Find out which inputs matter for a difference, by calling both revisions with another value of one input at a
    time.

    Return the difference with :attr:`~Difference.idle`, :attr:`~Difference.decides` and :attr:`~Difference.unless` set.
    """
    calls: dict[str, Inputs] = {"": difference.inputs}
    for item in subject.contract.inputs:
        now = difference.inputs.get(item.name)
        others = [] if now is None else [value for value in item.choices if value != now][:_VALUES]
        if isinstance(now, float) and not item.choices:
            others = [2 * now + 1]
        calls |= {f"{item.name} {place}": {**difference.inputs, item.name: value} for place, value in enumerate(others)}
    try:
        replies = pair.both(subject, calls)
    except Undecidable:
        return difference
    seen: dict[str, list[Any]] = {}
    for name in calls:
        answers = [replies[side].answers[name].observation for side in SIDES]
        seen[name] = [answer and {key: answer.get(key) for key in difference.details} for answer in answers]
    same = protocol.encode(seen[""])
    # If both revisions raise for a value, the call does not show whether the input matters.
    answered = [(name, answers) for name, answers in seen.items() if name and any(answers)]
    names = {name: name.partition(" ")[0] for name, _ in answered}
    matter = {names[name] for name, answers in answered if protocol.encode(answers) != same}
    # ``seen`` has only values that the contract observes. If the revisions differ only in other values, ``seen`` shows
    # no difference, and no input counts as decisive.
    differ = protocol.encode(seen[""][0]) != protocol.encode(seen[""][1])
    agree: dict[str, list[Any]] = defaultdict(list)
    for name, (one, other) in answered:
        if differ and one and protocol.encode(one) == protocol.encode(other):
            agree[names[name]].append(calls[name][names[name]])
    agree = {name: values for name, values in agree.items() if not isinstance(difference.inputs[name], Tensor)}
    tried = Counter(names.values())
    decides = frozenset(name for name, values in agree.items() if len(values) == tried[name])
    unless = {name: tuple(values) for name, values in agree.items() if name not in decides}
    return replace(difference, idle=frozenset(names.values()) - matter, decides=decides, unless=unless)


def _observations(replies: Mapping[str, Replies], beside: Collection[str] = ()) -> dict[str, Mapping[str, Any] | str]:
    """Return each side's observation, or the text of its exception.

    :param beside: keys of values that the contract does not observe. If given, return these values instead.
    """
    answers: dict[str, Mapping[str, Any] | str] = {}
    for side, each in replies.items():
        called: Reply = next(iter(each.answers.values()))
        refused = called.refused.reason if called.refused is not None else "no answer"
        values = {key: called.beside.get(key) for key in beside} if beside else called.observation
        answers[side] = refused if values is None else values
    return answers


def _in_single(inputs: Inputs) -> Inputs:
    return {
        name: from_array(value.array(), "float32", value.requires_grad)
        if isinstance(value, Tensor) and value.dtype in HALVES
        else value
        for name, value in inputs.items()
    }


def _spans(located: Mapping[str, Mapping[Place, Unit]]) -> dict[str, dict[str, list[tuple[int, int]]]]:
    spans: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for side, units in located.items():
        for (file, _), unit in units.items():
            if unit.kind == "function":
                spans.setdefault(side, {}).setdefault(file, []).append(unit.span)
    return spans


def _names_of(binding: Binding) -> frozenset[str]:
    paths = (*binding.paths, *binding.imports, *binding.twins, *binding.requires)
    called = names_in(binding.call) if binding.call is not None else ()
    return frozenset(called).union(*(path.split(".") for path in paths))
