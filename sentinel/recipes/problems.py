"""Collect the problems of a recipe with their positions in the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sentinel.values.documents import Document, Place


@dataclass(frozen=True)
class Problem:
    """An error or warning about a document, with its position in the file.

    :ivar severity: a recipe with an ``error`` cannot be loaded; a recipe that has only ``warning`` can.
    """

    severity: Literal["error", "warning"]
    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        prefix = "" if self.severity == "error" else "warning: "
        return f"{self.file}:{self.line}:{self.column}: {prefix}{self.message}"


@dataclass
class Findings:
    """Collects the problems of one document."""

    file: str
    document: Document
    problems: list[Problem] = field(default_factory=list)

    def error(self, place: Place, message: str, key: bool = False) -> None:
        """Report an error at a place in the document.

        :param key: True to report the position of the key instead of its value.
        """
        self._add("error", place, message, key)

    def warn(self, place: Place, message: str, key: bool = False) -> None:
        self._add("warning", place, message, key)

    def _add(self, severity: Literal["error", "warning"], place: Place, message: str, key: bool) -> None:
        line, column = self.document.at(place, key)
        problem = Problem(severity, self.file, line, column, message)
        if problem not in self.problems:
            self.problems.append(problem)

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "warning"]


def describe(value: Any) -> str:
    """Describe a value for an error message: its type, and at most 60 characters of its text."""
    if value is None:
        return "null"
    for kind, name in ((bool, "the boolean"), (int, "the number"), (float, "the number"), (str, "the string")):
        if isinstance(value, kind):
            text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
            return f"{name} {text if len(text) <= 60 else text[:57] + '...'}"
    return "a list" if isinstance(value, list) else "a mapping"


def shown(path: Path) -> str:
    """Format a path for a message: relative to the current folder if it is in this folder, otherwise unchanged."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
