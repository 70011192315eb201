"""Parse YAML, JSON and TOML into plain data, and record the line and column of every key and value.

The size in bytes, the nesting depth, the number of values and the digits of a number are limited. The limits are
checked during parsing. Duplicate keys, and tags other than YAML's core tags, are rejected. YAML has two forms:

* strict, for recipes and other files of Sentinel: scalars follow the YAML 1.2 core schema (``1e-6`` is a float, ``no``
  and dates are strings), keys are strings, and anchors, aliases and merge keys are rejected.
* ``configuration=True``, for files that a framework reads with PyYAML or OmegaConf: ``yes``, ``no``, ``on`` and ``off``
  are booleans, a key may be any scalar, an empty file is an empty mapping, and anchors, aliases and merge keys are
  allowed. An alias counts as many values as it expands to.

The parser handles events in a loop, because PyYAML's composer is recursive: its C version overflows the stack on a deep
document, which kills the process.
"""

from __future__ import annotations

import json as standard
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from sentinel.errors import SentinelError
from sentinel.values.files import GENERATED, MIB, WRITTEN, not_utf8, position, read_bytes, regular_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_DEPTH = 64
MAX_NODES = 200_000
MAX_DIGITS = 400

#: The path to a value in a document: mapping keys and list indices.
Place = tuple[Any, ...]

CORE = "tag:yaml.org,2002:"
_UNKNOWN_TAG = "tag {!r}: only YAML's core tags are allowed"
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
#: Further words that PyYAML and OmegaConf (YAML 1.1) read as booleans.
_SWITCHES = {
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), False),
}


class DocumentError(ValueError):
    """Raised if a document cannot be read. ``line`` and ``column`` count from one."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


@dataclass
class Document:
    """The data of a parsed document, with the line and column of its keys and values.

    :ivar values: place -> (line, column) of the value.
    :ivar keys: place -> (line, column) of the key.
    """

    data: Any
    values: dict[Place, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Place, tuple[int, int]] = field(default_factory=dict)

    def at(self, place: Place, key: bool = False) -> tuple[int, int]:
        """Return the line and column of the value at a place, or of the nearest enclosing value that has a position.

        :param key: return the position of the value's key instead.
        """
        while place:
            position = self.keys.get(place) if key else self.values.get(place)
            if position:
                return position
            place, key = place[:-1], False
        return self.values.get((), (1, 1))


def _scalar(event: Any) -> Any:
    """Return the value of a YAML scalar, by the YAML 1.2 core schema."""
    text: str = event.value
    tag: str | None = event.tag
    if (not tag and not _plain(event)) or tag in ("!", CORE + "str"):
        return text
    if tag and tag not in _SCALAR_TAGS:
        raise _here(_UNKNOWN_TAG.format(tag))
    value = _core(text) if len(text) < 40 else _core.__wrapped__(text)
    name = str(tag)[len(CORE) :] if tag else ""
    if name == "float" and type(value) is int:
        return float(value)
    if name and type(value).__name__ != {"null": "NoneType"}.get(name, name):
        raise _here(f"{text!r} is not a valid {name}")
    return value


def _plain(event: Any) -> bool:
    """Return True if a YAML scalar has no quotes. The C parser and the Python parser report quotes differently."""
    return not event.style and bool(event.implicit[0])


@lru_cache(maxsize=4096)  # recipes mostly consist of numbers that repeat
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
    """Parse an integer.

    :raises DocumentError: if it has more than :data:`MAX_DIGITS` digits, more than any dtype can represent.
    """
    if len(text) > MAX_DIGITS:
        raise _here(f"the number has {len(text)} digits; at most {MAX_DIGITS} are allowed")
    return int(text, base)


def _real(text: str) -> float:
    """Parse a float.

    :raises DocumentError: if it overflows. Infinity must be written as ``.inf``.
    """
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _here(f"{text[:40]} is too large for a float; write .inf for infinity")
    return value


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NODES = frozenset((yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent, yaml.AliasEvent))


def read(path: Path, configuration: bool = False) -> Document:
    """Read a ``.json`` file as JSON, a ``.toml`` file as TOML and any other file as YAML.

    :raises DocumentError: if the file cannot be read or parsed.
    """
    try:
        raw = regular_bytes(path)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror or error}") from None
    return read_text(raw, suffix_of(path), configuration)


def suffix_of(path: Path) -> str:
    """Return the suffix of a file name, which selects the parser: ``json``, ``toml``, or anything else for YAML."""
    return path.suffix.lower().lstrip(".")


def read_text(raw: bytes, suffix: str = "yaml", configuration: bool = False) -> Document:
    """Parse a file's bytes as :func:`read` does."""
    if len(raw) > WRITTEN:
        raise DocumentError(f"the file is larger than {WRITTEN // MIB} MiB")
    text = _decoded(raw)
    if not text.strip():
        if configuration:
            return Document({})
        raise DocumentError("the file is empty")
    if suffix == "toml":
        return Document(parse_toml(text))
    return parse_json(text) if suffix == "json" else parse_yaml(text, configuration=configuration)


def read_data(path: Path, most: int = GENERATED) -> Any:
    """Return the data of a JSON or TOML file that may be damaged or hostile.

    :raises SentinelError: if it cannot be read or parsed. The message of a parse error has the line and column.
    """
    raw = read_bytes(path, most)
    try:
        return parse_toml(_decoded(raw)) if suffix_of(path) == "toml" else json_data(raw)
    except DocumentError as error:
        raise SentinelError(f"{path}:{error.line}:{error.column}: {error.message}") from None


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(not_utf8(raw, error.start), *position(raw, error.start)) from None


@dataclass(slots=True)
class _Open:
    """A YAML mapping or list that the parser has not completed.

    :ivar key: the key whose value comes next, or None.
    :ivar anchor: the name of its anchor.
    :ivar size: the number of values in it so far; an alias counts as many values as it expands to.
    :ivar height: the number of nesting levels below it.
    :ivar merged: the values of its merge keys, with their positions.
    """

    place: Place
    value: Any
    key: str | None = None
    anchor: str | None = None
    size: int = 1
    height: int = 0
    merged: list[tuple[Any, tuple[int, int]]] = field(default_factory=list)


#: Represents the merge key ``<<`` of a configuration. It is not equal to any string, such as a quoted ``"<<"``.
_MERGE: Any = object()


def parse_yaml(text: str, loader: Any = _LOADER, configuration: bool = False) -> Document:
    """Parse one YAML document.

    :raises DocumentError: if it is not valid YAML or exceeds a limit.
    """
    try:
        return _Builder(configuration).build(_events(loader(text)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise DocumentError(f"not YAML: {error.problem or error.context}", line, column) from None
    except yaml.YAMLError as error:
        line, column = _position_of_character(text, getattr(error, "position", None))
        raise DocumentError(f"not YAML: {getattr(error, 'reason', error)}", line, column) from None


def _position_of_character(text: str, offset: int | None) -> tuple[int, int]:
    """Return the position of the first character that YAML does not allow. The C parser's offset counts bytes."""
    match = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    start = match.start() if match else min(offset or 0, len(text))
    return text.count("\n", 0, start) + 1, start - (text.rfind("\n", 0, start) + 1) + 1


def _events(loader: Any) -> Iterator[Any]:
    """Yield a YAML parser's events. This is faster than ``yaml.parse``, which looks ahead before each event."""
    try:
        while True:
            event = loader.get_event()
            yield event
            if type(event) is yaml.StreamEndEvent:
                return
    finally:
        loader.dispose()


@dataclass
class _Builder:
    """Builds a document from a YAML parser's events."""

    configuration: bool
    document: Document = field(default_factory=lambda: Document(None))
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, tuple[Any, int, int]] = field(default_factory=dict)
    nodes: int = 0

    def build(self, events: Iterator[Any]) -> Document:
        documents = 0
        for event in events:
            kind = type(event)
            mark = event.start_mark
            place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            try:
                if kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                    self._close()
                elif kind in _NODES:
                    self._take(event, place)
                else:
                    documents += kind is yaml.DocumentStartEvent
                    if documents > 1:
                        raise DocumentError("the file has a second document; write one document per file", *place)
            except DocumentError as error:
                line, column = (error.line, error.column) if error.line else place
                raise DocumentError(error.message, line, column) from None
        if not documents and self.configuration:
            return Document({})
        if not documents:
            raise DocumentError("the file contains no document")
        return self.document

    def _take(self, event: Any, mark: tuple[int, int]) -> None:
        """Store a key, or a value of the innermost collection."""
        alias = type(event) is yaml.AliasEvent
        if event.anchor is not None and not self.configuration:
            kind = "alias" if alias else "anchor"
            raise _here(f"{kind} {event.anchor!r}: anchors and aliases are not allowed here; write the value out")
        parent = self.stack[-1] if self.stack else None
        place: Place = ()
        if parent is not None and type(parent.value) is dict and parent.key is None:
            self._count(1)
            parent.size += 1
            parent.key = self._key(event, parent)
            if event.anchor is not None:
                self.anchors[event.anchor] = (parent.key, 1, 0)
            if parent.key is not _MERGE:
                place = (*parent.place, parent.key)
                self.document.keys[place] = mark
            return
        if parent is not None:
            place = (*parent.place, len(parent.value) if parent.key is None else parent.key)
        value, size, height = self._value(event, place)
        self._count(size)
        if len(self.stack) + height > MAX_DEPTH:
            raise _here(f"nested deeper than {MAX_DEPTH} levels")
        if parent is not None and parent.key is _MERGE:
            parent.merged.append((value, mark))
        else:
            self.document.values[place] = mark
        if parent is None:
            self.document.data = value
        else:
            parent.size += size
            parent.height = max(parent.height, height)
            if parent.key is None:
                parent.value.append(value)
            elif parent.key is not _MERGE:
                parent.value[parent.key] = value
            parent.key = None
        if height and not alias:
            self.stack.append(_Open(place, value, anchor=event.anchor))
            self.anchors.pop(event.anchor, None)  # drop an earlier value of this name until the new value is complete
        elif event.anchor is not None and not alias:
            self.anchors[event.anchor] = (value, 1, 0)

    def _value(self, event: Any, place: Place) -> tuple[Any, int, int]:
        """Return the value of a YAML event, the number of values in it, and its nesting depth."""
        kind = type(event)
        if kind is yaml.AliasEvent:
            if event.anchor not in self.anchors:
                raise _here(f"alias {event.anchor!r}: its anchor is not defined above, or its value is incomplete")
            return self.anchors[event.anchor]
        if kind is yaml.ScalarEvent:
            return self._scalar(event), 1, 0
        value: dict[str, Any] | list[Any]
        wanted, value = ("map", {}) if kind is yaml.MappingStartEvent else ("seq", [])
        if event.tag not in (None, "!", CORE + wanted):
            raise _here(_UNKNOWN_TAG.format(event.tag))
        return value, 1, 1

    def _close(self) -> None:
        """Complete a mapping or list: insert the values of its merge keys, and add it to the enclosing collection."""
        done = self.stack.pop()
        height = done.height + 1
        for value, place in done.merged:
            for table in value if isinstance(value, list) else [value]:
                if not isinstance(table, dict):
                    raise DocumentError("the value of a merge key (<<) must be a mapping or a list of mappings", *place)
                for key, item in table.items():
                    done.value.setdefault(key, item)
        if done.anchor is not None:
            self.anchors[done.anchor] = (done.value, done.size, height)
        if self.stack:
            above = self.stack[-1]
            above.size += done.size - 1  # _take has already counted the collection itself
            above.height = max(above.height, height)

    def _count(self, more: int) -> None:
        self.nodes += more
        if self.nodes > MAX_NODES:
            raise _here(f"more than {MAX_NODES:,} values, including those of aliases")

    def _scalar(self, event: Any) -> Any:
        if self.configuration and not event.tag and _plain(event) and event.value in _SWITCHES:
            return _SWITCHES[event.value]
        return _scalar(event)

    def _key(self, event: Any, parent: _Open) -> str:
        if type(event) is not yaml.ScalarEvent:
            raise _here("a key must be a string, not a list, a mapping or an alias")
        if event.value == "<<" and _plain(event):
            if self.configuration:
                return _MERGE  # type: ignore[no-any-return]
            raise _here("merge keys (<<) are not allowed here; write the keys out")
        key = event.value if self.configuration else _scalar(event)
        if not isinstance(key, str):
            raise _here(f"a key must be a string; quote it: '{event.value}'")
        if key in parent.value:
            here = (*parent.place, key)
            line, _ = self.document.keys[here]
            raise _here(f"duplicate key {key!r}; it is already on line {line}")
        return key


def _here(message: str) -> DocumentError:
    """Return an error without a position. The caller adds the position of the current event."""
    return DocumentError(message, 0, 0)


# -- JSON --------------------------------------------------------------------------------------------------------------

_STRING = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?')  # the end quote is optional: otherwise the search is quadratic
_NOT_FINITE = re.compile(r"-?(?:NaN|Infinity)")
#: A character outside the Basic Multilingual Plane as JSON escapes it. YAML escapes it differently.
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def parse_json(text: str) -> Document:
    """Parse one JSON document.

    The text is parsed twice. The standard library's JSON parser finds errors, but reports no positions of values. The
    YAML parser reports positions: it accepts nearly all JSON, but also text that is not JSON.
    """
    document, problem = Document(None), DocumentError("not YAML")
    try:
        document = parse_yaml(_PAIR.sub("x" * 12, text))
    except DocumentError as error:
        problem = error
    try:
        document.data = _json(text)
    except DocumentError as error:
        # For a wrong value, the YAML parser's error has a position; the JSON parser's has none.
        placed = error.line or problem.message.startswith("not YAML")
        raise DocumentError(error.message, error.line or 1, error.column or 1) if placed else problem from None
    if document.values or problem.message.startswith("not YAML"):  # JSON that YAML cannot represent has no positions
        return document
    raise problem


def json_data(raw: bytes | str) -> Any:
    """Return the data of a JSON text that may be damaged or hostile.

    :raises DocumentError: if it is not valid JSON or exceeds a limit. An error without a known position points to the
        start of the text.
    """
    try:
        data = _json(raw if isinstance(raw, str) else _decoded(raw))
    except DocumentError as error:
        raise DocumentError(error.message, error.line or 1, error.column or 1) from None
    _check_depth(data)
    return data


def parse_toml(text: str) -> dict[str, Any]:
    """Return the data of a TOML text.

    :raises DocumentError: if it is not TOML, or nested too deeply.
    """
    long = _LONG_KEY.search(text)
    if long:
        before = text[: long.start()].encode()
        raise DocumentError(f"a key has more than {MAX_DEPTH} parts", *position(before, len(before)))
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _TOML_PLACE.search(str(error))
        place = (int(match[1]), int(match[2])) if match else (text.count("\n") + 1, 1)
        raise DocumentError(f"not TOML: {_TOML_PLACE.sub('', str(error))}", *place) from None
    except RecursionError:
        raise DocumentError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # a number with too many digits for Python
        raise DocumentError(f"not TOML: {error}") from None
    _check_depth(data)
    return data


#: Matches a TOML key with too many parts. The standard library needs quadratic time for such a key.
_LONG_KEY = re.compile(r"""(?:(?:(?<![\w-])[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*)""" + f"{{{MAX_DEPTH}}}")
_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)")


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for value in level
            if isinstance(value, (dict, list))
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise DocumentError(f"nested deeper than {MAX_DEPTH} levels")


def _json(text: str) -> Any:
    """Parse JSON text.

    :raises DocumentError: if it is invalid; line 0 means that the position is unknown.
    """

    def reject_constant(name: str) -> Any:
        # Find the first constant outside strings. Strings are replaced by blanks of the same length to keep offsets.
        constant = _NOT_FINITE.search(_STRING.sub(lambda match: " " * len(match[0]), text))
        advice = 'JSON has no NaN or infinity; write "NaN", "Infinity" or "-Infinity", in quotes'
        raise _json_error(text, constant.start() if constant else 0, advice)

    try:
        data = standard.loads(
            text, object_pairs_hook=_unique_keys, parse_int=_integer, parse_float=_real, parse_constant=reject_constant
        )
    except standard.JSONDecodeError as error:
        raise DocumentError(f"not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise _here(f"nested deeper than {MAX_DEPTH} levels") from None
    literal = (
        next((match for match in _STRING.finditer(text) if _has_lone_surrogate(match[0])), None)
        if "\\u" in text
        else None
    )
    if literal:
        raise _json_error(
            text,
            literal.start(),
            "a \\u escape is half of a surrogate pair; write both halves, or the character itself",
        )
    return data


def _json_error(text: str, offset: int, message: str) -> DocumentError:
    before = text[:offset]
    return DocumentError(f"not JSON: {message}", before.count("\n") + 1, offset - before.rfind("\n"))


def _has_lone_surrogate(literal: str) -> bool:
    if "\\u" not in literal:
        return False
    try:
        return any("\ud800" <= character <= "\udfff" for character in standard.loads(literal))
    except ValueError:
        return False


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        duplicate = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _here(f"an object has the key {duplicate!r} twice")
    return table
