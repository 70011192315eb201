"""What both readers share: documents with places, and scalars by YAML 1.2's core schema, which has JSON's in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 200_000
MAX_DIGITS = 400

#: Where something stands in a document: keys of mappings and indices of lists, from the top.
Place = tuple[Any, ...]

CORE = "tag:yaml.org,2002:"
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
    """A document that cannot be read.

    :ivar line, column: where, counted from one.
    """

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


@dataclass
class Document:
    """Plain data and where each part of it stands.

    :ivar values: place -> (line, column) of the value.
    :ivar keys: place -> (line, column) of the key that leads to it.
    :ivar digest: ``sha256:<hex>`` of the file's bytes.
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
            found = self.keys.get(place) if key else self.values.get(place)
            if found:
                return found
            place, key = place[:-1], False
        return self.values.get((), (1, 1))


def scalar(event: Any, line: int, column: int) -> Any:
    """The value of a scalar by the YAML 1.2 core schema."""
    text: str = event.value
    tag: str | None = event.tag
    if not tag:
        return _resolve(text, line, column) if plain(event) else text
    if tag in ("!", CORE + "str"):
        return text
    if tag not in _SCALAR_TAGS:
        raise DocumentError(unknown_tag(str(tag)), line, column)
    value, name = _resolve(text, line, column), str(tag)[len(CORE) :]
    if name == "float" and type(value) is int:
        return float(value)
    if type(value).__name__ != {"null": "NoneType"}.get(name, name):
        raise DocumentError(f"{text!r} is no {name}", line, column)
    return value


def plain(event: Any) -> bool:
    """Whether a scalar is written without quotes. The parser in C says an empty style where the other says None."""
    return not event.style and bool(event.implicit[0])


def unknown_tag(tag: str) -> str:
    return f"tag {tag!r}: a recipe is plain data; only YAML's core tags are read"


def _resolve(text: str, line: int, column: int) -> Any:
    try:
        return _core(text) if len(text) < 40 else _core.__wrapped__(text)
    except DocumentError as error:
        raise DocumentError(error.message, line, column) from None


@lru_cache(maxsize=4096)  # a recipe is mostly numbers, and mostly the same ones
def _core(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "+-.0123456789":
        for pattern, base in ((_INT, 10), (_OCTAL, 8), (_HEX, 16)):
            if pattern.fullmatch(text):
                return integer(text, base, 1, 1)
        if _FLOAT.fullmatch(text):
            return real(text, 1, 1)
    return text


def integer(text: str, base: int, line: int, column: int) -> int:
    """:raises DocumentError: where it has more digits than any dtype could hold."""
    if len(text) > MAX_DIGITS:
        raise DocumentError(f"a number of {len(text)} digits", line, column)
    return int(text, base)


def real(text: str, line: int, column: int) -> float:
    """:raises DocumentError: where it is beyond a float; an infinity must be meant."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise DocumentError(f"{text[:40]} does not fit a float; write .inf for an infinity", line, column)
    return value
