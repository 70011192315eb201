"""Search one boundary: draw scenarios, check all laws of the boundary on each, and shrink failures with Hypothesis.

The sequence of scenarios depends only on the boundary and the seed, so a short search is a prefix of a longer one. The
sequence consists of rounds of :data:`ROUND` scenarios. Each round is a Hypothesis run with its own seed. To shrink a
violation, its round is drawn again up to the violation, and Hypothesis continues from there.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import Choose, Contract, DoesNotApply, Input, Inputs
from sentinel.deciding.law_session import SETTINGS, LawSession, Plan, Subject, Trial, Undecidable, widen
from sentinel.deciding.outcomes import Kind
from sentinel.laws.law import Law, Violation
from sentinel.recipes import Recipe
from sentinel.search.guards import DTYPE, SIZE, Constants, Setting
from sentinel.search.scenarios import Around, draw, part, takes, with_dialects
from sentinel.values.literals import Tensor
from sentinel.worker import protocol

#: The number of scenarios in one Hypothesis run.
ROUND = 100

#: Maximum number of calls that are sent to a session at once.
_TOGETHER = 32

#: Maximum number of draws for shrinking one violation, as a multiple of the maximum number of calls. Most draws repeat
#: an earlier scenario and need no call.
_ATTEMPTS = 2

_ALONE = "the scenario has no second variant to compare with"

#: The reason why a law does not judge a scenario in which known bugs may affect every key that the law compares.
EXPLAINED = "known bugs affect every output that the law compares"


@dataclass(frozen=True)
class Drawn:
    """A drawn scenario, with random bytes from which each law chooses its variants.

    All laws read the same bytes, so shrinking for one law is independent of the other laws' choices.
    """

    subject: Subject
    inputs: Inputs
    choices: bytes

    def variants(self, law: Law) -> Mapping[str, Inputs] | str:
        """Return the variants of the scenario that a law compares, or why the law does not apply to it."""
        if law.vary is None:
            return {"": self.inputs}
        try:
            variants = law.vary(self.subject.contract, self.inputs, Choices(self.choices))
        except DoesNotApply as error:
            return str(error)
        contract, binding = self.subject.contract, self.subject.binding
        if law.twin and not binding.twins:
            variants = {name: inputs for name, inputs in variants.items() if name != law.twin}
        # A recipe's values may differ from those that a dialect prescribes. Its variants are not changed.
        if with_dialects(contract, binding, dict(self.inputs)) != self.inputs:
            return variants if len(variants) > 1 else _ALONE
        # A variant may change an option so that a dialect applies. Therefore, set the prescribed values in each
        # variant. If this changes nothing, keep the same object: the law session makes only one call for all laws that
        # use it.
        stated = {name: with_dialects(contract, binding, dict(inputs)) for name, inputs in variants.items()}
        variants = {name: inputs if inputs == stated[name] else stated[name] for name, inputs in variants.items()}
        return variants if len(variants) > 1 else _ALONE


@dataclass(frozen=True)
class Finding:
    """A scenario that breaks a law.

    :ivar trial: the calls with the violations; after confirmation, the repeated calls in a fresh process.
    :ivar violations: the violations that are not due to a dialect, rounding or a known symptom; after confirmation,
        only those of one symptom.
    :ivar replayed: True if the scenario was recorded because it broke the law in an earlier run.
    :ivar examples: the recipes whose scenarios have these violations; empty if the scenario was drawn. The first is the
        recipe whose scenario was tried. Further recipes are listed only if they name this law.
    :ivar known_as: the recipes that explain the finding; None if the finding was not compared with recipes.
    :ivar hidden: why the recipes' bugs may hide another bug; empty if the law holds where these bugs are not triggered.
    :ivar also: other boundaries that break the same law in the same way, because they call this boundary.
    :ivar laws: other laws that the boundary breaks in the same scenario for the same reason.
    """

    subject: Subject
    law: Law
    trial: Trial
    violations: tuple[Violation, ...] = ()
    replayed: bool = False
    examples: tuple[str, ...] = ()
    known_as: tuple[str, ...] | None = None
    hidden: str = ""
    also: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()

    @property
    def symptom(self) -> str:
        return self.violations[0].symptom


@dataclass
class LawOutcome:
    """The results of one law in a search of a boundary.

    :ivar answered: number of scenarios in which at least one call returned.
    :ivar judged: number of scenarios that the law judged.
    :ivar not_judged: reason why the law did not judge a scenario -> number of scenarios.
    :ivar refused: exception -> number of scenarios in which a call raised it.
    :ivar kinds: exception -> its kind of failure.
    :ivar unknown: number of scenarios in which the boundary had no parameter for an optional input.
    :ivar rounding: number of scenarios whose violations vanish in float64.
    :ivar unconfirmed: number of violations that did not repeat in a fresh process.
    :ivar dialects: index of a declared dialect in the binding -> number of scenarios in which its declared violation
        occurred.
    :ivar dialects_open: index of a declared dialect -> number of scenarios in its scope in which its violation did not
        occur.
    :ivar sample: the first trial in which the law held.
    :ivar unbroken: the first trial in which the law held or had only violations that are due to a dialect, to rounding
        or to a symptom that was found before.
    """

    answered: int = 0
    judged: int = 0
    rounding: int = 0
    unconfirmed: int = 0
    unknown: int = 0
    not_judged: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Kind | Literal[""]] = field(default_factory=dict)
    dialects: Counter[int] = field(default_factory=Counter)
    dialects_open: Counter[int] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    sample: Trial | None = None
    unbroken: Trial | None = None

    @property
    def symptoms(self) -> set[str]:
        return {finding.symptom for finding in self.findings}


#: The number of random bytes for a law's choices: enough for the longest permutation and some further choices.
CHOICES = 16

#: Values of :attr:`Drawn.choices` for scenarios that were not drawn, such as those of recipes.
EXAMPLE_CHOICES = tuple(bytes((seed * place * 7 + seed) % 256 for place in range(CHOICES)) for seed in range(8))


#: The minimum number of extra scenarios (:func:`glimpses`), and the number of bytes from which each is drawn.
GLIMPSES, _CHOICES = 12, 4096


#: Law -> the variants of a scenario, or the reason why the law does not judge the scenario.
_Varied = Mapping[Law, Mapping[str, Inputs] | str]


@dataclass(frozen=True)
class Example:
    """The scenario of a recipe, to be tried in a search.

    :ivar variants: variant name -> inputs, as a search of this boundary would have drawn them.
    :ivar laws: names of the laws that the bug breaks according to the recipe.
    :ivar name: the bug id.
    """

    variants: Mapping[str, Inputs]
    laws: tuple[str, ...] = ()
    name: str = ""


def example(subject: Subject, recipe: Recipe) -> Example:
    """Convert a recipe's scenario to an :class:`Example` for the search of one boundary.

    Inputs in the recipe keep their values, even if the adapter fixes other values. Every other input gets the value
    that the adapter fixes or derives, or else the first of its choices.
    """
    usual = {item.name: item.choices[0] for item in subject.contract.inputs if item.choices and not item.domain}
    granted = {name: usual[name] for name in recipe.defaulted if name in usual}
    fixed = subject.binding.fixed
    constants = {name: value for name, value in fixed.items() if not callable(value)}
    # inputs whose values the binding derives from other inputs
    derived = {name: value for name, value in fixed.items() if callable(value) and name in recipe.defaulted}
    variants = {}
    for name, inputs in recipe.variants.items():
        stated = {key: value for key, value in inputs.items() if key not in recipe.defaulted}
        whole = {**inputs, **granted, **constants, **stated}
        whole |= {key: derive(whole) for key, derive in derived.items()}
        variants[name] = {**with_dialects(subject.contract, subject.binding, whole), **stated}
    return Example(variants, recipe.laws, recipe.bug_id)


def examples(subject: Subject, recipes: Sequence[Recipe]) -> list[Example]:
    """Return the scenarios of the recipes that are about this boundary."""
    return [
        example(subject, recipe)
        for recipe in recipes
        if recipe.contract == subject.contract.name and recipe.boundary in subject.binding.paths
    ]


class _BrokenError(Exception):
    """Raised in a Hypothesis test if the drawn scenario fails."""


class _StopRound(BaseException):
    """Raised to end a Hypothesis run. It is a BaseException, because Hypothesis would shrink an Exception."""


class BoundarySearch:
    """A search for scenarios on which one boundary breaks a law.

    If this revision turns out to have no parameter for an optional input, a new round begins without this input.

    :ivar subject: the boundary, with its contract without the inputs that it has rejected so far.
    :ivar ended: the error that ended the search although it has results; None if there was no such error.
    :param laws: the laws to check; None for all laws of the boundary. They do not affect which scenarios are drawn.
    :param shrinking: the maximum number of calls for shrinking one finding; with 0, findings are confirmed without
        shrinking. With a time limit, searches could not be repeated exactly.
    :param shrink_further: whether to shrink each symptom of a broken law. Otherwise, only its first symptom is shrunk.
    :param lesser: minor symptoms, which are reported only if a law has no other symptom. If a minor symptom is found
        first, the first other symptom is shrunk too.
    :param glimpse: whether to try the scenarios of :func:`glimpses` after the first drawn scenarios. Their violations
        are confirmed, not shrunk.
    :param left_out: returns why a law must skip a drawn or replayed scenario; empty if the law may judge it.
    :param excused: returns the observation keys that known bugs may make wrong in a scenario. A law judges the scenario
        only if it compares at least one other key.
    :param most: the maximum number of scenarios that each law judges; None for no limit.
    :param constants: constants of the code under test, near which some of the glimpses are drawn.
    :param cheap: draw scenarios without Hypothesis. This is thirty times as fast, but violations can be shrunk only by
        removing parts of the scenario.
    """

    def __init__(
        self,
        law_session: LawSession,
        subject: Subject,
        seed: int,
        laws: Collection[Law] | None = None,
        shrinking: int = 500,
        shrink_further: bool = True,
        lesser: Collection[str] = (),
        glimpse: bool = False,
        left_out: Callable[[Law, Mapping[str, Inputs]], str] = lambda law, variants: "",
        excused: Callable[[Law, Mapping[str, Inputs]], Collection[str]] = lambda law, variants: (),
        most: int | None = None,
        cheap: bool = False,
        constants: Constants = Constants(),
    ) -> None:
        self._law_session = law_session
        self.subject = subject
        self.seed = seed
        self._laws = list(subject.laws if laws is None else laws)
        self.shrinking = shrinking
        self._shrink_further, self._lesser = shrink_further, lesser
        self._glimpse = glimpse
        self._left_out, self._excused, self._most, self._cheap = left_out, excused, most, cheap
        self.constants = constants
        self._round = self._done = self._empty = 0
        self._unknown: set[str] = set()
        self._not_taken: set[str] = set()
        self.tried = 0
        self.ended: Undecidable | None = None
        self.outcomes: dict[Law, LawOutcome] = {law: LawOutcome() for law in self._laws}

    def run(
        self, examples: int, tick: Callable[[], None] = lambda: None, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Try ``examples`` more scenarios, or fewer if no more can be drawn.

        :param tick: called after each scenario.
        :param enough: returns True if the search should end early.
        :raises Undecidable: if the boundary cannot be called at this revision.
        """
        while examples > 0 and self._empty < 2:
            count = min(examples, ROUND - self._done)
            tried, broken = self._try_round(self._done, count, tick, enough)
            for law, symptom in sorted(broken, key=lambda pair: (self._laws.index(pair[0]), pair[1] in self._lesser)):
                if self._reuse_scenarios(law, symptom):
                    continue
                place, suspect = broken[law, symptom]
                if self.shrinking and (self._shrink_further or self.outcomes[law].symptoms <= {*self._lesser}):
                    whole = next(iter(suspect.trial.variants.values())) if self._cheap else None
                    self._shrink(law, symptom, place, whole)
                    if self._cheap and symptom not in self.outcomes[law].symptoms:
                        self._confirm([suspect])
                elif not self._confirm([suspect]):
                    self.outcomes[law].unconfirmed += 1
            if tried and not self.tried and self._glimpse:
                glances = glimpses(self._narrow() or self.subject, self.seed, self._laws, self.constants)
                self._try_scenarios([(plan, None) for plan in glances if not self._left_out(*plan)])
            self.tried += tried
            self._done += tried
            examples = 0 if enough() else examples - tried
            self._empty = 0 if tried else self._empty + 1
            narrower = self._narrow()
            if narrower is not None or tried < count or self._done == ROUND:
                self._round, self._done = self._round + 1, 0
            self.subject = narrower or self.subject

    def begin(self, examples: Sequence[Example], recorded: Sequence[Plan] = ()) -> None:
        """Try scenarios that are known to break laws. Call this before :meth:`run`, which draws others.

        Their violations are confirmed, not shrunk.

        :param recorded: failing scenarios of an earlier run, tried after the examples.
        :raises Undecidable: if the boundary cannot be called at this revision.
        """
        looks: list[tuple[Plan, Example | None]] = []
        for example in examples:
            claims = [law for law in self._laws if law.name in example.laws]
            if len(example.variants) > 1:
                looks += [((law, example.variants), example) for law in claims if law.vary]
            for inputs in example.variants.values():
                # Try every law with one choice of variants, and the laws that the recipe names with all choices.
                plans = self._plans(inputs, self._laws, EXAMPLE_CHOICES[:1]) + self._plans(
                    inputs, claims, EXAMPLE_CHOICES[1:]
                )
                looks += [(plan, example) for plan in plans]
        self._try_scenarios([*looks, *((plan, None) for plan in recorded if self._takes(plan))])

    def without_rejected(self, subject: Subject) -> Subject | None:
        """Remove the optional inputs that the boundary rejected from ``subject``. Return None if it rejected none."""
        return _without(subject, self._not_taken)

    def try_recipes(self, recipes: Sequence[Recipe], recorded: Sequence[Plan] = ()) -> None:
        """Try the scenarios of this boundary's recipes. If the boundary rejects options, try them again without these
        options."""
        subject: Subject | None = self.subject
        while subject is not None:
            self.begin(examples(subject, recipes), recorded)
            subject, recorded = self.without_rejected(subject), ()

    def replay(self, plans: Sequence[Plan]) -> bool:
        """Try the failing scenarios of an earlier run. Return True if one of them still breaks its law.

        Scenarios that are not valid for the adapter any more are skipped.
        """
        return self._try_scenarios([(plan, None) for plan in plans if self._takes(plan)], replayed=True)

    def _takes(self, plan: Plan) -> bool:
        return takes(self.subject.contract, self.subject.binding, plan[1]) and not self._left_out(*plan)

    @property
    def deadlocks(self) -> str:
        """Return the error message of a call that deadlocked, which lists the ranks' collective calls; or ""."""
        for outcome in self.outcomes.values():
            for why in outcome.refused:
                if outcome.kinds[why] == "deadlock":
                    return why
        return ""

    @property
    def undecided(self) -> str:
        """Return why no law has a result for this boundary. Return an empty string if a law judged a scenario."""
        outcomes = self.outcomes.values()
        if any(outcome.judged or outcome.findings for outcome in outcomes):
            return ""
        if not self.tried:
            return "the search ended before this boundary's turn"
        refused: Counter[str] = sum((outcome.refused for outcome in outcomes), Counter())
        not_judged: Counter[str] = sum((outcome.not_judged for outcome in outcomes), Counter())
        for what, whys in (("every call raised", refused), ("no law judged a scenario", not_judged)):
            if whys:
                return f"{what}: {whys.most_common(1)[0][0]}"
        return "no scenario could be drawn"

    def _try_scenarios(self, looks: Sequence[tuple[Plan, Example | None]], replayed: bool = False) -> bool:
        """Try scenarios, and confirm one violation per law and symptom. Return True if any was confirmed.

        If a violation is not confirmed, the next scenario with the same symptom is tried.
        """
        trials = self._try(self._law_session, [plan for plan, _ in looks])
        self._not_taken |= {trial.unknown_input for trial in trials}
        suspects_left = [
            Finding(self.subject, law, trial, examples=(example.name,) if example else ())
            for ((law, _), example), trial in zip(looks, trials)
        ]
        confirmed = False
        while suspects_left:
            claimed: dict[Law, set[str]] = {law: set() for law in self._laws}
            suspects, later = [], []
            for item in suspects_left:
                symptoms = claimed[item.law]
                if any(violation.symptom in symptoms for violation in item.trial.violations):
                    later.append(item)
                suspect = replace(item, violations=tuple(self._new_violations(item.law, item.trial, symptoms)))
                symptoms.update(violation.symptom for violation in suspect.violations)
                suspects += [suspect] if suspect.violations else []
            confirmed |= self._confirm(suspects, replayed)
            suspects_left = later
        for outcome in self.outcomes.values():
            outcome.findings = [self._add_recipes(finding, looks, trials) for finding in outcome.findings]
        return confirmed

    def _add_recipes(
        self, finding: Finding, looks: Sequence[tuple[Plan, Example | None]], trials: Sequence[Trial]
    ) -> Finding:
        """Add the names of all recipes whose scenarios fail in the same way to ``finding.examples``."""
        names = list(finding.examples)
        for ((law, _), example), trial in zip(looks, trials):
            if law is not finding.law or example is None or law.name not in example.laws or example.name in names:
                continue
            if any(item.symptom == finding.symptom for item in self.genuine_violations(law, trial)):
                names.append(example.name)
        return replace(finding, examples=tuple(names))

    def _try(self, law_session: LawSession, plans: Sequence[Plan], describe: bool = False) -> list[Trial]:
        trials = law_session.try_(self.subject, plans, describe)
        if len(plans) > 1 and any(trial.refusal == "crash" for trial in trials):
            # If one call crashes, the results of the other calls are lost, so each call is repeated alone.
            return [law_session.try_(self.subject, [plan], describe)[0] for plan in plans]
        return trials

    def _plans(self, inputs: Inputs, laws: Collection[Law], choices: Iterable[bytes] = EXAMPLE_CHOICES) -> list[Plan]:
        plans: list[Plan] = []
        encoded: set[tuple[Law, bytes]] = set()
        for data in choices if laws else ():
            scenario = Drawn(self.subject, inputs, data)
            for law in laws:
                variants = scenario.variants(law)
                if isinstance(variants, str):
                    continue
                key = law, protocol.encode(variants)
                if key not in encoded:
                    encoded.add(key)
                    plans.append((law, variants))
        return plans

    # -- one round -----------------------------------------------------------------------------------------------------

    def _try_round(
        self, skip: int, count: int, tick: Callable[[], None], enough: Callable[[], bool]
    ) -> tuple[int, dict[tuple[Law, str], tuple[int, Finding]]]:
        """Try the scenarios with indices ``skip`` to ``skip + count`` of this round.

        :return: the number of scenarios that were tried, and the first violation of each law and symptom: (law,
            symptom) -> the violation's place in the round, and an unconfirmed finding.
        """
        tried = 0
        first: dict[tuple[Law, str], tuple[int, Finding]] = {}
        make = cheap_scenarios if self._cheap else drawn_scenarios
        scenarios = make(self.subject, self.seed, self._round, skip + count)[skip:]
        for variants, trials in self._batches(scenarios):
            if tried and (enough() or self._narrow()):
                break
            tried += 1
            for suspect in self._judge(variants, trials, first):
                first.setdefault((suspect.law, suspect.violations[0].symptom), (skip + tried, suspect))
            tick()
        return tried, first

    def _batches(self, scenarios: Sequence[Drawn]) -> Iterator[tuple[_Varied, list[Trial]]]:
        """Call the boundary with scenarios. Yield each scenario's variants by law, and the trials of the laws that
        apply.

        Calls are sent to the session in batches, because sending takes longer than calling. The first scenario is sent
        alone, to detect inputs that the boundary does not accept.
        """
        queue, together = deque(scenarios), 1
        while queue:
            batch: list[_Varied] = []
            plans: list[list[Plan]] = []
            while queue and sum(map(len, plans)) < together:
                scenario = queue.popleft()
                batch.append({law: self._vary(scenario, law) for law in self._laws if self._can_judge_more(law)})
                plans.append([(law, each) for law, each in batch[-1].items() if not isinstance(each, str)])
            trials = self._law_session.try_(self.subject, [plan for several in plans for plan in several])
            together = 1 if any(trial.refusal == "crash" for trial in trials) else _TOGETHER
            for variants, several in zip(batch, plans):
                if together == 1 < len(batch):  # a crash in one call has lost the results of the others
                    yield variants, self._law_session.try_(self.subject, several)
                else:
                    yield variants, trials[: len(several)]
                    del trials[: len(several)]

    def _vary(self, drawn: Drawn, law: Law) -> Mapping[str, Inputs] | str:
        """Return the variants that a law compares, or why it does not judge the scenario.

        If ``left_out`` rejects the variants of the drawn choices, the variants of other choices are tried.
        """
        why = ""
        for choices in (drawn.choices, *EXAMPLE_CHOICES):
            variants = replace(drawn, choices=choices).variants(law)
            left_out = variants if isinstance(variants, str) else self._left_out(law, variants)
            if not left_out:
                return variants
            why = why or left_out
            if law.vary is None or isinstance(variants, str):
                break
            # If the scenario itself is a variant and must be skipped, other choices must be skipped too.
            if any(inputs is drawn.inputs for inputs in variants.values()) and self._left_out(law, {"": drawn.inputs}):
                break
        return why

    def _can_judge_more(self, law: Law) -> bool:
        return self._most is None or self.outcomes[law].judged < self._most

    def _narrow(self) -> Subject | None:
        """Return the subject without the inputs that the boundary rejected; None if it rejected none."""
        return _without(self.subject, self._unknown)

    def _reuse_scenarios(self, law: Law, symptom: str) -> bool:
        """Try the shrunk scenarios of other laws. Return True if one also breaks this law with this symptom.

        One bug often breaks several laws, and shrinking it once is enough.
        """
        for other in self.outcomes.values():
            for finding in other.findings:
                if finding.symptom != symptom or finding.law is law:
                    continue
                inputs = next(iter(finding.trial.variants.values()))
                plans = self._plans(inputs, [law])
                for trial in self._try(self._law_session, plans):
                    same = tuple(item for item in self._new_violations(law, trial) if item.symptom == symptom)
                    if same:
                        return self._confirm([Finding(self.subject, law, trial, same, examples=finding.examples[:1])])
        return False

    def shrink(self, law: Law, inputs: Inputs, symptom: str) -> None:
        """Search for the smallest part of a recorded scenario that breaks the law with the same symptom."""
        self._shrink(law, symptom, 0, inputs)

    def _shrink(self, law: Law, symptom: str, place: int, whole: Inputs | None = None) -> None:
        """Shrink a failing scenario with Hypothesis, and confirm the smallest one.

        The round is drawn again up to the place of the violation, and Hypothesis continues from there.

        :param whole: if given, draw parts of this scenario instead of the round. Hypothesis then continues from the
            first part that breaks the law.
        """
        position = calls = attempts = 0
        best: tuple[int, Finding] | None = None
        suspects: dict[bytes, Finding] = {}  # by variants, because many choices lead to the same variants

        def body(drawn: Drawn) -> None:
            nonlocal position, calls, attempts, best
            if best is None and whole is None:
                position += 1
                if position < place:
                    return
                if position > place:
                    raise _StopRound
            variants = self._vary(drawn, law)
            attempts += 1
            if attempts > _ATTEMPTS * self.shrinking:
                raise _StopRound
            if isinstance(variants, str):
                return
            key = protocol.encode(variants)
            if key not in suspects:
                calls += 1
                if calls > self.shrinking:
                    raise _StopRound
                [trial] = self._law_session.try_(self.subject, [(law, variants)])
                counting = [item for item in self._new_violations(law, trial) if item.symptom == symptom]
                suspects[key] = Finding(self.subject, law, trial, tuple(counting))
            if suspects[key].violations:
                size = _size(variants)
                if best is None or size <= best[0]:
                    best = size, suspects[key]
                raise _BrokenError

        _hypothesis(self.subject, self.seed, self._round, body, True, whole)
        if best is None or not self._confirm([best[1]]):
            self.outcomes[law].unconfirmed += 1

    # -- one scenario -------------------------------------------------------------------------------------------------

    def _judge(
        self, variants: _Varied, trials: Sequence[Trial], known: Collection[tuple[Law, str]] = ()
    ) -> list[Finding]:
        """Return the unconfirmed findings of one scenario: one for each symptom of each law that it breaks.

        :param known: laws and symptoms of earlier scenarios. They are not reported again.
        """
        for law, why in variants.items():
            if isinstance(why, str):
                self.outcomes[law].not_judged[why] += 1
        suspects: list[Finding] = []
        for law, trial in zip((law for law, each in variants.items() if not isinstance(each, str)), trials):
            outcome = self.outcomes[law]
            outcome.answered += trial.answered
            if trial.inapplicable:
                outcome.not_judged[trial.inapplicable] += 1
            elif trial.refused:
                outcome.refused[trial.refused] += 1
                outcome.kinds[trial.refused] = trial.refusal
                self._unknown.add(trial.unknown_input)
                unknown = self.subject.contract.input(trial.unknown_input)
                outcome.unknown += unknown is not None and unknown.default is None
            elif not self._compares_unexcused_key(law, trial):
                outcome.not_judged[EXPLAINED] += 1
            else:
                outcome.judged += 1
                self._note_dialects(law, trial)
                if not trial.violations and outcome.sample is None:
                    outcome.sample = trial
                besides = [symptom for broken, symptom in known if broken is law]
                counting = self._new_violations(law, trial, besides)
                if not counting and outcome.unbroken is None and not besides:
                    outcome.unbroken = trial
                for symptom in dict.fromkeys(item.symptom for item in counting):
                    same = tuple(item for item in counting if item.symptom == symptom)
                    suspects.append(Finding(self.subject, law, trial, same))
        return suspects

    def _compares_unexcused_key(self, law: Law, trial: Trial) -> bool:
        excused, case = self._excused(law, trial.variants), trial.case
        if not excused or case is None or any(_key_without_variant(item) not in excused for item in trial.violations):
            return True
        try:
            law.violations(case.without(excused))
        except DoesNotApply:
            return False
        return True

    def _note_dialects(self, law: Law, trial: Trial) -> None:
        scenario = next(iter(trial.variants.values()))
        outcome = self.outcomes[law]
        for place, dialect in enumerate(self.subject.binding.dialects):
            if dialect.name == law.name and dialect.holds(scenario):
                shows = any(dialect.symptom in ("", item.symptom) for item in trial.violations)
                (outcome.dialects if shows else outcome.dialects_open)[place] += 1

    def _new_violations(self, law: Law, trial: Trial, besides: Collection[str] = ()) -> list[Violation]:
        """Return violations with a new symptom that no dialect, known bug or rounding explains.

        :param besides: further symptoms that do not count as new.
        """
        symptoms = self.outcomes[law].symptoms.union(besides)
        counting = [item for item in self.unintended(law, trial) if item.symptom not in symptoms]
        if self._is_rounding(law, trial, counting):
            self.outcomes[law].rounding += 1
            return []
        return counting

    def genuine_violations(self, law: Law, trial: Trial) -> list[Violation]:
        """Return the violations that no declared dialect, known bug or rounding explains."""
        unintended = self.unintended(law, trial)
        return [] if self._is_rounding(law, trial, unintended) else unintended

    def unintended(self, law: Law, trial: Trial) -> list[Violation]:
        """Return the violations that no declared dialect or known bug explains."""
        if not trial.violations:
            return []
        scenario = next(iter(trial.variants.values()))
        dialects = [item for item in self.subject.binding.dialects if item.name == law.name and item.holds(scenario)]
        excused = self._excused(law, trial.variants)
        return [
            item
            for item in trial.violations
            if not any(dialect.symptom in ("", item.symptom) for dialect in dialects)
            and _key_without_variant(item) not in excused
        ]

    def _is_rounding(self, law: Law, trial: Trial, violations: Sequence[Violation]) -> bool:
        """Return True if the violations vanish in float64 and none is an overflow (a symptom other than ``value``)."""
        if not violations or any(item.symptom != "value" for item in violations):
            return False
        wide = widen(self.subject.contract, trial.variants)
        if wide is None:
            return False
        [again] = self._law_session.try_(self.subject, [(law, wide[0])], coarsest=wide[1])
        return again.case is not None and not again.violations

    def _confirm(self, suspects: Sequence[Finding], replayed: bool = False) -> bool:
        """Repeat unconfirmed findings in a new process. Return True if any is confirmed.

        Each symptom that occurs again is recorded as a finding of its law.
        """
        if not suspects:
            return False
        confirmed = False
        law_session = self._law_session.fresh()
        try:
            trials = self._try(law_session, [(item.law, item.trial.variants) for item in suspects], describe=True)
        finally:
            law_session.close()
        for item, trial in zip(suspects, trials):
            for symptom in dict.fromkeys(violation.symptom for violation in item.violations):
                same = tuple(violation for violation in trial.violations if violation.symptom == symptom)
                if same:
                    finding = replace(item, subject=self.subject, trial=trial, violations=same, replayed=replayed)
                    self.outcomes[item.law].findings.append(finding)
                    confirmed = True
        return confirmed


#: Earlier draws: (boundary, seed, round) -> (subject, number of requested scenarios, drawn scenarios).
_DRAWN: dict[tuple[str, int, int], tuple[Subject, int, list[Drawn]]] = {}

#: Maximum number of rounds in the cache; each has at most 100 kB. All targets together have fewer boundaries.
_REMEMBERED = 600


def drawn_scenarios(subject: Subject, seed: int, round_: int, count: int) -> list[Drawn]:
    """Return the first ``count`` scenarios of a round, or fewer if no more can be drawn.

    They are cached, because the second revision of a comparison and the next pull request need the same scenarios.
    """
    key = subject.name, seed, round_
    memo = _DRAWN.get(key)
    if memo is not None and memo[1] >= count and memo[0] == subject:
        return memo[2][:count]
    scenarios: list[Drawn] = []

    def body(drawn: Drawn) -> None:
        if len(scenarios) == count:
            raise _StopRound
        scenarios.append(drawn)

    _hypothesis(subject, seed, round_, body, False)
    if len(_DRAWN) >= _REMEMBERED:
        _DRAWN.clear()
    _DRAWN[key] = subject, count, scenarios
    return scenarios[:]


def cheap_scenarios(subject: Subject, seed: int, round_: int, count: int) -> list[Drawn]:
    """Return the first ``count`` scenarios of a round, drawn from a hash. Hypothesis is slower."""
    scenarios: list[Drawn] = []
    for place in range(count):
        for attempt in range(4):
            data = hashlib.shake_256(f"{seed} {subject.name} {round_} {place} {attempt}".encode()).digest(_CHOICES)
            with contextlib.suppress(DoesNotApply):
                inputs = draw(subject.contract, subject.binding, Choices(data[CHOICES:]))
                scenarios.append(Drawn(subject, inputs, data[:CHOICES]))
                break
    return scenarios


def glimpses(subject: Subject, seed: int, laws: Sequence[Law], constants: Constants = Constants()) -> list[Plan]:
    """Return plans of extra scenarios for the laws that need only one call, which take a tenth of the time of all laws.

    There is one scenario for each choice of each input, and at least :data:`GLIMPSES` in all. They are needed because
    few drawn scenarios set a given option, and a branch that never runs cannot break a law.

    Further scenarios use the constants of the code under test. Three scenarios have values near the numbers in the
    code. For each size in the code, one scenario has that number of tokens or rows. For strings and text lengths in the
    code, :attr:`Contract.put_text` makes scenarios.
    """
    contract, alone = subject.contract, [law for law in laws if law.vary is None]
    choices = [(item.name, choice) for item in contract.inputs if not item.dialect for choice in item.choices]
    plans: list[Plan] = []
    for place in range(max(GLIMPSES, len(choices)) if alone else 0):
        varied = dict(choices[place : place + 1])
        inputs: Inputs = {}
        for attempt in range(4 if varied else 1):
            data = hashlib.shake_256(f"{seed} {subject.name} {place} {attempt}".encode()).digest(_CHOICES)
            with contextlib.suppress(DoesNotApply):
                inputs = draw(contract, subject.binding, Choices(data), Around(choices=varied))
            if inputs and _can_show(contract, inputs):
                break
        plans += [(law, {"": inputs}) for law in alone if inputs]
    # Drawn in float32, because bounds such as 20 nats are chosen for it: in half precision, exp(20) is infinite.
    asked = [Around(constants.near, dtype="float32")] * _AROUND if constants.numbers else []
    asked += [Around(size=size) for size in constants.sizes]
    for place, around in enumerate(asked if alone else []):
        inputs = draw_around(subject, seed, f"around {place}", around)
        plans += [(law, {"": inputs}) for law in alone if inputs]
    lengths = (long for length in constants.lengths for long in (length - 1, length, length + 1, 2 * length))
    texts = [*((text, 0) for text in constants.texts), *(("", length) for length in lengths)]
    for place, (text, length) in enumerate(texts if alone and contract.put_text else []):
        inputs = draw_around(subject, seed, f"text {place}", Around())
        assert contract.put_text is not None
        for written, defined in contract.put_text(inputs, text, length) if inputs else ():
            plans += [(law, {"": written}) for law in alone if defined or not law.needs_oracle or law.oracle_optional]
    return plans


#: The number of scenarios that are drawn around the numbers in the code.
_AROUND = 3


def turn(subject: Subject, seed: int, way: Setting, scenarios: Sequence[Inputs]) -> list[Inputs]:
    """Return copies of scenarios in which options and arguments have the values of a setting.

    If the setting has a size or dtype, return the same number of new scenarios with this size and dtype instead.

    :param way: a setting that may make a line run (:func:`~sentinel.search.guards.ways_from`).
    """
    settings = {name: value for name, value in way.items() if name not in (SIZE, DTYPE)}
    if SIZE in way or DTYPE in way:
        around = Around(size=way.get(SIZE, 0), dtype=way.get(DTYPE, ""))
        drawn = (draw_around(subject, seed, f"guard {place}", around) for place in range(len(scenarios)))
        scenarios = [inputs for inputs in drawn if inputs]
    return [{**inputs, SETTINGS: settings} if settings else inputs for inputs in scenarios]


def draw_around(subject: Subject, seed: int, name: str, around: Around) -> Inputs:
    """Draw a scenario with values that the code under test suggests, or return ``{}`` if none can be drawn."""
    for attempt in range(4):
        data = hashlib.shake_256(f"{seed} {subject.name} {name} {attempt}".encode()).digest(_CHOICES)
        with contextlib.suppress(DoesNotApply):
            return draw(subject.contract, subject.binding, Choices(data), around)
    return {}


def _can_show(contract: Contract, inputs: Inputs) -> bool:
    """Return True if changing an option can change the results of a scenario.

    A single row, or a row whose mask is all zeros, may hide the effect.
    """
    mask = inputs.get(contract.mask)
    rows = [value.shape[0] for value in inputs.values() if isinstance(value, Tensor) and value.shape]
    return max(rows, default=2) > 1 and not (isinstance(mask, Tensor) and (mask.array() == 0).all(axis=-1).any())


def _hypothesis(
    subject: Subject, seed: int, round_: int, body: Callable[[Drawn], None], shrink: bool, whole: Inputs | None = None
) -> None:
    from sentinel.search import drawing

    def make(choose: Choose) -> Inputs:
        if whole is not None:
            return part(subject.contract, whole, choose)
        return draw(subject.contract, subject.binding, choose)

    digest = hashlib.sha256(f"{seed} {subject.name} {round_}".encode()).digest()
    number, ends = int.from_bytes(digest[:8], "big"), (_BrokenError, _StopRound)
    drawing.run(
        make, lambda inputs, choices: body(Drawn(subject, inputs, choices)), number, ROUND, shrink, CHOICES, ends
    )


def _without(subject: Subject, names: Collection[str]) -> Subject | None:
    contract = subject.contract
    inputs = tuple(_left_out_input(item) if item.name in names else item for item in contract.inputs)
    return None if inputs == contract.inputs else replace(subject, contract=replace(contract, inputs=inputs))


def _left_out_input(item: Input) -> Input:
    """If an input's default is None, return it with nothing to draw, so that calls omit it."""
    return replace(item, domain="", choices=(), knob=False) if item.default is None else item


def _key_without_variant(violation: Violation) -> str:
    return violation.key.rpartition(".")[2]


def _size(variants: Mapping[str, Inputs]) -> int:
    """Return the bytes of all tensors, plus 1 for each other input."""
    return sum(
        len(value.data) if isinstance(value, Tensor) else 1 for inputs in variants.values() for value in inputs.values()
    )
