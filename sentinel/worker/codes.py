"""A digest of what a code object does, the same wherever the same source is compiled by the same Python."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

#: Bytes; the largest module of Python's own library has a quarter of a million.
LARGEST_SOURCE = 4 << 20

_PARTS = (
    *("co_name", "co_firstlineno", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_names"),
    *("co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),  # the last one from Python 3.11 on
)


def read_source(path: str, most: int = LARGEST_SOURCE) -> bytes:
    """Give a file's content; nothing where there is no such file, or it is something else, or longer."""
    try:
        # Without O_NONBLOCK to open a pipe is to wait for its other end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            return file.read(most) if stat.S_ISREG(status.st_mode) and status.st_size <= most else b""
    except (OSError, ValueError):
        return b""


def described(source: bytes | str) -> dict[str, Any]:
    """Say what a source defines, as data; it is compiled, and nothing of it is run.

    For a process that may take as long, and as much, as the worst source that there is: Python's compiler needs time
    that grows with the square of the number of functions in a module.

    :param source: its bytes; or the path of a file.
    :return: ``codes`` has line, name, digest and last line of each code object; ``names`` what can be asked for by name
        (``Class.field``, ``function(parameter)``, and ``name=module:name`` for what comes from another module);
        ``error`` is why there are none.
    """
    content = read_source(source) if isinstance(source, str) else source
    try:
        tree = ast.parse(content)
        code = compile(content, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return {"codes": [], "names": [], "error": type(error).__name__}
    rows = [[each.co_firstlineno, each.co_name, digest(each), last_line(each)] for each in within(code)]
    return {"codes": rows, "names": sorted(set(_names(tree.body, ""))), "error": ""}


def _names(body: list[Any], owner: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{owner}{node.name}"
            arguments = node.args
            plain = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            for parameter in (*plain, *filter(None, (arguments.vararg, arguments.kwarg))):
                yield f"{owner}{node.name}({parameter.arg})"
        elif isinstance(node, ast.ClassDef):
            yield f"{owner}{node.name}"
            yield from _names(node.body, f"{owner}{node.name}.")
        elif isinstance(node, ast.Import):
            yield from (f"{owner}{name.asname or name.name.partition('.')[0]}" for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield f"{owner}{name.asname or name.name}"
                yield f"{owner}{name.asname or name.name}={'.' * node.level}{node.module or ''}:{name.name}"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (f"{owner}{name.id}" for name in targets if isinstance(name, ast.Name))
        else:  # what stands under a condition may be there or not
            for part in ("body", "orelse", "finalbody"):
                yield from _names(getattr(node, part, []), owner)


def digest(code: CodeType) -> str:
    """Digest instructions, constants and names; where the file lies does not count."""
    return f"sha256:{hashlib.sha256(repr(_description(code)).encode()).hexdigest()}"


def within(code: CodeType) -> Iterator[CodeType]:
    """Give a code object and all that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from within(constant)


def last_line(code: CodeType) -> int:
    """Find the last line of the source that it comes from; before Python 3.11, the first line of its last
    expression."""
    lines = [code.co_firstlineno]
    for each in within(code):
        if sys.version_info >= (3, 11):
            lines += [end for _, end, *_ in each.co_positions() if end]
        else:
            lines += [line for *_, line in each.co_lines() if line]
    return max(lines)


def _description(value: Any) -> Any:
    if isinstance(value, CodeType):
        parts = [getattr(value, name, None) for name in _PARTS]
        return (value.co_code, parts, [_description(constant) for constant in value.co_consts])
    if isinstance(value, frozenset):  # in an order that differs from process to process
        return ("frozenset", sorted(map(repr, value)))
    return repr(value)
