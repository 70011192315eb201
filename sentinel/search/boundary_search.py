"""One search: scenarios for one boundary, drawn and shrunk by Hypothesis, on which all its laws look.

The sequence of scenarios depends on the boundary and the seed alone. It comes in rounds of :data:`ROUND`, each a
Hypothesis run with a seed of its own, so that a search for fewer examples is a prefix of one for more, and a law's
violation can be met again at its place in the sequence, to be shrunk from there.
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
from sentinel.deciding.law_session import LawSession, Plan, Subject, Trial, Undecidable, widened
from sentinel.deciding.outcomes import Kind
from sentinel.laws.law import Law, Violation
from sentinel.recipes import Recipe
from sentinel.search.scenarios import draw, part, takes, with_dialects
from sentinel.values.literals import Tensor
from sentinel.worker import protocol

#: Scenarios of one Hypothesis run.
ROUND = 100

#: Calls that a session is asked for at once.
_TOGETHER = 32

#: Draws of shrinking for each call that it may take; most draws repeat a scenario that was tried.
_ATTEMPTS = 2

_ALONE = "there is nothing to compare the scenario with"

#: Why a law does not judge a scenario.
EXPLAINED = "known bugs explain every key that it compares"


@dataclass(frozen=True)
class Drawn:
    """One scenario, and what each law has to choose with when it makes its variants of it.

    All laws read the same choices: shrinking for one of them then has nothing to do with another one's choices.
    """

    subject: Subject
    inputs: Inputs
    choices: bytes

    def variants(self, law: Law) -> Mapping[str, Inputs] | str:
        """Give the variants that a law compares; or why it has nothing to say about this scenario."""
        if law.vary is None:
            return {"": self.inputs}
        try:
            variants = law.vary(self.subject.contract, self.inputs, Choices(self.choices))
        except DoesNotApply as error:
            return str(error)
        contract, binding = self.subject.contract, self.subject.binding
        if law.twin and not binding.twins:
            variants = {name: inputs for name, inputs in variants.items() if name != law.twin}
        if with_dialects(contract, binding, dict(self.inputs)) != self.inputs:  # a recipe's, which knows better
            return variants if len(variants) > 1 else _ALONE
        # A turned knob may lead into what a dialect speaks of. What is as it was stays the same object: the law session
        # calls the scenario itself once for all laws.
        stated = {name: with_dialects(contract, binding, dict(inputs)) for name, inputs in variants.items()}
        variants = {name: inputs if inputs == stated[name] else stated[name] for name, inputs in variants.items()}
        return variants if len(variants) > 1 else _ALONE


@dataclass(frozen=True)
class Finding:
    """A scenario that breaks a law: a suspect as it was drawn, a finding once it is shrunk and confirmed.

    :ivar trial: of a confirmed one, the trial in a fresh process.
    :ivar violations: those that count; of a confirmed one, those of its symptom.
    :ivar replayed: whether an earlier run reported it already.
    :ivar examples: the recipes whose scenarios show it, that of the trial first; none where it was drawn. Of others,
        those that say that their scenario breaks the law.
    :ivar known_as: the recipes that explain it; None where they were not compared.
    :ivar hidden: why another bug could hide behind those recipes; empty if the law holds without their bugs.
    :ivar also: other boundaries that break the same law in the same way because they call this one.
    :ivar laws: other laws that the boundary breaks for the same reason: one scenario shows both.
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
    """What a search knows about one law so far.

    :ivar answered: scenarios of which at least one call had an answer.
    :ivar spoken: scenarios about which the law had something to say.
    :ivar silent: why it had nothing to say about others, and how often.
    :ivar refused: what calls raised, and how often.
    :ivar kinds: of what kind each of those failures is.
    :ivar unknown: how many of them for an input that the boundary has no parameter for, and that may be left out.
    :ivar rounding: differences that vanished in float64.
    :ivar unconfirmed: violations that a fresh process did not show again.
    :ivar dialects: violations that a declared dialect means, by the dialect's place in the binding.
    :ivar dialects_open: scenarios in which a declared dialect might have shown, and the law held, likewise.
    :ivar sample: the first scenario that the law held for.
    :ivar unbroken: the first in which nothing counted: it held, or broke as a dialect says.
    """

    answered: int = 0
    spoken: int = 0
    rounding: int = 0
    unconfirmed: int = 0
    unknown: int = 0
    silent: Counter[str] = field(default_factory=Counter)
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


#: How many choices of a law vary; enough for the longest permutation and what stands beside it.
CHOICES = 16

#: Choices with which one law is tried on a scenario that another one found.
EXAMPLE_CHOICES = tuple(bytes((seed * place * 7 + seed) % 256 for place in range(CHOICES)) for seed in range(8))


#: Scenarios of which laws get a glimpse; bytes that the choices of one take, at most.
GLIMPSES, _CHOICES = 12, 4096


#: A scenario as each law varies it; or why the law has nothing to say about it.
_Varied = Mapping[Law, Mapping[str, Inputs] | str]


@dataclass(frozen=True)
class Example:
    """:ivar variants: variant name -> canonical inputs, as a search at this boundary would have drawn them.
    :ivar laws: the laws that are said to be broken there.
    """

    variants: Mapping[str, Inputs]
    laws: tuple[str, ...] = ()
    name: str = ""


def example(subject: Subject, recipe: Recipe) -> Example:
    """Give the scenario of a recipe of this boundary. What it states is tried as it says, in the place of what the
    adapter says of the boundary; what it leaves open is what a search draws first."""
    usual = {item.name: item.choices[0] for item in subject.contract.inputs if item.choices and not item.domain}
    granted = {name: usual[name] for name in recipe.defaulted if name in usual}
    fixed = subject.binding.fixed
    constants = {name: value for name, value in fixed.items() if not callable(value)}
    # What a search derives from the rest of a scenario.
    derived = {name: value for name, value in fixed.items() if callable(value) and name in recipe.defaulted}
    variants = {}
    for name, inputs in recipe.variants.items():
        stated = {key: value for key, value in inputs.items() if key not in recipe.defaulted}
        whole = {**inputs, **granted, **constants, **stated}
        whole |= {key: derive(whole) for key, derive in derived.items()}
        variants[name] = {**with_dialects(subject.contract, subject.binding, whole), **stated}
    return Example(variants, recipe.laws, recipe.bug_id)


def examples(subject: Subject, recipes: Sequence[Recipe]) -> list[Example]:
    """Give those of the recipes that are about this boundary."""
    return [
        example(subject, recipe)
        for recipe in recipes
        if recipe.contract == subject.contract.name and recipe.boundary in subject.binding.paths
    ]


class _BrokenError(Exception):
    """Tells Hypothesis that an example fails."""


class _StopRound(BaseException):
    """Ends a Hypothesis run from within; it must not look like a failing example."""


class BoundarySearch:
    """The search at one boundary.

    An input for which the boundary, at this revision, has no parameter is no longer drawn once that is known, where
    leaving it out means the same: the scenarios before it are those of a shorter search.

    :ivar subject: the boundary, its contract narrowed to what is known by now.
    :ivar ended: why it ended after it had found something; None if it came to its end.
    :param laws: the laws to look with; the others' variants are drawn all the same, so that the sequence stays.
    :param shrinking: calls that shrinking may take; a number and no time, so that a search repeats exactly.
    :param shrink_further: whether another symptom of a law that is known to be broken is shrunk, too. Otherwise it is
        confirmed as it was drawn.
    :param glimpse: whether :func:`glimpses` follow the first scenarios. What they show is confirmed, and not shrunk.
    :param left_out: says why a law does not look at a drawn scenario, as it varies it; empty where it does.
    :param excused: lists the observation keys that may be wrong in a scenario. A law judges it if it compares another.
    :param most: scenarios that each law judges; None for all.
    :param cheap: draw without Hypothesis, at a thirtieth of the cost. A violation is shrunk by leaving out parts of its
        scenario.
    """

    def __init__(
        self,
        law_session: LawSession,
        subject: Subject,
        seed: int,
        laws: Collection[Law] | None = None,
        shrinking: int = 500,
        shrink_further: bool = True,
        glimpse: bool = False,
        left_out: Callable[[Law, Mapping[str, Inputs]], str] = lambda law, variants: "",
        excused: Callable[[Law, Mapping[str, Inputs]], Collection[str]] = lambda law, variants: (),
        most: int | None = None,
        cheap: bool = False,
    ) -> None:
        self._law_session = law_session
        self.subject = subject
        self.seed = seed
        self._laws = list(subject.laws if laws is None else laws)
        self.shrinking = shrinking
        self._shrink_further = shrink_further
        self._glimpse = glimpse
        self._left_out, self._excused, self._most, self._cheap = left_out, excused, most, cheap
        self._round = self._done = self._empty = 0
        self._unknown: set[str] = set()
        self._not_taken: set[str] = set()
        self.tried = 0
        self.ended: Undecidable | None = None
        self.outcomes: dict[Law, LawOutcome] = {law: LawOutcome() for law in self._laws}

    def run(
        self, examples: int, tick: Callable[[], None] = lambda: None, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Go on for this many more scenarios; fewer where no more are to be had.

        :raises Undecidable: where the boundary cannot be called here at all.
        """
        while examples > 0 and self._empty < 2:
            count = min(examples, ROUND - self._done)
            tried, broken = self._look(self._done, count, tick, enough)
            for law, symptom in sorted(broken, key=lambda pair: self._laws.index(pair[0])):
                if self._borrow(law, symptom):
                    continue
                place, suspect = broken[law, symptom]
                if self._shrink_further or not self.outcomes[law].findings:
                    whole = next(iter(suspect.trial.variants.values())) if self._cheap else None
                    self._shrink(law, symptom, place, whole)
                    if self._cheap and symptom not in self.outcomes[law].symptoms:
                        self._confirm([suspect])
                elif not self._confirm([suspect]):
                    self.outcomes[law].unconfirmed += 1
            if tried and not self.tried and self._glimpse:
                glances = glimpses(self._narrowed() or self.subject, self.seed, self._laws)
                self._look_at([(plan, None) for plan in glances])
            self.tried += tried
            self._done += tried
            examples = 0 if enough() else examples - tried
            self._empty = 0 if tried else self._empty + 1
            narrower = self._narrowed()
            if narrower is not None or tried < count or self._done == ROUND:
                self._round, self._done = self._round + 1, 0
            self.subject = narrower or self.subject

    def begin(self, examples: Sequence[Example], recorded: Sequence[Plan] = ()) -> None:
        """Look at scenarios that are known to show something, before any is drawn. They are small as they are: what
        they show is confirmed, and not shrunk.

        :param recorded: what an earlier run found; looked at after the examples, which explain what they show.
        :raises Undecidable: where the boundary cannot be called here at all.
        """
        looks: list[tuple[Plan, Example | None]] = []
        for example in examples:
            claims = [law for law in self._laws if law.name in example.laws]
            if len(example.variants) > 1:
                looks += [((law, example.variants), example) for law in claims if law.vary]
            for inputs in example.variants.values():
                # Each law has a look; those that are said to be broken, under every choice of what to compare with.
                plans = self._plans(inputs, self._laws, EXAMPLE_CHOICES[:1]) + self._plans(
                    inputs, claims, EXAMPLE_CHOICES[1:]
                )
                looks += [(plan, example) for plan in plans]
        self._look_at([*looks, *((plan, None) for plan in recorded if self._takes(plan))])

    def narrowed(self, subject: Subject) -> Subject | None:
        """Give a subject without the inputs that examples have that were refused for them, where that makes a
        difference."""
        return _without(subject, self._not_taken)

    def try_recipes(self, recipes: Sequence[Recipe], recorded: Sequence[Plan] = ()) -> None:
        """Begin with the scenarios of the recipes of this boundary; those that this version refuses for an
        option that it has not are tried without it."""
        subject: Subject | None = self.subject
        while subject is not None:
            self.begin(examples(subject, recipes), recorded)
            subject, recorded = self.narrowed(subject), ()

    def replay(self, plans: Sequence[Plan]) -> bool:
        """Try scenarios of an earlier run; whether any still breaks its law. What the adapter no longer says that the
        boundary takes breaks none."""
        return self._look_at([(plan, None) for plan in plans if self._takes(plan)], replayed=True)

    def _takes(self, plan: Plan) -> bool:
        return takes(self.subject.contract, self.subject.binding, plan[1])

    @property
    def deadlocks(self) -> str:
        """How the simulated ranks disagree about a collective; empty if they never do."""
        for outcome in self.outcomes.values():
            for why in outcome.refused:
                if outcome.kinds[why] == "deadlock":
                    return why
        return ""

    @property
    def undecided(self) -> str:
        """Why no law of the boundary was decided; empty where one was."""
        outcomes = self.outcomes.values()
        if any(outcome.spoken or outcome.findings for outcome in outcomes):
            return ""
        if not self.tried:
            return "the search ended before its turn"
        refused: Counter[str] = sum((outcome.refused for outcome in outcomes), Counter())
        silent: Counter[str] = sum((outcome.silent for outcome in outcomes), Counter())
        for what, whys in (("every call was refused", refused), ("no law had anything to say", silent)):
            if whys:
                return f"{what}: {whys.most_common(1)[0][0]}"
        return "no scenario could be drawn"

    def _look_at(self, looks: Sequence[tuple[Plan, Example | None]], replayed: bool = False) -> bool:
        """Try plans, each with the example it is of, and confirm each symptom of each law by the first
        that shows it; by a later one where that was not confirmed. Whether any was."""
        trials = self._tried(self._law_session, [plan for plan, _ in looks])
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
                suspect = replace(item, violations=tuple(self._counting(item.law, item.trial, symptoms)))
                symptoms.update(violation.symptom for violation in suspect.violations)
                suspects += [suspect] if suspect.violations else []
            confirmed |= self._confirm(suspects, replayed)
            suspects_left = later
        for outcome in self.outcomes.values():
            outcome.findings = [self._credited(finding, looks, trials) for finding in outcome.findings]
        return confirmed

    def _credited(
        self, finding: Finding, looks: Sequence[tuple[Plan, Example | None]], trials: Sequence[Trial]
    ) -> Finding:
        """Give the finding with the recipes whose scenarios show it too: one is confirmed, that speaks for all."""
        names = list(finding.examples)
        for ((law, _), example), trial in zip(looks, trials):
            if law is not finding.law or example is None or law.name not in example.laws or example.name in names:
                continue
            if any(item.symptom == finding.symptom for item in self.genuine(law, trial)):
                names.append(example.name)
        return replace(finding, examples=tuple(names))

    def _tried(self, law_session: LawSession, plans: Sequence[Plan], describe: bool = False) -> list[Trial]:
        trials = law_session.try_(self.subject, plans, describe)
        if len(plans) > 1 and any(trial.refusal == "crash" for trial in trials):
            # One call's end has taken the others' answers along.
            return [law_session.try_(self.subject, [plan], describe)[0] for plan in plans]
        return trials

    def _plans(self, inputs: Inputs, laws: Collection[Law], choices: Iterable[bytes] = EXAMPLE_CHOICES) -> list[Plan]:
        """Give the variants that laws compare with a scenario, under one choice after the other."""
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

    def _look(
        self, skip: int, count: int, tick: Callable[[], None], enough: Callable[[], bool]
    ) -> tuple[int, dict[tuple[Law, str], tuple[int, Finding]]]:
        """Try scenarios ``skip`` to ``skip + count`` of this round: how many, and where each symptom showed first."""
        tried = 0
        first: dict[tuple[Law, str], tuple[int, Finding]] = {}
        make = cheap_scenarios if self._cheap else drawn_scenarios
        scenarios = make(self.subject, self.seed, self._round, skip + count)[skip:]
        for variants, trials in self._batches(scenarios):
            if tried and (enough() or self._narrowed()):
                break
            tried += 1
            for suspect in self._judged(variants, trials):
                first.setdefault((suspect.law, suspect.violations[0].symptom), (skip + tried, suspect))
            tick()
        return tried, first

    def _batches(self, scenarios: Sequence[Drawn]) -> Iterator[tuple[_Varied, list[Trial]]]:
        """Give each scenario as each law varies it, and a trial for each law that does.

        Several go to the session at once: a busy machine takes longer over the way there than over the calls. The first
        goes alone: it tells what the boundary does not take.
        """
        queue, together = deque(scenarios), 1
        while queue:
            batch: list[_Varied] = []
            plans: list[list[Plan]] = []
            while queue and sum(map(len, plans)) < together:
                scenario = queue.popleft()
                batch.append({law: self._varied(scenario, law) for law in self._laws if self._looks(law)})
                plans.append([(law, each) for law, each in batch[-1].items() if not isinstance(each, str)])
            trials = self._law_session.try_(self.subject, [plan for several in plans for plan in several])
            together = 1 if any(trial.refusal == "crash" for trial in trials) else _TOGETHER
            for variants, several in zip(batch, plans):
                if together == 1 < len(batch):  # one call's end has taken the others' answers along
                    yield variants, self._law_session.try_(self.subject, several)
                else:
                    yield variants, trials[: len(several)]
                    del trials[: len(several)]

    def _varied(self, drawn: Drawn, law: Law) -> Mapping[str, Inputs] | str:
        """Give a scenario as a law varies it, with other choices where what comes of it is left out."""
        why = ""
        for choices in (drawn.choices, *EXAMPLE_CHOICES):
            variants = replace(drawn, choices=choices).variants(law)
            left_out = variants if isinstance(variants, str) else self._left_out(law, variants)
            if not left_out:
                return variants
            why = why or left_out
            if law.vary is None or isinstance(variants, str):
                break
        return why

    def _looks(self, law: Law) -> bool:
        return self._most is None or self.outcomes[law].spoken < self._most

    def _narrowed(self) -> Subject | None:
        """Give the subject without the inputs that it has been found not to take; None where there is no such."""
        return _without(self.subject, self._unknown)

    def _borrow(self, law: Law, symptom: str) -> bool:
        """Say whether a scenario that was shrunk for another law shows this one broken too: one bug breaks several
        laws, and need not be shrunk for each."""
        for other in self.outcomes.values():
            for finding in other.findings:
                if finding.symptom != symptom or finding.law is law:
                    continue
                inputs = next(iter(finding.trial.variants.values()))
                plans = self._plans(inputs, [law])
                for trial in self._tried(self._law_session, plans):
                    same = tuple(item for item in self._counting(law, trial) if item.symptom == symptom)
                    if same:
                        return self._confirm([Finding(self.subject, law, trial, same, examples=finding.examples[:1])])
        return False

    def shrink(self, law: Law, inputs: Inputs, symptom: str) -> None:
        """Look for the smallest part of a captured scenario that breaks a law in this way."""
        self._shrink(law, symptom, 0, inputs)

    def _shrink(self, law: Law, symptom: str, place: int, whole: Inputs | None = None) -> None:
        """Draw this round's scenarios again up to the place where the law broke, and let Hypothesis go on from it.

        :param whole: a scenario, of which parts are drawn instead; from any of them to go on.
        """
        position = calls = attempts = 0
        best: tuple[int, Finding] | None = None
        suspects: dict[bytes, Finding] = {}  # many a choice makes no difference to this law's variants

        def body(drawn: Drawn) -> None:
            nonlocal position, calls, attempts, best
            if best is None and whole is None:
                position += 1
                if position < place:
                    return
                if position > place:
                    raise _StopRound
            variants = self._varied(drawn, law)
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
                counting = [item for item in self._counting(law, trial) if item.symptom == symptom]
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

    def _judged(self, variants: _Varied, trials: Sequence[Trial]) -> list[Finding]:
        """Give what every law says of a scenario; what counts, each symptom of each law by itself."""
        for law, why in variants.items():
            if isinstance(why, str):
                self.outcomes[law].silent[why] += 1
        suspects: list[Finding] = []
        for law, trial in zip((law for law, each in variants.items() if not isinstance(each, str)), trials):
            outcome = self.outcomes[law]
            outcome.answered += trial.answered
            if trial.silent:
                outcome.silent[trial.silent] += 1
            elif trial.refused:
                outcome.refused[trial.refused] += 1
                outcome.kinds[trial.refused] = trial.refusal
                self._unknown.add(trial.unknown_input)
                unknown = self.subject.contract.input(trial.unknown_input)
                outcome.unknown += unknown is not None and unknown.default is None
            elif not self._compares(law, trial):
                outcome.silent[EXPLAINED] += 1
            else:
                outcome.spoken += 1
                self._note_dialects(law, trial)
                if not trial.violations and outcome.sample is None:
                    outcome.sample = trial
                counting = self._counting(law, trial)
                if not counting and outcome.unbroken is None:
                    outcome.unbroken = trial
                for symptom in dict.fromkeys(item.symptom for item in counting):
                    same = tuple(item for item in counting if item.symptom == symptom)
                    suspects.append(Finding(self.subject, law, trial, same))
        return suspects

    def _compares(self, law: Law, trial: Trial) -> bool:
        """Return True if the law compares a key that no known bug explains: if it applies without the others."""
        excused, case = self._excused(law, trial.variants), trial.case
        if not excused or case is None or any(_plain_key(item) not in excused for item in trial.violations):
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

    def _counting(self, law: Law, trial: Trial, besides: Collection[str] = ()) -> list[Violation]:
        """Give the violations that count: no dialect, no rounding, no symptom that was found before."""
        symptoms = self.outcomes[law].symptoms.union(besides)
        counting = [item for item in self.unmeant(law, trial) if item.symptom not in symptoms]
        if self._rounded(law, trial, counting):
            self.outcomes[law].rounding += 1
            return []
        return counting

    def genuine(self, law: Law, trial: Trial) -> list[Violation]:
        """Give the violations that are no dialect and no rounding."""
        unmeant = self.unmeant(law, trial)
        return [] if self._rounded(law, trial, unmeant) else unmeant

    def unmeant(self, law: Law, trial: Trial) -> list[Violation]:
        """Give the violations that no declared dialect means."""
        if not trial.violations:
            return []
        scenario = next(iter(trial.variants.values()))
        dialects = [item for item in self.subject.binding.dialects if item.name == law.name and item.holds(scenario)]
        excused = self._excused(law, trial.variants)
        return [
            item
            for item in trial.violations
            if not any(dialect.symptom in ("", item.symptom) for dialect in dialects)
            and _plain_key(item) not in excused
        ]

    def _rounded(self, law: Law, trial: Trial, violations: Sequence[Violation]) -> bool:
        """Say whether these vanish where the same values are float64: then they were rounding. An overflow is none."""
        if not violations or any(item.symptom != "value" for item in violations):
            return False
        wide = widened(self.subject.contract, trial.variants)
        if wide is None:
            return False
        [again] = self._law_session.try_(self.subject, [(law, wide[0])], coarsest=wide[1])
        return again.case is not None and not again.violations

    def _confirm(self, suspects: Sequence[Finding], replayed: bool = False) -> bool:
        """Measure violations once more, in a fresh process; those of one symptom that show there too are a finding."""
        if not suspects:
            return False
        confirmed = False
        law_session = self._law_session.fresh()
        try:
            trials = self._tried(law_session, [(item.law, item.trial.variants) for item in suspects], describe=True)
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


#: What was drawn already, by boundary, seed and round: of which subject, and how many were asked for.
_DRAWN: dict[tuple[str, int, int], tuple[Subject, int, list[Drawn]]] = {}

#: Rounds of it that are kept, 100 kB each at most: more than all targets have boundaries.
_REMEMBERED = 600


def drawn_scenarios(subject: Subject, seed: int, round_: int, count: int) -> list[Drawn]:
    """Draw the first scenarios of a round; fewer where no more are to be had. Whoever asks for the same again (the
    other side of a comparison, the next pull request) has them at once."""
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
    """Draw the first scenarios of a round, each from a hash of its place."""
    scenarios: list[Drawn] = []
    for place in range(count):
        for attempt in range(4):
            data = hashlib.shake_256(f"{seed} {subject.name} {round_} {place} {attempt}".encode()).digest(_CHOICES)
            with contextlib.suppress(DoesNotApply):
                inputs = draw(subject.contract, subject.binding, Choices(data[CHOICES:]))
                scenarios.append(Drawn(subject, inputs, data[:CHOICES]))
                break
    return scenarios


def glimpses(subject: Subject, seed: int, laws: Sequence[Law]) -> list[Plan]:
    """Draw more scenarios, for the laws that look at one call, at a tenth of what it costs to let all look: one for
    each choice of each input (a few that are drawn leave most out, and a branch that nobody enters keeps every law),
    and at least :data:`GLIMPSES`."""
    contract, alone = subject.contract, [law for law in laws if law.vary is None]
    choices = [(item, choice) for item in contract.inputs if not item.dialect for choice in item.choices]
    plans: list[Plan] = []
    for place in range(max(GLIMPSES, len(choices)) if alone else 0):
        varied, choice = choices[place] if place < len(choices) else (None, None)
        varied_inputs = tuple(replace(item, choices=(choice,)) if item is varied else item for item in contract.inputs)
        inputs: Inputs = {}
        for attempt in range(4 if varied else 1):
            data = hashlib.shake_256(f"{seed} {subject.name} {place} {attempt}".encode()).digest(_CHOICES)
            with contextlib.suppress(DoesNotApply):
                inputs = draw(replace(contract, inputs=varied_inputs), subject.binding, Choices(data))
            if inputs and _telling(contract, inputs):
                break
        plans += [(law, {"": inputs}) for law in alone if inputs]
    return plans


def _telling(contract: Contract, inputs: Inputs) -> bool:
    """Say whether a scenario may show what a choice does: one row, or one of which nothing counts, may not."""
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
    inputs = tuple(_undrawn(item) if item.name in names else item for item in contract.inputs)
    return None if inputs == contract.inputs else replace(subject, contract=replace(contract, inputs=inputs))


def _undrawn(item: Input) -> Input:
    """Give an input that is left out; as it was where its contract does not say what leaving it out means."""
    return replace(item, domain="", choices=(), knob=False) if item.default is None else item


def _plain_key(violation: Violation) -> str:
    """Return the observation key of a violation, without its variant."""
    return violation.key.rpartition(".")[2]


def _size(variants: Mapping[str, Inputs]) -> int:
    """Say how big a scenario is to read: the bytes of all its tensors."""
    return sum(
        len(value.data) if isinstance(value, Tensor) else 1 for inputs in variants.values() for value in inputs.values()
    )
