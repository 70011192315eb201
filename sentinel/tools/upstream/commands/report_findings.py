"""``sentinel report findings``: how far each bug has come, from found to released."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

from sentinel.commands.console import Commands, command, counted, json_option, say, say_json, say_table
from sentinel.commands.evidence import evidence_of
from sentinel.commands.options import catalog_and_settings, evidence_folders, settings_options
from sentinel.errors import NothingExamined
from sentinel.recipes import Recipe, find_recipes
from sentinel.records import record
from sentinel.reports.rows import is_decided
from sentinel.reports.store import file_name, write_below
from sentinel.tools.upstream import life
from sentinel.tools.upstream.findings_page import Entry, page

_EXAMPLE = """\
  sentinel report findings                            what has moved since the last time; files in findings/
  sentinel report findings --from nightly             with the evidence of the nightly run

Writes one small file a bug into --to, and BUG_FINDINGS.md beside them.
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "findings", _findings, "keep how far each bug has come", _EXAMPLE)
    parser.add_argument(
        "--from",
        dest="sources",
        metavar="DIR",
        type=Path,
        action="append",
        help="evidence (default: baseline of the settings, else reports; repeatable)",
    )
    parser.add_argument("--to", metavar="DIR", type=Path, default=Path("findings"), help="default: findings")
    settings_options(parser, "recipes")
    json_option(parser)


def _findings(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings(arguments)
    day = datetime.now(timezone.utc).date().isoformat()
    sources = arguments.sources or evidence_folders(arguments)[1:]  # a later one has the later word
    recipes = find_recipes(catalog)
    evidence = {
        recipe.bug_id: [each for folder in sources for each in evidence_of(recipe, folder)] for recipe in recipes
    }
    examined = sum(map(is_decided, chain.from_iterable(evidence.values())))
    if not examined:
        folders = ", ".join(map(str, sources))
        raise NothingExamined(
            f"{folders}: no evidence there that decides anything; run pytest with --sentinel-target first, or name "
            "another folder with --from DIR"
        )
    kept, entries, moved = [], [], []
    for recipe in recipes:
        file = life.place(arguments.to, recipe)
        before = life.load(file)
        documents = evidence[recipe.bug_id]
        target = catalog.targets[recipe.target]
        state, because = life.state_of(recipe, documents, target.branch)
        history = _history_of(recipe, target.branch, sources[::-1])
        since, because = life.first_day(recipe, history), because + life.mended_with(state, history)
        main = life.at_main(documents, target.branch)
        finding = life.advanced(before, recipe, state, because, day, since=since, main=main)
        life.save(file, finding)
        kept.append(finding)
        entries.append(Entry(finding, recipe, target.repository.removesuffix(".git")))
        if before is None or before.state != finding.state:
            moved.append((recipe.bug_id, before.state if before else "", finding.state, finding.steps[-1].because))
    write_below(arguments.to, "BUG_FINDINGS.md", page(entries), "name another folder with --to")
    if arguments.json:
        say_json([{"bug": f.bug_id, "state": f.state, "steps": [vars(step) for step in f.steps]} for f in kept])
    else:
        if moved:
            say_table(("bug", "was", "is", "because"), moved)
        say(
            f"{counted(len(kept), 'finding')} from {counted(examined, 'verdict')}, {len(moved)} moved; "
            f"{arguments.to / 'BUG_FINDINGS.md'}"
        )
    return 0


def _history_of(recipe: Recipe, branch: str, folders: Iterable[Path]) -> Mapping[str, Any] | None:
    for folder in folders:
        file = folder / "history" / file_name(recipe.target) / file_name(recipe.bug_id) / f"git-{branch}.json"
        if file.is_file():
            return record.load(file)
    return None
