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
    :ivar questions: see :mod:`sentinel.worker.trace`; None: unknown.
    :ivar slip: see :func:`sentinel.worker.slips.slip`.
    """

    kind: WorkerKind
    reason: str
    traceback: str = ""
    provenance: Claim | None = None
    unknown_input: str = ""
    place: str = ""
    questions: tuple[str, ...] | None = None
    slip: str = ""


@dataclass(frozen=True)
class Measured:
    """What a probe observed: variant -> key -> value."""

    observation: Mapping[str, Mapping[str, Any]]
    provenance: Claim
    ghosts: tuple[str, ...]
    stand_ins: tuple[StandIn, ...]
    questions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reply:
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
class Replies:
    """What a session answered.

    :ivar functions: the target's own that ran.
    """

    answers: Mapping[str, Reply]
    provenance: Claim | None = None
    ghosts: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    functions: tuple[str, ...] = ()


def of_greeting(answer: Any) -> dict[str, Any]:
    """:raises ProtocolError: where it is not what a zygote says first."""
    fields = _fields(answer, {"python", "torch", "numpy", "platform", "pid", "uncontained"})
    words = {name: text(fields[name]) for name in ("python", "torch", "numpy", "platform")}
    return {**words, "pid": fields["pid"], "uncontained": fields["uncontained"] and text(fields["uncontained"])}


def of_preload(answer: Any) -> dict[str, str | None]:
    """:raises ProtocolError: where these are no versions."""
    return {name: version and text(version) for name, version in _named(answer, answer).items()}


def of_import(answer: Any) -> tuple[str, ...]:
    """Give the files that had to be compiled.

    :raises ProtocolError: where it is no answer to an import.
    """
    fields = _fields(answer, {"imported", "compiled"})
    return _words(fields["compiled"])


def of_probe(answer: Any, variants: Collection[str]) -> Measured | Failed:
    """:raises ProtocolError: where it is no answer to a probe of these variants."""
    fields = _fields(answer, {"failure"} if _has(answer, "failure") else _MEASURED, {"asked"})
    questions = _words(fields["asked"]) if "asked" in fields else None
    if "failure" in fields:
        return replace(_failed(fields["failure"]), questions=questions)
    observation = {name: _observed(values) for name, values in _named(fields["observation"], variants).items()}
    return Measured(observation, _claim(fields["provenance"]), *_beside(fields), questions=questions)


def of_probes(answer: Any, requests: Sequence[Mapping[str, Any]]) -> tuple[Measured | Failed, ...]:
    """:raises ProtocolError: where these are not the answers to these probes."""
    if _has(answer, "failure"):  # the process ended before it had them all
        return ()
    results = _fields(answer, {"answers"})["answers"]
    if not isinstance(results, list) or len(results) != len(requests):
        raise ProtocolError("as many answers as questions")
    return tuple(of_probe(each, request["variants"]) for each, request in zip(results, requests))


def of_session(answer: Any, calls: Collection[str]) -> Replies | Failed:
    """:raises ProtocolError: where it is no answer to these calls."""
    if _has(answer, "failure"):
        return _failed(_fields(answer, {"failure"})["failure"])
    fields = _fields(answer, {"answers"}, _SAT)
    answers = {name: _called(part) for name, part in _named(fields["answers"], calls).items()}
    if len(fields) == 1:
        return Replies(answers)
    _fields(answer, {"answers"} | _SAT)
    return Replies(answers, _claim(fields["provenance"]), *_beside(fields), functions=_words(fields["functions"]))


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
    fields = _fields(answer, {"codes", "names", "error"})
    rows = [_list(row) for row in _list(fields["codes"])]
    if any(len(row) != 4 for row in rows):
        _refuse("code that is none")
    codes = [(_line(line), text(name), text(digest), _line(end)) for line, name, digest, end in rows]
    return Compiled(tuple(codes), _words(fields["names"]), text(fields["error"]))


_MEASURED = {"observation", "provenance", "ghosts", "stand_ins"}
_SAT = {"provenance", "ghosts", "stand_ins", "functions"}


def _called(part: Any) -> Reply:
    fields = _fields(part, set(), {"observation", "refused", "silent", "effects", "beside"})
    effects: Mapping[str, Any] = {}
    refused = None
    if "effects" in fields and _has(fields["effects"], "refused"):
        refused = _failed(_fields(fields["effects"], {"refused"})["refused"])
    elif "effects" in fields:
        inner = _fields(fields["effects"], {"mutated", "globals", "again"})
        words = {name: list(_words(inner[name])) for name in ("mutated", "globals")}
        effects = {**words, "again": _observed(inner["again"])}
    if len(fields.keys() - {"effects", "beside"}) != 1:
        _refuse("a call without one outcome")
    if "observation" in fields:
        beside = _observed(fields.get("beside", {}))
        return Reply(
            _observed(fields["observation"]), effects={"refused": refused} if refused else effects, beside=beside
        )
    if "refused" in fields:
        failed = _failed(fields["refused"])
        # Which Python the checkout needs one call does not say, and its time is the whole request's.
        more = failed.kind in ("python", "timeout")
        return Reply(refused=replace(failed, kind="raised") if more else failed)
    return Reply(silent=text(fields["silent"]) or "it does not say why")


def _failed(failure: Any) -> Failed:
    fields = _fields(failure, {"kind", "reason", "traceback", "provenance"}, {"unknown_input", "place", "slip"})
    if text(fields["kind"]) not in KINDS:
        _refuse("a failure of a kind that no worker knows of")
    return Failed(
        fields["kind"],
        text(fields["reason"]),
        text(fields["traceback"]),
        None if fields["provenance"] is None else _claim(fields["provenance"]),
        text(fields.get("unknown_input", "")),
        _path(fields.get("place", "")),
        slip=text(fields.get("slip", "")),
    )


def _claim(provenance: Any) -> Claim:
    fields = _fields(provenance, {"boundary", "module", "module_file", "file", "line", "signature", "layers"})
    return Claim(
        text(fields["boundary"]),
        text(fields["module"]),
        _path(fields["module_file"]),
        _path(fields["file"]),
        _line(fields["line"]),
        text(fields["signature"]),
        tuple(_layer(layer) for layer in _list(fields["layers"])),
    )


def _layer(layer: Any) -> Layer:
    fields = _fields(layer, {"file", "line", "name", "digest"})
    return Layer(_path(fields["file"]), _line(fields["line"]), text(fields["name"]), text(fields["digest"]))


def _beside(fields: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[StandIn, ...]]:
    pairs = [_words(pair) for pair in _list(fields["stand_ins"])]
    if any(len(pair) != 2 for pair in pairs):
        _refuse("a stand-in without a reason")
    return _words(fields["ghosts"]), tuple(StandIn(*pair) for pair in pairs)


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
