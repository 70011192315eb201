"""Call both revisions of a boundary on the same scenarios in one session."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from sentinel.comparing.observations import (
    AFTER,
    BEFORE,
    OTHER,
    SIDES,
    beside_stays,
    gaps,
    nearer_to_oracle,
    split_by_finiteness,
    violations_ahead,
)
from sentinel.comparing.observations import part as path_end
from sentinel.contracts.contract import DoesNotApply, Inputs
from sentinel.deciding.law_session import SETTINGS, Description, LawSession, Plan, Subject, Trial, Undecidable, widen
from sentinel.laws.agreement import Numbers, numbers
from sentinel.laws.law import Case, Law, Violation
from sentinel.worker.answers import Claim, Failed, Replies, Reply

#: Name of a variant -> its inputs.
Calls = Mapping[str, Inputs]
#: Names of the inputs that the boundary must accept; None for all inputs that a search draws.
Given = Sequence[str] | None

#: Matches the worker's text for a line that ran, or for an instruction in a line.
_PLACE = re.compile(r"(.+?):(\d+)(?::(\d+):(\d+):(\d+))?")

#: Matches the start of a failure's reason, up to the name of the exception that the boundary raised.
_RAISED = re.compile(r"^the boundary raised ([\w.]+)")

#: File -> ranges of lines whose execution is recorded, at one side.
Lines = Mapping[str, Sequence[tuple[int, int]]]

_SILENT = Failed("crash", "the call returned no observation")

#: The kinds of failure in which the code under test ends its process.
_ENDS = ("crash", "exit", "memory", "timeout")


@dataclass
class Log:
    """A record of the calls of one boundary at both revisions.

    :ivar functions: side -> the dotted paths of the target's functions that ran.
    :ivar answered: the number of scenarios on which both revisions returned.
    :ivar came: True if a scenario needed an option or choice that only the head has.
    :ivar refused: side -> the last exception in a scenario for which the other side returned.
    :ivar unanswered: why the results of a scenario could not be compared; of several scenarios, the last.
    :ivar nonzero: side -> the observed keys that had a finite number other than 0 at least once.
    :ivar steady: key of a value that the contract does not observe -> True if calling a revision twice gives the same
        value.
    :ivar lines: side -> a tuple ``(file, line)`` for each watched line that ran, and a tuple ``(file, line, column,
        last line, last column)`` for each instruction that ran in such a line.
    :ivar scenarios: scenarios that ran watched lines and for which both revisions returned, each with side -> these
        lines.
    :ivar decided: the keys for which at least one number could be compared.
    :ivar compared: the keys whose numbers could all be compared in some scenario. The entry True has those of scenarios
        that ran watched lines, the entry False those of scenarios that ran none.
    :ivar whole: the keys whose numbers could all be compared in some scenario. If any scenario ran watched lines, only
        such scenarios count.
    :ivar undecided: key -> number of scenarios in which some number of the key is NaN or infinite at both revisions.
    """

    claims: dict[str, Claim] = field(default_factory=dict)
    functions: dict[str, set[str]] = field(default_factory=dict)
    rounding: float = 0.0
    answered: int = 0
    came: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    unanswered: str = ""
    nonzero: dict[str, set[str]] = field(default_factory=lambda: {side: set() for side in SIDES})
    steady: dict[str, bool] = field(default_factory=dict)
    lines: dict[str, set[tuple[Any, ...]]] = field(default_factory=lambda: {side: set() for side in SIDES})
    scenarios: list[tuple[Inputs, dict[str, set[tuple[Any, ...]]]]] = field(default_factory=list)
    decided: set[str] = field(default_factory=set)
    compared: dict[bool, set[str]] = field(default_factory=lambda: {False: set(), True: set()})
    undecided: Counter[str] = field(default_factory=Counter)

    @property
    def whole(self) -> set[str]:
        return self.compared[bool(self.scenarios)]


class OneSided(Undecidable):
    """Raised if one revision returns from a call while the other crashes, hangs or fails to import.

    :ivar side: the side that does not return.
    :ivar whole: True if every call fails because the import of the boundary's modules fails.
    """

    def __init__(self, failure: Failed, side: str, inputs: Inputs, whole: bool = False) -> None:
        super().__init__(failure)
        self.side, self.inputs, self.whole = side, inputs, whole


class Ended(LawSession):
    """A placeholder for the session of a process that ended during import. Every call raises."""

    def __init__(self, failure: Failed) -> None:
        self._failure = failure

    def close(self) -> None:
        pass

    def fresh(self) -> LawSession:
        return self

    def _ask(self, *_: Any) -> NoReturn:
        raise Undecidable(self._failure)


class Pair(LawSession):
    """A session that calls both revisions of one target. It has the interface of :class:`LawSession`.

    :param beside: dotted paths of the changed functions whose results are compared, in addition to everything that the
        boundary returns or mutates; None to compare only the keys that the contract observes.
    :param lines: side -> the lines whose execution is recorded.
    :param gradients: if not empty, compare the gradients of all returned values instead of the values: with respect to
        the ``declared`` inputs, or to ``all`` floating-point arguments.
    """

    def __init__(
        self,
        one: LawSession,
        other: LawSession,
        logs: dict[str, Log] | None = None,
        beside: Sequence[str] | None = None,
        lines: Mapping[str, Lines] | None = None,
        gradients: str = "",
    ) -> None:
        self._sides = {BEFORE: one, AFTER: other}
        self.logs = {} if logs is None else logs
        self._beside, self._lines, self._gradients = beside, lines or {}, gradients
        self._thread = ThreadPoolExecutor(1, "sentinel-before")

    def close(self) -> None:
        for side in self._sides.values():
            side.close()
        self._thread.shutdown()

    def fresh(self) -> Pair:
        one, other = (self._sides[side].fresh() for side in SIDES)
        return Pair(one, other, self.logs, self._beside, self._lines, self._gradients)

    def try_(
        self,
        subject: Subject,
        plans: Sequence[Plan],
        describe: Description = False,
        coarsest: str = "",
        scenario_inputs: Given = None,
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
        """Repeat a trial in float64 if rounding to 16 bits may have hidden a difference. Return the repeated trial if
        it shows a difference, otherwise the given one.

        Differences within the rounding error of float32 do not count, because code may compute in float32 even for
        float64 inputs.
        """
        if trial.violations or trial.case is None or not any(gaps(trial.case)):
            return trial
        wide = widen(subject.contract, trial.variants)
        if wide is None or wide[1] == "float32":
            return trial
        [again] = self.try_(subject, [(law, wide[0])], coarsest="float32")
        return again if again.violations else trial

    def both(
        self, subject: Subject, calls: Calls, describe: Description = False, scenario_inputs: Given = None
    ) -> dict[str, Replies]:
        """Call both revisions in parallel, and return the replies: side -> replies.

        :raises OneSided: if calls return at one side, and at the other side the process ends or no call is possible.
        :raises Undecidable: if one side cannot be called, and no call returns at the other side.
        """
        promise = self._thread.submit(self._answer, BEFORE, subject, calls, describe, scenario_inputs)
        ask_after = partial(self._answer, AFTER, subject, calls, describe, scenario_inputs)
        asked: dict[str, Callable[[], Replies]] = {AFTER: ask_after, BEFORE: promise.result}
        by_side: dict[str, Replies] = {}
        failed: dict[str, Failed] = {}
        for side, ask in asked.items():
            try:
                by_side[side] = ask()
            except Undecidable as error:
                failed[side] = error.failure
        if not failed:
            self._check_ends(subject, calls, by_side, scenario_inputs)
            return self._note(subject, by_side)
        side, first = min(failed.items())
        answered = {} if len(failed) == 2 else _select_answered(by_side[OTHER[side]])
        if answered:
            raise OneSided(replace(first, reason=f"{side}: {first.reason}"), side, calls[next(iter(answered))], True)
        where = "both" if len(failed) == 2 else side
        raise Undecidable(replace(first, reason=f"{where}: {first.reason}"))

    def _answer(self, side: str, subject: Subject, calls: Calls, describe: Description, given: Given) -> Replies:
        return self._sides[side].answers(subject, calls, self.description(side) or describe, given)

    def description(self, side: str) -> Description:
        """Return what one side's replies contain besides observations."""
        if self._beside is None:
            return False
        lines = dict(self._lines.get(side, {}))
        return {"beside": list(self._beside), "lines": lines, "gradients": self._gradients}

    def _check_ends(self, subject: Subject, calls: Calls, by_side: Mapping[str, Replies], given: Given) -> None:
        """Raise :class:`OneSided` if one side's process ended although the other side returned.

        The scenarios are repeated one by one to find the one that ends the process. So a call that hangs costs the
        timeout twice.
        """
        for side in SIDES:
            answered = _select_answered(by_side[OTHER[side]])
            replies = ((name, each.refused) for name, each in by_side[side].answers.items() if name in answered)
            for name in [name for name, refused in replies if refused and refused.kind in _ENDS]:
                failure = self._answer(side, subject, {name: calls[name]}, False, given).answers[name].refused
                if failure is not None and failure.kind in _ENDS:
                    raise OneSided(replace(failure, reason=f"{side}: {failure.reason}"), side, calls[name])

    def _note(self, subject: Subject, by_side: dict[str, Replies]) -> dict[str, Replies]:
        log = self.logs.setdefault(subject.name, Log())
        for side, replies in by_side.items():
            if replies.provenance is not None:
                log.claims[side] = replies.provenance
            log.functions.setdefault(side, set()).update(replies.functions)
            log.lines[side].update(_places(replies.lines))
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
            if unknown or len(failed) == 2 or first.kind not in ("raised", "adapter"):
                before = self._compare_failed(subject, case, called, failed) if len(failed) == 2 else ()
                if before:
                    return Trial(variants, replace(case, observation={side: {} for side in SIDES}), before)
                log.unanswered = first.reason
                return Trial(variants, refused=first.reason, refusal=first.kind, unknown_input=unknown)
            if first.kind == "raised":
                log.refused |= {side: each.reason for side, each in failed.items()}
            else:  # the adapter fits only the other side's results or signature
                log.unanswered = first.reason
            symptom = "raises" if AFTER in failed else "no longer raises"
            answers = {side: each.observation for side, each in called.items() if each.observation is not None}
            violation = Violation("", None, None, first.reason, symptom)
            return Trial(variants, replace(case, observation=answers), (violation,), answer=answer)
        log.answered += 1
        ran = {side: {*_places(each.ran)} for side, each in called.items()}
        if any(ran.values()) and not coarsest:
            log.scenarios.append((inputs, ran))
        case = replace(case, observation={side: each.observation or {} for side, each in called.items()})
        for key, finite, unknown_too in split_by_finiteness(case):
            log.decided |= {key} if finite else set()
            log.undecided[key] += unknown_too
            log.compared[any(ran.values())] |= {key} if finite and not unknown_too else set()
        for side, observation in case.observation.items():
            left = {key: numbers(value) for key, value in observation.items() if key not in log.nonzero[side]}
            log.nonzero[side] |= {key for key, array in left.items() if array is not None and _has_nonzero(array[0])}
        violations = () if self._gradients else tuple(law.violations(case))
        if all(each.symptom == "dtype" for each in violations):
            violations += self._compare_beside(subject, case, called)
        if not violations:
            log.rounding = max([log.rounding, *gaps(case)])
        return Trial(variants, case, violations, answer=answer)

    def _compare_failed(
        self, subject: Subject, case: Case, called: Mapping[str, Reply], failed: Mapping[str, Failed]
    ) -> tuple[Violation, ...]:
        """Return the differences between two calls if the call raises at both revisions.

        Compare what the changed functions returned before the exception. If the exceptions have different types and the
        scenario sets an option of :data:`SETTINGS`, return only this difference.
        """
        if {each.kind for each in failed.values()} != {"raised"}:
            return ()
        reasons = {side: each.reason for side, each in failed.items()}
        kinds = {"".join(_RAISED.findall(reason)) for reason in reasons.values()}
        if len(kinds) == 2 and SETTINGS in case.inputs[BEFORE]:
            detail = "; ".join(f"{side}: {reasons[side]}" for side in SIDES)
            return (Violation("", None, None, detail, "raises"),)
        return self._compare_beside(subject, case, called)

    def _compare_beside(self, subject: Subject, case: Case, called: Mapping[str, Reply]) -> tuple[Violation, ...]:
        """Return differences in values that the contract does not observe.

        Values that differ between two calls of one revision, such as a time or an address, are left out.
        """
        steady = self.logs[subject.name].steady
        violations = [item for item in beside_stays(case, called) if steady.get(item.key, True)]
        if any(item.key not in steady for item in violations):
            pair = self.fresh()
            try:
                replies = pair.both(subject, {"": case.inputs[BEFORE]})
                again = {side: each.answers[""] for side, each in replies.items()}
            finally:
                pair.close()
            wavers: set[str] = set()
            for side in SIDES:
                wavers |= {item.key for item in beside_stays(case, {BEFORE: called[side], AFTER: again[side]})}
            steady |= {item.key: item.key not in wavers for item in violations}
        return tuple(item for item in violations if steady[item.key])


def _places(texts: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Parse the worker's texts about executed lines and instructions into the tuples of :attr:`Log.lines`."""
    for place in filter(None, map(_PLACE.fullmatch, texts)):
        file, *numbers = filter(None, place.groups())
        yield file, *map(int, numbers)


def _select_answered(replies: Replies) -> Mapping[str, Reply]:
    return {name: each for name, each in replies.answers.items() if each.observation is not None}


class Alone(Pair):
    """A session that calls one revision instead of both, to find out which functions and lines the scenarios run."""

    def __init__(
        self,
        one: LawSession,
        logs: dict[str, Log] | None = None,
        side: str = BEFORE,
        lines: Mapping[str, Lines] | None = None,
    ) -> None:
        super().__init__(one, one, logs, [], lines)
        self._side = side

    def fresh(self) -> Alone:
        return Alone(self._sides[self._side].fresh(), self.logs, self._side, self._lines)

    def both(
        self, subject: Subject, calls: Calls, describe: Description = False, scenario_inputs: Given = None
    ) -> dict[str, Replies]:
        replies = self._answer(self._side, subject, calls, describe, scenario_inputs)
        return self._note(subject, dict.fromkeys(SIDES, replies))


def _has_nonzero(array: Numbers) -> bool:
    return bool((np.isfinite(array) & (array != 0)).any())


class Ahead(LawSession):
    """A session that checks laws at one revision, and drops violations that are at least as large at the other
    revision.

    :param describe: what each session's replies contain besides observations. If a scenario sets options, it must not
        be False, because a worker sets options only while it records what runs.
    """

    def __init__(
        self, one: LawSession, other: LawSession, describe: tuple[Description, Description] = (False, False)
    ) -> None:
        self._one, self._other, self._describe = one, other, describe

    def close(self) -> None:
        self._one.close()
        self._other.close()

    def fresh(self) -> Ahead:
        return Ahead(self._one.fresh(), self._other.fresh(), self._describe)

    def try_(
        self,
        subject: Subject,
        plans: Sequence[Plan],
        describe: Description = False,
        coarsest: str = "",
        scenario_inputs: Given = None,
    ) -> list[Trial]:
        trials = self._one.try_(subject, plans, self._describe[0] or describe, coarsest, scenario_inputs)
        broken = [place for place, trial in enumerate(trials) if trial.violations]
        try:
            repeated = [plans[place] for place in broken]
            there = self._other.try_(subject, repeated, self._describe[1], coarsest, scenario_inputs)
        except Undecidable:
            there = [Trial({})] * len(broken)
        for place, other in zip(broken, there):
            law, trial = plans[place][0], trials[place]
            violations = violations_ahead(trial, other)
            if violations and law.vary is not None and subject.contract.oracle is not None:
                violations = self._without_nearer(subject, trial, other, violations)
            trials[place] = replace(trial, violations=violations)
        return trials

    def _without_nearer(
        self, subject: Subject, trial: Trial, other: Trial, violations: tuple[Violation, ...]
    ) -> tuple[Violation, ...]:
        """Drop violations in outputs that are nearer to the oracle's values than the other revision's outputs.

        Outputs that come closer to the right values may break a relation that wrong outputs satisfy. For example, a
        constant output satisfies many relations.
        """
        replies = self._one.references(subject, trial.variants).answers
        oracle = {variant: each.observation or {} for variant, each in replies.items()}
        if trial.case is None or other.case is None:
            return violations
        here, there = (replace(case, oracle=oracle) for case in (trial.case, other.case))
        with suppress(DoesNotApply):
            return tuple(
                item
                for item in violations
                if item.apart is None or not nearer_to_oracle(here, there, path_end(item.key))
            )
        return violations
