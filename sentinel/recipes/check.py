"""The lint of recipe files: ``sentinel recipe check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.recipes.core_schema import Place
from sentinel.recipes.findings import Findings, Problem, shown
from sentinel.recipes.reading import examine
from sentinel.recipes.template import TODO
from sentinel.recipes.yamldoc import read

if TYPE_CHECKING:
    from sentinel.recipes.catalog import Catalog


def check(path: Path, catalog: Catalog) -> list[Problem]:
    """Everything that is wrong with a file, and what could be better; nothing where it is a good recipe."""
    recipe, problems = examine(path, catalog)
    if recipe is None or recipe.published:
        return problems
    findings = Findings(shown(path), read(path))
    if path.stem != recipe.bug_id:
        findings.warn(("bug_id",), f"the file of {recipe.bug_id} is best called {recipe.bug_id}{path.suffix}")
    if not recipe.pins:
        findings.warn((), "no pins: a plain run has nothing to decide; add refs with the verdict each must give")
    if not recipe.title or recipe.title == recipe.bug_id:
        findings.warn((), "no title: say the bug in one line")
    for place in _unfinished(findings.document.data):
        findings.error(place, f"still says {TODO}")
    return [*problems, *findings.problems]


def _unfinished(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where a template was not filled in."""
    if isinstance(value, str) and value.startswith(TODO):
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        yield from _unfinished(item, (*place, step))


def check_files(paths: Iterable[Path], catalog: Catalog) -> list[Problem]:
    """As :func:`check` for several files, and that no two have one bug id."""
    problems: list[Problem] = []
    seen: dict[str, Path] = {}
    for path in paths:
        problems += check(path, catalog)
        recipe, _ = examine(path, catalog)
        if recipe is None:
            continue
        first = seen.setdefault(recipe.bug_id.casefold(), path)
        if first != path:
            line, column = read(path).at(("bug_id",))
            message = f"duplicate bug id {recipe.bug_id!r}; it is also in {shown(first)}"
            problems.append(Problem("error", shown(path), line, column, message))
    return problems
