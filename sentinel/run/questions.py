"""Select a run's recipes, laws and refs from its settings and pytest's arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sentinel.deciding.runner import Job
from sentinel.errors import RecipeError, SentinelError
from sentinel.recipes import SUFFIXES, Recipe, adopt_pins, duplicate, find_recipes, load_recipe
from sentinel.recipes.catalog import Catalog, bundled, bundled_catalog
from sentinel.run.selection import LawId
from sentinel.settings import Settings
from sentinel.targets.refs import Ref

#: A folder without tests. pytest gets it as an argument, because without arguments it would collect the user's tests.
_NOTHING = Path(__file__).resolve().parent.parent / "schemas"


class Questions:
    """The recipes and laws that a run selects.

    :ivar recipes: file -> recipe, for the recipes that options select and those that pytest collected.
    :ivar law_ids: the laws that pytest's arguments name.
    :ivar is_restricted: True if arguments name recipes or laws. The run then has only these.
    :ivar invited: the recipe files of this run, from arguments or from the catalog.
    """

    def __init__(self, config: pytest.Config, settings: Settings, catalog: Catalog, recipes: Sequence[Recipe]) -> None:
        self._config = config
        self._settings = settings
        self._catalog = catalog
        self._of_target: dict[str, list[Recipe]] = {}
        self.recipes = {recipe.path.resolve(): recipe for recipe in recipes}
        self.law_ids: list[LawId] = []
        self.is_restricted = False
        self.invited: list[Path] = []

    @property
    def has_laws(self) -> bool:
        return self._settings.law_level != "off" and bool(self._settings.targets) and not self.is_restricted

    # -- pytest's arguments -------------------------------------------------------------------------------------------

    def read_arguments(self, options: Mapping[str, Any]) -> None:
        """Read law ids from pytest's arguments, and replace ``recipes/…`` by paths of bundled recipe files."""
        config = self._config
        self.law_ids = [LawId(arg) for arg in config.args if arg.startswith("laws/") and not self._exists(arg)]
        config.args[:] = [
            self._bundled_id(arg) for arg in config.args if not arg.startswith("laws/") or self._exists(arg)
        ]
        # Only options of the command line replace pytest's arguments. Settings in a file must not keep a project's own
        # tests from running.
        alone = any(options.get(name) for name in ("target", "bug", "recipes"))
        ours = self._settings.selects_items and alone and not config.option.file_or_dir
        selected = [recipe.path for recipe in self.recipes.values()]
        if ours or (not config.args and (self.law_ids or self.has_laws)):
            config.args[:] = [str(_NOTHING)]  # without any argument, pytest would collect the user's tests
        self._require_refs()
        files = [Path(arg) for arg in config.args if Path(arg.partition("::")[0]).suffix in SUFFIXES]
        self.is_restricted = bool(self.law_ids or files) and bool(config.option.file_or_dir)
        files = [file for file in files if file.suffix in SUFFIXES]
        self.invited = list(dict.fromkeys([*files, *(() if self.is_restricted else selected)]))

    def _require_refs(self) -> None:
        """Check the refs that pytest's arguments name, as in ``FILE.yaml::REF``.

        :raises SentinelError: if an item id names a ref that is not among its recipe's refs in this run.
        """
        for argument in self._config.args:
            path, separator, ref = argument.partition("::")
            file = Path(path)
            if separator and file.suffix in SUFFIXES and file.is_file():
                try:
                    recipe = self.recipes.get(file.resolve()) or self.load(file)
                    refs = [job.ref.short for job in self.jobs(recipe)]
                except SentinelError:
                    continue  # collection of the file reports the error
                if ref not in refs:
                    raise SentinelError(
                        f"not found: {argument}; the refs of this recipe are {', '.join(refs)}; name other refs with "
                        "--sentinel-ref"
                    )

    def _exists(self, arg: str) -> bool:
        return (self._config.invocation_params.dir / arg.partition("::")[0]).exists()

    def _bundled_id(self, arg: str) -> str:
        """Replace ``recipes/…`` in a pytest argument by the path of the bundled recipe, if that exists."""
        path, separator, rest = arg.partition("::")
        if path.startswith("recipes/") and not (self._config.invocation_params.dir / path).exists():
            place = bundled("recipes") / path.removeprefix("recipes/")
            if not place.resolve().is_relative_to(bundled("recipes").resolve()):
                return arg
            if place.is_file():
                return f"{place}{separator}{rest}"
        return arg

    def load_arguments(self) -> list[Recipe]:
        """Load the recipes that pytest's arguments name, and return all recipes of this run. This is called before
        collection."""
        recipes = list(self.recipes.values())
        for file in (Path(arg.partition("::")[0]) for arg in self._config.args):
            with suppress(SentinelError):  # collection of the file reports the error
                if file.suffix in SUFFIXES and file.is_file() and file.resolve() not in self.recipes:
                    recipes.append(self.load(file))
        return recipes

    # -- recipes ------------------------------------------------------------------------------------------------------

    def load(self, path: Path) -> Recipe:
        """Load a recipe file and return its recipe, which becomes a part of this run.

        :raises RecipeError: if another recipe of this run has the same bug id, because both would write the same
            evidence.
        """
        recipe = load_recipe(path, self._catalog)
        for place, other in self.recipes.items():
            if place != path.resolve() and other.bug_id.casefold() == recipe.bug_id.casefold():
                raise RecipeError(str(duplicate(other.path, recipe)))
        self.recipes[path.resolve()] = recipe
        return recipe

    def recipes_of(self, target: str) -> list[Recipe]:
        """Return every recipe of a target, including those that this run does not select."""
        if target not in self._of_target:
            self._of_target[target] = find_recipes(self._catalog, (target,), ())
        return self._of_target[target]

    def jobs(self, recipe: Recipe) -> list[Job]:
        """Return one job for each ref at which this run checks the recipe."""
        refs = list(self._settings.refs_of(recipe.target))
        if refs:
            return [Job(recipe, ref) for ref in refs]
        if recipe.published:
            repository = os.environ.get("TARGET_REPO")
            if repository:
                return [Job(recipe, Ref("path", os.path.abspath(repository)))]
            recipe = adopt_pins(recipe, {r.bug_id: r for r in find_recipes(bundled_catalog(), (recipe.target,), ())})
        jobs = [Job(recipe, pin.ref, pin.expect) for pin in recipe.pins]
        if self._settings.baseline is not None:
            jobs += [Job(recipe, ref) for ref in recipe.watch]
        if not jobs:
            raise SentinelError(
                f"{recipe.path.name}: {recipe.bug_id} has no pins; name a ref (--sentinel-ref=git:main, "
                "--sentinel-repo=DIR, or TARGET_REPO in the environment)"
            )
        return jobs

    # -- laws ---------------------------------------------------------------------------------------------------------

    def law_refs(self, target: str) -> list[Ref]:
        """Return the refs at which laws are checked: the settings' refs, or the pins of the target's recipes."""
        refs = list(self._settings.refs_of(target))
        if refs:
            return refs
        pins = list(dict.fromkeys(pin.ref for recipe in self.recipes_of(target) for pin in recipe.pins))
        there = {text for pin in pins for text in (pin.short, str(pin))}
        texts = dict.fromkeys(i.ref for i in self.law_ids if i.target == target and i.ref)
        return [*pins, *(Ref.parse(text) for text in texts if text not in there)]
