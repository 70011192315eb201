"""Strict JSON with the line and column of every key and value.

The standard library's decoder tells no positions, and a YAML parser accepts more than JSON; so this one reads the
grammar of RFC 8259 itself, with the standard library's own scanner for strings. Same bounds as for YAML.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from json.decoder import JSONDecodeError
from json.decoder import scanstring as _scan_string  # type: ignore[attr-defined]
from typing import Any

from sentinel.recipes.core_schema import MAX_DEPTH, MAX_NODES, Document, DocumentError, Place, integer, real

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_NOT_FINITE = re.compile(r"-?(?:NaN|Infinity|nan|inf)")


def parse_json(text: str) -> Document:
    """Read one JSON document.

    :raises DocumentError: where the text is not JSON, or an object has one key twice.
    """
    return _Parser(text).document()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0
        self.result = Document(None)
        self.nodes = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def document(self) -> Document:
        self.result.data = self._value((), 0)
        self._space()
        if self.offset < len(self.text):
            raise self._error("something follows the end of the document")
        return self.result

    def _position(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def _error(self, message: str, offset: int | None = None) -> DocumentError:
        return DocumentError(f"not JSON: {message}", *self._position(self.offset if offset is None else offset))

    def _space(self) -> str:
        """Go to the next character that is not white space, and return it (empty at the end)."""
        match = _SPACE.match(self.text, self.offset)
        assert match is not None
        self.offset = match.end()
        return self.text[self.offset : self.offset + 1]

    def _value(self, place: Place, depth: int) -> Any:
        first = self._space()
        position = self.result.values[place] = self._position(self.offset)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise DocumentError(f"more than {MAX_NODES:,} values, which no recipe needs", *position)
        if first and first in "[{":
            if depth >= MAX_DEPTH:
                raise DocumentError(f"nested deeper than {MAX_DEPTH} levels", *position)
            self.offset += 1
            return self._object(place, depth + 1) if first == "{" else self._array(place, depth + 1)
        if first == '"':
            return self._string()
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.offset):
                self.offset += len(word)
                return value
        return self._number(position)

    def _number(self, position: tuple[int, int]) -> int | float:
        match = _NUMBER.match(self.text, self.offset)
        if not match:
            if _NOT_FINITE.match(self.text, self.offset):
                raise self._error('JSON has no NaN or infinity; write "NaN", "Infinity" or "-Infinity", in quotes')
            raise self._error("expected a value")
        self.offset = match.end()
        if match.group(1) or match.group(2):
            return real(match.group(), *position)
        return integer(match.group(), 10, *position)

    def _string(self) -> str:
        start = self.offset
        try:
            value, self.offset = _scan_string(self.text, start + 1, True)
        except JSONDecodeError as error:
            raise self._error(error.msg.removesuffix(" at"), error.pos) from None
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise self._error("half of a surrogate pair is no character", start)
        return str(value)

    def _array(self, place: Place, depth: int) -> list[Any]:
        items: list[Any] = []
        if self._space() == "]":
            self.offset += 1
            return items
        while True:
            items.append(self._value((*place, len(items)), depth))
            if self._separator("]"):
                return items

    def _object(self, place: Place, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        if self._space() == "}":
            self.offset += 1
            return items
        while True:
            if self._space() != '"':
                raise self._error("expected a key in double quotes")
            position = self._position(self.offset)
            key = self._string()
            here = (*place, key)
            if key in items:
                raise DocumentError(
                    f"duplicate key {key!r}; it is already on line {self.result.keys[here][0]}", *position
                )
            self.result.keys[here] = position
            if self._space() != ":":
                raise self._error("expected ':' after a key")
            self.offset += 1
            items[key] = self._value(here, depth)
            if self._separator("}"):
                return items

    def _separator(self, end: str) -> bool:
        found = self._space()
        if found not in (",", end):
            raise self._error(f"expected ',' or '{end}'")
        self.offset += 1
        return found == end
