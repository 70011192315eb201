"""Check recipe files for errors and possible improvements (``sentinel recipe check``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sentinel.errors import nearest
from sentinel.recipes import Recipe, duplicate
from sentinel.recipes.affects import in_text
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.problems import Findings, Problem, shown
from sentinel.recipes.rules import examine
from sentinel.recipes.template import TODO
from sentinel.values.documents import DocumentError, Place, read


def _check(path: Path, catalog: Catalog) -> tuple[Recipe | None, list[Problem]]:
    """Return the recipe of a file (None if it has errors), and all errors and warnings."""
    recipe, problems = examine(path, catalog)
    try:
        findings = Findings(shown(path), read(path))
    except DocumentError:  # it is already reported as a problem
        return recipe, problems
    if recipe is None or not recipe.published:
        for place in _find_todos(findings.document.data):
            findings.error(place, f"still contains the placeholder {TODO}")
    if recipe is None:
        lines = {problem.line for problem in findings.problems}
        return None, [*findings.problems, *(problem for problem in problems if problem.line not in lines)]
    if recipe.published:
        return recipe, problems
    if path.stem != recipe.bug_id:
        findings.warn(("bug_id",), f"name the file {recipe.bug_id}{path.suffix}, like its bug id")
    if not recipe.pins:
        findings.warn((), "no pins: a run without --sentinel-ref checks nothing; add refs with expected verdicts")
    if not recipe.title or recipe.title == recipe.bug_id:
        findings.warn((), "no title: describe the bug in one line")
    for place, message in _unknown_choices(recipe, catalog):
        findings.warn(place, message)
    for message in _missing_knobs(recipe, catalog):
        findings.error(("scenario",), message, key=True)
    return recipe, [*problems, *findings.problems]


def _unknown_choices(recipe: Recipe, catalog: Catalog) -> Iterator[tuple[Place, str]]:
    """Yield place and message for each option with a string that may be a typo, because neither the contract nor the
    binding declares it."""
    contract = catalog.contracts[recipe.contract]
    binding = catalog.targets[recipe.target].binding(recipe.boundary, recipe.contract)
    accepts, fixed = (binding.accepts, binding.fixed) if binding else ({}, {})
    knobs = [item for item in contract.inputs if item.kind == "string" and item.knob]
    choices = {item.name: {*item.choices, *accepts.get(item.name, ()), fixed.get(item.name)} for item in knobs}
    for step in ("scenario", "variants"):
        written = recipe.document.get(step) or {}
        for place, inputs in (
            [((step,), written)] if step == "scenario" else [((step, k), v) for k, v in written.items()]
        ):
            for name in choices.keys() & (inputs or {}).keys():
                value = inputs[name]
                if isinstance(value, str) and value not in choices[name]:
                    near = nearest(value, filter(None, choices[name]), "the choices are")
                    yield (*place, name), f"{contract.name} has no {name} {value!r}{near}"


def _missing_knobs(recipe: Recipe, catalog: Catalog) -> Iterator[str]:
    """Yield a message for each option that the boundary needs and that is null, because the recipe omits it."""
    binding = catalog.targets[recipe.target].binding(recipe.boundary, recipe.contract)
    if binding is None:
        return
    for item in catalog.contracts[recipe.contract].inputs:
        choices = binding.accepts.get(item.name, ()) if item.knob and item.name not in binding.fixed else ()
        if choices and None not in choices and item.default is None and item.name in recipe.defaulted:
            yield (
                f"{recipe.boundary} needs {item.name}, which is null by default: add it to the scenario, such as "
                f"{item.name}: {in_text(choices[0])}"
            )


def _find_todos(value: Any, place: Place = ()) -> Iterator[Place]:
    if isinstance(value, str) and value.startswith((TODO, f"git:{TODO}")):
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        yield from _find_todos(item, (*place, step))


def check_files(paths: Iterable[Path], catalog: Catalog) -> list[Problem]:
    """Return the problems of recipe files. A bug id that two files have is a problem, too."""
    problems: list[Problem] = []
    files: dict[str, Path] = {}
    for path in paths:
        recipe, more = _check(path, catalog)
        problems += more
        if recipe is not None and (first := files.setdefault(recipe.bug_id.casefold(), path)) != path:
            problems.append(duplicate(first, recipe))
    return problems
