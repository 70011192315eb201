"""``sentinel baseline`` and ``sentinel report``: what a run left behind."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.commands.console import command, counted, group, say
from sentinel.commands.known import evidence_folders, evidence_option
from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from sentinel.commands.console import Commands

_UPDATE = """\
  pytest --sentinel-target=all; sentinel baseline update     accept what was decided into reports/
  sentinel baseline update --prune                           and remove what was not decided any more
  pytest --sentinel-target=all --sentinel-baseline=reports   compare with it from then on
"""
_REPORT = """\
  sentinel report                                            the table of the last run
  sentinel report --format markdown >> "$GITHUB_STEP_SUMMARY"
  sentinel report --from reports --format html -o reports.html
"""


RUN = ("report-dir", "a run's evidence", "sentinel-reports")


def declare(commands: Commands) -> None:
    own = group(commands, "baseline", "accept a run's evidence as the baseline", _UPDATE)
    update = command(own, "update", _update, "bring the baseline up to a run", _UPDATE)
    evidence_option(update, "--from", *RUN)
    evidence_option(update, "--to", "baseline", "the baseline", "reports")
    update.add_argument(
        "--prune", action="store_true", help="remove what the run did not decide, of the targets it covers"
    )
    report = command(commands, "report", _report, "render a run's evidence for readers", _REPORT)
    evidence_option(report, "--from", *RUN)
    report.add_argument("--format", choices=("text", "markdown", "html"), default="text", help="default: text")
    report.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")


def _update(arguments: argparse.Namespace) -> int:
    from sentinel.reports.baseline import update

    source, baseline = evidence_folders(arguments)
    _require(source)
    done = update(source, baseline, arguments.prune)
    for line in done.changed:
        say(f"{baseline}/{line}")
    for line in done.kept:
        say(f"kept: {baseline}/{line}")
    if done.changed:
        say(f"{counted(len(done.changed), 'file')} changed")
    else:
        say("nothing changed" if done.kept else f"{baseline} is up to date; nothing changed")
    return 0


def _require(folder: Path) -> None:
    if not folder.is_dir():
        raise SentinelError(f"no such folder: {folder}; run pytest with --sentinel-target first, or give --from DIR")


def _report(arguments: argparse.Namespace) -> int:
    source, _ = evidence_folders(arguments)
    _require(source)
    results = results_of(source)
    text = _rendered(results, arguments.format, source, arguments.output is None)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        from sentinel.reports.store import write_atomically

        write_atomically(arguments.output, text, "name another file with -o")
        print(f"{arguments.output}: {counted(len(results), 'verdict')}", file=sys.stderr)
    return 0


def results_of(folder: Path) -> list[tuple[dict[str, Any], str]]:
    """The evidence of a folder's last run with the outcomes of its items; without ``run.json`` all that lies there.

    :raises SentinelError: where there is none.
    """
    from sentinel.reports.store import decided, load

    results = [(load(file), outcome) for file, outcome in decided(folder).items()]
    if not results:
        raise SentinelError(f"{folder} holds no evidence; run pytest with --sentinel-target first")
    return results


def _rendered(results: list[tuple[dict[str, Any], str]], style: str, folder: Path, to_terminal: bool) -> str:
    if style == "markdown":
        from sentinel.reports.markdown import markdown

        return markdown(results)
    if style == "html":
        from sentinel.reports.page import page

        return page(results)
    import shutil

    from sentinel.reports.summary import summary

    terminal = to_terminal and sys.stdout.isatty()
    return summary(results, str(folder), terminal=terminal, width=shutil.get_terminal_size().columns) + "\n"
