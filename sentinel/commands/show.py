"""Implement ``sentinel show``, which prints a known bug with its story, scenario, expected values and verdicts."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentinel
from sentinel.commands.console import Commands, command, echo, echo_table
from sentinel.commands.evidence import evidence_of
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.errors import SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.affects import settings_in_words
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.grades import describe_reach, realism, root
from sentinel.reports.escaping import paragraphs
from sentinel.reports.explain import row_cells, scenario_lines
from sentinel.reports.store import holds_evidence
from sentinel.settings import Settings

GROUP = "begin"
SUMMARY = "show a known bug: story, scenario, values, verdicts"

_EXAMPLE = """\
  sentinel show ROLL-AGGLOSS-TOKENMEAN-MASK
  sentinel show 'VERL-REJECTED-ROW-*'          a pattern
  sentinel show 6452                           upstream's pull request or issue
  sentinel show MY-BUG --recipes my-recipes    your own recipe
"""
_WIDTH = 100


def declare(commands: Commands) -> None:
    parser = command(commands, "show", _show, SUMMARY, _EXAMPLE)
    parser.add_argument(
        "bug",
        metavar="BUG",
        help="a bug id, a pattern with *, or the number of a pull request or issue; see `sentinel list recipes`",
    )
    settings_options(parser, "recipes")


def _show(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    folders = _report_folders(settings)
    number = arguments.bug.removeprefix("#")
    by_number = number.isascii() and number.isdigit()
    found = _of_number(catalog, number) if by_number else find_recipes(catalog, (), [arguments.bug])
    if by_number and len(found) > 1:
        echo(f"{len(found)} recipes are about #{number}; name one of them")
        echo_table(("bug", "target", "title"), [(recipe.bug_id, recipe.target, recipe.title) for recipe in found])
        return 0
    for index, recipe in enumerate(found):
        if index:
            echo("")
        _head(recipe)
        _scenario(recipe)
        _expectations(recipe)
        _pins(recipe, _verdicts(recipe, folders))
    return 0


def _of_number(catalog: Catalog, number: str) -> list[Recipe]:
    """Return the recipes about the upstream pull request with this number. If there are none, return those about the
    issue."""
    recipes = find_recipes(catalog)
    for kind in ("pull", "issue"):
        found = [recipe for recipe in recipes if str(recipe.upstream.get(kind, "")) == number]
        if found:
            return found
    raise SentinelError(f"no recipe is about pull request or issue #{number}; see `sentinel list recipes`")


def _report_folders(settings: Settings) -> dict[str, Path]:
    committed = [settings.baseline or Path("reports"), Path(sentinel.__file__).resolve().parent.parent / "reports"]
    baseline = next((folder for folder in committed if holds_evidence(folder)), None)
    folders = {str(settings.report_dir): settings.report_dir, "baseline": baseline}
    return {name: folder for name, folder in folders.items() if folder is not None and folder.is_dir()}


def _head(recipe: Recipe) -> None:
    echo(recipe.bug_id)
    echo(recipe.title)
    facts = {
        "target": recipe.target,
        "boundary": recipe.boundary,
        "contract": recipe.contract,
        "law": ", ".join(recipe.laws),
        "requires": ", ".join(recipe.requires),
        "upstream": _upstream(recipe.upstream),
        "severity": ", ".join(filter(None, [str(recipe.document.get("severity") or ""), realism(recipe.document)])),
        "root": root(recipe.document),
        "reach": describe_reach(recipe.document),
        "affects": "; ".join(map(str, recipe.affects)),
        "until": settings_in_words(recipe.until),
        "file": str(recipe.path),
    }
    echo("")
    for name, value in facts.items():
        if value:
            echo(f"  {name:<9} {value}")
    for paragraph in paragraphs(recipe.story):
        echo("\n" + textwrap.fill(paragraph, _WIDTH, initial_indent="  ", subsequent_indent="  "))


def _upstream(upstream: Mapping[str, Any]) -> str:
    numbers = [f"{name} #{upstream[name]}" for name in ("pull", "issue") if name in upstream]
    return ", ".join([*numbers, *(str(upstream[name]) for name in ("status", "url") if name in upstream)])


def _scenario(recipe: Recipe) -> None:
    echo("\nscenario")
    for line in scenario_lines(recipe.document):
        echo(f"  {line}")
    if recipe.defaulted:
        text = f"by default: {', '.join(recipe.defaulted)}"
        echo(textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  "))


def _expectations(recipe: Recipe) -> None:
    keys = list(dict.fromkeys([*recipe.expected_unpatched, *recipe.expected_fixed]))
    if not keys:
        echo(f"\nexpected: the law {recipe.invariant} holds")
        return
    echo("")
    sides = (recipe.expected_unpatched, recipe.expected_fixed)
    rows = [(key, *row_cells(*(side[key].value if key in side else ... for side in sides))) for key in keys]
    echo_table(("expected", "unpatched", "fixed"), rows)


def _verdicts(recipe: Recipe, folders: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Return the recorded verdicts as ref -> name of the report folder -> verdict."""
    verdicts: dict[str, dict[str, str]] = {}
    for name, folder in folders.items():
        for document in evidence_of(recipe, folder):
            kind = f" ({document['kind']})" if document["kind"] else ""
            verdicts.setdefault(str(document["ref"]), {})[name] = f"{document['verdict']}{kind}"
    return verdicts


def _pins(recipe: Recipe, verdicts: Mapping[str, Mapping[str, str]]) -> None:
    places = list(dict.fromkeys(name for recorded in verdicts.values() for name in recorded))
    expected = {str(pin.ref): (pin.expect, pin.note) for pin in recipe.pins}
    watched = {str(ref): ("", "watched") for ref in recipe.watch}
    others = dict.fromkeys(verdicts, ("", ""))
    rows = []
    for ref, (expect, note) in {**others, **watched, **expected}.items():
        rows.append((ref, expect, *(verdicts.get(ref, {}).get(place, "") for place in places), note))
    order = [*expected, *watched, *others]
    rows.sort(key=lambda row: order.index(row[0]))
    if rows:
        echo("")
        echo_table(("ref", "expected", *places, "note"), rows)
    else:
        echo("\nno pins and no verdicts yet")
