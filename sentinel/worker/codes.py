"""A digest of what a code object does, the same wherever the same source is compiled by the same Python."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

#: Pythons with the same number make the same byte code.
MAGIC = importlib.util.MAGIC_NUMBER.hex()

_PARTS = (
    *("co_name", "co_firstlineno", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_names"),
    *("co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),  # the last one from Python 3.11 on
)


def digest(code: CodeType) -> str:
    """``sha256:<hex>`` of its instructions, constants and names; where its file lies does not count."""
    return f"sha256:{hashlib.sha256(repr(_described(code)).encode()).hexdigest()}"


def within(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from within(constant)


def last_line(code: CodeType) -> int:
    """The last line of the source that it comes from; before Python 3.11, the first line of its last expression."""
    lines = [code.co_firstlineno]
    for each in within(code):
        if sys.version_info >= (3, 11):
            lines += [end for _, end, *_ in each.co_positions() if end]
        else:
            lines += [line for *_, line in each.co_lines() if line]
    return max(lines)


def _described(value: Any) -> Any:
    if isinstance(value, CodeType):
        parts = [getattr(value, name, None) for name in _PARTS]
        return (value.co_code, parts, [_described(constant) for constant in value.co_consts])
    if isinstance(value, frozenset):  # in an order that differs from process to process
        return ("frozenset", sorted(map(repr, value)))
    return repr(value)
