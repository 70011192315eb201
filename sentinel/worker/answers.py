"""Check and parse the answers of worker processes.

A worker runs untrusted code, so its answer may be anything. A valid answer becomes one of these records. For any other
answer, the functions raise :class:`~sentinel.worker.protocol.ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NoReturn, get_args

from sentinel.targets import StandIn
from sentinel.values.literals import Tensor
from sentinel.worker.protocol import ProtocolError

#: Kinds of failure that a worker may report. The controller verifies three of them: ``timeout`` with its own clock, and
#: ``not-in-this-version`` and ``python`` with the checkout's files (:mod:`sentinel.deciding.proof`).
WorkerKind = Literal[
    "adapter",
    "crash",
    "deadlock",
    "drift",
    "exit",
    "ghost",
    "harness",
    "import",
    "memory",
    "not-in-this-version",
    "python",
    "raised",
    "timeout",
]
KINDS = frozenset(get_args(WorkerKind))

#: Keys in a call's ``settings`` that change all strings or all numbers among a function's arguments. The value of
#: ``TEXTS`` is ``"blanks"``, ``"case"`` or ``"empty"``, or the number of characters to append to the longest string.
#: The value of ``NUMBERS`` is the type to convert to: ``"tensor"`` or ``"numpy"``.
TEXTS, NUMBERS = "#texts", "#numbers"

#: A setting with this value replaces the option's value by a different value of the same type.
ANOTHER = {"another": True}

#: The number of ways in which :mod:`sentinel.worker.altering` can change a value. A request selects one, 0 or 1.
WAYS = 2

#: The message of the exception that is raised when code reads the replacement of a value that cannot be varied.
READ = "a value that Sentinel replaced was read"

#: Prefix of the keys of gradients in :attr:`Reply.beside`.
GRADIENT = "gradient of the results with respect to "

#: Maximum number of values in :attr:`Reply.beside`.
PARTS = 1000

#: Suffix of an extra key. It is added if a value has more parts than are recorded.
CUT = " has more"

Parser = Callable[[Any], Any]

#: Maximum bytes of a file's path: Linux's PATH_MAX.
_LONGEST_PATH = 4096
_LAST_LINE = 1 << 31


@dataclass(frozen=True)
class Claim:
    """The code that the worker claims to have measured. :mod:`sentinel.deciding.proof` checks the claim."""

    boundary: str
    module: str
    module_file: str
    file: str
    line: int
    signature: str


@dataclass(frozen=True)
class Failed:
    """The failure of a probe (a call on a recipe's scenario), of an import, or of a call in a session.

    :ivar unknown_input: the input for which the boundary has no parameter, if this caused the failure.
    :ivar place: the file that needs another Python or a package, if this caused the failure.
    :ivar lacks: the name that this file imports from a missing package, as ``package.name``.
    :ivar questions: the recorded lookups of files (:mod:`sentinel.worker.trace`); None if they were not recorded.
    :ivar packages: the packages that are needed but not installed here.
    :ivar programming_error: see :func:`sentinel.worker.attribution.programming_error`.
    """

    kind: WorkerKind
    reason: str
    traceback: str = ""
    provenance: Claim | None = None
    unknown_input: str = ""
    place: str = ""
    lacks: str = ""
    packages: tuple[str, ...] = ()
    questions: tuple[str, ...] | None = None
    programming_error: str = ""


@dataclass(frozen=True)
class Measured:
    """The values that a probe observed, by variant and key, and the code that it called."""

    observation: Mapping[str, Mapping[str, Any]]
    provenance: Claim
    ghosts: tuple[str, ...]
    stand_ins: tuple[StandIn, ...]
    questions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reply:
    """The result of one call in a session: an observation or a failure.

    :ivar silent: why the contract's reference defines no result for this call; empty if it does.
    :ivar effects: the side effects of a watched call: ``mutated`` (names of inputs), ``globals`` (names of global
        state) and ``again`` (the observation of a second call).
    :ivar beside: values that the contract does not observe, by path; empty unless the request names functions whose
        values are recorded. See :class:`sentinel.worker.serving._OutsideContract`.
    :ivar ran: ``file:line`` of the watched lines that ran.
    """

    observation: Mapping[str, Any] | None = None
    refused: Failed | None = None
    silent: str = ""
    effects: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    ran: tuple[str, ...] = ()


@dataclass(frozen=True)
class Described:
    """The names that a source file defines: see :func:`sentinel.worker.codes.describe`."""

    spans: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    error: str


@dataclass(frozen=True)
class Replies:
    """The answer of a session to several calls.

    :ivar functions: the target's own functions that ran.
    :ivar lines: ``file:line`` of the watched lines that ran in calls that returned.
    """

    answers: Mapping[str, Reply]
    provenance: Claim | None = None
    ghosts: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    functions: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


# Each of the following functions raises ProtocolError if the answer does not have the expected form.


def of_greeting(answer: Any) -> dict[str, Any]:
    """Parse the first message of a preloader."""
    words = dict.fromkeys(("python", "torch", "numpy", "platform"), text)
    return _record(answer, {**words, "pid": _line, "uncontained": _optional(text)})


def of_preload(answer: Any) -> dict[str, str | None]:
    """Parse the versions of imported packages."""
    return _by_name(answer, answer, _optional(text))


def of_import(answer: Any) -> tuple[str, ...]:
    """Parse the answer to an import request, and return the files that the import had to compile."""
    return tuple(_record(answer, {"imported": bool, "compiled": _words})["compiled"])


def of_probe(answer: Any, variants: Collection[str]) -> Measured | Failed:
    """Parse the answer to a probe request, which must contain exactly the requested variants."""
    if _has(answer, "failure"):
        fields = _record(answer, {"failure": _failure}, {"asked": _words})
        failure: Failed = replace(fields["failure"], questions=fields.get("asked"))
        return failure
    fields = _record(
        answer, {"observation": lambda value: _by_name(value, variants, _observation), **_ORIGIN}, {"asked": _words}
    )
    return Measured(questions=fields.pop("asked", None), **fields)


def of_probes(answer: Any, requests: Sequence[Mapping[str, Any]]) -> tuple[Measured | Failed, ...]:
    """Parse the answers to several probes. Return an empty tuple if the process ended early."""
    if _has(answer, "failure"):
        return ()
    parsers = [partial(of_probe, variants=request["variants"]) for request in requests]
    results: tuple[Measured | Failed, ...] = _record(answer, {"answers": _row(*parsers)})["answers"]
    return results


def of_session(answer: Any, calls: Collection[str]) -> Replies | Failed:
    """Parse a session's answer, which must contain exactly these calls."""
    if _has(answer, "failure"):
        return _sole_failure(answer)
    rest = {**_ORIGIN, "functions": _words, "lines": _words}
    fields = _record(answer, {"answers": lambda value: _by_name(value, calls, _reply)}, rest)
    if len(fields) not in (1, 1 + len(rest)):
        _refuse("a record has missing or unknown keys")
    return Replies(**fields)


def of_source(answer: Any) -> Described | Failed:
    """Parse the description of a source file."""
    if _has(answer, "failure"):
        return _sole_failure(answer)
    return Described(**_record(answer, {"spans": _each(_row(_line, _line)), "names": _words, "error": text}))


def _reply(part: Any) -> Reply:
    outcomes = {"observation": _observation, "refused": _failure, "silent": text}
    fields = _record(part, {}, {**outcomes, "effects": _effects, "beside": _observation, "ran": _words})
    if len(fields.keys() & outcomes.keys()) != 1:
        _refuse("a call must have either an observation or a failure")
    if "observation" in fields:
        return Reply(**fields)
    if "refused" in fields:
        failure: Failed = fields["refused"]
        # The kinds ``python`` and ``timeout`` concern the whole request, so a single call cannot report them.
        more = failure.kind in ("python", "timeout")
        return Reply(refused=replace(failure, kind="raised") if more else failure, beside=fields.get("beside", {}))
    return Reply(silent=fields["silent"] or "no reason given")


def _effects(value: Any) -> dict[str, Any]:
    if _has(value, "refused"):
        return _record(value, {"refused": _failure})
    fields = _record(value, {"mutated": _words, "globals": _words, "again": _observation})
    return {**fields, "mutated": list(fields["mutated"]), "globals": list(fields["globals"])}


def _sole_failure(answer: Any) -> Failed:
    failure: Failed = _record(answer, {"failure": _failure})["failure"]
    return failure


def _failure(value: Any) -> Failed:
    needed = {"kind": _kind, "reason": text, "traceback": text, "provenance": _optional(_claim)}
    return Failed(
        **_record(
            value,
            needed,
            {"unknown_input": text, "place": _path, "lacks": text, "packages": _words, "programming_error": text},
        )
    )


def _kind(value: Any) -> str:
    if text(value) not in KINDS:
        _refuse("a failure has an unknown kind")
    return str(value)


def _claim(value: Any) -> Claim:
    words = dict.fromkeys(("boundary", "module", "signature"), text)
    places = {"module_file": _path, "file": _path, "line": _line}
    return Claim(**_record(value, {**words, **places}))


def _observation(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        _refuse("an observation must be a mapping")
    _values(values)
    return dict(values)


def _values(value: Any) -> None:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _values(item)
    elif not (value is None or isinstance(value, (str, int, float, Tensor))):
        _refuse("an observation contains a value of an unknown type")


def _has(value: Any, name: str) -> bool:
    return isinstance(value, dict) and name in value


def _by_name(value: Any, names: Collection[str], parse: Parser) -> dict[str, Any]:
    """Parse a mapping that must have exactly these keys, and return it in the order of ``names``."""
    if not isinstance(value, dict) or value.keys() != set(names):
        _refuse("the answer's names differ from the request's")
    return {name: parse(value[name]) for name in names}


def _record(
    value: Any, needed: Mapping[str, Parser], optional: Mapping[str, Parser] = MappingProxyType({})
) -> dict[str, Any]:
    """Parse a mapping that has every required key and may have optional ones. Any other key is an error."""
    parsers = {**needed, **optional}
    if not isinstance(value, dict) or not needed.keys() <= value.keys() <= parsers.keys():
        _refuse("a record has missing or unknown keys")
    return {name: parse(value[name]) for name, parse in parsers.items() if name in value}


def _optional(parse: Parser) -> Parser:
    return lambda value: None if value is None else parse(value)


def _each(parse: Parser) -> Parser:
    return lambda value: tuple(map(parse, _list(value)))


def _row(*parsers: Parser) -> Parser:
    def parsed(value: Any) -> tuple[Any, ...]:
        if len(_list(value)) != len(parsers):
            _refuse("a list has the wrong length")
        return tuple(parse(item) for parse, item in zip(parsers, value))

    return parsed


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse("a value must be a list")
    return value


def text(value: Any) -> str:
    """Return a string unchanged; raise ProtocolError for any other type."""
    if not isinstance(value, str):
        _refuse("a value must be a string")
    return value


def _path(value: Any) -> str:
    if "\0" in text(value) or len(value.encode()) > _LONGEST_PATH:
        _refuse("a path has a null character or is too long")
    return str(value)


def _line(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LAST_LINE:
        _refuse("a line number is not an integer in range")
    return value


def _refuse(why: str) -> NoReturn:
    raise ProtocolError(why)


_words = _each(text)
#: The parsers for the fields that say what was measured: the code, stub modules and stand-ins.
_ORIGIN = {
    "provenance": _claim,
    "ghosts": _words,
    "stand_ins": _each(lambda pair: StandIn(*_row(text, text)(pair))),
}
