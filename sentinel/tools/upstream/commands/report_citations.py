"""Implement ``sentinel report citations``: resolve all pull requests and hashes that recipes, fixes and pages cite."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from sentinel.commands.console import Commands, command, counted, echo, echo_json, echo_table, json_option
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.sources import MirrorStore
from sentinel.tools.upstream.citations import Citation, Numbers, citations

_EXAMPLE = """\
  sentinel report citations                            recipes, fixes, and the pages under findings/
  sentinel report citations --target trl --titles      with the title of each cited commit and pull request

Reads only mirrors, which have every pull request but no issues. Cited issues are therefore listed for you to look up.
exit status: 0 every other citation resolves, 1 a citation does not resolve, 2 there is no mirror
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "citations", _citations, "resolve every cited pull request and hash", _EXAMPLE)
    parser.add_argument("--target", metavar="TARGET", action="append", help="only this target (repeatable)")
    parser.add_argument("--pages", metavar="DIR", type=Path, default=Path("findings"), help="default: findings")
    parser.add_argument("--titles", action="store_true", help="print the title of each citation")
    settings_options(parser, "recipes")
    json_option(parser)


def _citations(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings(arguments)
    store = MirrorStore()
    if unknown := {*(arguments.target or ())} - catalog.targets.keys():
        raise SentinelError(f"no adapter for target {', '.join(sorted(unknown))}; `sentinel list` shows the targets")
    numbers = {
        name: Numbers(store.path(name), target.branch) for name, target in catalog.targets.items() if store.get(name)
    }
    found = [
        each
        for name in arguments.target or catalog.targets
        if name in numbers
        for file in _files(catalog, name, arguments.pages)
        for each in citations(
            os.path.relpath(file), file.read_text(encoding="utf-8", errors="replace"), name, catalog.targets, numbers
        )
    ]
    if not found:
        raise NothingExamined(
            "there is no mirror of these targets, or no file cites anything; run `sentinel mirror add TARGET`"
        )
    wrong, unknown_to_mirrors = [each for each in found if each.problem], [each for each in found if each.unknown]
    if arguments.json:
        echo_json([asdict(each) for each in found])
    else:
        if arguments.titles:
            echo_table(("place", "cited", "title"), [(each.place, each.what, each.subject) for each in found])
        _tell_unknown(unknown_to_mirrors)
        for each in wrong:
            echo(f"{each.place}: {each.problem}")
        resolved = len(found) - len(wrong) - len(unknown_to_mirrors)
        echo(
            f"{counted(resolved, 'citation')} resolved, {len(wrong)} not resolved, {len(unknown_to_mirrors)} to look up"
        )
    return 1 if wrong else 0


def _tell_unknown(unknown: list[Citation]) -> None:
    places = Counter((each.where, each.what, each.unknown) for each in unknown)
    if places:
        rows = [(f"{where}{what}", why, str(count)) for (where, what, why), count in sorted(places.items())]
        echo_table(("look up", "it is", "cited"), rows)


def _files(catalog: Catalog, target: str, pages: Path) -> Iterator[Path]:
    for folder in (*dict.fromkeys(catalog.recipe_folders), pages):
        for file in sorted((folder / target).rglob("*")):
            if file.suffix in (".yaml", ".md", ".patch", ".py") and file.is_file():
                yield file
