"""A session of one target at one ref, on which scenarios are tried and laws decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sentinel.contracts.contract import Contract, DoesNotApply, Inputs
from sentinel.deciding.outcomes import Kind
from sentinel.laws.law import Case, Law, Violation
from sentinel.targets import Binding
from sentinel.values.literals import FLOATS, Tensor, tensor
from sentinel.worker.answers import Claim, Failed, Replies, Reply
from sentinel.worker.client import Session, TargetProcess, WorkerError


class References:
    """Sessions in which contracts' references answer, as many as are asked at the same time, from any thread.

    They run no target's code: what one call leaves behind is nobody's concern, and all searches of a run share them."""

    def __init__(self, oracle: Callable[[], TargetProcess]) -> None:
        self._oracle = oracle
        self._idle: list[Session] = []

    def consult(self, request: Mapping[str, Any]) -> Replies | Failed:
        """Give the worker's answer to a session's request.

        A session's end says nothing of a target, and another one may answer: something on this machine took it away,
        and perhaps the process that it came from. What ends three of them is a failure of kind ``harness``."""
        for last in (False, False, True):
            try:
                session = self._take()
            except WorkerError:
                if last:
                    raise
                continue
            try:
                session.send(request)
                answer = session.receive()
            except BaseException:
                session.close()  # an answer may be on its way still, and would be taken for that of the next call
                raise
            if not session.dead:
                self._idle.append(session)
            if last or not session.dead:
                return replace(answer, kind="harness") if isinstance(answer, Failed) else answer
        raise AssertionError("the loop returns or raises")

    def _take(self) -> Session:
        try:
            return self._idle.pop()
        except IndexError:
            return self._oracle().session()

    def close(self) -> None:
        """End the sessions that nobody is asking."""
        while self._idle:
            self._idle.pop().close()


class Undecidable(Exception):
    """Nothing can be decided about this boundary here, whatever the scenario: the worker's failure."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Hangs:
    """The boundaries of one revision that hung in this run. Each costs its timeout once and is not called again."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def note(self, boundary: str, reason: str, imported: bool = False) -> None:
        """Note a boundary that hung; with ``imported``, all boundaries of its module, because importing it hung."""
        names = boundary.split(".")
        end = next((place for place, name in enumerate(names) if name[:1].isupper()), len(names) - 1)
        self._reasons.setdefault(".".join(names[:end]) if imported else boundary, reason)

    def failure(self, boundary: str) -> Failed | None:
        """Return why a boundary is not called again; None if it has not hung."""
        for path, reason in self._reasons.items():
            if f"{boundary}.".startswith(f"{path}."):
                return Failed("timeout", f"it hangs, and is not called again in this run: {reason}")
        return None


@dataclass(frozen=True)
class Subject:
    """A boundary under search.

    :ivar contract: narrowed to what the boundary accepts.
    :ivar laws: the laws that it must keep, in the contract's order.
    :ivar name: its dotted path; with its contract in brackets where an earlier binding has the same path.
    """

    binding: Binding
    contract: Contract
    laws: tuple[Law, ...]
    adapter: str
    name: str = ""

    @property
    def boundary(self) -> str:
        return self.binding.boundary

    @property
    def scenario_inputs(self) -> list[str]:
        """List the inputs that a boundary must be able to take: drawn ones, not statements about it."""
        return sorted(
            item.name for item in self.contract.inputs if (item.domain or item.choices or item.kind == "labels")
        )


@dataclass(frozen=True)
class Trial:
    """What one scenario said about one law.

    :ivar variants: the scenario's variants, the first of them the scenario itself.
    :ivar case: what the law looked at; None where it had nothing to look at.
    :ivar silent: why the law had nothing to say; empty where it had.
    :ivar answered: whether at least one of its calls has an observation.
    :ivar refused: what a call raised. Loud, so no silent bug; empty where none did.
    :ivar refusal: the kind of that failure (``raised``, ``drift``, ``crash``, ...).
    :ivar unknown_input: the input that the boundary, at this revision, has no parameter for, where that is why.
    """

    variants: Mapping[str, Inputs]
    case: Case | None = None
    violations: tuple[Violation, ...] = ()
    silent: str = ""
    refused: str = ""
    refusal: Kind | Literal[""] = ""
    unknown_input: str = ""
    answer: Replies | None = None
    answered: bool = False


#: What an answer says besides its observations: nothing, the functions that ran, or the ``lines`` after lines; or what
#: the boundary and the functions under ``beside`` hand on, and which of some ``lines`` ran.
Description = bool | Literal["lines"] | Mapping[str, Any]

#: Beside the inputs of a call: options of the framework's own configuration, by name, whatever its adapter has made.
SETTINGS = "settings"

#: A law, and the variants it compares: the first of them the scenario itself.
Plan = tuple[Law, Mapping[str, Inputs]]


class LawSession:
    """Tries scenarios in a session, made anew where a call brought it down. :class:`Undecidable` is raised where the
    boundary cannot be called here at all, and where a reference fails.

    :param target: makes (or gives) the target process.
    :param explain: makes of the worker's failure what a person is told.
    :param hangs: shared by all that call this revision.
    """

    def __init__(
        self,
        target: Callable[[], TargetProcess],
        references: References,
        explain: Callable[[Failed], Failed] = lambda failure: failure,
        hangs: Hangs | None = None,
    ) -> None:
        self._target, self._references, self._explain = target, references, explain
        self._hangs = hangs or Hangs()
        self._session: Session | None = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def fresh(self) -> LawSession:
        """Make another one on the same process, with a session of its own."""
        return LawSession(self._target, self._references, self._explain, self._hangs)

    def try_(
        self,
        subject: Subject,
        plans: Sequence[Plan],
        describe: Description = False,
        coarsest: str = "",
        scenario_inputs: Sequence[str] | None = None,
    ) -> list[Trial]:
        """Call the boundary on the variants of every plan, and let each law look at its own.

        The variants that are one and the same object are called once: the scenario itself is in nearly all plans.

        :param scenario_inputs: the inputs that the boundary must be able to take; None for those that a search draws.
        """
        if not plans:
            return []
        calls: dict[str, dict[str, Any]] = {}
        consultations: dict[str, dict[str, Any]] = {}
        names: list[dict[str, str]] = []
        call_names: dict[tuple[int, bool], str] = {}
        for law, variants in plans:
            names.append({})
            for variant, inputs in variants.items():
                twin = bool(law.twin) and variant == law.twin
                name = names[-1][variant] = call_names.setdefault((id(inputs), twin), f"{len(call_names)}")
                boundary = subject.binding.twins[0] if twin else None
                call = calls.setdefault(name, {"inputs": dict(inputs), "boundary": boundary, "watch": False})
                call["watch"] |= law.watches  # a watched call answers what any other does
                if law.needs_oracle and subject.contract.oracle is not None:
                    consultations[name] = {"inputs": dict(inputs)}
        answer, reference = self._ask(subject, calls, consultations, describe, scenario_inputs)
        return [
            _look(law, subject.contract, variants, names_of_plan, answer, reference, coarsest)
            for (law, variants), names_of_plan in zip(plans, names)
        ]

    def observe(self, subject: Subject, calls: Mapping[str, Inputs], scenario_inputs: Sequence[str]) -> dict[str, Any]:
        """Observe the boundary on each of these inputs; no law looks at it, and no call may be refused."""
        return _observations(self.answers(subject, calls, scenario_inputs=scenario_inputs))

    def answers(
        self,
        subject: Subject,
        calls: Mapping[str, Inputs],
        describe: Description = False,
        scenario_inputs: Sequence[str] | None = None,
    ) -> Replies:
        """Give the replies to these calls; under :data:`SETTINGS` their inputs have options that the boundary finds
        set."""
        plain: dict[str, dict[str, Any]] = {}
        for name, inputs in calls.items():
            plain[name] = {"inputs": dict(inputs), "boundary": None, "watch": False}
            plain[name]["settings"] = plain[name]["inputs"].pop(SETTINGS, {})
        return self._ask(subject, plain, {}, describe, scenario_inputs)[0]

    def consult(self, subject: Subject, calls: Mapping[str, Inputs]) -> dict[str, Any]:
        """Observe the contract's reference on each of these inputs, all of which it must answer."""
        return _observations(self.references(subject, calls))

    def references(self, subject: Subject, calls: Mapping[str, Inputs]) -> Replies:
        """Give the reference's replies to these calls, some of which it may have nothing to say about."""
        plain = {name: {"inputs": dict(inputs)} for name, inputs in calls.items()}
        return self._consult({**_request(subject), "calls": plain})

    def find(self, subject: Subject) -> Claim:
        """Find the boundary without calling it, as the worker says."""
        claim = self._ask(subject, {}, {}, False)[0].provenance
        if claim is None:
            raise Undecidable(Failed("crash", "the session does not say where it found the boundary"))
        return claim

    def _ask(
        self,
        subject: Subject,
        calls: Mapping[str, Any],
        consultations: Mapping[str, Any],
        describe: Description,
        scenario_inputs: Sequence[str] | None = None,
    ) -> tuple[Replies, Replies]:
        request = (
            _request(subject) if scenario_inputs is None else {**_request(subject), "given": list(scenario_inputs)}
        )
        try:
            return self._exchange({**request, "describe": describe}, calls, consultations)
        except BaseException:
            self.close()  # an answer may be on its way still, and would be taken for that of the next call
            raise

    def _exchange(
        self, request: Mapping[str, Any], calls: Mapping[str, Any], consultations: Mapping[str, Any]
    ) -> tuple[Replies, Replies]:
        if calls and (hung := self._hangs.failure(request["boundary"])):
            raise Undecidable(hung)
        if self._session is None or self._session.dead:
            self._session = self._target().session()
        self._session.send({**request, "calls": calls})
        reference = self._consult({**request, "calls": consultations}) if consultations else Replies({})
        answer = self._session.receive()
        if isinstance(answer, Failed):
            if not self._session.dead:
                raise Undecidable(self._explain(answer))
            if self._session.hangs:
                self._hangs.note(request["boundary"], self._session.dead)
                raise Undecidable(Failed("timeout", f"it hangs: {self._session.dead}"))
            down = Failed("crash", f"it brought the session down: {self._session.dead}")
            answer = Replies({name: Reply(refused=down) for name in calls})
        return answer, reference

    def _consult(self, request: Mapping[str, Any]) -> Replies:
        reference = self._references.consult(request)
        if isinstance(reference, Failed):
            raise Undecidable(reference)
        return reference


class LineSession(LawSession):
    """A session that keeps of all its calls which lines ran after which: ``jumps``, by file; a negative one begins or
    ends a code object."""

    def __init__(self, session: LawSession) -> None:
        super().__init__(session._target, session._references, session._explain, session._hangs)
        self.jumps: dict[str, set[tuple[int, int]]] = {}

    def _ask(
        self,
        subject: Subject,
        calls: Mapping[str, Any],
        consultations: Mapping[str, Any],
        describe: Description,
        scenario_inputs: Sequence[str] | None = None,
    ) -> tuple[Replies, Replies]:
        answer = super()._ask(subject, calls, consultations, "lines", scenario_inputs)
        for word in answer[0].functions:
            jump = re.fullmatch(r"(.+) (-?[0-9]{1,7})>(-?[0-9]{1,7})", word)
            if jump is not None:
                self.jumps.setdefault(jump[1], set()).add((int(jump[2]), int(jump[3])))
        return answer


def _observations(answer: Replies) -> dict[str, Any]:
    """:raises Undecidable: where a call has no observation."""
    for call in answer.answers.values():
        if call.observation is None:
            raise Undecidable(call.refused or Failed("raised", call.silent))
    return {name: call.observation for name, call in answer.answers.items()}


def _request(subject: Subject) -> dict[str, Any]:
    return {
        "boundary": subject.boundary,
        "contract": subject.contract.name,
        "contract_file": subject.contract.file,
        "adapter": subject.adapter,
        "given": subject.scenario_inputs,
    }


def _look(
    law: Law,
    contract: Contract,
    variants: Mapping[str, Inputs],
    names: Mapping[str, str],
    answer: Replies,
    reference: Replies,
    coarsest: str,
) -> Trial:
    observation, effects, oracle = {}, {}, {}
    answered = any(answer.answers[name].observation is not None for name in names.values())
    for variant, name in names.items():
        part = answer.answers[name]
        refusal = part.refused or (part.effects.get("refused") if law.watches else None)
        if refusal or part.observation is None:
            refusal = refusal or Failed("crash", "a call without an observation")
            return Trial(
                variants,
                refused=refusal.reason,
                refusal=refusal.kind,
                unknown_input=refusal.unknown_input,
                answered=answered,
            )
        observation[variant] = part.observation
        effects[variant] = part.effects
        reply = reference.answers.get(name) if law.needs_oracle else None
        if reply is None:
            continue
        if reply.refused is not None:
            reason = f"the oracle failed: {reply.refused.reason}"
            raise Undecidable(replace(reply.refused, kind="harness", reason=reason))
        if reply.observation is None:
            return Trial(variants, silent=reply.silent, answered=answered)
        oracle[variant] = reply.observation
    case = Case(variants, observation, oracle or None, contract, effects, coarsest)
    try:
        return Trial(variants, case, tuple(law.violations(case)), answer=answer, answered=answered)
    except DoesNotApply as error:
        return Trial(variants, silent=str(error), answered=answered)


def widened(contract: Contract, variants: Mapping[str, Inputs]) -> tuple[dict[str, Inputs], str] | None:
    """Give the values in float64 and their coarsest dtype; None where every float is float64 already. Masks stay what
    they are: ``mask.sum() + 1e-8`` is another number in float64, and no rounding."""
    coarsest = ""

    def wide(value: Any) -> Any:
        nonlocal coarsest
        if isinstance(value, Tensor) and value.dtype in FLOATS and value.dtype != "float64":
            coarsest = max(coarsest or value.dtype, value.dtype, key=FLOATS.index)
            double = tensor(value.nested(), "float64")
            return replace(value, dtype=double.dtype, shape=value.shape, data=double.data)
        if isinstance(value, list):
            return [wide(item) for item in value]
        return value

    doubles: dict[str, Inputs] = {
        name: {key: item if key == contract.mask else wide(item) for key, item in inputs.items()}
        for name, inputs in variants.items()
    }
    return (doubles, coarsest) if coarsest else None
