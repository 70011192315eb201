"""Two revisions as one session: each scenario goes to both, and the law is that their numbers are the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs, Observed
from sentinel.deciding.law_session import Description, LawSession, Plan, Subject, Trial, Undecidable, widened
from sentinel.laws.agreement import COMPARED, Numbers, Scale, counted, gap_between, numbers, scale_of
from sentinel.laws.law import Case, Law, Violation
from sentinel.laws.layout import Flags
from sentinel.laws.masked_values import masked_values_have_no_influence
from sentinel.values.literals import FLOATS, Tensor
from sentinel.worker import protocol
from sentinel.worker.answers import CUT, PARTS, Claim, Failed, Replies, Reply

BEFORE, AFTER = SIDES = ("before", "after")


def numbers_stay(case: Case) -> list[Violation]:
    """Demand ``|after - before| <= bound`` wherever both are finite, and finite at the same places."""
    one, other = case.observation[BEFORE], case.observation[AFTER]
    scale = scale_of(case, [case.inputs[BEFORE]], [one, other])
    declared = {item.key: item for item in case.contract.observes} if case.contract is not None else {}
    violations: list[Violation] = []
    for key in dict.fromkeys([*one, *other]):
        item = declared.get(key, Observed(key, ""))
        symptom, detail = _difference(case, item, one.get(key), other.get(key), scale)
        if symptom:
            violations.append(Violation(key, other.get(key), one.get(key), detail, symptom))
    return violations


def _difference(case: Case, item: Observed, one: Any, other: Any, scale: Scale) -> tuple[str, str]:
    """Say of what kind the difference is, and its largest number; two empty texts where there is none."""
    left, right = numbers(one), numbers(other)
    if left is None or right is None:
        return ("answer", "") if protocol.encode(one) != protocol.encode(other) else ("", "")
    if left[0].shape != right[0].shape:
        return "shape", f"the shape: {list(left[0].shape)} before, {list(right[0].shape)} after"
    gap = np.where(_neither_finite(left[0], right[0]), 0.0, gap_between(left[0], right[0]))  # undecided: see the log
    coarser = max(left[1], right[1], key=lambda dtype: FLOATS.index(dtype) if dtype in FLOATS else -1)
    wrong = gap > scale.bound(coarser)
    counts = counted(case.contract, case.inputs[BEFORE], item) if wrong.any() else None
    masked = False
    if counts is not None and np.broadcast_shapes(counts.shape, gap.shape) == gap.shape:
        masked = not (wrong & counts).any()
        wrong = wrong if masked else wrong & counts
    if not wrong.any():
        return ("dtype", f"{left[1]} before, {right[1]} after") if left[1] != right[1] else ("", "")
    place = tuple(int(n) for n in np.unravel_index(int(np.argmax(np.where(wrong, gap, -1.0))), gap.shape))
    where = f"element {list(place)}: " if place else ""
    detail = f"{where}{left[0][place].item()!r} before, {right[0][place].item()!r} after"
    finite = np.isfinite(left[0]) == np.isfinite(right[0])
    return ("masked" if masked else "value" if finite[wrong].all() else "non-finite"), detail


def _neither_finite(one: Numbers, other: Numbers) -> Flags:
    return ~np.isfinite(one) & ~np.isfinite(other)


def _note_undecided(log: Log, case: Case) -> None:
    """Record which parts of an answer could be compared: two numbers that are not finite are not known to be equal."""
    one, other = (case.observation[side] for side in SIDES)
    observes = case.contract.observes if case.contract is not None else ()
    for item in (item for item in observes if item.role in COMPARED):
        left, right = numbers(one.get(item.key)), numbers(other.get(item.key))
        if left is None or right is None or left[0].shape != right[0].shape:
            log.decided |= set() if one.get(item.key) is other.get(item.key) is None else {item.key}
            continue
        unknown, counts = _neither_finite(left[0], right[0]), counted(case.contract, case.inputs[BEFORE], item)
        if counts is not None and np.broadcast_shapes(counts.shape, unknown.shape) == unknown.shape:
            counts = np.broadcast_to(counts, unknown.shape)
        else:
            counts = np.ones_like(unknown)
        log.undecided[item.key] += bool((unknown & counts).any())
        log.decided |= {item.key} if (~unknown & counts).any() else set()


#: The symptom of a difference in what a boundary hands on beside what its contract observes.
BESIDE = "beside"


def beside_stays(case: Case, called: Mapping[str, Reply]) -> list[Violation]:
    """Demand that what is handed on beside the contract is the same: all that is returned and mutated, what a stand-in
    is asked, what changed functions answer where both revisions give them the same. What is most about the answer comes
    first. A part that one side alone has says nothing if the list that it belongs to was cut."""
    one, other = (called[side].beside for side in SIDES)
    whole = max(len(one), len(other)) < PARTS
    labels = {key.partition(": ")[0] for key in one} & {key.partition(": ")[0] for key in other}
    cut = tuple(f"{key.removesuffix(CUT)}." for key in {*one, *other} if key.endswith(CUT))
    scale = scale_of(replace(case, contract=None), [case.inputs[BEFORE]], [one, other])
    violations: list[Violation] = []
    for key in dict.fromkeys([*one, *other]):
        label = key.partition(": ")[0]
        alone = key not in one or key not in other
        if alone and (not whole or key.startswith(cut) or ("(" in label and label not in labels)):
            continue
        symptom, detail = _difference(
            replace(case, contract=None), Observed(key, ""), one.get(key), other.get(key), scale
        )
        if symptom and not key.endswith(CUT):
            violations.append(Violation(key, other.get(key), one.get(key), detail, BESIDE))
    return sorted(violations, key=lambda item: _remoteness(item.key))


def _remoteness(key: str) -> int:
    """Rank a part by how far it is from the boundary's answer: what it returns, what a function that it calls returns,
    what is changed in their arguments, warnings, what an object keeps for itself, and what a stand-in is given."""
    label, _, path = key.rpartition(": ")
    of_function = "(" in label
    if path.startswith("returned"):
        return 1 if of_function else 0
    if path.startswith("warnings"):
        return 3
    if label and not of_function and not label.isdecimal():
        return 5
    return 4 if path.startswith("given.self") else 2


NUMBERS_STAY = Law("numbers_stay", "the numbers are those of the revision before", numbers_stay)


def numbers_stay_for(laws: Sequence[Law]) -> list[Law]:
    """Give the same of each scenario as it is, with junk under its mask, and as one of the other laws varies it: in
    other dtypes, with more padding."""
    varying = [law for law in laws if law.vary is not None and not law.twin]
    junk = [law for law in varying if law is masked_values_have_no_influence]
    others = [law for law in varying if law not in junk]
    return [NUMBERS_STAY, *(_varied(each) for each in (junk, others) if each)]


def _varied(varying: Sequence[Law]) -> Law:
    def vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
        first = choose.integer(0, len(varying) - 1)
        for law in (*varying[first:], *varying[:first]):
            with suppress(DoesNotApply):
                variants = law.vary(contract, inputs, choose) if law.vary is not None else {}
                if len(variants) > 1:
                    return {BASELINE: inputs, "varied": list(variants.values())[-1]}
        raise DoesNotApply("no law varies this scenario")

    return replace(NUMBERS_STAY, name=f"numbers_stay_as_{varying[0].name}_varies_them", vary=vary)


def _other(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


def _observed(replies: Replies) -> Mapping[str, Reply]:
    return {name: each for name, each in replies.answers.items() if each.observation is not None}


def _failure(replies: Replies, name: str) -> Failed:
    return replies.answers[name].refused or _SILENT


def inputs_of(trial: Trial) -> Inputs:
    """Give what both revisions were asked in a trial."""
    return list(trial.variants.values())[-1]


@dataclass
class Log:
    """What a pair of revisions did in the scenarios of one boundary.

    :ivar steady: what it hands on beside its contract, and whether that is the same whenever it is asked.

    :ivar functions: what of the target's ran, by side, where that was asked for.
    :ivar refused: what a side said to the last scenario that it alone refused, by side.
    :ivar came: whether the side before was asked for an option or a choice that it alone has not.
    :ivar spoken: the numbers of what was observed that were once not 0, by side.
    :ivar lines: ``(file, line)`` of the watched lines that ran, by side.
    :ivar decided: the parts of an answer in which something could be compared.
    :ivar undecided: part -> scenarios in which both sides have a number there that is not finite.
    """

    claims: dict[str, Claim] = field(default_factory=dict)
    functions: dict[str, set[str]] = field(default_factory=dict)
    rounding: float = 0.0
    answered: int = 0
    came: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    spoken: dict[str, set[str]] = field(default_factory=lambda: {side: set() for side in SIDES})
    steady: dict[str, bool] = field(default_factory=dict)
    lines: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: {side: set() for side in SIDES})
    decided: set[str] = field(default_factory=set)
    undecided: Counter[str] = field(default_factory=Counter)


class OneSided(Undecidable):
    """One revision answers a call, and the other one ends, hangs or does not import.

    :ivar side: the one that has no answer.
    :ivar whole: whether it has none to any call: its modules do not import.
    """

    def __init__(self, failure: Failed, side: str, inputs: Inputs, whole: bool = False) -> None:
        super().__init__(failure)
        self.side, self.inputs, self.whole = side, inputs, whole


#: Ranges of lines by file, that are watched at one side.
Lines = Mapping[str, Sequence[tuple[int, int]]]

#: How a process ends by its own code.
_ENDS = ("crash", "exit", "memory", "timeout")


class Pair(LawSession):
    """Both revisions of one target. A trial's case has the two observations; its answer is that of the later one.

    :param beside: the functions of which it is looked at what they answer, beside what the boundary hands on; None
        where its contract is all that is looked at.
    :param lines: the lines of which it is recorded whether they ran, by side.
    """

    def __init__(
        self,
        one: LawSession,
        other: LawSession,
        logs: dict[str, Log] | None = None,
        beside: Sequence[str] | None = None,
        lines: Mapping[str, Lines] | None = None,
    ) -> None:
        self._sides = {BEFORE: one, AFTER: other}
        self.logs = {} if logs is None else logs
        self._whole, self._lines = beside, lines or {}
        self._at_once = ThreadPoolExecutor(1, "sentinel-before")

    def close(self) -> None:
        for side in self._sides.values():
            side.close()
        self._at_once.shutdown()

    def fresh(self) -> Pair:
        return Pair(self._sides[BEFORE].fresh(), self._sides[AFTER].fresh(), self.logs, self._whole, self._lines)

    def try_(
        self,
        subject: Subject,
        plans: Sequence[Plan],
        describe: Description = False,
        coarsest: str = "",
        scenario_inputs: Sequence[str] | None = None,
    ) -> list[Trial]:
        calls = {f"{place}": list(variants.values())[-1] for place, (_, variants) in enumerate(plans)}
        if not calls:
            return []
        by_side = self.both(subject, calls, describe, scenario_inputs)
        trials = [
            self._look(
                subject, law, variants, {side: by_side[side].answers[name] for side in SIDES}, by_side[AFTER], coarsest
            )
            for name, (law, variants) in zip(calls, plans)
        ]
        return trials if coarsest else [self._closer(subject, law, trial) for (law, _), trial in zip(plans, trials)]

    def _closer(self, subject: Subject, law: Law, trial: Trial) -> Trial:
        """Try the same values in float64, where the rounding of a half precision hides a difference
        there.

        What it computes in single precision all the same is no difference.
        """
        if trial.violations or trial.case is None or not any(_gaps(trial.case)):
            return trial
        wide = widened(subject.contract, trial.variants)
        if wide is None or wide[1] == "float32":
            return trial
        [again] = self.try_(subject, [(law, wide[0])], coarsest="float32")
        return again if again.violations else trial

    def both(
        self,
        subject: Subject,
        calls: Mapping[str, Inputs],
        describe: Description = False,
        scenario_inputs: Sequence[str] | None = None,
    ) -> dict[str, Replies]:
        """Give what each side says of some calls; they are asked at the same time.

        :raises OneSided: where one side answers and the other one ends, or cannot be called at all.
        :raises Undecidable: where neither can be called; says which.
        """
        promise = self._at_once.submit(self._answers, BEFORE, subject, calls, describe, scenario_inputs)
        by_side: dict[str, Replies] = {}
        failed: dict[str, Failed] = {}
        for side, ask in ((AFTER, partial(self._answers, AFTER, subject, calls, describe, scenario_inputs)),
                          (BEFORE, promise.result)):  # fmt: skip
            try:
                by_side[side] = ask()
            except Undecidable as error:
                failed[side] = error.failure
        if not failed:
            self._one_ends(subject, calls, by_side, scenario_inputs)
            return self._noted(subject, by_side)
        side, first = min(failed.items())
        answered = {} if len(failed) == 2 else _observed(by_side[_other(side)])
        if answered:
            raise OneSided(replace(first, reason=f"{side}: {first.reason}"), side, calls[next(iter(answered))], True)
        where = "both" if len(failed) == 2 else side
        raise Undecidable(replace(first, reason=f"{where}: {first.reason}"))

    def _answers(
        self,
        side: str,
        subject: Subject,
        calls: Mapping[str, Inputs],
        describe: Description,
        scenario_inputs: Sequence[str] | None,
    ) -> Replies:
        if self._whole is not None:
            describe = {"beside": list(self._whole), "lines": dict(self._lines.get(side, {}))}
        return self._sides[side].answers(subject, calls, describe, scenario_inputs)

    def _one_ends(
        self,
        subject: Subject,
        calls: Mapping[str, Inputs],
        by_side: Mapping[str, Replies],
        scenario_inputs: Sequence[str] | None,
    ) -> None:
        """Raise :class:`OneSided` where one side's process ended and the other side answered. The scenario that ends
        it is found by asking them one by one: it is confirmed by that, and a call that hangs costs two timeouts."""
        for side in SIDES:
            answered = _observed(by_side[_other(side)])
            ended = (name for name, each in by_side[side].answers.items() if each.refused and name in answered)
            names = [name for name in ended if _failure(by_side[side], name).kind in _ENDS]
            for name in names:
                alone = self._answers(side, subject, {name: calls[name]}, False, scenario_inputs)
                failure = alone.answers[name].refused
                if failure is not None and failure.kind in _ENDS:
                    raise OneSided(replace(failure, reason=f"{side}: {failure.reason}"), side, calls[name])

    def _noted(self, subject: Subject, by_side: dict[str, Replies]) -> dict[str, Replies]:
        log = self.logs.setdefault(subject.name, Log())
        for side, sat in by_side.items():
            if sat.provenance is not None:
                log.claims[side] = sat.provenance
            log.functions.setdefault(side, set()).update(sat.functions)
            places = (each.rpartition(":") for each in sat.lines)
            log.lines[side].update((file, int(line)) for file, _, line in places if line.isdecimal())
        return by_side

    def _look(
        self,
        subject: Subject,
        law: Law,
        variants: Mapping[str, Inputs],
        called: Mapping[str, Reply],
        answer: Replies,
        coarsest: str,
    ) -> Trial:
        inputs = list(variants.values())[-1]
        failed = {side: each.refused or _SILENT for side, each in called.items() if each.observation is None}
        case = Case(dict.fromkeys(SIDES, inputs), {}, None, subject.contract, {}, coarsest)
        log = self.logs.setdefault(subject.name, Log())
        if failed:
            first = next(iter(failed.values()))
            unknown = next((each.unknown_input for each in failed.values() if each.unknown_input), "")
            log.came |= AFTER not in failed and (bool(unknown) or first.kind == "not-in-this-version")
            if unknown or len(failed) == 2 or first.kind != "raised":
                return Trial(variants, refused=first.reason, refusal=first.kind, unknown_input=unknown)
            log.refused |= {side: each.reason for side, each in failed.items()}
            symptom = "raises" if AFTER in failed else "no longer raises"
            answers = {side: each.observation for side, each in called.items() if each.observation is not None}
            violation = Violation("", None, None, first.reason, symptom)
            return Trial(variants, replace(case, observation=answers), (violation,), answer=answer)
        log.answered += 1
        case = replace(case, observation={side: each.observation or {} for side, each in called.items()})
        _note_undecided(log, case)
        for side, observation in case.observation.items():
            left = {key: numbers(value) for key, value in observation.items() if key not in log.spoken[side]}
            log.spoken[side] |= {key for key, array in left.items() if array is not None and array[0].any()}
        violations = tuple(law.violations(case)) or self._unlike(subject, case, called)
        if not violations:
            log.rounding = max([log.rounding, *_gaps(case)])
        return Trial(variants, case, violations, answer=answer)

    def _unlike(self, subject: Subject, case: Case, called: Mapping[str, Reply]) -> tuple[Violation, ...]:
        """Say how what is handed on beside the contract differs; and where it is not what each revision says when it
        is asked once more, in a fresh process, it is a clock or an address, and says nothing."""
        steady = self.logs[subject.name].steady
        violations = [item for item in beside_stays(case, called) if steady.get(item.key, True)]
        if any(item.key not in steady for item in violations):
            pair = self.fresh()
            try:
                again = {side: sat.answers[""] for side, sat in pair.both(subject, {"": case.inputs[BEFORE]}).items()}
            finally:
                pair.close()
            wavers: set[str] = set()
            for side in SIDES:
                wavers |= {item.key for item in beside_stays(case, {BEFORE: called[side], AFTER: again[side]})}
            steady |= {item.key: item.key not in wavers for item in violations}
        return tuple(item for item in violations if steady[item.key])


class Alone(Pair):
    """One revision as both: what a pair would be asked, and which functions then run."""

    def __init__(self, one: LawSession, logs: dict[str, Log] | None = None) -> None:
        super().__init__(one, one, logs, [])

    def fresh(self) -> Alone:
        return Alone(self._sides[BEFORE].fresh(), self.logs)

    def both(
        self,
        subject: Subject,
        calls: Mapping[str, Inputs],
        describe: Description = False,
        scenario_inputs: Sequence[str] | None = None,
    ) -> dict[str, Replies]:
        return self._noted(
            subject, dict.fromkeys(SIDES, self._answers(BEFORE, subject, calls, describe, scenario_inputs))
        )


class Ahead(LawSession):
    """One revision beside the other: of what breaks a law, what the other one keeps on the very same variants."""

    def __init__(self, one: LawSession, other: LawSession) -> None:
        self._one, self._other = one, other

    def close(self) -> None:
        self._one.close()
        self._other.close()

    def fresh(self) -> Ahead:
        return Ahead(self._one.fresh(), self._other.fresh())

    def try_(
        self,
        subject: Subject,
        plans: Sequence[Plan],
        describe: Description = False,
        coarsest: str = "",
        scenario_inputs: Sequence[str] | None = None,
    ) -> list[Trial]:
        trials = self._one.try_(subject, plans, describe, coarsest, scenario_inputs)
        broken = [place for place, trial in enumerate(trials) if trial.violations]
        try:
            there = self._other.try_(subject, [plans[place] for place in broken], False, coarsest, scenario_inputs)
        except Undecidable:
            there = [Trial({})] * len(broken)
        for place, other in zip(broken, there):
            trials[place] = replace(trials[place], violations=ahead(trials[place], other))
        return trials


#: How many times as far from right a number must be, where the other one is wrong as well.
_WORSE = 10.0


def ahead(trial: Trial, other: Trial) -> tuple[Violation, ...]:
    """Give what of a trial is not so in another one of the same variants: a part that keeps its law there, or is not
    nearly as far from what is right. Nothing, where the law has nothing to say there."""
    if other.case is None:
        return ()
    there: dict[tuple[str, str], float] = {}
    for item in other.violations:
        key = part(item.key), item.symptom
        there[key] = max(_gap(item), there.get(key, 0.0))
    symptoms = {item.symptom for item in other.violations}
    worse = []
    for item in trial.violations:
        gap = there.get((part(item.key), item.symptom))
        if gap is not None:
            detail = f"{item.detail}; at the other revision it is {gap:.3g} off"
            worse += [replace(item, detail=detail)] if _WORSE * gap < _gap(item) < math.inf else []
        elif item.symptom not in symptoms or _finite(other.case, part(item.key)):
            worse.append(item)
    return tuple(worse)


def _gap(item: Violation) -> float:
    """Say how far a number is from what its law demands; infinite where that is not known."""
    actual, right = numbers(item.observed), numbers(item.demanded)
    if actual is None or right is None or actual[0].shape != right[0].shape:
        return math.inf
    return float(gap_between(actual[0], right[0]).max(initial=0.0))


def _finite(case: Case, key: str) -> bool:
    """Say whether a part of an answer is a number in all variants: what is NaN in all of them alike keeps no law."""
    arrays = (numbers(each.get(key)) for each in case.observation.values())
    return all(each is None or bool(np.isfinite(each[0]).all()) for each in arrays)


def part(key: str) -> str:
    """Give what of an answer a violation is about, whichever variant shows it."""
    return key.rpartition(".")[2]


_SILENT = Failed("crash", "a call without an observation")


def _gaps(case: Case) -> Iterator[float]:
    for key, value in case.observation[BEFORE].items():
        other = case.observation[AFTER].get(key)
        if isinstance(value, (Tensor, float)) and isinstance(other, (Tensor, float)):
            left, right = numbers(value), numbers(other)
            if left is not None and right is not None and left[0].shape == right[0].shape and left[0].size:
                finite = np.isfinite(left[0]) & np.isfinite(right[0])
                yield float(np.where(finite, gap_between(left[0], right[0]), 0.0).max())
