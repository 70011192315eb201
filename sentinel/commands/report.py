"""Implement ``sentinel report``. A module named ``report_KIND`` adds a further subcommand."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from sentinel.commands.console import Commands, command, counted, echo, echo_json, group
from sentinel.commands.discovery import report_kinds
from sentinel.commands.options import RUN, catalog_and_settings, evidence_folders, evidence_option
from sentinel.errors import NothingExamined
from sentinel.reports.baseline import update
from sentinel.reports.evidence import schema
from sentinel.reports.lines import Recipes
from sentinel.reports.markdown import markdown
from sentinel.reports.rows import is_decided
from sentinel.reports.store import RUN_AGAIN, decided, write_atomically
from sentinel.reports.summary import summary

GROUP = "publish"
SUMMARY = "show the results of runs and sweeps, and accept them"

_REPORT = """\
  sentinel report                              the table of the last run
  sentinel report changes                      its differences from the baseline
  sentinel report accept                       make it the baseline
  sentinel report history VERL-REJECTED-ROW-GRPO
"""
_RUN = """\
  sentinel report                                            the table of the last run
  sentinel report --format markdown >> "$GITHUB_STEP_SUMMARY"
  sentinel report --from reports --format markdown -o reports.md
"""
_ACCEPT = """\
  pytest --sentinel-target=all; sentinel report accept       write the verdicts into reports/
  sentinel report accept --prune                             also remove entries that the run did not decide
  pytest --sentinel-target=all --sentinel-baseline=reports   compare later runs with it
"""
_SCHEMA = """\
  sentinel report schema > evidence.schema.json
"""


def declare(commands: Commands) -> None:
    own = group(commands, "report", SUMMARY, _REPORT)
    run = command(own, "run", _run, "show the verdicts of a run (the default)", _RUN)
    evidence_option(run, "--from", *RUN)
    run.add_argument("--format", choices=("text", "markdown"), default="text", help="default: text")
    run.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    accept = command(own, "accept", _accept, "make a run's evidence the baseline", _ACCEPT)
    evidence_option(accept, "--from", *RUN)
    evidence_option(accept, "--to", "baseline", "the baseline", "reports")
    accept.add_argument(
        "--prune", action="store_true", help="also remove entries of the run's targets for which the run has no verdict"
    )
    for kind in report_kinds():
        kind.declare(own)
    command(own, "schema", _schema, "print the JSON Schema of evidence", _SCHEMA)


def _accept(arguments: argparse.Namespace) -> int:
    source, baseline = evidence_folders(arguments)
    _require(source)
    _require_decision(source, results_of(source))
    catalog, _ = catalog_and_settings(arguments)
    done = update(source, baseline, Recipes(catalog), arguments.prune)
    for line in done.changed:
        echo(f"{baseline}/{line}")
    for line in done.kept:
        echo(f"kept: {baseline}/{line}")
    kept = f", {len(done.kept)} kept, because the run has no conclusive verdict for them" if done.kept else ""
    echo(
        f"{counted(done.examined, 'verdict')} of {source} compared: {counted(len(done.changed), 'line')} changed{kept}"
    )
    return 0


def _require(folder: Path) -> None:
    if not folder.is_dir():
        raise NothingExamined(
            f"no such folder: {folder}; run pytest with --sentinel-target first, or name another with --from DIR"
        )


def _run(arguments: argparse.Namespace) -> int:
    source, _ = evidence_folders(arguments)
    _require(source)
    results = results_of(source, Recipes(catalog_and_settings(arguments)[0]))
    text = _rendered(results, arguments.format, source, arguments.output is None)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        write_atomically(arguments.output, text, "name another file with -o")
        print(f"{arguments.output}: {counted(len(results), 'verdict')}", file=sys.stderr)
    _require_decision(source, results)
    return 0


def _require_decision(source: Path, results: list[tuple[dict[str, Any], str]]) -> None:
    if not any(is_decided(document) for document, _ in results):
        items = counted(len(results), "item")
        raise NothingExamined(
            f"the run in {source} has no conclusive verdict for any of its {items}; `sentinel doctor` shows what is "
            "missing"
        )


def results_of(folder: Path, recipes: Recipes | None = None) -> list[tuple[dict[str, Any], str]]:
    """Return (evidence, pytest's outcome) for each item of the last run in a folder."""
    results = list(decided(folder, RUN_AGAIN, recipes).values())
    if not results:
        raise NothingExamined(f"{folder} has no evidence; run pytest with --sentinel-target first")
    return results


def _rendered(results: list[tuple[dict[str, Any], str]], style: str, folder: Path, to_terminal: bool) -> str:
    if style == "markdown":
        return markdown(results)

    terminal = to_terminal and sys.stdout.isatty()
    return summary(results, str(folder), terminal=terminal, width=shutil.get_terminal_size().columns) + "\n"


def _schema(arguments: argparse.Namespace) -> int:
    echo_json(schema())
    return 0
