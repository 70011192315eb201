"""What a function kept at an earlier revision is what it is held to: laws that are inferred from what it did there.

A law that no scenario broke then and one breaks now is a finding of rank three; numbers that are others now, one of
rank four. Neither knows which of the two revisions is right.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.contracts.contract import DoesNotApply, Inputs
from sentinel.deciding.law_session import LawSession, Plan, Subject, Trial, widened
from sentinel.laws.agreement import same
from sentinel.laws.law import Case, Law, Violation
from sentinel.search.automatic import filled, laid_out, with_keys
from sentinel.search.boundary_search import Drawn, drawn_scenarios
from sentinel.values.literals import Tensor
from sentinel.worker import protocol

#: Scenarios about which a law must have had something to say at the earlier revision, before it counts as kept there.
ENOUGH = 8

#: Scenarios that are asked first, to see whether a function answers, and in what form.
_FIRST = 16

#: Scenarios that a function refuses for one reason, and answers no other, before it is not asked again.
_ALIKE = 5

#: What torch says of a mask that has another dtype than it must.
_OF_DTYPE = re.compile(r"dtype|[Bb]ool|Long|Float|Int|types?\b|index")

#: What code raises of a tensor that has another shape than it must.
_OF_SHAPE = re.compile(
    r"raised (Index|Value|Assertion|Runtime|Type)Error.*(dim|shape|[12]D|size|unpack|scalar|Tensor|axis|ndim|must|$)"
)

#: What it raises of a tensor whose rows are all as long as the longest.
_OF_NESTED = re.compile(r"nested|jagged|'offsets'|sparse tensor layout")

#: The law that looks at an answer and asks nothing of it.
ANSWERS = Law("it_answers", "a call gives an answer", lambda case: [])

_THEN, _NOW = "then", "now"


@dataclass(frozen=True)
class Broken:
    """A law that a function no longer keeps, or an answer that is another one.

    :ivar law: None where its numbers alone are others.
    :ivar key: of the answer.
    :ivar kept: scenarios in which the law held at the earlier revision.
    """

    subject: Subject
    law: Law | None
    key: str
    kept: int
    variants: Mapping[str, Inputs]
    violation: Violation

    @property
    def rank(self) -> int:
        return 4 if self.law is None else 3


@dataclass
class Outcome:
    """What two revisions of one function did.

    :ivar answered: scenarios that both answered; :ivar refused: why others were not, and how often.
    :ivar held: law -> scenarios about which it had something to say at the earlier one, where no number broke it.
    """

    subject: Subject
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    held: dict[str, int] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)


def answers(session: LawSession, subject: Subject, seed: int = 0, count: int = _FIRST) -> tuple[list[Trial], str]:
    """The first scenarios that a function answers; and why it answers none, where that is so."""
    trials, refused = [], Counter[str]()
    for drawn in drawn_scenarios(subject, seed, 0, count):
        [trial] = session.try_(subject, [(ANSWERS, {"": drawn.inputs})], describe=True)
        if trial.case is not None and any(map(_says, trial.case.observation[""].values())):
            trials.append(trial)
        refused[trial.refused or "it answers nothing"] += 1
        if trial.refusal == "crash":  # what hangs or dies once is not asked again
            return [], trial.refused
        if not trials and refused[trial.refused] == _ALIKE:
            break
    return trials, "" if trials else next((why for why, _ in refused.most_common(1)), "nothing could be drawn")


def ran_by(trials: Sequence[Trial]) -> set[str]:
    """The target's functions that ran when these were tried."""
    return {path for trial in trials if trial.answer is not None for path in trial.answer.functions}


def ready(session: LawSession, subject: Subject, seed: int = 0) -> tuple[Subject | None, str, set[str]]:
    """The subject as the function answers it, with the keys of its answers: its mask as integers, flags or floats,
    whichever it takes first, and its tensors as rows, the first row, rows one after the other, or each row as long as
    it is; where it answers none of these, on an object that is filled before. Or why it answers none. And what ran.

    :raises Undecidable: where it cannot be called at all.
    """
    why = ""
    layouts = [subject]
    for laid in layouts:
        for dtype in ("int64", "bool", "float32"):
            inputs = [replace(item, dtype=dtype) if item.domain == "mask" else item for item in laid.contract.inputs]
            tried = replace(laid, contract=replace(laid.contract, inputs=tuple(inputs)))
            found, refused = answers(session, tried, seed)
            if found:
                cases = [trial.case for trial in found if trial.case is not None]
                return with_keys(tried, [(case.inputs[""], case.observation[""]) for case in cases]), "", ran_by(found)
            why = why or refused
            if not subject.contract.mask or not _OF_DTYPE.search(refused):
                break
        if laid is subject and _OF_NESTED.search(refused):
            layouts.extend(laid_out(subject, "nested"))
            why = ""  # what it says of its rows as they are is nearer to what it wants
        elif laid is subject and _OF_SHAPE.search(refused):
            layouts.extend(laid_out(subject, "row", "packed", "nested"))
    again = filled(subject)
    if again is not None and (found := answers(session, again, seed)[0]):
        cases = [trial.case for trial in found if trial.case is not None]
        return with_keys(again, [(case.inputs[""], case.observation[""]) for case in cases]), "", ran_by(found)
    return None, why, set()


def _says(value: Any) -> bool:
    """Whether a part of an answer says something: a number, a text."""
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, Tensor) and len(value.data) > 0)


def compared(then: LawSession, now: LawSession, subject: Subject, count: int, seed: int = 0) -> Outcome:
    """Hold a function to what it kept at an earlier revision.

    :param then: where that one is called; ``now``: the later one.
    :raises Undecidable: where it cannot be called at all.
    """
    made, why, _ = ready(then, subject, seed)
    if made is None:
        return Outcome(subject, refused=Counter([why]))
    subject = made
    outcome, sides = Outcome(subject), _Comparison(subject)
    for drawn in drawn_scenarios(subject, seed, 0, count):
        plans = _plans(subject, drawn)
        pairs = list(zip(plans, then.try_(subject, plans), now.try_(subject, plans)))
        _, one, two = pairs[0]
        if one.case is None or two.case is None:
            outcome.refused[one.refused or two.refused] += 1
            continue
        outcome.answered += 1
        for (law, _), before, after in pairs[1:]:
            sides.add(law, before, after)
        sides.differ(one, two)
    outcome.held = {law.name: spoken for law, spoken in sides.spoken.items() if not sides.wrong(law)}
    outcome.broken = [item for item in sides.suspects() if _confirmed(then, now, item)]
    return outcome


def _plans(subject: Subject, drawn: Drawn) -> list[Plan]:
    plans: list[Plan] = [(ANSWERS, {"": drawn.inputs})]
    for law in subject.laws:
        variants = replace(drawn, subject=subject).variants(law)
        if not isinstance(variants, str):
            plans.append((law, variants))
    return plans


class _Comparison:
    """What the laws said of the two revisions."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.spoken = Counter[Law]()
        self.broken_then: dict[Law, set[tuple[str, str]]] = defaultdict(set)
        self._now: dict[tuple[Law, str, str], list[Broken]] = defaultdict(list)
        self._differences: list[Broken] = []

    def add(self, law: Law, before: Trial, after: Trial) -> None:
        if before.case is None:
            return
        self.spoken[law] += 1
        self.broken_then[law] |= {(_part(item), item.symptom) for item in before.violations}
        if not before.violations:
            for item in after.violations:
                found = Broken(self.subject, law, _part(item), 0, after.variants, item)
                self._now[law, found.key, item.symptom].append(found)

    def differ(self, one: Trial, two: Trial) -> None:
        for item in _differences(one, two):
            self._differences.append(Broken(self.subject, None, _part(item), 0, one.variants, item))

    def wrong(self, law: Law) -> bool:
        """Whether the earlier revision ever broke a law, by a wrong number and not by a NaN."""
        return any(symptom == "value" for _, symptom in self.broken_then[law])

    def suspects(self) -> list[Broken]:
        """The smallest scenario of each law and key that was kept then, and of each key that differs."""
        found = []
        for (law, key, symptom), several in self._now.items():
            if (key, symptom) not in self.broken_then[law] and self.spoken[law] >= ENOUGH:
                found.append(replace(min(several, key=_size), kept=self.spoken[law]))
        for key in dict.fromkeys(item.key for item in self._differences):
            several = [item for item in self._differences if item.key == key]
            found.append(min(several, key=_size))
        return found


def _part(violation: Violation) -> str:
    """The part of the answer that a violation is about, whichever variant's."""
    first, _, rest = violation.key.partition(".")
    return violation.key if first in ("answer", "gradient") or not rest else rest


def _size(item: Broken) -> int:
    return len(protocol.encode(dict(item.variants)))


def _differences(one: Trial, two: Trial) -> list[Violation]:
    """Where the answers of two revisions to one scenario are further apart than rounding explains."""
    assert one.case is not None
    assert two.case is not None
    inputs = one.case.inputs[""]
    observation = {_THEN: one.case.observation[""], _NOW: two.case.observation[""]}
    whole = replace(one.case.contract, mask="") if one.case.contract else None  # an answer on a masked token counts too
    case = Case({_THEN: inputs, _NOW: inputs}, observation, contract=whole, coarsest=one.case.coarsest)
    try:
        return same(case, _THEN, _NOW)
    except DoesNotApply:
        return []


def _confirmed(then: LawSession, now: LawSession, item: Broken) -> bool:
    """Whether it shows in fresh processes too, and in double precision where it is a difference of numbers."""
    scenarios = [(dict(item.variants), "")]
    if item.violation.symptom == "value":
        scenarios += filter(None, [widened(item.subject.contract, item.variants)])
    fresh = then.fresh(), now.fresh(), then.fresh()
    law = item.law or ANSWERS
    symptom = item.violation.symptom
    try:
        for variants, coarsest in scenarios:
            plan = [(law, variants)]
            one, two, again = (session.try_(item.subject, plan, coarsest=coarsest)[0] for session in fresh)
            if one.case is None or two.case is None or again.case is None:
                return False
            found = two.violations if item.law else _differences(one, two)
            kept = [*one.violations, *again.violations] if item.law else _differences(one, again)
            if not _has(found, item.key, symptom) or _has(kept, item.key, symptom):  # a clock, an address
                return False
    finally:
        for session in fresh:
            session.close()
    return True


def _has(violations: Sequence[Violation], key: str, symptom: str) -> bool:
    return any((_part(item), item.symptom) == (key, symptom) for item in violations)
