"""Parses what a worker answers, once and strictly: behind this border nothing foreign is left unparsed.

A worker ran a stranger's code, and may say whatever it likes. What it says becomes one of these records, or is refused
as a whole (:class:`~sentinel.worker.protocol.ProtocolError`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, get_args

from sentinel.targets import StandIn
from sentinel.values.literals import Tensor
from sentinel.worker.protocol import ProtocolError

#: What a worker may call a failure; :mod:`sentinel.deciding.proof` looks into those that say something of the checkout.
WorkerKind = Literal[
    "crash",
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
#: What a worker may call a failure. That a time is over, the controller's own clock says; and that a revision lacks
#: something, or needs another Python, its own look at the checkout.
KINDS = frozenset(get_args(WorkerKind))

#: Parts of what a call hands on that are looked at, at most.
PARTS = 1000

#: Of a file's path: what Linux takes.
_LONGEST_PATH = 4096
_LAST_LINE = 1 << 31


@dataclass(frozen=True)
class Layer:
    """Code of one layer of a boundary, as its worker says; without a digest where it has no Python code."""

    file: str
    line: int
    name: str
    digest: str


@dataclass(frozen=True)
class Claim:
    """Which code was measured, as its worker says; :mod:`sentinel.deciding.proof` looks whether that is so."""

    boundary: str
    module: str
    module_file: str
    file: str
    line: int
    signature: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Failed:
    """Why there is no observation.

    :ivar unknown_input: the input that the boundary has no parameter for, where that is why.
    :ivar place: the file that needs another Python, where that is why.
    :ivar asked: see :mod:`sentinel.worker.trace`; None: unknown.
    :ivar slip: see :func:`sentinel.worker.slips.slip`.
    """

    kind: WorkerKind
    reason: str
    traceback: str = ""
    provenance: Claim | None = None
    unknown_input: str = ""
    place: str = ""
    asked: tuple[str, ...] | None = None
    slip: str = ""


@dataclass(frozen=True)
class Measured:
    """What a probe observed: variant -> key -> value."""

    observation: Mapping[str, Mapping[str, Any]]
    provenance: Claim
    ghosts: tuple[str, ...]
    stand_ins: tuple[StandIn, ...]
    asked: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Called:
    """What one call of a session came to: an observation, or why there is none.

    :ivar silent: why the contract's reference has no answer.
    :ivar effects: where it was watched, what it did beside answering: ``mutated``, ``globals`` and ``again``.
    :ivar beside: what it handed on, where that was asked for: its parts, by path.
    """

    observation: Mapping[str, Any] | None = None
    refused: Failed | None = None
    silent: str = ""
    effects: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sat:
    """What a session answered.

    :ivar functions: the target's own that ran.
    """

    answers: Mapping[str, Called]
    provenance: Claim | None = None
    ghosts: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    functions: tuple[str, ...] = ()


def of_greeting(answer: Any) -> dict[str, Any]:
    """:raises ProtocolError: where it is not what a zygote says first."""
    told = _fields(answer, {"python", "torch", "numpy", "platform", "pid", "uncontained"})
    words = {name: text(told[name]) for name in ("python", "torch", "numpy", "platform")}
    return {**words, "pid": told["pid"], "uncontained": told["uncontained"] and text(told["uncontained"])}


def of_preload(answer: Any) -> dict[str, str | None]:
    """:raises ProtocolError: where these are no versions."""
    return {name: version and text(version) for name, version in _named(answer, answer).items()}


def of_import(answer: Any) -> tuple[str, ...]:
    """Give the files that had to be compiled.

    :raises ProtocolError: where it is no answer to an import.
    """
    told = _fields(answer, {"imported", "compiled"})
    return _words(told["compiled"])


def of_probe(answer: Any, variants: Collection[str]) -> Measured | Failed:
    """:raises ProtocolError: where it is no answer to a probe of these variants."""
    told = _fields(answer, {"failure"} if _has(answer, "failure") else _MEASURED, {"asked"})
    asked = _words(told["asked"]) if "asked" in told else None
    if "failure" in told:
        return replace(_failed(told["failure"]), asked=asked)
    observation = {name: _observed(values) for name, values in _named(told["observation"], variants).items()}
    return Measured(observation, _claim(told["provenance"]), *_beside(told), asked=asked)


def of_probes(answer: Any, requests: Sequence[Mapping[str, Any]]) -> tuple[Measured | Failed, ...]:
    """:raises ProtocolError: where these are not the answers to these probes."""
    if _has(answer, "failure"):  # the process ended before it had them all
        return ()
    told = _fields(answer, {"answers"})["answers"]
    if not isinstance(told, list) or len(told) != len(requests):
        raise ProtocolError("as many answers as questions")
    return tuple(of_probe(each, request["variants"]) for each, request in zip(told, requests))


def of_session(answer: Any, calls: Collection[str]) -> Sat | Failed:
    """:raises ProtocolError: where it is no answer to these calls."""
    if _has(answer, "failure"):
        return _failed(_fields(answer, {"failure"})["failure"])
    told = _fields(answer, {"answers"}, _SAT)
    answers = {name: _called(part) for name, part in _named(told["answers"], calls).items()}
    if len(told) == 1:
        return Sat(answers)
    _fields(answer, {"answers"} | _SAT)
    return Sat(answers, _claim(told["provenance"]), *_beside(told), functions=_words(told["functions"]))


@dataclass(frozen=True)
class Compiled:
    """What a process that never imports a target said of a source: see :func:`sentinel.worker.codes.described`."""

    codes: tuple[tuple[int, str, str, int], ...]
    names: tuple[str, ...]
    error: str


def of_source(answer: Any) -> Compiled | Failed:
    """:raises ProtocolError: where it is no answer about a source."""
    if _has(answer, "failure"):
        return _failed(_fields(answer, {"failure"})["failure"])
    told = _fields(answer, {"codes", "names", "error"})
    rows = [_list(row) for row in _list(told["codes"])]
    if any(len(row) != 4 for row in rows):
        _refuse("code that is none")
    found = [(_line(line), text(name), text(digest), _line(end)) for line, name, digest, end in rows]
    return Compiled(tuple(found), _words(told["names"]), text(told["error"]))


_MEASURED = {"observation", "provenance", "ghosts", "stand_ins"}
_SAT = {"provenance", "ghosts", "stand_ins", "functions"}


def _called(part: Any) -> Called:
    told = _fields(part, set(), {"observation", "refused", "silent", "effects", "beside"})
    effects: Mapping[str, Any] = {}
    refused = None
    if "effects" in told and _has(told["effects"], "refused"):
        refused = _failed(_fields(told["effects"], {"refused"})["refused"])
    elif "effects" in told:
        found = _fields(told["effects"], {"mutated", "globals", "again"})
        words = {name: list(_words(found[name])) for name in ("mutated", "globals")}
        effects = {**words, "again": _observed(found["again"])}
    if len(told.keys() - {"effects", "beside"}) != 1:
        _refuse("a call without one outcome")
    if "observation" in told:
        beside = _observed(told.get("beside", {}))
        return Called(
            _observed(told["observation"]), effects={"refused": refused} if refused else effects, beside=beside
        )
    if "refused" in told:
        failed = _failed(told["refused"])
        # Which Python the checkout needs one call does not say, and its time is the whole request's.
        more = failed.kind in ("python", "timeout")
        return Called(refused=replace(failed, kind="raised") if more else failed)
    return Called(silent=text(told["silent"]) or "it does not say why")


def _failed(failure: Any) -> Failed:
    told = _fields(failure, {"kind", "reason", "traceback", "provenance"}, {"unknown_input", "place", "slip"})
    if text(told["kind"]) not in KINDS:
        _refuse("a failure of a kind that no worker knows of")
    return Failed(
        told["kind"],
        text(told["reason"]),
        text(told["traceback"]),
        None if told["provenance"] is None else _claim(told["provenance"]),
        text(told.get("unknown_input", "")),
        _path(told.get("place", "")),
        slip=text(told.get("slip", "")),
    )


def _claim(provenance: Any) -> Claim:
    told = _fields(provenance, {"boundary", "module", "module_file", "file", "line", "signature", "layers"})
    return Claim(
        text(told["boundary"]),
        text(told["module"]),
        _path(told["module_file"]),
        _path(told["file"]),
        _line(told["line"]),
        text(told["signature"]),
        tuple(_layer(layer) for layer in _list(told["layers"])),
    )


def _layer(layer: Any) -> Layer:
    told = _fields(layer, {"file", "line", "name", "digest"})
    return Layer(_path(told["file"]), _line(told["line"]), text(told["name"]), text(told["digest"]))


def _beside(told: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[StandIn, ...]]:
    pairs = [_words(pair) for pair in _list(told["stand_ins"])]
    if any(len(pair) != 2 for pair in pairs):
        _refuse("a stand-in without a reason")
    return _words(told["ghosts"]), tuple(StandIn(*pair) for pair in pairs)


def _observed(values: Any) -> dict[str, Any]:
    """One variant's observation; of the literals only tensors are ever observed."""
    if not isinstance(values, dict):
        _refuse("an observation that is none")
    _values(values)
    return dict(values)


def _values(value: Any) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _values(item)
    elif isinstance(value, list):
        for item in value:
            _values(item)
    elif not (value is None or isinstance(value, (str, int, float, Tensor))):
        _refuse("a value that is never observed")


def _named(value: Any, names: Collection[str]) -> dict[str, Any]:
    """What has exactly these names, in their order."""
    if not isinstance(value, dict) or value.keys() != set(names):
        _refuse("an answer to other questions")
    return {name: value[name] for name in names}


def _has(value: Any, name: str) -> bool:
    return isinstance(value, dict) and name in value


def _fields(value: Any, needed: Collection[str], allowed: Collection[str] = ()) -> dict[str, Any]:
    """A mapping with all of the needed keys, and none but them and the allowed ones."""
    if not isinstance(value, dict) or not set(needed) <= value.keys() <= {*needed, *allowed}:
        _refuse("not the form of an answer")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse("a list that is none")
    return value


def _words(value: Any) -> tuple[str, ...]:
    return tuple(text(item) for item in _list(value))


def text(value: Any) -> str:
    """:raises ProtocolError: where it is no text."""
    if not isinstance(value, str):
        _refuse("a text that is none")
    return value


def _path(value: Any) -> str:
    if "\0" in text(value) or len(value.encode()) > _LONGEST_PATH:
        _refuse("a path that no file has")
    return str(value)


def _line(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LAST_LINE:
        _refuse("a line that no file has")
    return value


def _refuse(why: str) -> NoReturn:
    raise ProtocolError(why)
