"""Implement ``sentinel report show``, which prints the evidence of one recorded verdict."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sentinel.commands.console import Commands, command
from sentinel.commands.options import catalog_and_settings, evidence_folders, evidence_option, settings_options
from sentinel.errors import NothingExamined, SentinelError, nearest
from sentinel.reports import lines, store
from sentinel.reports.evidence import Document, dumps

_EXAMPLE = """\
  sentinel report show VERL-REJECTED-ROW-GRPO git:main
  sentinel report show verl.trainer.ppo.core_algos.agg_loss::finite_in_finite_out git:main   a broken law

A baseline has one line for each verdict. The document adds what can be derived from the recipe: scenario, expected
values, comparison. If the recipe has changed since, the document cannot be printed.
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "show", _show, "print the evidence document of a recorded verdict", _EXAMPLE)
    parser.add_argument("subject", metavar="SUBJECT", help="a bug id, or BOUNDARY::LAW")
    parser.add_argument(
        "ref", metavar="REF", nargs="?", help="required if several refs are recorded; a sha may be abbreviated"
    )
    evidence_option(parser, "--from", "baseline", "recorded evidence", "reports")
    settings_options(parser, "recipes")


def _show(arguments: argparse.Namespace) -> int:
    folder = evidence_folders(arguments)[1]
    recipes = lines.Recipes(catalog_and_settings(arguments)[0])
    every = {place: document for place, (document, _) in store.decided(folder).items()}
    if not every:
        raise NothingExamined(f"{folder} has no evidence; `sentinel report accept` records a run there")
    named = {place: document for place, document in every.items() if _name(document) == arguments.subject}
    found = {place: each for place, each in named.items() if str(each["ref"]).startswith(arguments.ref or "")}
    if not named:
        raise SentinelError(
            f"{folder} has no verdict of {arguments.subject!r}{nearest(arguments.subject, map(_name, every.values()))}"
        )
    if len(found) != 1:
        refs = ", ".join(sorted({str(document["ref"]) for document in named.values()}))
        raise SentinelError(f"{arguments.subject} is recorded at {refs}; name one of these as REF")
    sys.stdout.write(dumps(_whole(folder, found, recipes)))
    return 0


def _name(document: Document) -> str:
    return str(document["bug_id"] or f"{document['boundary']['written']}::{document['law']}")


def _whole(folder: Path, found: Mapping[PurePosixPath, Document], recipes: lines.Recipes) -> Document:
    ((place, document),) = found.items()
    file = folder / f"{place.parts[0]}.jsonl"
    if not file.is_file():
        return document
    facts = store.facts_in(file)[place]
    _, why = lines.recipe_for(facts, file.stem, recipes)
    if why:
        raise SentinelError(
            f"{_name(document)} at {document['ref']} cannot be expanded: {why}; decide it again with "
            "`sentinel report refresh`"
        )
    return store.expand(file, facts, recipes)
