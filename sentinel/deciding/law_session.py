"""Call a framework's function on scenarios in one worker session, and check the laws on the results."""

from __future__ import annotations

import math
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
    """Worker sessions that compute oracle values. Each thread uses its own session.

    These sessions run no code of a target, so calls cannot affect each other. All searches of a run share the sessions.
    """

    def __init__(self, oracle: Callable[[], TargetProcess]) -> None:
        self._oracle = oracle
        self._idle: list[Session] = []

    def consult(self, request: Mapping[str, Any]) -> Replies | Failed:
        """Send a request to an oracle session, and return the reply.

        If the session ends, for example because it was killed from outside, send the request to another session. If the
        third session ends too, return a failure of the kind ``harness``.
        """
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
                session.close()  # otherwise a late answer would be read as the answer to the next call
                raise
            if not session.dead:
                self._idle.append(session)
            if last or not session.dead:
                return replace(answer, kind="harness") if isinstance(answer, Failed) else answer
        raise AssertionError("unreachable: the loop above always returns or raises")

    def _take(self) -> Session:
        try:
            return self._idle.pop()
        except IndexError:
            return self._oracle().session()

    def close(self) -> None:
        """End the sessions that no thread is using."""
        while self._idle:
            self._idle.pop().close()


class Undecidable(Exception):
    """Raised if a boundary cannot be called at this revision, or if its oracle fails. It has the worker's failure."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.reason)
        self.failure = failure


#: The minimum time limit in seconds of a call with settings or changed values, and the limit as a multiple of the
#: slowest ordinary call. The minimum leaves time for an import that only the setting needs.
_LIMIT, _SLOWER = 10.0, 10.0


class Hangs:
    """A record of the boundaries of one revision that hung during this run. They are not called again.

    If a boundary hung in a call with :data:`SETTINGS`, only its calls with settings are skipped later, because perhaps
    no caller sets them.

    :ivar with_settings: the boundaries that hung in a call with settings, each with the failure of this call.
    :ivar slowest: boundary -> the longest time in seconds of a call without settings or changed values.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self.with_settings: dict[str, Failed] = {}
        self.slowest: dict[str, float] = {}

    def limit(self, boundary: str) -> float:
        """Return the time limit in seconds of a call with settings or changed values.

        Such a call often never ends, for example because it forces the condition of a loop. If the boundary's ordinary
        calls return fast, waiting for the whole timeout is useless.
        """
        slowest = self.slowest.get(boundary)
        return math.inf if slowest is None else max(_LIMIT, _SLOWER * slowest)

    def note(self, boundary: str, reason: str, imported: bool = False) -> None:
        """Record a boundary that hung.

        :param imported: True if the import of its module hung. Then all boundaries of this module are recorded.
        """
        names = boundary.split(".")
        end = next((place for place, name in enumerate(names) if name[:1].isupper()), len(names) - 1)
        self._reasons.setdefault(".".join(names[:end]) if imported else boundary, reason)

    def failure(self, boundary: str) -> Failed | None:
        """Return the failure of a boundary that has hung in this run; None if it has not."""
        for path, reason in self._reasons.items():
            if f"{boundary}.".startswith(f"{path}."):
                return Failed("timeout", f"the boundary hung earlier in this run and is not called again: {reason}")
        return None


@dataclass(frozen=True)
class Subject:
    """A boundary, with the laws that a search tries to break.

    :ivar contract: its contract, narrowed to the inputs that the boundary accepts.
    :ivar laws: the laws that it must satisfy, in the contract's order.
    :ivar name: its dotted path, followed by the contract in brackets if an earlier binding has the same path.
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
        """Return the names of the inputs that a search draws. The boundary must accept all of them."""
        return sorted(
            item.name for item in self.contract.inputs if (item.domain or item.choices or item.kind == "labels")
        )


@dataclass(frozen=True)
class Trial:
    """The result of checking one law on one scenario.

    :ivar variants: the scenario's variants; the first is the scenario itself.
    :ivar case: the inputs and results that the law checked; None if the law was not checked.
    :ivar inapplicable: why the law does not apply to the scenario; empty if it applies.
    :ivar answered: whether at least one call returned an observation.
    :ivar refused: the exception that a call raised; empty if no call raised. An exception is not a violation, because
        users notice it.
    :ivar refusal: the kind of failure that ``refused`` describes (``raised``, ``drift``, ``crash``, ...).
    :ivar unknown_input: the input for which the boundary has no parameter at this revision, if this caused the failure.
    """

    variants: Mapping[str, Inputs]
    case: Case | None = None
    violations: tuple[Violation, ...] = ()
    inapplicable: str = ""
    refused: str = ""
    refusal: Kind | Literal[""] = ""
    unknown_input: str = ""
    answer: Replies | None = None
    answered: bool = False


#: What a reply contains besides observations. False: nothing. True: the functions that ran. ``"lines"``: pairs of lines
#: that ran one after the other. A mapping: which of the lines under its key ``lines`` ran; and, if it has the key
#: ``beside``, what the boundary and the functions under this key returned.
Description = bool | Literal["lines"] | Mapping[str, Any]

#: A key in a call's inputs. Its value has options to set, which override the adapter's values.
SETTINGS = "settings"

#: A law, and the variants of a scenario that it compares. The first variant is the scenario itself.
Plan = tuple[Law, Mapping[str, Inputs]]


class LawSession:
    """Calls boundaries in a worker session. If a call ends the session, the next call starts a new one.

    Methods raise :class:`Undecidable` if the boundary cannot be called at this revision, or if the oracle fails.

    :param target: returns the target process.
    :param references: the oracle's sessions.
    :param explain: returns a worker's failure with advice for the user.
    :param hangs: the boundaries of this revision that hung.
    :param redirects: boundary -> the dotted path of the function to call instead, because a registry has replaced it.
    """

    def __init__(
        self,
        target: Callable[[], TargetProcess],
        references: References,
        explain: Callable[[Failed], Failed] = lambda failure: failure,
        hangs: Hangs | None = None,
        redirects: Mapping[str, str] | None = None,
    ) -> None:
        self._target, self._references, self._explain = target, references, explain
        self._hangs, self._redirects = hangs or Hangs(), redirects or {}
        self._session: Session | None = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def fresh(self) -> LawSession:
        """Return a new law session for the same process, with its own worker session."""
        return self.redirected(self._redirects)

    def redirected(self, redirects: Mapping[str, str]) -> LawSession:
        """Return a new law session that calls the function at the given path in place of a boundary.

        The worker uses the path only if a registry of the framework refers to the function there.
        """
        return LawSession(self._target, self._references, self._explain, self._hangs, redirects)

    def try_(
        self,
        subject: Subject,
        plans: Sequence[Plan],
        describe: Description = False,
        coarsest: str = "",
        scenario_inputs: Sequence[str] | None = None,
    ) -> list[Trial]:
        """Call the boundary on the variants of every plan, and judge each plan's law on its variants.

        If several plans contain the same inputs object, the boundary is called only once for it. This saves many calls,
        because nearly all plans contain the scenario itself.

        :param coarsest: the coarsest float dtype of the original scenario, if the plans are in float64.
        :param scenario_inputs: the inputs that the boundary must accept; None for :attr:`Subject.scenario_inputs`.
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
                call = calls.setdefault(name, {**_call(inputs), "boundary": boundary})
                # Laws share a call, because recording side effects does not change the observation.
                call["watch"] |= law.watches
                if law.needs_oracle and subject.contract.oracle is not None:
                    consultations[name] = {"inputs": calls[name]["inputs"]}
        answer, reference = self._ask(subject, calls, consultations, describe, scenario_inputs)
        return [
            _judge_plan(law, subject.contract, variants, names_of_plan, answer, reference, coarsest)
            for (law, variants), names_of_plan in zip(plans, names)
        ]

    def observe(self, subject: Subject, calls: Mapping[str, Inputs], scenario_inputs: Sequence[str]) -> dict[str, Any]:
        """Call the boundary on these inputs, and return the observation of each call.

        :raises Undecidable: if a call returns no observation.
        """
        return _observations(self.answers(subject, calls, scenario_inputs=scenario_inputs))

    def answers(
        self,
        subject: Subject,
        calls: Mapping[str, Inputs],
        describe: Description = False,
        scenario_inputs: Sequence[str] | None = None,
    ) -> Replies:
        """Return the worker's replies to these calls."""
        plain = {name: _call(inputs) for name, inputs in calls.items()}
        return self._ask(subject, plain, {}, describe, scenario_inputs)[0]

    def consult(self, subject: Subject, calls: Mapping[str, Inputs]) -> dict[str, Any]:
        """Return the oracle's observations for these calls.

        :raises Undecidable: if the oracle returns no observation for a call.
        """
        return _observations(self.references(subject, calls))

    def references(self, subject: Subject, calls: Mapping[str, Inputs]) -> Replies:
        """Return the oracle's reply to each call: an observation or a failure."""
        plain = {name: {"inputs": _call(inputs)["inputs"]} for name, inputs in calls.items()}
        return self._consult({**_request(subject), "calls": plain})

    def find(self, subject: Subject) -> Claim:
        """Return where the worker found the boundary: its file and line. The boundary is not called."""
        claim = self._ask(subject, {}, {}, False)[0].provenance
        if claim is None:
            raise Undecidable(Failed("crash", "the worker session did not report where it found the boundary"))
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
            self.close()  # otherwise a late answer would be read as the answer to the next call
            raise

    def _exchange(
        self, request: Mapping[str, Any], calls: Mapping[str, Any], consultations: Mapping[str, Any]
    ) -> tuple[Replies, Replies]:
        if calls and (hung := self._hangs.failure(request["boundary"])):
            raise Undecidable(hung)
        turned = bool(calls) and all(call.get("settings") for call in calls.values())
        if turned and (hung := self._hangs.with_settings.get(request["boundary"])):
            return Replies({name: Reply(refused=hung) for name in calls}), Replies({})
        if self._session is None or self._session.dead:
            self._session = self._target().session()
        at = self._redirects.get(request["boundary"], "")
        self._session.send({**request, "calls": calls, "at": at})
        reference = self._consult({**request, "calls": consultations}) if consultations else Replies({})
        altered = turned or (isinstance(request["describe"], Mapping) and bool(request["describe"].get("altered")))
        answer = self._session.receive(self._hangs.limit(request["boundary"]) if altered else math.inf)
        if calls and not altered:
            slowest = self._hangs.slowest
            slowest[request["boundary"]] = max(slowest.get(request["boundary"], 0.0), self._session.slowest)
        if isinstance(answer, Failed):
            if not self._session.dead:
                raise Undecidable(self._explain(answer))
            if self._session.hangs:
                down = Failed("timeout", f"the boundary hangs: {self._session.dead}")
                if not turned:
                    self._hangs.note(request["boundary"], self._session.dead)
                    raise Undecidable(down)
                self._hangs.with_settings[request["boundary"]] = down
            else:
                down = Failed("crash", f"the boundary ended the session: {self._session.dead}")
            answer = Replies({name: Reply(refused=down) for name in calls})
        return answer, reference

    def _consult(self, request: Mapping[str, Any]) -> Replies:
        reference = self._references.consult(request)
        if isinstance(reference, Failed):
            raise Undecidable(reference)
        return reference


class AlteredSession(LawSession):
    """A law session that changes the values of expressions in the framework's code while it runs.

    If a call hangs because of such a change, the boundary is not recorded as hanging.

    :param altered: the expressions and the change, in the form of :class:`sentinel.worker.altering.Altering`.
    """

    def __init__(self, session: LawSession, altered: Mapping[str, Any]) -> None:
        super().__init__(session._target, session._references, session._explain, redirects=session._redirects)
        self._hangs.slowest = session._hangs.slowest
        self.altered = altered

    def fresh(self) -> AlteredSession:
        return AlteredSession(self, self.altered)

    def _exchange(
        self, request: Mapping[str, Any], calls: Mapping[str, Any], consultations: Mapping[str, Any]
    ) -> tuple[Replies, Replies]:
        describe = request["describe"]
        describe = {**describe, "altered": self.altered} if isinstance(describe, Mapping) else describe
        return super()._exchange({**request, "describe": describe}, calls, consultations)


class LineSession(LawSession):
    """A law session that records which lines ran.

    :ivar jumps: file -> pairs of lines that ran one after the other. A negative number is an entry or exit of code.
    :ivar turned: file, relative to an import root -> the lines that ran in calls of :meth:`turn`.
    """

    def __init__(self, session: LawSession) -> None:
        super().__init__(session._target, session._references, session._explain, session._hangs, session._redirects)
        self.jumps: dict[str, set[tuple[int, int]]] = {}
        self.turned: dict[str, set[int]] = {}

    def of(self, file: str) -> set[tuple[int, int]]:
        """Return the pairs of lines in a repository file that ran one after the other."""
        return set().union(*(pairs for path, pairs in self.jumps.items() if path.endswith(f"/{file}")))

    def of_turned(self, file: str) -> set[int]:
        """Return the lines of a repository file that ran in calls of :meth:`turn`."""
        return set().union(*(lines for path, lines in self.turned.items() if f"/{file}".endswith(f"/{path}")))

    def turn(self, subject: Subject, scenarios: Sequence[Inputs]) -> None:
        """Call the boundary on scenarios that set options (:data:`SETTINGS`), and record the lines that run."""
        self.answers(subject, {str(number): inputs for number, inputs in enumerate(scenarios)}, {"lines": None})

    def _exchange(
        self, request: Mapping[str, Any], calls: Mapping[str, Any], consultations: Mapping[str, Any]
    ) -> tuple[Replies, Replies]:
        describe = request["describe"] if isinstance(request["describe"], Mapping) else "lines"
        answer = super()._exchange({**request, "describe": describe}, calls, consultations)
        for place in answer[0].lines:
            file, _, line = place.rpartition(":")
            if re.fullmatch("[0-9]{1,7}", line):
                self.turned.setdefault(file, set()).add(int(line))
        for word in answer[0].functions:
            jump = re.fullmatch(r"(.+) (-?[0-9]{1,7})>(-?[0-9]{1,7})", word)
            if jump is not None:
                self.jumps.setdefault(jump[1], set()).add((int(jump[2]), int(jump[3])))
        return answer


def _observations(answer: Replies) -> dict[str, Any]:
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


def _call(inputs: Inputs) -> dict[str, Any]:
    """Return a request for one call with these inputs, which may contain :data:`SETTINGS`."""
    plain = dict(inputs)
    settings = plain.pop(SETTINGS, {})
    return {"inputs": plain, "settings": settings, "boundary": None, "watch": False}


def _judge_plan(
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
            refusal = refusal or Failed("crash", "the call returned no observation")
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
            return Trial(variants, inapplicable=reply.silent, answered=answered)
        oracle[variant] = reply.observation
    case = Case(variants, observation, oracle or None, contract, effects, coarsest)
    try:
        return Trial(variants, case, tuple(law.violations(case)), answer=answer, answered=answered)
    except DoesNotApply as error:
        return Trial(variants, inapplicable=str(error), answered=answered)


def widen(contract: Contract, variants: Mapping[str, Inputs]) -> tuple[dict[str, Inputs], str] | None:
    """Return the variants in float64, and the least precise of their original dtypes; None if there is nothing to
    convert.

    Masks keep their dtype, because ``mask.sum() + 1e-8`` differs between float32 and float64.
    """
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
