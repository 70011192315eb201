"""Compares frameworks: the same canonical scenarios through every boundary of a contract, and its definition.

Each is asked in its own terms: what it fixes, the choices that it takes, the dialects that its adapter declares. Where
two answer otherwise, the definition is asked in the terms of both. If each answers as the definition does in its own
terms, what differs between these explains it; if one does not, nothing does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from sentinel.comparing.pairs import AFTER, BEFORE, SIDES, Log, Pair
from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import REQUIRED, Contract, DoesNotApply, Input, Inputs
from sentinel.deciding.law_session import Description, LawSession, Subject, Trial, Undecidable, widened
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.proof import NotProvenError, prove
from sentinel.errors import SentinelError
from sentinel.laws.agreement import same
from sentinel.laws.law import Case, Law, Violation
from sentinel.laws.layout import like
from sentinel.laws.oracle import the_oracle_agrees
from sentinel.recipes import Recipe
from sentinel.search.boundary_search import BoundarySearch, examples
from sentinel.search.scenarios import NotSearchable, accepts, draw, narrowed, with_dialects
from sentinel.targets import Binding
from sentinel.values.literals import Tensor
from sentinel.worker.answers import Failed, Replies, Reply

#: The name of the member that is no framework.
DEFINITION = "the definition"

#: What explains nothing: the one that is named is not what its adapter says that it is.
UNEXPLAINED = "unexplained: "

#: Scenarios of two members, and calls that shrinking one difference between them may take.
EXAMPLES, _SHRINKING = 60, 150

#: Bytes that the choices of a batch take, at most.
_CHOICES = 4096


@dataclass(frozen=True)
class Translation:
    """How a boundary of another contract is asked what this one asks.

    :ivar of: a scenario as one of its contract; :ivar back: its answer as one of ours.
    """

    subject: Subject
    of: Callable[[Inputs], Inputs]
    back: Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(eq=False)
class Member(LawSession):
    """One boundary among those that are compared, or the definition: a session that asks it in its own terms.

    :ivar opened: None for the definition.
    :ivar translation: of a boundary that is bound to another contract.
    """

    name: str
    subject: Subject
    session: LawSession
    opened: OpenTarget | None = None
    translation: Translation | None = None

    def close(self) -> None:
        self.session.close()

    def fresh(self) -> Member:
        return replace(self, session=self.session.fresh())

    @property
    def target(self) -> str:
        return self.opened.target if self.opened is not None else ""

    @property
    def boundary(self) -> str:
        return self.subject.boundary

    def terms(self, inputs: Inputs) -> dict[str, Any]:
        """Give a scenario as this boundary can be asked it: with what it fixes, what it takes first in the place of
        what it does not take, and its dialects."""
        return dict(inputs) if self.opened is None else _terms(self.subject, inputs)

    def answers(
        self,
        subject: Subject,
        calls: Mapping[str, Inputs],
        describe: Description = False,
        scenario_inputs: Sequence[str] | None = None,
    ) -> Replies:
        """Give what it answers to scenarios in its terms.

        :param subject: what it is asked about together with others; an input that this leaves out need not be taken.
        """
        scenarios, own = {name: self.terms(inputs) for name, inputs in calls.items()}, self.subject
        if self.opened is None:
            return self.session.references(subject, scenarios)
        if self.translation is None:
            taken = [name for name in own.scenario_inputs if name in subject.scenario_inputs]
            return self.session.answers(own, scenarios, describe, taken)
        own, back = self.translation.subject, self.translation.back
        scenarios = {name: _terms(own, self.translation.of(each)) for name, each in scenarios.items()}
        translated = self.session.answers(own, scenarios, describe)
        answers = {
            name: called if called.observation is None else replace(called, observation=back(called.observation))
            for name, called in translated.answers.items()
        }
        return replace(translated, answers=answers)


def _terms(subject: Subject, inputs: Inputs) -> dict[str, Any]:
    contract, binding = subject.contract, subject.binding
    terms = dict(inputs)
    for item in contract.inputs:
        if item.name in binding.fixed or binding.accepts.get(item.name) == (None,):
            terms[item.name] = item.default(terms) if callable(item.default) else item.default
        elif item.choices and not item.domain and not accepts(contract, binding, item, terms):
            terms[item.name] = _first(contract, item, terms)
    return with_dialects(contract, binding, terms)


def _first(contract: Contract, item: Input, inputs: Mapping[str, Any]) -> Any:
    changed = {**inputs, item.name: item.choices[0]}
    return contract.arrange(changed, Choices(b""))[item.name] if contract.arrange else item.choices[0]


def _drawn(item: Input) -> bool:
    return bool(item.domain or item.choices or item.kind == "labels")


class Across(Pair):
    """Two members as one session; the symptom of a difference is what explains it."""

    def __init__(self, one: Member, other: Member, reference: LawSession, logs: Any = None) -> None:
        super().__init__(one, other, logs)
        self._members = {BEFORE: one, AFTER: other}
        self._reference = reference

    def fresh(self) -> Across:
        one, other = (member.fresh() for member in self._members.values())
        return Across(one, other, self._reference, self.logs)

    def _closer(self, subject: Subject, law: Law, trial: Trial) -> Trial:
        return self._explained(subject, law, super()._closer(subject, law, trial))

    def _look(
        self,
        subject: Subject,
        law: Law,
        variants: Mapping[str, Inputs],
        called: Mapping[str, Reply],
        answer: Replies,
        coarsest: str,
    ) -> Trial:
        """Look at two answers; what one of them refuses cannot be compared."""
        for each in called.values():
            if each.observation is None:
                failed = each.refused or Failed("crash", each.silent or "a call without an observation")
                if each.silent:
                    return Trial(variants, silent=each.silent)
                unknown = failed.unknown_input
                return Trial(variants, refused=failed.reason, refusal=failed.kind, unknown_input=unknown)
        try:
            return super()._look(subject, law, variants, called, answer, coarsest)
        except DoesNotApply as error:
            return Trial(variants, silent=str(error))

    def _explained(self, subject: Subject, law: Law, trial: Trial) -> Trial:
        """Clear a trial of what is rounding; with what explains the rest as its symptom."""
        if not trial.violations or trial.case is None:
            return trial
        wide, closer = widened(subject.contract, trial.variants), trial
        if wide is not None:
            [again] = self.try_(subject, [(law, wide[0])], coarsest=wide[1])
            if again.case is not None:
                closer = again
        if not closer.violations or closer.case is None:
            return replace(trial, violations=())
        try:
            why = self._why(subject, closer.case)
        except Undecidable as error:
            return Trial(trial.variants, silent=str(error))
        return replace(trial, violations=tuple(replace(item, symptom=why) for item in trial.violations))

    def _why(self, subject: Subject, case: Case) -> str:
        terms = {side: self._members[side].terms(case.inputs[side]) for side in SIDES}
        differing = [name for name, value in terms[BEFORE].items() if terms[AFTER].get(name) != value]
        swapped = {name: {**terms[BEFORE], name: terms[AFTER].get(name)} for name in differing}
        defined = self._reference.references(subject, {**terms, **swapped}).answers
        definitions = {name: definition.observation for name, definition in defined.items()}
        for side in SIDES:
            definition, member = definitions[side], self._members[side]
            if definition is not None and not _alike(case, terms[side], case.observation[side], definition):
                return _meant(member.subject.binding, terms[side]) or f"{UNEXPLAINED}{member.name}"
        base = definitions[BEFORE]
        if base is None:
            return f"{UNEXPLAINED}there is no definition of this"
        moving = [name for name in differing if not _alike(case, terms[BEFORE], base, definitions[name])]
        return ", ".join(moving or differing) or f"{UNEXPLAINED}both are within rounding of the definition"


def _meant(binding: Binding, inputs: Inputs) -> str:
    """Say why the boundary is not its contract's definition, where its adapter says that it means that."""
    reasons = (item.reason for item in binding.dialects if item.name == the_oracle_agrees.name and item.holds(inputs))
    return next(reasons, "")


def _alike(case: Case, inputs: Inputs, one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    if other is None:
        return False
    both = replace(case, inputs=dict.fromkeys(SIDES, inputs), observation={BEFORE: one, AFTER: other})
    try:
        return not the_same_is_meant(both)
    except DoesNotApply:
        return True


def the_same_is_meant(case: Case) -> list[Violation]:
    """Demand ``|one - other| <= bound`` wherever both are finite and count, of outputs, gradients and decisions.

    Where one is not finite, that is what *finite in, finite out* is about, and no other meaning.
    """
    violations = same(case, BEFORE, AFTER, roles=("output", "gradient", "decision"))
    return [item for item in violations if item.symptom != "non-finite"]


THE_SAME_IS_MEANT = Law("the_same_is_meant", "two frameworks mean the same by one name", the_same_is_meant)


# -- who is compared with whom -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Separation:
    """What tells two members apart: the smallest scenario of one explanation, measured again in fresh processes.

    :ivar why: the names of what is not the same in their terms, a declared reason, or :data:`UNEXPLAINED`.
    :ivar terms: by member: the values of those names.
    :ivar answers: by member: what was observed.
    :ivar keys: those of them that differ.
    :ivar unsaid: inputs that say nothing to a reader: dialects, which are the definition's alone, and defaults.
    :ivar bugs: known ones that show on it.
    """

    members: tuple[str, str]
    why: str
    inputs: Inputs
    terms: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Mapping[str, Any]]
    keys: tuple[str, ...] = ()
    unsaid: frozenset[str] = frozenset()
    bugs: tuple[str, ...] = ()

    @property
    def unexplained(self) -> bool:
        return self.why.startswith(UNEXPLAINED) and not self.bugs


@dataclass(frozen=True)
class Number:
    """What one batch comes to.

    :ivar settings: what is not as in the batch; or the defaults, with the option that says so.
    """

    settings: Mapping[str, Any]
    value: Any


@dataclass
class Row:
    """One meaning, and who has it.

    :ivar where: the settings that make it this meaning, the same for all.
    :ivar classes: those that agree with each other; the definition's first.
    :ivar scenarios: member -> how many scenarios it was compared on.
    :ivar batch: one batch of everyday values, which all are asked.
    :ivar alike: member -> what it answers to that with the settings of the batch, where it can be set so.
    :ivar usual: the same with the settings that a run of its framework has by default.
    :ivar coarse: ``alike`` in bfloat16, where its framework has these tensors in that.
    """

    contract: str
    where: Mapping[str, Any]
    classes: list[list[str]] = field(default_factory=list)
    apart: list[Separation] = field(default_factory=list)
    scenarios: dict[str, int] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    batch: Inputs | None = None
    alike: dict[str, Number] = field(default_factory=dict)
    usual: dict[str, Number] = field(default_factory=dict)
    coarse: dict[str, Number] = field(default_factory=dict)


def identities(contract: Contract) -> list[str]:
    """Give the settings that say which of several things a boundary of the contract computes."""
    return [
        item.name
        for item in contract.inputs
        if item.kind == "string" and not item.dialect and (item.default is REQUIRED or item.default is None)
    ]


def meanings(contract: Contract, bindings: Sequence[Binding]) -> Iterator[dict[str, Any]]:
    """Give each thing that at least two of the bindings (or one and the definition) can be asked for."""
    names = identities(contract)
    values = [dict.fromkeys(v for binding in bindings for v in _values(contract, binding, name)) for name in names]
    yield from (dict(zip(names, each)) for each in product(*values))


def _values(contract: Contract, binding: Binding, name: str) -> tuple[Any, ...]:
    if name in binding.fixed:
        return () if callable(binding.fixed[name]) else (binding.fixed[name],)
    item = contract.input(name)
    return tuple(binding.accepts.get(name, item.choices if item is not None else ()))


def settled(contract: Contract, binding: Binding, where: Mapping[str, Any]) -> Contract | None:
    """Give the contract as a boundary has it with these settings; None where it cannot be set so."""
    for name, value in where.items():
        item = contract.input(name)
        examples = item is not None and item.kind == "number" and name not in {*binding.fixed, *binding.accepts}
        if not examples and value not in _values(contract, binding, name):
            return None
    with suppress(NotSearchable):
        return narrowed(contract, replace(binding, fixed={**binding.fixed, **where}))
    return None


def joint(one: Member, other: Member) -> Subject | str:
    """Give what both can be asked, in settings that both take where there are any; or why there is nothing."""
    if one.opened is None:
        one, other = other, one
    contract = one.subject.contract
    inputs = []
    for item in contract.inputs:
        beside = other.subject.contract.input(item.name) if other.opened is not None else item
        assert beside is not None
        if not _drawn(beside) and not _drawn(item) and isinstance(item.default, str):
            # Of two layouts of groups the stricter; their names sort like that.
            item = max(item, beside, key=lambda each: str(each.default))
        elif not _drawn(beside) or not _drawn(item):
            item = item if not _drawn(item) else beside
        elif item.choices:
            common = tuple(choice for choice in item.choices if choice in beside.choices)
            if item.domain == "mask" and not common:
                return "no mask is of a style that both take"
            item = replace(item, choices=common or item.choices[:1])
        inputs.append(item)
    dtypes = set(one.subject.binding.dtypes or ("float32",)) & set(other.subject.binding.dtypes or ("float32",))
    name = f"{one.name} | {other.name}"
    binding = Binding(name, contract.name, dtypes=tuple(sorted(dtypes)) or ("float32",))
    return Subject(binding, replace(contract, inputs=tuple(inputs)), (THE_SAME_IS_MEANT,), "", name)


class Agreement:
    """Sorts the members of one row into those that agree.

    :param brief: whether two that are not as it is defined are compared with each other only where the same explains
        both: else the definition tells them apart already.
    """

    def __init__(
        self,
        reference: LawSession,
        bugs_of: Callable[[Member, Collection[str]], Sequence[Recipe]] = lambda member, called: (),
        count: int = EXAMPLES,
        seed: int = 0,
        brief: bool = False,
    ) -> None:
        self._reference, self._recipes, self._count, self._seed = reference, bugs_of, count, seed
        self._brief = brief
        self._bugs: dict[str, tuple[str, ...]] = {}

    def of(self, row: Row, members: Sequence[Member]) -> Row:
        """Compare each with one of each class that there is by then; the widest first, for these speak for the rest."""
        classes: list[list[Member]] = []

        def width(member: Member) -> int:
            """Say how much a boundary takes: choices and inputs that are drawn."""
            return sum(max(len(item.choices), 1) for item in member.subject.contract.inputs if _drawn(item))

        for member in sorted(members, key=lambda each: (each.opened is not None, -width(each))):
            home: list[Member] | None = None
            spoken, why = 0, ""
            apart: list[Separation] = []
            for group in classes:
                if self._brief and apart and _explanations(row.apart, group[0]) != _explanations(apart, member):
                    continue
                try:
                    differences, count = self._compared(row, group[0], member)
                except Undecidable as error:
                    why = str(error)
                    continue
                spoken += count
                if count and not differences:
                    home = group
                    break
                apart += differences
            if classes and not spoken:
                row.not_compared[member.name] = why.partition(": ")[2] or why or "no scenario is both's"
                continue
            row.apart += apart
            if member.opened is not None:
                row.scenarios[member.name] = spoken
            if home is None:
                classes.append(home := [])
            home.append(member)
        row.classes = [[member.name for member in group] for group in classes]
        return row

    def _compared(self, row: Row, one: Member, other: Member) -> tuple[list[Separation], int]:
        subject = joint(one, other)
        if isinstance(subject, str):
            return [], 0
        pair = Across(one.fresh(), other.fresh(), self._reference)
        try:
            laws = [THE_SAME_IS_MEANT]
            search = BoundarySearch(pair, subject, self._seed, laws, _SHRINKING, glimpse=True)
            search.run(self._count)
            outcome = search.outcomes[THE_SAME_IS_MEANT]
            bugs = {why: self._explaining(pair, subject, (one, other), why) for why in outcome.symptoms}
        finally:
            pair.close()
        if not outcome.spoken and search.undecided:
            raise Undecidable(Failed("raised", search.undecided))
        log = pair.logs.get(subject.name, Log())
        for side, member in zip(SIDES, (one, other)):
            if side in log.claims and member.opened is not None:
                with suppress(NotProvenError, SentinelError):
                    provenance = prove(log.claims[side], member.opened.checkout, member.opened.sources)
                    row.places[member.name] = f"{provenance.file}:{provenance.line}"
        apart = []
        for finding in outcome.findings:
            inputs, case = next(iter(finding.trial.variants.values())), finding.trial.case
            assert case is not None
            names = finding.symptom.split(", ")
            terms = {member.name: member.terms(inputs) for member in (one, other)}
            apart.append(
                Separation(
                    (one.name, other.name),
                    finding.symptom,
                    inputs,
                    {name: {key: each[key] for key in names if key in each} for name, each in terms.items()},
                    {member.name: case.observation[side] for side, member in zip(SIDES, (one, other))},
                    tuple(dict.fromkeys(item.key.rpartition(".")[2] for item in finding.violations)),
                    frozenset(
                        item.name
                        for item in subject.contract.inputs
                        if item.dialect or inputs.get(item.name) == item.default
                    ),
                    bugs[finding.symptom],
                )
            )
        return apart, outcome.spoken + len(outcome.findings)

    def _explaining(self, pair: Across, subject: Subject, members: Sequence[Member], why: str) -> tuple[str, ...]:
        """Find the known bugs of what is not as it is defined whose own scenarios tell the two apart, too; else
        those of functions that it called."""
        ran = pair.logs[subject.name].functions if subject.name in pair.logs else {}
        for side, member in zip(SIDES, members):
            if why == f"{UNEXPLAINED}{member.name}" and not self._bugs.get(member.name):
                recipes = self._recipes(member, ran.get(side, ()))
                called = (f"{item.bug_id} of what it calls" for item in recipes if item.boundary != member.boundary)
                self._bugs[member.name] = tuple(self._shown(pair, subject, member, recipes, why)) or tuple(called)
        return self._bugs.get(why.removeprefix(UNEXPLAINED), ())

    @staticmethod
    def _shown(pair: Across, subject: Subject, member: Member, recipes: Sequence[Recipe], why: str) -> Iterator[str]:
        for example in examples(member.subject, recipes):
            plans = [(THE_SAME_IS_MEANT, {"": inputs}) for inputs in example.variants.values()]
            with suppress(Undecidable):
                if any(item.symptom == why for trial in pair.try_(subject, plans) for item in trial.violations):
                    yield example.name


def everyday(contract: Contract, where: Mapping[str, Any], members: Sequence[Member]) -> Inputs | None:
    """Draw a small batch of several responses of several lengths, with the settings that most members take."""
    plain_inputs = []
    for item in contract.inputs:
        values_of = [_values(contract, member.subject.binding, item.name) for member in members]
        if item.name in where:
            item = replace(item, default=where[item.name], choices=())
        elif item.domain == "mask":
            styles = [member.subject.contract.input(item.name) for member in members]
            padded = all(style is None or "right" in style.choices for style in styles)
            item = replace(item, choices=("right",) if padded else ("full",))
        elif item.domain and item.default is not REQUIRED:
            item = replace(item, domain="")  # what may be left out is
        elif item.name == "group_layout":
            item = replace(item, default="equal")
        elif item.choices and not item.domain:
            choice = max(item.choices, key=lambda each: sum(each in values for values in values_of))
            item = replace(item, choices=(choice,))
        plain_inputs.append(item)
    plain = replace(contract, inputs=tuple(plain_inputs))
    for attempt in range(300):
        data = hashlib.shake_256(f"{contract.name} {attempt}".encode()).digest(_CHOICES)
        with suppress(DoesNotApply):
            inputs = draw(plain, Binding("", contract.name, dtypes=("float32",)), Choices(data))
            for item in plain.inputs:
                if item.domain == "advantage":  # of an outcome reward, each token of a response has the same
                    array = inputs[item.name].array()
                    inputs[item.name] = like(inputs[item.name], np.repeat(array[:, :1], array.shape[1], 1))
            if _telling(plain, inputs):
                return inputs
    return None


def _telling(contract: Contract, inputs: Inputs) -> bool:
    """Say whether a person sees in a batch what is done to it: few rows and tokens, of several lengths, small
    numbers."""
    tensors = [value.array() for value in inputs.values() if isinstance(value, Tensor)]
    mask = inputs.get(contract.mask)
    lengths = (mask.array() != 0).sum(-1) if isinstance(mask, Tensor) else np.array([1, 2])
    labels = inputs.get(contract.group) or ["p", "p"]
    return (
        all(2 <= len(array) <= 4 and array.size <= 12 and np.abs(array).max() <= 5 for array in tensors if array.ndim)
        and all(np.unique(array).size > 1 for array in tensors if array.ndim and array.dtype.kind == "f")
        and bool(lengths.min() > 0 and lengths.max() > 1)
        and (len(set(lengths)) > 1 or not isinstance(mask, Tensor) or bool(mask.array().all()))
        and len(set(labels)) < len(labels)
    )


def _explanations(apart: Sequence[Separation], member: Member) -> set[str]:
    """Say what explains that a member is not as it is defined."""
    mine = [item for item in apart if item.members == (DEFINITION, member.name)]
    return {repr((item.why.removesuffix(member.name), item.terms.get(member.name))) for item in mine}
