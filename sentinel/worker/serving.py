"""Serve a session: one forked process that answers many calls, for searches.

A session is faster than probes, but a call may leave state behind that affects later calls. A search therefore repeats
its findings in a fresh session.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import signal
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from sentinel.binding.drift import AbsentError, Neutral
from sentinel.contracts.contract import Contract, DoesNotApply
from sentinel.worker import calling, probe, processes, protocol, stubs
from sentinel.worker.altering import Altering
from sentinel.worker.answers import CUT, PARTS
from sentinel.worker.side_effects import (
    Recorder,
    Watch,
    argument_names,
    gradients,
    hidden_state,
    parts,
    replaced_arguments,
    require_gradients,
    shared_parts,
    turned,
)


def serve(channel: socket.socket, roots: tuple[str, ...], recorder: stubs.ImportRecorder | None) -> None:
    """Answer requests until the socket is closed.

    A request names a boundary and its contract. Its ``calls`` map a name to ``inputs``, ``boundary`` (to call a second
    implementation instead), ``watch`` (whether to record side effects) and ``settings`` (options of the boundary to
    override). The answer has provenance, stub modules and stand-ins, and for each call:

    * ``observation`` or ``refused``;
    * ``effects`` if the call was watched: its side effects, or the failure of its repetition.

    The optional key ``describe`` of the request selects what else the answer has:

    * ``"lines"``: the branches that ran (:class:`_BranchTracer`);
    * a mapping: the lines that ran (:class:`_LineTracer`), and with the key ``beside`` also, for each call, values that
      the contract does not observe (:class:`_OutsideContract`). The key ``altered`` names expressions whose values are
      changed or recorded in these calls (:class:`Altering`);
    * any other true value: the target's functions that ran.
    """
    processes.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(roots, recorder)
    while True:
        try:
            request = protocol.receive(channel)
        except (EOFError, OSError, protocol.ProtocolError):
            return
        tick = functools.partial(channel.sendall, protocol.encode({"alive": True, "nonce": request["nonce"]}))
        try:
            frame = protocol.encode({**server.answer(request, tick), "nonce": request["nonce"]})
        except BaseException as error:  # the answer cannot be encoded
            frame = protocol.encode({**probe.describe(error, None, roots), "nonce": request["nonce"]})
        channel.sendall(frame)


class Server:
    """Holds the state of one session: the functions found so far, and the records of their calls."""

    def __init__(self, roots: tuple[str, ...], recorder: stubs.ImportRecorder | None) -> None:
        self._roots = roots
        self._recorder = recorder
        self._preparations: dict[tuple[str, ...], probe.Preparation] = {}
        self._settled = False
        self._branches: _BranchTracer | None = None
        self._values = Recorder(roots)
        self._altering = Altering(roots, self._values.record)
        self._neutral: set[str] = set()  # names of neutral values that the calls of one request used

    def answer(self, request: Mapping[str, Any], tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Answer a request. Call ``tick`` after each function call."""
        if not self._settled:
            probe.settle(request["device"])
            self._settled = True
        try:
            contract = self._contract(request)
            if not self._roots:
                return {"answers": {name: self._consult(contract, call) for name, call in request["calls"].items()}}
            main = self._prepare(request, request["boundary"])
            describe = request.get("describe")
            if describe == "lines" and self._branches is None:
                self._branches = _BranchTracer(self._roots)
            self._altering.set(describe.get("altered") if isinstance(describe, dict) else None)
        except BaseException as error:
            return probe.describe(error, None, self._roots)
        tracer = self._branches if describe == "lines" else _Tracer(self._roots) if describe else None
        if isinstance(describe, dict):
            watched = self._roots, main.boundary, describe["lines"]
            beside = describe.get("beside")
            tracer = (
                _LineTracer(*watched)
                if beside is None
                else _OutsideContract(
                    *watched,
                    request["adapter"],
                    beside,
                    self._values,
                    describe.get("gradients", ""),
                )
            )
        answers = {}
        self._neutral.clear()
        for name, call in request["calls"].items():
            try:
                preparation = self._prepare(request, call["boundary"]) if call.get("boundary") else main
            except BaseException as error:
                # Only laws that compare two implementations need this function, so the other calls continue.
                failure = probe.describe(error, None, self._roots, traced=False)["failure"]
                kind = "not-in-this-version" if failure["kind"] == "drift" else failure["kind"]
                answers[name] = {"refused": {**failure, "kind": kind}}
            else:
                answers[name] = self._measure(contract, preparation, call, request["device"], tracer)
            tick()
        return {
            "answers": answers,
            "provenance": main.provenance,
            "ghosts": self._recorder.stubs_of(main.boundary.module.__name__) if self._recorder else [],
            "stand_ins": probe.stand_ins_of(main.boundary, sorted(self._neutral)),
            "functions": tracer.functions() if tracer else [],
            "lines": tracer.lines() if isinstance(tracer, _LineTracer) else [],
        }

    def _contract(self, request: Mapping[str, Any]) -> Contract:
        return probe.load_contract(request["contract_file"], request["contract"])

    def _prepare(self, request: Mapping[str, Any], boundary: str) -> probe.Preparation:
        at = request.get("at", "") if boundary == request["boundary"] else ""
        key = (boundary, request["contract"], " ".join(request["given"]), at)
        if key not in self._preparations:
            preparation = probe.prepare({**request, "boundary": boundary, "at": at}, self._roots)
            for required in preparation.boundary.binding.requires:
                if not calling.has(required, self._roots):
                    raise AbsentError(f"this version has no {required}")
            self._preparations[key] = preparation
        return self._preparations[key]

    def _measure(
        self,
        contract: Contract,
        preparation: probe.Preparation,
        call: Mapping[str, Any],
        device: str,
        tracer: _Tracer | None,
    ) -> dict[str, Any]:
        state = stubs.state()
        state.probing = True
        state.used.clear()
        boundary = preparation.boundary
        make = self._call if tracer is None else tracer.around(self._call)
        watched = Watch(boundary) if call.get("watch") else None
        try:
            answer = make(contract, preparation, watched or boundary, call, device)
            if watched is not None and "observation" in answer:
                again = make(contract, preparation, boundary, call, device)
                # A failure of the second call is stored among the effects, so that only laws about side effects see it.
                failed = "observation" not in again
                answer["effects"] = again if failed else {**watched.effects(), "again": again["observation"]}
        finally:
            state.probing = False  # the next call may import another module, and imports may use stub modules
        return answer

    def _call(
        self, contract: Contract, preparation: probe.Preparation, boundary: Any, call: Mapping[str, Any], device: str
    ) -> dict[str, Any]:
        try:
            probe.reseed()
            Neutral.recorded.clear()
            observation = probe.observe(contract, boundary, call["inputs"], self._roots, device)
        except BaseException as error:
            failure = probe.describe(error, preparation, self._roots, traced=False)["failure"]
            return {"refused": failure}
        finally:
            self._neutral.update(Neutral.recorded)
        if stubs.state().used:
            return {"refused": probe.stub_failure()["failure"]}
        return {"observation": observation}

    def _consult(self, contract: Contract, call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"observation": probe.consult(contract, call["inputs"])}
        except DoesNotApply as error:
            return {"silent": str(error)}
        except BaseException as error:
            return {"refused": probe.describe(error, None, ())["failure"]}


class _Tracer:
    """Records which functions of the framework ran, because any of them may have caused a violation."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = tuple(root.rstrip("/") + "/" for root in roots)
        self._ran: dict[Any, str] = {}
        self._seen: dict[int, Any] = {}  # keyed by id, because hashing a code object is slow

    def functions(self) -> list[str]:
        """Return the dotted paths of the functions that ran, including the paths at which packages re-export them."""
        paths = set()
        for code, module in self._ran.items():
            name = getattr(code, "co_qualname", code.co_name)  # co_qualname is new in Python 3.11
            paths.add(f"{module}.{name}")
            package = module
            while package := package.rpartition(".")[0]:
                member = getattr(sys.modules.get(package), name, None)
                if getattr(member, "__code__", None) is code:
                    paths.add(f"{package}.{name}")
        return sorted(paths)

    def around(self, call: Any) -> Any:
        @functools.wraps(call)
        def traced(*arguments: Any) -> Any:
            old = sys.gettrace()
            # Not sys.setprofile, which would also call the function for every return and every call of C code.
            sys.settrace(self._trace)
            try:
                return call(*arguments)
            finally:
                sys.settrace(old)

        return traced

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        code = frame.f_code
        if self._seen.get(id(code)) is not code:
            self._seen[id(code)] = code
            if code.co_filename.startswith(self._roots):
                self._ran[code] = str(frame.f_globals.get("__name__", ""))


class _LineTracer(_Tracer):
    """Records the lines that run, unless the call raises. Also sets the options that a call requests: it changes the
    arguments, and configurations inside them, when the call enters the framework's code.

    :param lines: file below the checkout -> ranges of lines. Only functions that begin in one of these ranges are
        recorded. With None, all functions of the framework are recorded, and files are named relative to their import
        root.
    """

    def __init__(
        self,
        roots: tuple[str, ...],
        boundary: calling.Boundary,
        lines: Mapping[str, Sequence[Sequence[int]]] | None,
    ) -> None:
        super().__init__(roots)
        own = inspect.unwrap(boundary.function)
        own = inspect.getattr_static(own, "__init__") if isinstance(own, type) else getattr(own, "__func__", own)
        self._own = getattr(own, "__code__", None)
        #: id of a code object -> the object and its :meth:`_classify`
        self._codes: dict[int, tuple[Any, str, str | None]] = {}
        self._watched = lines
        #: what ran: (file, line) for lines, and (file, line, column, last line, last column) for instructions
        self._ran_lines: set[tuple[Any, ...]] = set()
        self._lines_of_call: set[tuple[Any, ...]] = set()
        #: id of a code object -> the spans of its instructions
        self._spans: dict[int, list[tuple[int | None, ...]]] = {}

    def lines(self) -> list[str]:
        return sorted(":".join(map(str, place)) for place in self._ran_lines)

    def around(self, call: Any) -> Any:
        traced = super().around(call)

        @functools.wraps(call)
        def recorded(*arguments: Any) -> Any:
            self._settings, self._turned = arguments[3].get("settings", {}), list[Any]()
            self._lines_of_call = set()
            self._begin()
            try:
                answer = traced(*arguments)
            finally:
                for take_back in reversed(self._turned):
                    take_back()
            if "observation" in answer:
                self._ran_lines |= self._lines_of_call
                answer["ran"] = sorted(f"{file}:{line}" for file, line, *rest in self._lines_of_call if not rest)
            return answer

        return recorded

    def _begin(self) -> None:
        """Prepare for the next call."""

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        """Start to record a function call if the function is watched. Most calls cost only one dictionary lookup."""
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is None or known[0] is not code:
            known = self._codes[id(code)] = (code, *self._classify(frame))
        _, file, name = known
        if name is not None:
            self._enter_named(frame, name)
        if self._settings and code.co_filename.startswith(self._roots):
            outer = frame.f_back
            own = code is self._own or bool(name)  # the boundary, or a function whose values are recorded
            if own or outer is None or not outer.f_code.co_filename.startswith(self._roots):
                self._turn(frame)
        if not file:
            return self._without_lines(frame)
        self._lines_of_call.add((file, frame.f_lineno))
        if self._watched is not None and hasattr(code, "co_positions"):  # new in Python 3.11
            frame.f_trace_opcodes = True
            if id(code) not in self._spans:  # self._codes keeps the object alive, so its id stays unique
                self._spans[id(code)] = list(code.co_positions())
            spans = self._spans[id(code)]

        def line(frame: Any, event: str, argument: Any) -> Any:
            if event == "opcode":
                first, last, start, end = spans[frame.f_lasti // 2]
                if None not in (first, last, start, end):
                    self._lines_of_call.add((file, first, start, last, end))
                return line
            self._lines_of_call.add((file, frame.f_lineno))
            self._leave(frame, event, argument)
            return line

        return line

    def _without_lines(self, frame: Any) -> Any:
        frame.f_trace_lines = False
        return None

    def _enter_named(self, frame: Any, name: str) -> None:
        """Record the arguments of a named function when it is called."""

    def _leave(self, frame: Any, event: str, argument: Any) -> Any:
        """Record the return value of a function, and the arguments that it changes."""

    def _turn(self, frame: Any) -> None:
        """Set the options that the call requests in the arguments of a function that is about to run."""
        local, names = frame.f_locals, argument_names(frame.f_code)
        arguments = {name: local[name] for name in names if name in local}
        for name, value in [*replaced_arguments(arguments, self._settings)]:
            local[name] = value  # changes of f_locals in a trace function take effect when the trace function returns
        with suppress(Exception):  # reading an attribute of the framework's own object may raise
            for value in arguments.values():
                self._turned += turned(value, self._settings)

    def _classify(self, frame: Any) -> tuple[str, str | None]:
        """Return a function's file, and the name under which its values are recorded.

        The file is empty if its lines are not recorded. The name is None if its values are not recorded, empty for the
        boundary, ``stand-in`` for a function of the adapter, and otherwise a dotted path.
        """
        code = frame.f_code
        root = next((each for each in self._roots if code.co_filename.startswith(each)), "")
        if not root:
            return "", None
        super()._trace(frame, "call", None)
        if self._watched is None:
            return code.co_filename[len(root) :], None
        files = [file for file in self._watched if code.co_filename.endswith(f"/{file}")]
        file = max(files, key=len, default="")
        if not any(first <= code.co_firstlineno <= last for first, last in self._watched.get(file, ())):
            file = ""
        return file, None


class _OutsideContract(_LineTracer):
    """Records values that the contract does not observe: the boundary's full return value, the arguments that it
    mutates or passes to stand-ins, and its warnings.

    :param functions: dotted paths of other functions whose return values and mutated arguments are recorded too.
    :param values: records the values of the expressions that the patch changes.
    :param gradients: if not empty, record the gradients of returned values instead of the values: with respect to the
        ``declared`` inputs, or to ``all`` floating-point arguments. This runs a backward pass during the call. Ignore
        the call's other results, because the pass may change tensors that the boundary still needs.
    """

    def __init__(
        self,
        roots: tuple[str, ...],
        boundary: calling.Boundary,
        lines: Mapping[str, Sequence[Sequence[int]]] | None,
        adapter: str,
        functions: Sequence[str],
        values: Recorder,
        gradients: str = "",
    ) -> None:
        super().__init__(roots, boundary, lines)
        self._values, self._gradients = values, gradients
        self._functions = frozenset(functions)
        binding = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "binding")
        ours = adapter.removesuffix("__init__.py")  # if the adapter is a package, all its modules
        self._outside = (ours, *(os.path.join(binding, name) for name in ("kit", "families.py")))

    def around(self, call: Any) -> Any:
        traced = super().around(call)

        @functools.wraps(call)
        def recorded(*arguments: Any) -> Any:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                answer = traced(*arguments)
            ours = [each for each in warned if each.filename.startswith(self._roots)]
            messages = [f"{each.category.__name__}: {each.message}" for each in ours]
            self._parts_of_call.update(parts({"warnings": messages}, "", self._roots))
            self._parts_of_call.update(self._values.recorded())
            self._open.clear()
            return {**answer, "beside": self._parts_of_call}

        return recorded

    def _begin(self) -> None:
        self._parts_of_call: dict[str, Any] = {}
        self._open: dict[Any, tuple[str, dict[str, Any], dict[str, Any]]] = {}
        self._times: Counter[str] = Counter()
        self._digests: set[str] = set()
        self._values.begin()

    def _enter_named(self, frame: Any, name: str) -> None:
        if name == "stand-in" and not frame.f_back.f_code.co_filename.startswith(self._roots):
            return
        if self._gradients and frame.f_back.f_code.co_filename.startswith(self._roots):
            return
        if frame not in self._open and len(self._parts_of_call) < PARTS:
            with suppress(Exception):  # reading an attribute of the framework's own object may raise
                self._enter(frame, name)

    def _without_lines(self, frame: Any) -> Any:
        frame.f_trace_lines = False
        return self._leave if frame in self._open else None

    def _leave(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "return" and frame in self._open:
            with suppress(Exception):
                who, values, before = self._open[frame]
                given = {f"given.{name}": each for name, each in values.items()}
                after = self._parts({"returned": argument, **given, **hidden_state(values)})
                after |= dict(shared_parts("returned", argument))
                if self._gradients:
                    after = self._parts(gradients(argument, values))
                self._parts_of_call.update(
                    (who + key, each) for key, each in after.items() if before.get(key) != each or key.endswith(CUT)
                )
        return self._leave

    def _classify(self, frame: Any) -> tuple[str, str | None]:
        code = frame.f_code
        file, _ = super()._classify(frame)
        if code == self._own or (self._gradients and code.co_filename.startswith(self._roots)):
            return file, ""
        path = f"{frame.f_globals.get('__name__', '')}.{getattr(code, 'co_qualname', code.co_name)}"
        outside = code.co_filename.startswith(self._outside) and not re.fullmatch(r"__(?!call)\w+__", code.co_name)
        return file, "stand-in" if outside else path if path in self._functions else None

    def _enter(self, frame: Any, name: str) -> None:
        code, local = frame.f_code, frame.f_locals
        arguments = {each: local[each] for each in argument_names(code) if each in local}
        if name == "stand-in":
            name = code.co_name
            arguments.pop("self", None)
        if self._gradients == "all" and not name:
            require_gradients(arguments)
        given = {f"given.{each}": value for each, value in arguments.items()}
        before = self._parts(given)
        digest = hashlib.blake2b(repr((name, sorted(before.items()))).encode(), digest_size=4).hexdigest()
        if name != code.co_name:
            self._times[name] += 1
            again = f"{self._times[name]}: " if self._times[name] > 1 else ""
            before |= self._parts(hidden_state(arguments))
            self._open[frame] = f"{name}({digest}): " if name else again, arguments, before
        elif digest not in self._digests:  # another call with equal arguments is not recorded
            self._digests.add(digest)
            self._times[name] += 1
            self._parts_of_call.update((f"{name} {self._times[name]}: {key}", each) for key, each in before.items())

    def _parts(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in values.items():
            own = list(islice(parts(value, key, self._roots), PARTS // 10 + 1))
            found.update(own[: PARTS // 10])
            if len(own) > PARTS // 10:
                found[f"{key}{CUT}"] = True
        return found


class _BranchTracer(_Tracer):
    """Records, with coverage.py, the branches of the framework's files that ran, in all threads."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        import coverage  # imported here, because only the extra `lines` installs it

        super().__init__(roots)
        self._coverage = coverage.Coverage(
            data_file=None, branch=True, config_file=False, include=[f"{root}*" for root in self._roots], messages=False
        )
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._jumps: set[str] = set()

    def functions(self) -> list[str]:
        """Return the branches that ran for the first time, as ``file line>line``."""
        data = self._coverage.get_data()
        ran = {f"{file} {one}>{other}" for file in data.measured_files() for one, other in data.arcs(file) or ()}
        new = sorted(ran - self._jumps)
        self._jumps |= ran
        return new

    def around(self, call: Any) -> Any:
        @functools.wraps(call)
        def traced(*arguments: Any) -> Any:
            with self._coverage.collect():
                return call(*arguments)

        return traced
