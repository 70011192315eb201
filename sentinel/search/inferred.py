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
from sentinel.search.boundary_search import drawn_scenarios
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
    """What two revisions of one function, that no adapter binds, did.

    :ivar path: its dotted path; :ivar why: why it could not be compared.
    :ivar answered: scenarios that both answered; :ivar refused: why others were not, and how often.
    :ivar held: law -> scenarios about which it had something to say at the earlier one, where no number broke it.
    """

    path: str
    why: str = ""
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    held: dict[str, int] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)


def answers(session: LawSession, subject: Subject, seed: int = 0, count: int = _FIRST) -> tuple[list[Trial], str]:
    """Find the first scenarios that a function answers; and why it answers none, where that is so."""
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
    """Give the target's functions that ran when these were tried."""
    return {path for trial in trials if trial.answer is not None for path in trial.answer.functions}


def ready(session: LawSession, subject: Subject, seed: int = 0) -> tuple[Subject | None, str, set[str]]:
    """Find how a function answers its subject, with the keys of its answers: its mask as integers, flags or floats,
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
            trials, refused = answers(session, tried, seed)
            if trials:
                cases = [trial.case for trial in trials if trial.case is not None]
                return with_keys(tried, [(case.inputs[""], case.observation[""]) for case in cases]), "", ran_by(trials)
            why = why or refused
            if not subject.contract.mask or not _OF_DTYPE.search(refused):
                break
        if laid is subject and _OF_NESTED.search(refused):
            layouts.extend(laid_out(subject, "nested"))
            why = ""  # what it says of its rows as they are is nearer to what it wants
        elif laid is subject and _OF_SHAPE.search(refused):
            layouts.extend(laid_out(subject, "row", "packed", "nested"))
    again = filled(subject)
    if again is not None and (trials := answers(session, again, seed)[0]):
        cases = [trial.case for trial in trials if trial.case is not None]
        return with_keys(again, [(case.inputs[""], case.observation[""]) for case in cases]), "", ran_by(trials)
    return None, why, set()


def _says(value: Any) -> bool:
    """Say whether a part of an answer says something: a number, a text."""
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, Tensor) and len(value.data) > 0)


def compared(then: LawSession, now: LawSession, subject: Subject, count: int, seed: int = 0) -> Outcome:
    """Hold a function to what it kept at an earlier revision.

    :raises Undecidable: where it cannot be called at all.
    """
    outcome = Outcome(subject.boundary)
    ready_subject, why, _ = ready(then, subject, seed)
    if ready_subject is None:
        outcome.refused[why] += 1
        return outcome
    spoken = Counter[Law]()
    broken_then: dict[Law, set[tuple[str, str]]] = defaultdict(set)
    suspects: dict[tuple[Law | None, str, str], list[Broken]] = defaultdict(list)
    for drawn in drawn_scenarios(ready_subject, seed, 0, count):
        varied = ((law, drawn.variants(law)) for law in ready_subject.laws)
        plans: list[Plan] = [(ANSWERS, {"": drawn.inputs})]
        plans += [(law, variants) for law, variants in varied if not isinstance(variants, str)]
        one, *before = then.try_(ready_subject, plans)
        two, *after = now.try_(ready_subject, plans)
        if one.case is None or two.case is None:
            outcome.refused[one.refused or two.refused] += 1
            continue
        outcome.answered += 1
        for item in _differences(one, two):
            suspects[None, _part(item), ""].append(Broken(ready_subject, None, _part(item), 0, one.variants, item))
        for (law, variants), earlier, later in zip(plans[1:], before, after):
            if earlier.case is None:
                continue
            spoken[law] += 1
            broken_then[law] |= {(_part(item), item.symptom) for item in earlier.violations}
            for item in later.violations if not earlier.violations else ():
                broken = Broken(ready_subject, law, _part(item), 0, variants, item)
                suspects[law, broken.key, item.symptom].append(broken)
    # A NaN then is no number that broke the law.
    wrong = {law for law, several in broken_then.items() if any(symptom == "value" for _, symptom in several)}
    outcome.held = {law.name: times for law, times in spoken.items() if law not in wrong}
    ordered = sorted(suspects.items(), key=lambda each: each[0][0] is None)  # numbers last
    for (suspect_law, key, symptom), several in ordered:
        smallest = min(several, key=lambda broken: len(protocol.encode(dict(broken.variants))))
        if suspect_law is not None:
            if spoken[suspect_law] < ENOUGH or (key, symptom) in broken_then[suspect_law]:
                continue
            smallest = replace(smallest, kept=spoken[suspect_law])
        if _confirmed(then, now, smallest):
            outcome.broken.append(smallest)
    return outcome


def _part(violation: Violation) -> str:
    """Give the part of the answer that a violation is about, whichever variant's."""
    first, _, rest = violation.key.partition(".")
    return violation.key if first in ("answer", "gradient") or not rest else rest


def _differences(one: Trial, two: Trial) -> list[Violation]:
    """Say where the answers of two revisions to one scenario are further apart than rounding explains."""
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
    """Say whether it shows in fresh processes too, and in double precision where it is a difference of numbers."""
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
            violations = two.violations if item.law else _differences(one, two)
            before = [*one.violations, *again.violations] if item.law else _differences(one, again)
            if not _has(violations, item.key, symptom) or _has(before, item.key, symptom):  # a clock, an address
                return False
    finally:
        for session in fresh:
            session.close()
    return True


def _has(violations: Sequence[Violation], key: str, symptom: str) -> bool:
    return any((_part(item), item.symptom) == (key, symptom) for item in violations)
