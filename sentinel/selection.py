"""What a run is about: which recipes were asked for, and whether the request makes sense."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sentinel.catalog import Catalog
from sentinel.errors import SentinelError
from sentinel.recipes import SUFFIXES, Recipe, find_recipes
from sentinel.settings import Settings, nearest


def select(catalog: Catalog, settings: Settings) -> list[Recipe]:
    """The recipes that the options ask for; none where paths alone do.

    :raises SentinelError: where a pattern selects nothing.
    """
    selected: list[Recipe] = []
    if settings.targets or (settings.bugs and not settings.recipes):
        selected = find_recipes(catalog, settings.targets, settings.bugs)
    elif settings.recipes:
        selected = find_recipes(replace(catalog, recipe_folders=settings.recipes), (), settings.bugs)
    _require_bugs(settings, catalog, selected)
    return selected


def require_report_folder(folder: Path) -> None:
    """Say at once, and not after everything was decided, that nothing can be written there."""
    place = folder
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        why = "is not writable" if place.is_dir() else "is not a folder"
        raise SentinelError(
            f"cannot write reports to {folder}: {place} {why}; choose another with --sentinel-report-dir"
        )


def require_subject(arguments: Sequence[str], given: Mapping[str, Any], settings: Settings) -> None:
    """A ref or a baseline says how to judge; having nothing to judge must not pass in silence."""
    names = [name for name in ("ref", "repo", "baseline") if given.get(name)]
    laws = any(arg.startswith("laws/") for arg in arguments)
    named = laws or any(Path(arg.partition("::")[0]).suffix in SUFFIXES for arg in arguments)
    if names and not settings.asked and not named:
        raise SentinelError(
            f"--sentinel-{names[0]} needs to know of what: add --sentinel-target=NAME, or the path of a recipe"
        )
    if given.get("laws") not in (None, "off") and not settings.targets and not laws:
        raise SentinelError(f"--sentinel-laws={given['laws']} needs to know of what: add --sentinel-target=NAME")


def _require_bugs(settings: Settings, catalog: Catalog, selected: Sequence[Recipe]) -> None:
    """Every ``--sentinel-bug`` pattern must select something: a typo must not look like a success."""
    ids = [recipe.bug_id for recipe in selected]
    for pattern in settings.bugs:
        if not any(fnmatchcase(bug_id, pattern) for bug_id in ids):
            known = [r.bug_id for r in find_recipes(catalog, settings.targets, ())]
            listing = (
                f"; the recipes there are {', '.join(known)}" if len(known) <= 20 else "; see `sentinel list recipes`"
            )
            raise SentinelError(f"no recipe matches --sentinel-bug={pattern}{nearest(pattern, known)}{listing}")
