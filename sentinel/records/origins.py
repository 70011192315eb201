"""Determine whether the first commit of a history wrote the buggy code, or moved it from another file.

Before the first commit that has a boundary, there is nothing to probe, but the boundary's code may have existed under
another name. Therefore the lines of its definition are searched in all Python files of that commit and of its parent.
``git blame -C -C -C`` cannot be used: it treats a copy as a move, and it reads every blob, although mirrors lack large
ones.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.search.bindings import syntax_of
from sentinel.sources.gittrees import TREE, GitTrees
from sentinel.sources.trees import FILE

#: The number of consecutive lines that are searched together, and the minimum number of letters and digits in them.
#: Single lines such as ``return loss`` occur in many places. 40 is git's threshold for lines moved between files.
_ROW = 3
_LETTERS = 40
_OTHER = bytes(byte for byte in range(256) if not chr(byte).isalnum())


@dataclass(frozen=True)
class Origin:
    """How much of a function's code is older than the first commit with a conclusive verdict.

    :ivar lines: the number of non-blank lines of the code.
    :ivar older: the number of these lines that the commit moved: the parent had them, and the commit removed them
        there. Copied lines do not count.
    """

    lines: int
    older: int


def origin(trees: GitTrees, entry: ClosureVerdict, tree: str, before: str) -> Origin | None:
    """Return the origin of the code that a probe called, or None if its definition cannot be found.

    :param entry: the verdict, which names the definition's file and line.
    :param tree: the git tree of the commit that was probed.
    :param before: the git tree of its parent.
    :raises MissingObjectError: if the mirror lacks a source file.
    """
    entry_there = trees.at(tree, entry.file) if entry.file and entry.line else None
    source = trees.blob(entry_there[1]) if entry_there is not None else b""
    end = _end(source, entry.line)
    if end is None:
        return None
    lines = code_lines(b"\n".join(source.splitlines()[entry.line - 1 : end]))
    now, then = Counter(_sources(trees, tree)), Counter(_sources(trees, before))
    more: Counter[tuple[bytes, ...]] = Counter()
    for name, times in (now - then).items():
        more.update(row for _, row in rows(code_lines(trees.blob(name))) for _ in range(times))
    for name, times in (then - now).items():
        more.subtract(row for _, row in rows(code_lines(trees.blob(name))) for _ in range(times))
    older = {n + k for n, row in rows(lines) if more[row] <= 0 for k in range(_ROW)}
    return Origin(len(lines), len(older))


def _sources(trees: GitTrees, tree: str) -> Iterator[str]:
    for name, (mode, blob) in trees.folder(tree).items():
        if mode == TREE:
            yield from _sources(trees, blob)
        elif mode == FILE and name.endswith(".py"):
            yield blob


def code_lines(source: bytes) -> list[bytes]:
    """Return a source file's lines without indentation. Blank lines are left out."""
    return [line.strip() for line in source.splitlines() if line.strip()]


def rows(lines: Sequence[bytes]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Yield each run of three consecutive lines that is distinctive enough for a search, with the index of its first
    line."""
    letters = [len(line.translate(None, _OTHER)) for line in lines]
    for n in range(len(lines) - _ROW + 1):
        if sum(letters[n : n + _ROW]) >= _LETTERS:
            yield n, tuple(lines[n : n + _ROW])


def _end(source: bytes, line: int) -> int | None:
    """Return the last line of the definition that begins, with its decorators, at ``line``. Return None if none begins
    there."""
    try:
        tree = syntax_of(source)
    except SyntaxError:
        return None
    definitions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    begun = (n for n in definitions if line == min([n.lineno, *(decorator.lineno for decorator in n.decorator_list)]))
    return next((node.end_lineno for node in begun), None)
