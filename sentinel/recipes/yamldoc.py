"""YAML and JSON documents as plain data, with the line and column of every key and value.

Only data comes out of it: scalars by the YAML 1.2 core schema (``1e-6`` is a float, ``no`` a string, a date a string),
no anchors, aliases, merge keys or tags of other kinds, no key twice, and nothing without a bound: a bomb is refused
while it is read. The parser's events are walked in a loop, because PyYAML's own composer recurses, and the one in C
overflows the stack on a deep document, which kills the process.
"""

from __future__ import annotations

import hashlib
import json as standard
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

MAX_DEPTH = 64
MAX_NODES = 200_000
MAX_DIGITS = 400

#: Where something stands in a document: keys of mappings and indices of lists, from the top.
Place = tuple[Any, ...]

CORE = "tag:yaml.org,2002:"
_UNKNOWN_TAG = "tag {!r}: a recipe is plain data; only YAML's core tags are read"
_SCALAR_TAGS = frozenset(CORE + name for name in ("str", "int", "float", "bool", "null"))

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


class DocumentError(ValueError):
    """A document that cannot be read; line and column count from one."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


@dataclass
class Document:
    """Plain data and where each part of it stands.

    :ivar values: place -> (line, column) of the value.
    :ivar keys: place -> (line, column) of the key that leads to it.
    """

    data: Any
    values: dict[Place, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Place, tuple[int, int]] = field(default_factory=dict)
    digest: str = ""

    def at(self, place: Place, key: bool = False) -> tuple[int, int]:
        """Line and column of a place; of the nearest thing around it where there is no such place.

        :param key: the key rather than the value.
        """
        while place:
            position = self.keys.get(place) if key else self.values.get(place)
            if position:
                return position
            place, key = place[:-1], False
        return self.values.get((), (1, 1))


def _scalar(event: Any) -> Any:
    """Give the value of a scalar by the YAML 1.2 core schema."""
    text: str = event.value
    tag: str | None = event.tag
    if (not tag and not _plain(event)) or tag in ("!", CORE + "str"):
        return text
    if tag and tag not in _SCALAR_TAGS:
        raise DocumentError(_UNKNOWN_TAG.format(tag))
    value = _core(text) if len(text) < 40 else _core.__wrapped__(text)
    name = str(tag)[len(CORE) :] if tag else ""
    if name == "float" and type(value) is int:
        return float(value)
    if name and type(value).__name__ != {"null": "NoneType"}.get(name, name):
        raise DocumentError(f"{text!r} is no {name}")
    return value


def _plain(event: Any) -> bool:
    """Say whether a scalar is written without quotes. The parser in C says an empty style where the other says None."""
    return not event.style and bool(event.implicit[0])


@lru_cache(maxsize=4096)  # a recipe is mostly numbers, and mostly the same ones
def _core(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "+-.0123456789":
        for pattern, base in ((_INT, 10), (_OCTAL, 8), (_HEX, 16)):
            if pattern.fullmatch(text):
                return _integer(text, base)
        if _FLOAT.fullmatch(text):
            return _real(text)
    return text


def _integer(text: str, base: int = 10) -> int:
    """:raises DocumentError: where it has more digits than any dtype could hold."""
    if len(text) > MAX_DIGITS:
        raise DocumentError(f"a number of {len(text)} digits")
    return int(text, base)


def _real(text: str) -> float:
    """:raises DocumentError: where it is beyond a float; an infinity must be meant."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise DocumentError(f"{text[:40]} does not fit a float; write .inf for an infinity")
    return value


MAX_BYTES = 1 << 20

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NODES = frozenset((yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent, yaml.AliasEvent))


def read(path: Path) -> Document:
    """Read a ``.json`` file as JSON and any other as YAML."""
    return read_text(_bytes(path), json=path.suffix.lower() == ".json")


def read_text(raw: bytes, json: bool = False) -> Document:
    """Read a file's bytes, as :func:`read` does."""
    if len(raw) > MAX_BYTES:
        raise DocumentError(f"larger than {MAX_BYTES >> 20} MiB, which no recipe needs to be")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise DocumentError(f"not UTF-8: byte 0x{raw[error.start]:02x}; save the file as UTF-8", line, column) from None
    if not text.strip():
        raise DocumentError("the file is empty; 'sentinel recipe new' writes a template")
    document = parse_json(text) if json else parse_yaml(text)
    document.digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    return document


def _bytes(path: Path) -> bytes:
    """The file's bytes, at most one more than is allowed: a 100 MB file is never read whole, a pipe never opened."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise DocumentError("a directory, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError("not a regular file")
        if status.st_size > MAX_BYTES:
            raise DocumentError(f"{status.st_size:,} bytes; a recipe is at most {MAX_BYTES >> 20} MiB")
        with path.open("rb") as handle:
            return handle.read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"cannot be read: {error}") from None  # a NUL in the path


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet. ``key`` is the key whose value comes next, or None."""

    place: Place
    value: Any
    key: str | None = None


def parse_yaml(text: str, loader: Any = _LOADER) -> Document:
    """Read one YAML document."""
    try:
        return _build(_events(loader(text)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise DocumentError(f"not YAML: {error.problem or error.context}", line, column) from None
    except yaml.YAMLError as error:
        line, column = _position_of_character(text, getattr(error, "position", None))
        raise DocumentError(f"not YAML: {getattr(error, 'reason', error)}", line, column) from None


def _position_of_character(text: str, offset: int | None) -> tuple[int, int]:
    """Find the first character that YAML does not allow; the C reader counts bytes."""
    match = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    start = match.start() if match else min(offset or 0, len(text))
    return text.count("\n", 0, start) + 1, start - (text.rfind("\n", 0, start) + 1) + 1


def _events(loader: Any) -> Iterator[Any]:
    """Yield the parser's events; ``yaml.parse`` looks ahead before each one, which costs as much as the event."""
    try:
        while True:
            event = loader.get_event()
            yield event
            if type(event) is yaml.StreamEndEvent:
                return
    finally:
        loader.dispose()


def _build(events: Iterator[Any]) -> Document:
    document = Document(None)
    stack: list[_Open] = []
    documents = nodes = 0
    for event in events:
        kind = type(event)
        if kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            stack.pop()
            continue
        mark = event.start_mark
        position = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        try:
            if kind not in _NODES:
                documents += kind is yaml.DocumentStartEvent
                if documents > 1:
                    raise DocumentError("a second document in one file; write one recipe a file")
                continue
            nodes += 1
            if nodes > MAX_NODES:
                raise DocumentError(f"more than {MAX_NODES:,} values, which no recipe needs")
            _take(event, document, stack, position)
        except DocumentError as error:
            raise DocumentError(error.message, *position) from None
    if not documents:
        raise DocumentError("the file holds no document")
    return document


def _take(event: Any, document: Document, stack: list[_Open], position: tuple[int, int]) -> None:
    """Put a key or value at its place."""
    if event.anchor is not None:
        what = "alias" if isinstance(event, yaml.AliasEvent) else "anchor"
        raise DocumentError(f"{what} {event.anchor!r}: recipes have no anchors or aliases; write the value out")
    parent = stack[-1] if stack else None
    place: Place = ()
    if parent is not None and type(parent.value) is dict and parent.key is None:
        parent.key = _key(event, parent, document)
        place = (*parent.place, parent.key)
        document.keys[place] = position
        return
    if parent is not None:
        place = (*parent.place, len(parent.value) if parent.key is None else parent.key)
    document.values[place] = position
    if isinstance(event, yaml.ScalarEvent):
        value = _scalar(event)
    else:
        wanted, value = ("map", {}) if isinstance(event, yaml.MappingStartEvent) else ("seq", [])
        if len(stack) >= MAX_DEPTH:
            raise DocumentError(f"nested deeper than {MAX_DEPTH} levels")
        if event.tag not in (None, "!", CORE + wanted):
            raise DocumentError(_UNKNOWN_TAG.format(event.tag))
        stack.append(_Open(place, value))
    if parent is None:
        document.data = value
    elif parent.key is None:
        parent.value.append(value)
    else:
        parent.value[parent.key] = value
        parent.key = None


def _key(event: Any, parent: _Open, document: Document) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        raise DocumentError("a key must be a string, not a list or a mapping")
    if event.value == "<<" and _plain(event):
        raise DocumentError("merge keys (<<) are not part of the recipe language; write the keys out")
    key = _scalar(event)
    if not isinstance(key, str):
        raise DocumentError(f"a key must be a string; quote it: '{event.value}'")
    if key in parent.value:
        here = (*parent.place, key)
        line, _ = document.keys[here]
        raise DocumentError(f"duplicate key {key!r}; it is already on line {line}")
    return key


# -- JSON --------------------------------------------------------------------------------------------------------------

_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NOT_FINITE = re.compile(r"-?(?:NaN|Infinity)")
#: A character beyond the first plane, as JSON writes it in ASCII. YAML writes it otherwise.
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def parse_json(text: str) -> Document:
    """Read one JSON document.

    The standard library reads the values and tells no positions; YAML, which nearly all JSON is, has positions and
    takes more. So a text is read as both: what is wrong is JSON's to say, where things stand is YAML's.
    """
    document, problem = Document(None), DocumentError("not YAML")
    try:
        document = parse_yaml(_PAIR.sub("x" * 12, text))
    except DocumentError as error:
        problem = error
    strange = _NOT_FINITE.search(_STRING.sub(lambda match: " " * len(match[0]), text))
    if strange:
        message = 'JSON has no NaN or infinity; write "NaN", "Infinity" or "-Infinity", in quotes'
        raise _json_error(text, strange.start(), message)
    half = next((match for match in _STRING.finditer(text) if "\\u" in match[0] and _is_torn(match[0])), None)
    if half:
        raise _json_error(text, half.start(), "half of a surrogate pair is no character")
    try:
        document.data = standard.loads(text, object_pairs_hook=_no_key_twice, parse_int=_integer, parse_float=_real)
    except standard.JSONDecodeError as error:
        raise DocumentError(f"not JSON: {error.msg}", error.lineno, error.colno) from None
    except (DocumentError, RecursionError) as error:
        cause = problem if not problem.message.startswith("not YAML") else None
        raise cause or DocumentError(f"not JSON: {error}") from None
    if document.values or problem.message.startswith("not YAML"):  # what YAML cannot write is read without places
        return document
    raise problem


def _json_error(text: str, offset: int, message: str) -> DocumentError:
    before = text[:offset]
    return DocumentError(f"not JSON: {message}", before.count("\n") + 1, offset - before.rfind("\n"))


def _is_torn(literal: str) -> bool:
    try:
        return any("\ud800" <= character <= "\udfff" for character in standard.loads(literal))
    except ValueError:
        return False


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise DocumentError("an object has one key twice")
    return table
