"""Where the code came from with which a history begins: written in that commit, or moved there from elsewhere.

Before the first commit at which a boundary is found there is nothing to probe, and that says nothing about the bug: the
code may have stood under another name. So it is counted how often the lines of its definition stand in any Python file
of the commit and of the one before. (``git blame -C -C -C`` takes a copy for a move, and reads every blob; mirrors are
without large ones.)
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

#: Lines in a row that are looked for together, and the letters and digits among them: ``return loss`` alone stands in
#: many places. The number is git's own threshold for a line that was moved between files.
_ROW = 3
_LETTERS = 40
_OTHER = bytes(byte for byte in range(256) if not chr(byte).isalnum())


@dataclass(frozen=True)
class Origin:
    """Of a boundary's definition at the commit at which it is first decided.

    :ivar lines: how many lines with something on them it has.
    :ivar older: how many of them stood somewhere before, and no longer do so there: they were moved, or their function
        was given another name. What was copied, and still stands where it came from, is not older.
    """

    lines: int
    older: int


def origin(trees: GitTrees, entry: ClosureVerdict, tree: str, before: str) -> Origin | None:
    """Say where the definition that was probed came from.

    :param tree, before: the trees of its commit and of the commit before.
    :raises MissingObjectError: where the mirror lacks a source file.
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
    """Give the lines with something on them, without their indentation."""
    return [line.strip() for line in source.splitlines() if line.strip()]


def rows(lines: Sequence[bytes]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Give each three lines in a row that say enough to be looked for, with the place of the first."""
    letters = [len(line.translate(None, _OTHER)) for line in lines]
    for n in range(len(lines) - _ROW + 1):
        if sum(letters[n : n + _ROW]) >= _LETTERS:
            yield n, tuple(lines[n : n + _ROW])


def _end(source: bytes, line: int) -> int | None:
    """Give the last line of the definition that begins, with its decorators, on a line."""
    try:
        tree = syntax_of(source)
    except SyntaxError:
        return None
    definitions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    begun = (n for n in definitions if line == min([n.lineno, *(decorator.lineno for decorator in n.decorator_list)]))
    return next((node.end_lineno for node in begun), None)
