"""Implement ``sentinel report changes``: list differences from the baseline, with the commits that caused them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sentinel.commands.console import Commands, command, counted, echo, echo_json, json_option, progress
from sentinel.commands.options import RUN, catalog_and_settings, evidence_folders, evidence_option, settings_options
from sentinel.errors import NothingExamined
from sentinel.recipes import find_recipes
from sentinel.records import nightly
from sentinel.records.ledger import Ledger
from sentinel.records.nightly import Change
from sentinel.reports.escaping import message
from sentinel.reports.markdown import bug_list, escaped
from sentinel.reports.rows import is_decided
from sentinel.reports.store import decided
from sentinel.reports.summary import causes

_EXAMPLE = """\
  pytest --sentinel-target=all --sentinel-ref=git:main --sentinel-baseline=reports
  sentinel report changes                                    the differences of a nightly run, with their commits
  sentinel report changes --format markdown >> "$GITHUB_STEP_SUMMARY"
  sentinel report changes --no-bisect --json

If a bug appeared or was fixed between the recorded commit and the run's commit, the responsible commit is found by
bisection. `sentinel report accept` accepts the new results. To check a branch, use pytest's --sentinel-against.
exit status: 0 nothing changed, 1 something changed, 2 nothing could be compared
"""


def declare(commands: Commands) -> None:
    text = "list a run's differences from the baseline"
    parser = command(commands, "changes", _changes, text, _EXAMPLE)
    evidence_option(parser, "--from", *RUN)
    evidence_option(parser, "--baseline", "baseline", "the recorded evidence", "reports")
    parser.add_argument("--no-bisect", action="store_true", help="do not search for the responsible commits")
    parser.add_argument("--format", choices=("text", "markdown"), default="text", help="default: text")
    settings_options(parser, "recipes")
    json_option(parser)


def _changes(arguments: argparse.Namespace) -> int:
    source, baseline = evidence_folders(arguments)
    for folder in (source, baseline):
        if not folder.is_dir():
            raise NothingExamined(
                f"no such folder: {folder}; run pytest with --sentinel-target first, or name another folder"
            )
    basis = _basis(source, baseline)
    changes = nightly.changes(source, baseline)
    if changes and not arguments.no_bisect:
        catalog, settings = catalog_and_settings(arguments)
        recipes = {recipe.bug_id: recipe for recipe in find_recipes(catalog, tuple(sorted(catalog.targets)))}
        with progress() as notify:
            results = []
            searched = nightly.with_commits(
                changes, recipes, lambda target: Ledger(catalog, settings, catalog.targets[target])
            )
            for change in searched:
                results.append(change)
                notify(f"{len(results)} of {counted(len(changes), 'change')}: {change.target} {change.subject}")
            changes = results
    if arguments.json:
        echo_json([change.plain() for change in changes])
    elif arguments.format == "markdown":
        sys.stdout.write(_markdown(changes, basis))
    else:
        echo("\n".join([*(line for change in changes for line in _lines(change)), *basis]))
    return 1 if changes else 0


def _basis(source: Path, baseline: Path) -> list[str]:
    """Return lines that state how many verdicts were compared, how many are recorded, and why verdicts are inconclusive
    or unavailable.

    :raises NothingExamined: if no verdict of the run is conclusive, or nothing is recorded.
    """
    places = {place: document for place, (document, _) in decided(source).items()}
    recorded = decided(baseline).keys()
    if not recorded:
        raise NothingExamined(f"{baseline} has no evidence; `sentinel report accept` records a run there")
    left = {place: each for place, each in places.items() if not is_decided(each)}
    why = causes(f"{each['verdict']}: {message(each['reason'])}" for each in left.values())
    if len(left) == len(places):
        raise NothingExamined(
            f"the run in {source} has no conclusive verdict for any of its {counted(len(places), 'item')}"
            + (f" ({'; '.join(why)})" if why else "; run pytest with --sentinel-target first")
        )
    lines = [f"{counted(len(places) - len(left), 'verdict')} of {source} compared with {baseline}, which has "
             f"{counted(len(recorded), 'verdict')}"]  # fmt: skip
    absent = len(recorded - places.keys())
    lines += [f"{absent} of the recorded items are not in this run"] if absent else []
    return [*lines, *(["not decided:"] if why else []), *(f"  {line}" for line in why)]


def _lines(change: Change) -> list[str]:
    grade = f" ({change.about.grade})" if change.about.grade else ""
    lines = [f"{change.what}: {change.target} {change.subject} at {change.ref}{grade}"]
    lines += [f"    {line}" for line in (change.detail, *change.about.lines)]
    for commit in change.commits:
        which = "since" if len(change.commits) == 1 else "since one of:"
        lines.append(f"    {which} {commit['date'][:10]} {commit['sha'][:9]} {commit['subject']}")
    if change.why_not:
        lines.append(f"    commit not found: {change.why_not}")
    return lines


def _markdown(changes: Sequence[Change], basis: Sequence[str]) -> str:

    def line(change: Change) -> str:
        since = ", ".join(f"{commit['sha'][:9]} {commit['subject']}" for commit in change.commits)
        sentence = f"{change.what}: {change.target} {change.subject} at {change.ref}: {change.detail}"
        lost = f"; commit not found: {change.why_not}" if change.why_not else ""
        return sentence + (f"; since {since}" if since else lost)

    text = bug_list((line(change), change.about) for change in changes)
    examined = "\n".join(f"* {escaped(line.strip())}" for line in basis)
    return f"## Sentinel: what changed\n\n{text or 'Nothing changed.'}\n\n{examined}\n"
