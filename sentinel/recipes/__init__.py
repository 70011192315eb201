"""Read, check and normalise recipes, which are YAML or JSON files that each describe one known bug."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.errors import NothingExamined, RecipeError, SentinelError, nearest
from sentinel.recipes.addresses import Address, AddressError, parse_address
from sentinel.recipes.recipe import Expected, Pin, Recipe
from sentinel.values.tolerance import Tolerance

if TYPE_CHECKING:
    from sentinel.recipes.catalog import Catalog
    from sentinel.recipes.problems import Problem

__all__ = [
    "Address",
    "AddressError",
    "Expected",
    "Pin",
    "Recipe",
    "Tolerance",
    "adopt_pins",
    "duplicate",
    "find_recipes",
    "load_recipe",
    "parse_address",
    "recipe_files",
]

#: Suffixes of files that may be recipes.
SUFFIXES = (".yaml", ".yml", ".json")


# The code for YAML, JSON Schema and tensors is imported only when a recipe is loaded, so that pytest runs without
# Sentinel do not become slower.


def load_recipe(path: Path, catalog: Catalog) -> Recipe:
    """Load one recipe from its file.

    :raises RecipeError: with one line for each problem: ``file:line:column: message``.
    """
    from sentinel.recipes.rules import examine

    recipe, problems = examine(Path(path), catalog)
    if recipe is None:
        raise RecipeError("\n".join(str(problem) for problem in problems if problem.severity == "error"))
    return recipe


def load_copy(document: Mapping[str, Any], catalog: Catalog) -> Recipe:
    """Load a recipe from its copy in an evidence document."""
    with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
        file = Path(folder) / "recipe.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        try:
            return load_recipe(file, catalog)
        except RecipeError as error:
            raise RecipeError(str(error).replace(str(file), "the recipe in the evidence")) from None


def recipe_files(folder: Path) -> list[Path]:
    """Return the files below a folder that may be recipes. Hidden folders and links to folders are skipped."""
    if not folder.is_dir():
        raise SentinelError(f"{folder}: no such folder")
    return sorted(_files_below(folder))


def _files_below(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.is_symlink():
                yield from _files_below(entry)
        elif entry.suffix.lower() in SUFFIXES and not entry.name.endswith(".fix.yaml"):  # see recipes.fixes
            yield entry


def find_recipes(catalog: Catalog, targets: Iterable[str] = (), bug_globs: Iterable[str] = ()) -> list[Recipe]:
    """Load the recipes in the catalog's folders, sorted by target and bug id.

    A published JSON recipe replaces the bundled recipe with the same bug id, and takes over its pins.

    :param targets: target names; empty for all.
    :param bug_globs: globs over bug ids; empty for all.
    :raises NothingExamined: if a glob matches no bug id.
    """
    from sentinel.recipes.catalog import bundled

    wanted, globs, by_name = set(targets), list(bug_globs), catalog.targets
    for name in sorted(wanted - by_name.keys()):
        raise SentinelError(f"unknown target {name!r}{nearest(name, by_name, 'the targets are')}")
    files: dict[Path, Path] = {}
    for folder in dict.fromkeys(catalog.recipe_folders):
        if folder == bundled("recipes") and not folder.is_dir():
            continue
        for path in recipe_files(folder):
            home = path.relative_to(folder).parts[0]
            # <folder>/<target>/<BUG-ID>.yaml: folders of other targets are not read
            if not wanted or home in wanted or home not in by_name:
                files.setdefault(path.resolve(), path)
    recipes = _distinct(_load_all(files.values(), catalog))
    recipes = sorted(
        (item for item in recipes if not wanted or item.target in wanted), key=lambda item: (item.target, item.bug_id)
    )
    for glob in globs:
        if not any(_matches(item, glob) for item in recipes):
            raise NothingExamined(_explain_no_match(glob, recipes, _every(catalog) if wanted else recipes))
    return [item for item in recipes if not globs or any(_matches(item, glob) for glob in globs)]


def _every(catalog: Catalog) -> list[Recipe]:
    """Return the recipes of all targets, or none if any of them cannot be loaded. Used only for an error message."""
    try:
        return find_recipes(catalog)
    except SentinelError:
        return []


def _matches(recipe: Recipe, glob: str) -> bool:
    return fnmatchcase(recipe.bug_id.casefold(), glob.casefold())


def _explain_no_match(glob: str, recipes: Collection[Recipe], every: Collection[Recipe]) -> str:
    others = sorted({item.target for item in every if _matches(item, glob)})
    if others:
        wanted = ", ".join(sorted({item.target for item in recipes})) or "the given targets"
        return f"no recipe of {wanted} matches {glob!r}; {', '.join(others)} has it"
    close = nearest(glob, [item.bug_id for item in recipes])
    return f"no recipe matches {glob!r}{close or '; `sentinel list recipes` lists all'}"


def _load_all(files: Iterable[Path], catalog: Catalog) -> list[Recipe]:
    from sentinel.recipes.rules import examine_document, read_or_problem

    recipes: list[Recipe] = []
    errors: list[str] = []
    for path in files:
        document, problem = read_or_problem(path)
        if document is None:
            errors.append(str(problem))
            continue
        if path.suffix.lower() == ".json" and not (
            isinstance(document.data, dict) and document.data.keys() & {"recipe_version", "validation_mode"}
        ):
            continue
        recipe, problems = examine_document(document, path, catalog)
        errors += [str(item) for item in problems if item.severity == "error"]
        if recipe is not None:
            recipes.append(recipe)
    if errors:
        raise RecipeError("\n".join(errors))
    return recipes


def _distinct(recipes: list[Recipe]) -> list[Recipe]:
    """Return one recipe per bug id. The published format takes precedence over Sentinel's own."""
    by_id: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        by_id.setdefault(recipe.bug_id.casefold(), []).append(recipe)
    errors = []
    distinct = []
    for same in by_id.values():
        published = [recipe for recipe in same if recipe.published]
        native = [recipe for recipe in same if not recipe.published]
        if len(published) > 1 or len(native) > 1:
            first, second = (published if len(published) > 1 else native)[:2]
            errors.append(str(duplicate(first.path, second)))
        elif published and native:
            distinct.append(adopt_pins(published[0], {native[0].bug_id: native[0]}))
        else:
            distinct.append(same[0])
    if errors:
        raise RecipeError("\n".join(errors))
    return distinct


def duplicate(first: Path, second: Recipe) -> Problem:
    """Return the error for a second file with the same bug id."""
    from sentinel.recipes.problems import Problem, shown
    from sentinel.values.documents import read

    line, column = read(second.path).at(("bug_id",))
    message = f"duplicate bug id {second.bug_id!r}; it is also in {shown(first)}"
    return Problem("error", shown(second.path), line, column, message)


def adopt_pins(recipe: Recipe, bundled: Mapping[str, Recipe]) -> Recipe:
    """If a recipe has no pins, return it with the pins of the bundled recipe with the same bug id. Missing ``watch``
    and ``upstream`` are taken too."""
    other = bundled.get(recipe.bug_id)
    if other is None or other.target != recipe.target or recipe.pins:
        return recipe
    return replace(
        recipe, pins=other.pins, watch=recipe.watch or other.watch, upstream=recipe.upstream or other.upstream
    )
