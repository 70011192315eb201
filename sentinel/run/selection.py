"""Select a run's recipes, and reject options that need a target if the user named none."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError, nearest
from sentinel.recipes import SUFFIXES, Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.grades import by_root
from sentinel.reports.store import holds_evidence, require_sound
from sentinel.search.survey import LawJob
from sentinel.settings import Settings
from sentinel.sources import Home
from sentinel.targets import Target

_ID = re.compile(r"laws/(?P<target>[^/]+)/(?P<boundary>[^:\[]+)(?:::(?P<law>\w+)(?:\[(?P<ref>[^\]]+)\])?)?")


def select(catalog: Catalog, settings: Settings) -> list[Recipe]:
    """Return the recipes that the options select, grouped by root cause and with the most severe first.

    Recipes that are named by their paths are loaded at collection.
    """
    recipes: list[Recipe] = []
    if settings.targets or (settings.bugs and not settings.recipes):
        recipes = find_recipes(catalog, settings.targets, settings.bugs)
    elif settings.recipes:
        recipes = find_recipes(replace(catalog, recipe_folders=settings.recipes), (), settings.bugs)
    groups = by_root(recipes, lambda recipe: (recipe.target, recipe.document))
    return [recipe for group in groups for recipe in group]


def require_folders(settings: Settings) -> None:
    """Raise SentinelError if the report folder is not writable or the baseline is not readable."""
    baseline = settings.baseline
    if baseline is not None and not holds_evidence(baseline):
        trouble = "the folder contains no evidence" if os.path.isdir(baseline) else "no such folder"
        raise SentinelError(
            f"--sentinel-baseline={baseline}: {trouble}; `sentinel report accept --to {baseline}` records the last run "
            "there, and a clone of Sentinel has a baseline in reports/"
        )
    if baseline is not None:
        require_sound(baseline, settings.targets)
    for what, folder, advice in (
        ("reports", settings.report_dir, "choose another with --sentinel-report-dir"),
        ("mirrors and checkouts", Home.default().path, "set SENTINEL_HOME to a folder that you can write"),
    ):
        # An existing store may be shared and read-only; this run then only reads it.
        trouble = "" if what != "reports" and folder.is_dir() else why_not_writable(folder)
        if trouble:
            raise SentinelError(f"cannot write {what} to {folder}: {trouble}; {advice}")


def why_not_writable(folder: Path) -> str:
    """Return why a folder is not writable; empty if it is. A missing folder is writable if its nearest parent is."""
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        tempfile.TemporaryFile(dir=place).close()  # creates a file, because os.access always returns True for root
    except OSError as error:
        return f"{place}: {error.strerror}"
    return ""


def require_subject(
    arguments: Sequence[str], options: Mapping[str, Any], settings: Settings, recipes: Sequence[Recipe]
) -> None:
    """Check that the given options apply to some recipe, law or comparison of the run.

    :raises SentinelError: if it has none, or if a ref is given for a target that is not part of the run.
    """
    names = [name for name in ("ref", "repo", "baseline") if options.get(name)]
    laws = any(arg.startswith("laws/") for arg in arguments)
    named = laws or any(Path(arg.partition("::")[0]).suffix in SUFFIXES for arg in arguments)
    if names and not settings.selects_items and not named:
        raise SentinelError(
            f"--sentinel-{names[0]} needs a target: add --sentinel-target=NAME, or the path of a recipe"
        )
    chosen = {*settings.targets, *(recipe.target for recipe in recipes)}
    given = {"ref": settings.named_refs, "repo": settings.trees, "against": settings.named_against}
    for option, values in given.items():
        for name, ref in values if options.get(option) and not named else ():
            if name is not None and name not in chosen:
                raise SentinelError(
                    f"--sentinel-{option}={name}={ref}: {name} is not a target of this run "
                    f"({', '.join(sorted(chosen))}); add --sentinel-target={name}, or leave this ref out"
                )
    has_subject = named or settings.is_gate or any(base is not None for _, base in settings.named_against)
    if settings.targets and not recipes and not has_subject and settings.law_level == "off":
        raise SentinelError(
            f"there is no recipe of {', '.join(settings.targets)}; name a folder of recipes with "
            "--sentinel-recipes=DIR, or search for broken laws with --sentinel-ref=REF"
        )
    if options.get("laws") not in (None, "off") and not settings.targets and not laws:
        raise SentinelError(f"--sentinel-laws={options['laws']} needs a target: add --sentinel-target=NAME")


class LawId:
    """A pytest argument that selects laws, ``laws/TARGET/BOUNDARY`` or ``laws/TARGET/BOUNDARY::LAW[REF]``."""

    def __init__(self, text: str) -> None:
        match = _ID.fullmatch(text)
        if match is None:
            raise SentinelError(
                f"{text!r} is not the id of a law; write laws/TARGET/DOTTED.BOUNDARY::LAW[REF]; "
                "[REF] or ::LAW[REF] may be left out"
            )
        self.target, self.boundary = match["target"], match["boundary"]
        self.law, self.ref = match["law"], match["ref"]

    def explain_nothing(self, target: Target, there: Sequence[LawJob], refs: Sequence[str]) -> str:
        """Return the error message for a law id that selects no item.

        :param there: all laws of the target's boundaries, at any ref.
        :param refs: the refs of this run.
        """
        of_boundary = [job.law for job in there if job.boundary == self.boundary]
        if not of_boundary:
            bound = any(self.boundary in binding.paths for binding in target.bindings)
            what = f"{self.boundary} has no law to check" if bound else target.explain_unbound(self.boundary)
        elif self.law not in (None, *of_boundary):
            what = f"{self.boundary} has no law {self.law!r}{nearest(str(self.law), of_boundary)}"
        else:
            at = f"{self.ref} is not among the refs of this run ({', '.join(refs)})" if refs else "this run has no ref"
            return (
                f"{at}; name a ref at which to search {self.boundary}: --sentinel-ref=git:main, or --sentinel-repo=DIR"
            )
        return f"{what}; `sentinel list boundaries {self.target}` lists boundaries and laws"

    def selects(self, job: LawJob) -> bool:
        return (
            (job.target, job.boundary) == (self.target, self.boundary)
            and self.law in (None, job.law)
            and self.ref in (None, job.ref.short, str(job.ref))
        )
