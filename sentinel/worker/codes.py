"""List the names that a source file defines, without running the file."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from typing import Any

#: Maximum bytes of a source file. The largest module of Python's standard library has 250,000.
LARGEST_SOURCE = 4 << 20


def read_source(path: str, most: int = LARGEST_SOURCE) -> bytes:
    """Return the content of a regular file; ``b""`` if it has more than ``most`` bytes or is not a regular file."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its other end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            return file.read(most) if stat.S_ISREG(status.st_mode) and status.st_size <= most else b""
    except (OSError, ValueError):
        return b""


def describe(source: bytes | str) -> dict[str, Any]:
    """Return the names, functions and imports that a source file defines. The file is parsed, never run.

    Call this function only in a process that may be killed: parsing a hostile source can take minutes or gigabytes.

    :param source: the bytes of the source, or the path of its file.
    :return: ``names``: names that can be imported or looked up (``Class.field``, ``function(parameter)``, and
        ``name=module:name`` for a name from another module); ``spans``: first and last line of each function;
        ``error``: the type of the exception if the source cannot be parsed.
    """
    content = read_source(source) if isinstance(source, str) else source
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return {"spans": [], "names": [], "error": type(error).__name__}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {"spans": [_span(node) for node in functions], "names": sorted(set(_names(tree.body, ""))), "error": ""}


def _span(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    first = min(item.lineno for item in (node, *node.decorator_list))
    return [first, node.end_lineno or first]


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
        else:  # names that are defined under a condition are included, although they may not exist
            for part in ("body", "orelse", "finalbody"):
                yield from _names(getattr(node, part, []), owner)
