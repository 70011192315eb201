"""Where the code came from with which a history begins: written in that commit, or moved there from elsewhere.

Before the first commit at which a boundary is found there is nothing to probe, and that says nothing about the bug: the
code may have stood under another name. ``git blame -C -C -C`` finds lines that were copied or moved from any file.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from sentinel.history.commits import Commit
from sentinel.history.units import Unit
from sentinel.sources.gitbinary import run


@dataclass(frozen=True)
class Origin:
    """Of a boundary's definition at the commit at which it is first decided.

    :ivar lines: how many lines with something on them it has.
    :ivar older: how many of them the commit before has already, in whatever file.
    """

    lines: int
    older: int


def origin(mirror: Path, commit: Commit, unit: Unit) -> Origin | None:
    """Where the definition that was probed came from.

    :returns: None where the mirror does not tell: the commit has no parent, or an object is missing.
    """
    if not (commit.parents and unit.file and unit.line):
        return None
    shown = run(mirror, "show", f"{commit.sha}:{unit.file}")
    end = _end(shown.out, unit.line) if shown.status == 0 else None
    if end is None:
        return None
    span = f"{commit.parents[0]}..{commit.sha}"
    blamed = run(mirror, "blame", "-s", "-C", "-C", "-C", "-L", f"{unit.line},{end}", span, "--", unit.file)
    if blamed.status:
        return None
    lines = [line for line in blamed.out.splitlines() if line.partition(b")")[2].strip()]
    return Origin(len(lines), sum(line.startswith(b"^") for line in lines))


def _end(source: bytes, line: int) -> int | None:
    """The last line of the definition that begins, with its decorators, on a line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    definitions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    begun = (n for n in definitions if line == min([n.lineno, *(decorator.lineno for decorator in n.decorator_list)]))
    return next((node.end_lineno for node in begun), None)
