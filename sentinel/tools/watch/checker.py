"""Check a watched run: receive copied calls from its processes, convert them to scenarios, and check laws on these.

The checker is a separate process that imports the same modules of the framework as the run does, and uses no
accelerator. Violations are written to the events file and to standard error. If the checker ends, hangs or fails, the
run continues without checks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import math
import os
import resource
import socket
import sys
import time
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from sentinel.binding.drift import AbsentError, DriftError
from sentinel.commands.console import counted, some
from sentinel.contracts.contract import Contract, DoesNotApply, Inputs
from sentinel.deciding.law_session import LawSession, Subject, Trial, Undecidable
from sentinel.laws.law import Law, Violation
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.affects import RECORDED
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.search.boundary_search import BoundarySearch, Example
from sentinel.search.checks import subjects
from sentinel.search.scenarios import cut_to, sizes_of
from sentinel.targets import Target
from sentinel.tools.watch import meeting
from sentinel.tools.watch.invariants import ELSEWHERE, IN_EVALUATION, INVARIANTS, Invariant, Memory, mismatch
from sentinel.tools.watch.reading import Reading, Unreadable, case_of, reading_of
from sentinel.tools.watch.values import unpacked
from sentinel.tools.watch.wrapping import ENDED, Call, function_at
from sentinel.values.literals import Tensor, typed
from sentinel.worker import answers, calling, probe, stubs
from sentinel.worker.answers import Failed, Replies
from sentinel.worker.serving import Server

#: Maximum number of rows, and of tokens, that laws vary in a recorded call. The limits are small because rounding hides
#: differences in a large batch.
MOST_ROWS, MOST_TOKENS = 8, 12
#: Maximum number of received messages that wait to be handled. A process of the run blocks until its messages are
#: received, so the checker receives them before it has handled all earlier ones.
_RECEIVED = 32
#: The checker counts as busy if it has not polled for messages for this many seconds.
_LATE = 1.0
#: Number of calls per boundary whose inputs the laws vary. For later calls, laws check only the result.
_VARIED = 20
#: A scenario is written to the events file only if none of its tensors has more elements than this.
_MOST_WRITTEN = 4096
#: Size in bytes at which the events file is rotated, and the number of rotated files that are kept.
_LARGEST = 16 << 20
_PUT_ASIDE = 3
#: Modules that the checker replaces by stubs: they take much memory, and numerical functions do not need them.
_INERT = (
    *("datasets", "pandas", "pyarrow"),
    *(f"transformers.{name}" for name in ("trainer", "models", "generation", "modeling_utils", "processing_utils")),
    "transformers.image_processing_utils",
)
#: Memory limit of the checker, in bytes.
_MEMORY = 4 << 30
#: Time limit for checking one call or reading one function, in seconds. If it is exceeded, the checker ends, and the
#: run continues without checks.
_LONGEST = 600.0
#: The values of :attr:`Invariant.where` that mean that an invariant examines computed values, not only settings.
_EXAMINES = ("loss", "compute_loss", "advantages", "samples")
_EXAMINING = [one.name + where for one in INVARIANTS if one.where in _EXAMINES for where in ("", IN_EVALUATION)]
#: Maximum number of printed causes why calls were not examined. The events file has all of them.
_CAUSES = 2
#: Maximum number of printed names for one reason.
_NAMES = 4


class OwnSession(LawSession):
    """A session that calls boundaries in this process, with the run's own copy of the framework."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = roots
        self._target_side, self._oracle_side = Server(roots, None), Server((), None)

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def fresh(self) -> OwnSession:
        return OwnSession(self._roots)

    def _exchange(
        self, request: Mapping[str, Any], calls: Mapping[str, Any], consultations: Mapping[str, Any]
    ) -> tuple[Replies, Replies]:
        on_cpu = {**request, "device": "cpu"}
        answer = answers.of_session(self._target_side.answer({**on_cpu, "calls": calls}), calls)
        reference = answers.of_session(self._oracle_side.answer({**on_cpu, "calls": consultations}), consultations)
        for each in (answer, reference):
            if isinstance(each, Failed):
                raise Undecidable(each)
        return answer, reference  # type: ignore[return-value]


@dataclass
class Process:
    """A process of the watched run.

    :ivar rank: the rank of the process in the training; None if it has none.
    :ivar planned: the numbers of the boundaries whose plans were sent to the process.
    :ivar waits: whether the process still waits for the message that all its functions have been read.
    """

    connection: Connection
    memory: Memory
    pid: int = 0
    rank: int | None = None
    modules: set[str] = field(default_factory=set)
    planned: set[int] = field(default_factory=set)
    waits: bool = False

    def send(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the process may have ended; then the next recv() reports it
            self.connection.send(message)


class Checker:
    """Checks the calls and training steps that the processes of one run send.

    :param whole: whether the events file gets the whole call of a violation, even if the call is large.
    :param without: the names of invariants to skip.
    """

    def __init__(
        self, catalog: Catalog, target: str, events: Path, whole: bool = False, without: Sequence[str] = ()
    ) -> None:
        self.events, self._whole, self._without = events, whole, without
        self._target = catalog.targets[target]
        self._subjects = subjects(catalog, target)[0]
        self._roots = tuple(meeting.roots(self._target.packages))
        self._version = _version(self._target)
        self._session = OwnSession(self._roots)
        self._modules = [
            {calling.module_of(path, self._roots) for path in subject.binding.paths} for subject in self._subjects
        ]
        self._bugs = [
            (_named(recipe), {recipe.boundary, *(binding.paths if binding else ())}, recipe.laws)
            for recipe in find_recipes(catalog, (target,), ())
            for binding in [self._target.binding(recipe.boundary)]
        ]
        self._processes: dict[Connection, Process] = {}
        self._open: list[Connection] = []  # connections that may still send messages
        self._received: deque[tuple[Process, Sequence[Any]]] = deque()
        self._ranks: dict[int, int | None] = {}
        self._readings: dict[int, Reading] = {}
        self._waiting: list[tuple[int, Subject]] = []
        #: ``_answered``: numbers of the readings for which a process has reported whether it could wrap the function.
        #: ``_watched``: numbers of the readings whose function was wrapped.
        self._answered: set[int] = set()
        self._watched: set[int] = set()
        self._names: set[str] = set()
        self._loaded: set[str | None] = set()
        self._varied: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()
        self._not: dict[str, Counter[str]] = {name: Counter() for name in ("watched", "checked", "copied")}
        self._unread: dict[int, Counter[str]] = defaultdict(Counter)  # by reading
        self._failed: dict[str, list[str]] = {}
        self._printed: set[str] = set()
        self._together: dict[str, Any] = {}
        self._invariants: Counter[str] = Counter()
        self._steps, self._examined_steps = 0, set[int]()  # the run's steps, and those with a compared loss or sample
        self._read: Counter[int] = Counter()  # by reading
        self._looks: Counter[tuple[str, str]] = Counter()
        self._kinds: Counter[tuple[str, str, str]] = Counter()
        self._where: dict[tuple[str, str, str], set[int]] = {}
        self._numbers, self._numbers_at = {"sentinel/violations": 0, "sentinel/checked": 0}, 0.0
        self._configured: Path | None = None
        self._rate, self._begun = "", False
        self._noted: Counter[str] = Counter()
        self._lost: list[int] = []
        self._told_of: tuple[str, Mapping[str, str]] = "", {}
        self._skipped: dict[str, str] = {}
        self._firsts: dict[str, int] = {}
        self._seconds: float | None = 0.0
        self._place: Path | None = None
        self._polled = self._busy = -math.inf  # when messages were last polled, and when a message last had to wait
        self._applied: dict[str, str] = {}

    def prepare(self, modules: Sequence[str]) -> None:
        """Read the bound functions of these modules now. Otherwise, they are read when the checker is idle."""
        self._await(modules)
        while self._waiting:
            self._plan(*self._waiting.pop(0))

    @property
    def readings(self) -> list[Reading]:
        return list(self._readings.values())

    def attach(self, connection: Connection) -> None:
        """Receive messages from one more process of the run."""
        memory = Memory(self._without, self._together, self._invariants, known=self._target.steps)
        self._processes[connection] = Process(connection, memory)
        self._open.append(connection)

    def serve(self, listening: socket.socket | None = None, place: Path | None = None) -> None:
        """Receive and check what the processes of the run send, until the last of them ends."""
        self._place, self._polled = place, time.monotonic()
        while True:
            faulthandler.dump_traceback_later(_LONGEST, exit=True, file=sys.stderr)
            connections, now = self._open if len(self._received) < _RECEIVED else (), time.monotonic()
            if not connections or now - self._polled > _LATE:
                self._busy = now
            self._polled = now
            sources: list[Any] = [*connections, *([listening] if listening is not None else ())]
            ready = wait(sources, 0.0 if self._waiting or self._received else None)
            self._polled = time.monotonic()
            for one in ready:
                if isinstance(one, socket.socket):
                    self.attach(meeting.accepted(one))
                else:
                    self._receive(one)  # type: ignore[arg-type]
            if ready and len(self._received) < _RECEIVED:
                continue  # receive first, because a process waits until its messages are received
            idle = not self._received
            if self._received:
                self._handle(*self._received.popleft())
            if self._processes:
                self._send_numbers()
                if idle:
                    self._plan(*self._waiting.pop(0))
                self._send_plans()
                continue
            later = meeting.last_call(listening, place) if listening is not None and place is not None else None
            if later is None:
                break
            self.attach(later)
        faulthandler.cancel_dump_traceback_later()

    def _receive(self, connection: Connection) -> None:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            message = ("lost", {}, time.monotonic() - self._busy < meeting.PATIENCE)
        if message[0] in ("end", "lost"):
            self._open.remove(connection)
        self._received.append((self._processes[connection], message))

    def _handle(self, process: Process, message: Sequence[Any]) -> None:
        if message[0] == "lost" and (self._place is None or not meeting.is_stopped(self._place)):
            self._lost.append(process.pid)
            why = (
                f"it could not send its last calls within {meeting.PATIENCE:g} s, because the checker was busy"
                if message[2]
                else "it was killed, or ended without its exit handlers"
            )
            _say(f"process {process.pid}{_rank_of(process)} ended without a report: {why}. Its last calls were lost")
        if message[0] in ("end", "lost"):
            self._end(process, message[1])
        else:
            self._take(process, message)

    def _end(self, process: Process, totals: Mapping[str, Any]) -> None:
        """Add the counts of an ended process to the totals. After the last process, write the summary."""
        del self._processes[process.connection]
        self._skipped |= process.memory.skipped
        if not self._processes and (late := len(self._waiting) + len(self._readings.keys() - self._answered)):
            self._not["watched"][ENDED] += late
        self._counts["calls"] += sum(totals.get("calls", {}).values())
        self._not["copied"].update(totals.get("failed", {}))
        self._counts["held_back"] += totals.get("held_back", 0)
        self._steps = max(self._steps, totals.get("steps", 0))
        # A process that was stopped has not reported its time, so the time of the whole run is not known.
        self._seconds = None if self._seconds is None or "seconds" not in totals else self._seconds + totals["seconds"]
        if totals.get("lost"):
            self._not["copied"]["the queue of copies to send was full"] += totals["lost"]
        counts = self._summary()
        if not self._processes:
            self._tell_summary(counts)
            self._write({"event": "end", "processes": {str(pid): rank for pid, rank in self._ranks.items()}, **counts})
        process.send("end", counts)
        process.connection.close()

    def _await(self, modules: Sequence[str]) -> None:
        self._loaded.update(modules)
        for number, subject in enumerate(self._subjects):
            if subject.name not in self._names and self._modules[number] & set(modules):
                self._names.add(subject.name)
                self._waiting.append((number, subject))

    def _send_plans(self) -> None:
        """Send the plans of the functions to watch to waiting processes, and ``ready`` when all functions are read."""
        for process in self._processes.values():
            if not process.waits:
                continue
            for number, reading in self._readings.items():
                if number not in process.planned and reading.plan.function[0] in process.modules:
                    process.planned.add(number)
                    process.send("plan", reading.plan)
            if not self._waiting:
                process.waits = False
                if self._readings and not self._begun:
                    self._begun = True
                    _say(f"{self._count_functions()} watched: {self._rate}")
                self._print_failures()
                process.send("ready", self._producers(process.modules))

    def _take(self, process: Process, message: Sequence[Any]) -> None:
        if message[0] == "process":
            process.pid, process.rank, self._rate = message[1:]
            self._ranks[process.pid] = process.rank
        elif message[0] == "modules":
            process.modules |= set(message[1])
            process.waits = True
            self._await(message[1])
        elif message[0] == "watched":
            self._answered.add(message[1])
            if not message[2]:
                self._watched.add(message[1])
            else:
                self._not["watched"][message[2]] += 1
                if message[2] != ENDED:
                    self._failed.setdefault(message[2], []).append(self._subjects[message[1]].name)
                    self._print_failures()
        elif message[0] == "event" and message[1].kind == "configuration":
            self._configured = self.events.with_suffix(".config.json")
            with contextlib.suppress(OSError):
                classes, options = message[1].values["classes"], message[1].values["options"]
                text = json.dumps({RECORDED: classes, **options}, indent=1, sort_keys=True)
                self._configured.write_text(text, encoding="utf-8")
        elif message[0] == "event":
            values = {**unpacked(message[1].values), "moment": message[1].moment}
            self._check_event(process, message[1].kind, message[1].step, values)
            if message[1].kind == "facts":
                self._print_facts(process)
        else:
            self._check(process, *message[1:])

    def _send_numbers(self) -> None:
        """Send changed counts to the run's logger, at most once per second."""
        numbers = {"sentinel/violations": sum(self._kinds.values()), "sentinel/checked": self._checked()}
        if numbers != self._numbers and time.monotonic() - self._numbers_at >= 1.0:
            self._numbers, self._numbers_at = numbers, time.monotonic()
            for process in self._processes.values():
                process.send("numbers", numbers)

    def _print_failures(self) -> None:
        new = [reason for reason in self._failed if reason not in self._printed]
        self._printed.update(new)
        for line in _causes({f"cannot watch {_names(self._failed[reason])}: {reason}": 0 for reason in new}):
            _say(line)

    def _producers(self, modules: set[str]) -> tuple[tuple[str, str], ...]:
        functions = []
        for subject in self._subjects:
            makes = any(item.key in ("advantages", "normalised") for item in subject.contract.observes)
            for path in subject.binding.paths if makes else ():
                module = calling.module_of(path, self._roots)
                if module in modules:
                    functions.append((module, path.removeprefix(f"{module}.")))
        return tuple(functions)

    def _check_event(self, process: Process, kind: str, step: int, values: Mapping[str, Any]) -> None:
        before = self._examined()
        for one, how in process.memory.look(kind, {**values, "step": step, "process": process.pid}):
            self._tell_of(process, one, how, step)
        if self._examined() > before:
            self._examined_steps.add(step)
        while process.memory.failed:
            self._not["checked"][process.memory.failed.pop()] += 1

    def _print_facts(self, process: Process) -> None:
        facts, skipped = process.memory.facts, process.memory.skipped
        every = [one for one in INVARIANTS if not one.note and one.name not in self._without]
        reasons = {one.name: one.unless(facts, process.memory.steps) for one in every}
        others = [name for name, why in reasons.items() if why == ELSEWHERE]
        lines = {name: skipped[name] for name in reasons if name in skipped}
        applies = [one for one in every if not reasons[one.name]]
        of = [one.name for one in applies if one.name not in lines]
        in_evaluation = [one.name + IN_EVALUATION for one in applies if one.name in of and one.of != ("evaluated",)
                         and one.evaluates and facts.get("evaluates")]  # fmt: skip
        self._applied |= dict.fromkeys([*of, *in_evaluation], "no checked step had values to compare")
        if self._told_of == (facts["class"], lines):
            return
        self._told_of = facts["class"], lines
        name = facts["class"].rpartition(".")[2] or "the trainer"
        evaluations = f"{len(in_evaluation)} of these also in evaluations; " if facts.get("evaluates") else ""
        _say(
            f"{name}: {len(of)} of all {len(every)} invariants will be checked; {evaluations}"
            f"{len(others)} need a part that this run does not have: {some(others, _NAMES)}"
        )
        for why, names in _by_reason(lines):
            _say(f"not checked: {some(names, _NAMES)}: {why}")
        steps = process.memory.steps
        for what in steps.unwatched(facts["options"]) if steps is not None and steps.unwatched is not None else ():
            _say(f"not watched: {what}")

    def _tell_of(self, process: Process, one: Invariant, how: str, step: int) -> None:
        if one.note:
            if not self._noted[one.name]:
                _say(f"note, step {step}{_rank_of(process)}: {how}")
            self._noted[one.name] += 1
            return
        if not self._first(process, ("", one.name, "training"), step):
            return
        _say(f"{one.name} does not hold, step {step}{_rank_of(process)}: {how}", True)
        self._write(
            {
                "event": "violation", "target": self._target.name, "version": self._version, "law": one.name,
                "rank": 2, "statement": one.reason, "boundary": "", "symptom": "training", "step": step,
                "seen": "run", "key": "", "detail": how.replace("\n  ", "; "), "known": [], "variants": None,
            },
            process,
        )  # fmt: skip

    def _first(self, process: Process, kind: tuple[str, str, str], step: int) -> bool:
        """Count a violation. Return True if no violation of its kind occurred before."""
        self._firsts.setdefault(kind[1], step)
        self._kinds[kind] += 1
        self._where.setdefault(kind, set()).add(process.pid)
        return self._kinds[kind] == 1

    def _plan(self, number: int, subject: Subject) -> None:
        """Determine how calls of a boundary become scenarios, or record why they cannot."""
        boundary = None
        try:
            boundary = probe.find_boundary(subject.binding, self._roots, frozenset(subject.scenario_inputs), "cpu")
            stubs.state().probing = True
            reading = reading_of(number, subject, boundary)
        except BaseException as error:  # the run's modules may raise anything
            known = isinstance(error, (Unreadable, AbsentError))
            reason = (str(error) if known else f"{type(error).__name__}: {error}")[:300]
            self._not["watched"][reason] += 1
            # It is not an error if a binding is for other versions, or needs a module that the run has not imported.
            elsewhere = isinstance(error, DriftError) or not self._modules[number] <= {None, *self._loaded}
            if not known and (boundary is not None or not elsewhere):
                self._failed.setdefault(reason, []).append(subject.name)
            return
        finally:
            stubs.state().probing = False
            stubs.state().used.clear()
        self._readings[number] = reading

    def _check(self, process: Process, call: Call) -> None:
        reading = self._readings.get(call.number)
        if reading is None:
            return
        try:
            facts = process.memory.facts
            declared = {one.trainer: one for one in self._target.steps}.get(reading.boundary.path.rpartition(".")[0])
            if declared is not None:
                if not facts:
                    raise Unreadable("the trainer's settings were not read")
                for option in reading.unread([name for name in facts["changed"] if name not in declared.splits]):
                    raise Unreadable(f"the option {option} is set, but no copied part of the call contains its value")
            parts = {path: unpacked(part) for path, part in call.parts.items()}
            inputs = reading.read(parts)
            gradients = {path: unpacked(gradient) for path, gradient in call.gradients.items()}
            observed = reading.observe(inputs, unpacked(call.result), gradients)
            observed = reading.unscaled(observed, reading.scale(inputs, parts))
        except Unreadable as error:
            self._unread[call.number][f"{reading.subject.name}: {error}"] += 1
            return
        except Exception as error:
            self._unread[call.number][f"{reading.subject.name}: {type(error).__name__}: {error}"[:200]] += 1
            return
        self._read[call.number] += 1
        self._look_at_log_probs(process, reading, call)
        try:
            reported: set[tuple[str, str]] = set()
            for law, violation, variants, where in self._violations(call.number, reading, inputs, observed):
                if (law.name, violation.symptom) in reported:
                    continue
                reported.add((law.name, violation.symptom))
                self._notify(process, reading, law, violation, call, variants, where)
        except Exception as error:
            self._not["checked"][f"{reading.subject.name}: {type(error).__name__}: {error}"[:200]] += 1

    def _look_at_log_probs(self, process: Process, reading: Reading, call: Call) -> None:
        names = ("log_probs", "old_log_probs", "response_mask")
        names_shown = [name for name in names if reading.sources.get(name, ("", ""))[1] == "same"]
        if not {"log_probs", "response_mask"} <= set(names_shown):
            return
        parts = {path: unpacked(part) for path, part in call.parts.items()}
        read = {name: parts.get(reading.sources[name][0]) for name in names_shown}
        now, mask, old = (read.get(name) for name in ("log_probs", "response_mask", "old_log_probs"))
        if not isinstance(now, torch.Tensor) or not isinstance(mask, torch.Tensor) or now.dim() != 2:
            return
        if call.moment:
            self._check_event(process, "call", call.step, {**read, "moment": call.moment})
        if call.fresh and isinstance(old, torch.Tensor) and old.shape == now.shape:
            self._check_event(process, "fresh", call.step, read)

    def _violations(
        self, number: int, reading: Reading, inputs: Mapping[str, Any], observed: Mapping[str, Any]
    ) -> Iterator[tuple[Law, Violation, Mapping[str, Any], str]]:
        """Check laws on a recorded call, then on new calls in which a few of its rows vary.

        Yield (law, violation, variants, place). The place is ``run`` for the recorded call and ``copy`` for new calls.
        """
        subject = reading.subject
        search = BoundarySearch(self._session, subject, 0)
        yield from self._of_the_result(reading, search, inputs, observed)
        self._varied[number] += 1
        small = cut(subject.contract, inputs) if self._varied[number] <= _VARIED else None
        if small is None:
            return
        search.begin([Example({"": small})])
        for law, outcome in search.outcomes.items():
            self._counts["laws"] += outcome.judged or bool(outcome.findings)
            self._looks[reading.boundary.path, law.name] += outcome.judged or bool(outcome.findings)
            for finding in outcome.findings:
                yield law, finding.violations[0], finding.trial.variants, "copy"

    def _of_the_result(
        self, reading: Reading, search: BoundarySearch, inputs: Mapping[str, Any], observed: Mapping[str, Any]
    ) -> Iterator[tuple[Law, Violation, Mapping[str, Any], str]]:
        alone = [law for law in reading.subject.laws if law.vary is None and not law.watches]
        if not alone or not observed:
            return
        try:
            case = case_of(reading, inputs, observed)
        except DoesNotApply:  # the oracle does not apply to this scenario
            return
        for law in alone:
            with contextlib.suppress(DoesNotApply):
                trial = Trial({"": inputs}, case, tuple(law.violations(case)))
                yield from ((law, item, {"": inputs}, "run") for item in search.unintended(law, trial))
                self._counts["laws"] += 1
                self._looks[reading.boundary.path, law.name] += 1

    def _notify(
        self,
        process: Process,
        reading: Reading,
        law: Law,
        violation: Violation,
        call: Call,
        variants: Mapping[str, Inputs],
        where: str,
    ) -> None:
        boundary = reading.boundary.path
        if not self._first(process, (boundary, law.name, violation.symptom), call.step):
            return
        names = [bug for bug, paths, laws in self._bugs if law.name in laws and boundary in paths]
        how = "" if where == "run" else " (the run's own function, called with a few rows of this call)"
        of_variant = next((name for name in variants if name and violation.key.startswith(f"{name}.")), "")
        key = violation.key.removeprefix(f"{of_variant}.")
        lines = [
            f"{law.name} does not hold: {boundary}, call {call.call}, step {call.step}{_rank_of(process)}{how}: "
            f"{key}: {violation.detail}",
            f"expected: {law.statement}",
            f"in {_place(reading)}" + (f"; set: {shown}" if (shown := process.memory.settings()) else ""),
            f"try: sentinel watch replay {self.events.name}, to reproduce and shrink this call"
            + (f"; known bug with this symptom: {names[0]}" if len(names) == 1 else ""),
        ]
        _say("\n  ".join(lines), True)
        small = self._whole or all(_elements(inputs) <= _MOST_WRITTEN for inputs in variants.values())
        self._write(
            {
                "event": "violation", "target": self._target.name, "version": self._version, "law": law.name,
                "rank": law.rank, "statement": law.statement, "boundary": boundary, "subject": reading.subject.name,
                "contract": reading.subject.contract.name, "symptom": violation.symptom, "call": call.call,
                "step": call.step, "place": call.place, "seen": where, "key": violation.key,
                "detail": violation.detail, "known": names, "variants": typed(variants) if small else None,
            },
            process,
        )  # fmt: skip

    def _checked(self) -> int:
        return self._counts["laws"] + sum(self._invariants.values())

    def _count_functions(self) -> str:
        return counted(len({reading.boundary.path for reading in self._readings.values()}), "function")

    def _called(self) -> Counter[str]:
        """Return how many calls of each function were read."""
        called: Counter[str] = Counter()
        for number, count in self._read.items():
            called[self._readings[number].boundary.path] += count
        return called

    def _not_read(self) -> Counter[str]:
        """Return the causes why calls were not read.

        Calls of a function with several contracts are copied once for each. A contract that can never read them, such
        as that of a loss without a KL term, does not count if another one can.
        """
        called, causes = self._called(), Counter[str]()
        for number, unread in self._unread.items():
            if self._read[number] or not called[self._readings[number].boundary.path]:
                causes.update(unread)
        return causes

    def _examined(self) -> int:
        """Return how often invariants have compared a loss, advantages or samples."""
        return sum(self._invariants[name] for name in _EXAMINING)

    def _summary(self) -> dict[str, Any]:
        kinds = [
            {
                "boundary": b, "law": law, "symptom": s, "count": n, "of": self._looks[b, law],
                "processes": sorted(self._where[b, law, s]),
            }
            for (b, law, s), n in self._kinds.items()
        ]  # fmt: skip
        return {
            "violations": kinds,
            "invariants": dict(self._invariants),
            "skipped": {
                name: why
                for name, why in sorted({**self._applied, **self._skipped}.items())
                if not self._invariants[name]
            },
            "notes": dict(self._noted),
            **({"lost": self._lost} if self._lost else {}),
            "mismatch": mismatch(self._together.get("the_first_ratio_is_one", {})),
            "boundaries": sorted(reading.boundary.path for reading in self._readings.values()),
            "called": dict(self._called()),
            "copied": self._read.total() + self._not_read().total(),
            "read": self._read.total(),
            **{name: self._counts[name] for name in ("calls", "held_back")},
            "steps": self._steps,
            "examined_steps": len(self._examined_steps),
            "laws": self._checked(),
            **{f"not_{name}": dict(why.most_common()) for name, why in self._not.items()},
            "not_read": dict(self._not_read().most_common()),
            **({} if self._seconds is None else {"seconds": round(self._seconds, 3)}),
            **({"nothing_examined": nothing} if (nothing := self._why_nothing_examined()) else {}),
        }

    def _why_nothing_examined(self) -> str:
        """Return why nothing of the run was examined, or "" if a call or a training step was examined.

        A step counts as examined if an invariant has compared its loss, advantages or samples.
        """
        if self._kinds or self._examined() or (self._read and self._checked()):
            return ""
        reasons = (self._skipped.get(name, "") for name in _EXAMINING)
        own = next((why for why in reasons if why.endswith(" is your own")), "")
        if own and self._watched and not self._read and not self._unread:
            return own
        why: Mapping[str, int]
        if not self._watched:
            why = {reason: len(names) for reason, names in self._failed.items()} or self._not["watched"]
            none = "the run imported no function that the adapter binds"
            what = "no function of the run could be watched" if why else none
        elif not self._read and not self._unread:
            what, why = "no call of a watched function was copied", self._not["copied"]
        elif not self._read:
            what, why = "no copied call could be read", self._not_read()
        else:
            what, why = "no law could check the calls that were read", self._not["checked"]
        first = max(why, key=lambda reason: why[reason], default="")
        return f"{what}: {first}" if first else what

    def _tell_summary(self, counts: Mapping[str, Any]) -> None:
        several = f" in {len(self._ranks)} processes" if len(self._ranks) > 1 else ""
        kinds = counts["violations"]
        laws = ", ".join(f"{law} (step {step})" for law, step in self._firsts.items())
        looks = sum(self._invariants.values())
        looked = {name.removesuffix(IN_EVALUATION) for name in +self._invariants}
        checked = f"{counted(len(looked), 'invariant')} {looks} times"
        if "nothing_examined" in counts:
            what = "no loss, advantages or samples were compared" if looked else "nothing was examined"
            _say(
                f"{what}: {counts['nothing_examined']}"
                + f"\n  checked{several}: only the settings, the rows and the optimizer, with {checked}" * bool(looked),
                True,
            )
        else:
            if counts["steps"]:
                checked += f", in {counts['examined_steps']} of {counted(counts['steps'], 'step')}"
            _say(
                f"{counted(len(kinds), 'kind')} of violation" + f": {laws}" * bool(laws) + "\n  "
                f"checked{several}: {checked}; laws {self._counts['laws']} times, on {counts['read']} of "
                f"{counted(counts['copied'], 'copied call')} of {self._count_functions()}"
                + (f"; this took {counts['seconds']:.2f} s of the run" if "seconds" in counts else ""),
                True,
            )
        if counts["held_back"]:
            _say(f"not copied, to stay within the time limit: {counted(counts['held_back'], 'call')} or parts of steps")
        for why, names in _by_reason(counts["skipped"]):
            _say(f"not checked: {some(names, _NAMES)}: {why}")
        for name, noun in (("copied", "call"), ("read", "call"), ("checked", "call")):
            for why, count in itertools.islice(counts[f"not_{name}"].items(), _CAUSES):
                _say(f"not {name}: {counted(count, noun)}: {why}")
        unwatched = sum(counts["not_watched"].values())
        what = (
            "whole calls, with the names of their groups"
            if self._whole
            else f"calls of up to {_MOST_WRITTEN} elements, without texts and group names"
        )
        _say(
            f"{self.events} contains the violations ({what}), and all reasons why something was not checked"
            + f"; also why {counted(unwatched, 'bound function')} could not be watched" * bool(unwatched)
        )
        if self._configured is not None:
            command = f"sentinel audit {self._target.name} --config {self._configured}"
            _say(f"to list the known bugs that the run's settings trigger: {command}")

    def _write(self, event: Mapping[str, Any], process: Process | None = None) -> None:
        """Append an event as one whole line, because other processes use the file too. Ignore errors."""
        where = {} if process is None else {"pid": process.pid, "process_rank": process.rank}
        record = {"run": os.getpid(), "time": round(time.time(), 3), **where, **event}
        line = json.dumps(record).encode() + b"\n"
        with contextlib.suppress(OSError):
            if self.events.exists() and self.events.stat().st_size > _LARGEST:
                for number in range(_PUT_ASIDE, 0, -1):
                    newer = self.events.with_suffix(f".{number - 1}") if number > 1 else self.events
                    if newer.exists():
                        newer.replace(self.events.with_suffix(f".{number}"))
            with self.events.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                if file.write(line) != len(line):
                    file.truncate(before)  # readers see whole lines only


def cut(contract: Contract, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reduce a large scenario to a few rows and tokens. The rows of a group are kept or removed together.

    A small scenario is returned unchanged. Return None if the rows of a large scenario cannot be selected.
    """
    labels = inputs.get(contract.group)
    by_row = [item for item in contract.inputs if item.kind in ("any", "mapping") and inputs[item.name]]
    sizes = sizes_of(contract, inputs)
    if _elements(inputs) <= MOST_ROWS * MOST_TOKENS:
        return dict(inputs)
    if by_row or "batch" not in sizes:
        return dict(inputs) if _elements(inputs) <= _MOST_WRITTEN else None
    rows = list(range(min(sizes["batch"], MOST_ROWS)))
    if isinstance(labels, list):
        groups = set(labels[:MOST_ROWS])
        first = [row for row, label in enumerate(labels) if label in groups]
        whole = [row for row in first if labels[row] == labels[0]]
        rows = (first if len(first) <= 2 * MOST_ROWS else whole)[: 2 * MOST_ROWS]
    return cut_to(contract, inputs, {"batch": rows, "tokens": _spread_evenly(sizes.get("tokens", 0))})


def _spread_evenly(size: int) -> list[int]:
    if size <= MOST_TOKENS:
        return list(range(size))
    return sorted({round(place * (size - 1) / (MOST_TOKENS - 1)) for place in range(MOST_TOKENS)})


def _elements(inputs: Mapping[str, Any]) -> int:
    return max((math.prod(value.shape) for value in inputs.values() if isinstance(value, Tensor)), default=0)


def _causes(causes: Mapping[str, int], noun: str = "") -> Iterator[str]:
    """Yield one line for each of the first causes, and a line that counts the other causes.

    :param noun: what is counted for each cause, such as ``call``; empty to leave out the counts.
    """
    for cause in itertools.islice(causes, _CAUSES):
        yield f"{cause} ({counted(causes[cause], noun)})" if noun else cause
    if len(causes) > _CAUSES:
        yield f"and {counted(len(causes) - _CAUSES, 'other cause')}: see the last line of the events file"


def _by_reason(reasons: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for why in dict.fromkeys(reasons.values()):
        yield why, [name for name, other in reasons.items() if other == why]


def _place(reading: Reading) -> str:
    module, name = reading.plan.function
    function = function_at(module, name)
    line = f":{function.__code__.co_firstlineno}" if function is not None else ""
    return f"{name} ({module.replace('.', '/')}.py{line})"


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'other')}"


def _named(recipe: Recipe) -> str:
    """Return a known bug's id, with the settings that avoid the bug if there are any."""
    until = recipe.document.get("until") or {}
    avoided = ", ".join(f"{name}={value}" for name, value in until.items())
    return f"{recipe.bug_id}, which {avoided} avoids" if avoided else recipe.bug_id


def _version(target: Target) -> str:
    try:
        return metadata.version(target.pypi or target.name)
    except metadata.PackageNotFoundError:
        return ""


def _say(text: str, important: bool = False) -> None:
    """Print a message of ``sentinel watch`` on standard error.

    :param important: whether to start a new line first, because a progress bar may have left the cursor within a line.
    """
    from sentinel.reports.escaping import visible

    lines = "\n".join(map(visible, text.split("\n")))
    print("\n" * important + f"sentinel watch: {lines}", file=sys.stderr, flush=True)


def _rank_of(process: Process) -> str:
    return "" if process.rank is None else f", rank {process.rank}"


def _lower_priority() -> None:
    with contextlib.suppress(OSError):
        os.nice(10)
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))


def main(arguments: Sequence[str]) -> None:
    """Run the checker of one training run.

    :param arguments: file descriptor of the socket, its path, the target, the events file, what to capture, and the
        invariants to skip.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.meta_path.insert(0, stubs.InertModules(_INERT))
    _lower_priority()
    number, place, target, events, capture, *without = arguments
    with contextlib.suppress(OSError, KeyboardInterrupt), socket.socket(fileno=int(number)) as listening:
        checker = Checker(bundled_catalog(), target, Path(events), capture == "full", without)
        checker.attach(meeting.accepted(listening))
        checker.serve(listening, Path(place))


if __name__ == "__main__":
    main(sys.argv[1:])
