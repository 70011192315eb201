"""Implement ``sentinel report findings``, which records the state of each bug, from found to released."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from sentinel.commands.console import Commands, command, counted, echo, echo_json, echo_table, json_option
from sentinel.commands.evidence import evidence_of
from sentinel.commands.options import catalog_and_settings, evidence_folders, settings_options
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes import find_recipes
from sentinel.records.history import load_all
from sentinel.reports.rows import is_decided
from sentinel.reports.store import write_below
from sentinel.tools.upstream import life
from sentinel.tools.upstream.findings_page import EDITION, RESULTS, Entry, page, state
from sentinel.values.documents import DocumentError, read

_EXAMPLE = """\
  sentinel report findings                            the bugs whose state has changed since the last run
  sentinel report findings --from nightly             use the evidence of the nightly run
  sentinel report findings --state docs/state-of-the-signal.md

Writes one line for each bug into <target>.jsonl in --to, and BUG_FINDINGS.md next to these files. The page starts with
the bugs that published-results.yaml (in --to) lists and that still exist at main. --state also writes a short page.
Its first line has the dates of this edition and of the previous one. Change them there to begin a new edition.
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "findings", _findings, "record the state of each bug, from found to released", _EXAMPLE)
    parser.add_argument(
        "--from",
        dest="sources",
        metavar="DIR",
        type=Path,
        action="append",
        help="folder with evidence; repeatable (default: the setting baseline, or else reports)",
    )
    parser.add_argument("--to", metavar="DIR", type=Path, default=Path("findings"), help="default: findings")
    parser.add_argument(
        "--state", metavar="FILE", type=Path, help="also write a page of open and fixed bugs to this file"
    )
    settings_options(parser, "recipes")
    json_option(parser)


def _findings(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings(arguments)
    day = datetime.now(timezone.utc).date().isoformat()
    sources = arguments.sources or evidence_folders(arguments)[1:]  # a later folder overrides an earlier one
    recipes = find_recipes(catalog)
    evidence = {
        recipe.bug_id: [each for folder in sources for each in evidence_of(recipe, folder)] for recipe in recipes
    }
    examined = sum(map(is_decided, chain.from_iterable(evidence.values())))
    if not examined:
        folders = ", ".join(map(str, sources))
        raise NothingExamined(
            f"{folders}: no verdicts found; run pytest with --sentinel-target first, or name "
            "another folder with --from DIR"
        )
    kept, entries, moved = [], [], []
    for name, group in groupby(recipes, lambda recipe: recipe.target):
        target = catalog.targets[name]
        findings = life.load(arguments.to, name)
        histories = _histories_by_bug(name, target.branch, sources)
        for recipe in group:
            before = findings.get(recipe.bug_id)
            documents = evidence[recipe.bug_id]
            now, because = life.state_of(recipe, documents, target.branch)
            history = histories.get(recipe.bug_id)
            since, because = life.first_day(recipe, history), because + life.fixed_by(now, history)
            main = life.at_main(documents, target.branch)
            finding = life.advanced(before.steps if before else (), recipe, now, because, day, since, main)
            findings[recipe.bug_id] = finding
            kept.append(finding)
            prepared = (arguments.to / name / recipe.bug_id / "PULL_REQUEST.md").is_file()
            entries.append(Entry(finding, recipe, target.repository.removesuffix(".git"), prepared))
            if before is None or before.state != finding.state:
                because = finding.steps[-1].because
                moved.append((recipe.bug_id, before.state if before else "", finding.state, because))
        life.save(arguments.to, name, findings.values())
    results = _read_published_results(arguments.to / RESULTS, {entry.recipe.bug_id for entry in entries})
    write_below(arguments.to, "BUG_FINDINGS.md", page(entries, results), "name another folder with --to")
    if arguments.state:
        known = EDITION.match(arguments.state.read_text(encoding="utf-8")) if arguments.state.is_file() else None
        edition, since = known.groups() if known else (day, day)
        text = state(entries, results, edition, since)
        write_below(arguments.state.parent, arguments.state.name, text, "name another file with --state")
    if arguments.json:
        echo_json([{"bug": f.bug_id, "state": f.state, "steps": [vars(step) for step in f.steps]} for f in kept])
    else:
        if moved:
            echo_table(("bug", "was", "is", "because"), moved)
        echo(
            f"{counted(len(kept), 'finding')} from {counted(examined, 'verdict')}, {len(moved)} changed; "
            f"{arguments.to / 'BUG_FINDINGS.md'}"
        )
    return 0


def _read_published_results(file: Path, known: set[str]) -> list[Mapping[str, Any]]:
    if not file.is_file():
        return []
    try:
        results = read(file).data
    except DocumentError as error:
        raise SentinelError(f"{file}: {error}") from None
    if not isinstance(results, list) or not all(
        isinstance(each, dict) and {"bugs", "who"} == {*each} for each in results
    ):
        raise SentinelError(f"{file}: must contain a list whose entries have `bugs` and `who`")
    if unknown := {bug for each in results for bug in each["bugs"]} - known:
        raise SentinelError(f"{file}: no recipe has the bug id {', '.join(sorted(unknown))}")
    return results


def _histories_by_bug(target: str, branch: str, folders: Iterable[Path]) -> dict[str, Mapping[str, Any]]:
    return {
        history["bug_id"]: history
        for folder in folders
        for history in load_all(folder / "history", target)
        if (history["source"]["ref"], history["source"]["walk"]) == (branch, "first-parent")
        and not (history["source"]["since"] or history["source"]["until"])
    }
