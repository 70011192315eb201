"""Implement ``sentinel report history``: show when bugs appeared and were fixed, and which releases have them."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from sentinel.commands.console import Commands, command, echo, echo_json, echo_table, json_option
from sentinel.errors import SentinelError
from sentinel.records import timelines
from sentinel.records.history import require_all, require_bug
from sentinel.sources import Home

_EXAMPLE = """\
  sentinel report history VERL-REJECTED-ROW-GRPO
  sentinel report history VERL-REJECTED-ROW-GRPO --from reports/history     the committed histories
  sentinel report history VERL-REJECTED-ROW-GRPO --json
  sentinel report history --from reports/history --markdown          the table of all bugs, as in its README
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "history", _history, "show the history of bugs, from recorded sweeps", _EXAMPLE)
    parser.add_argument("bug", metavar="BUG", nargs="?", help="a bug id (default: one line for each bug)")
    parser.add_argument("--markdown", action="store_true", help="the table of all bugs as Markdown")
    parser.add_argument(
        "--from", dest="folder", metavar="DIR", type=Path, help="the folder of records (default: SENTINEL_HOME/history)"
    )
    json_option(parser)


def _history(arguments: argparse.Namespace) -> int:
    folder = arguments.folder or Home.default().path / "history"
    if not arguments.bug:
        return _all(arguments, require_all(folder))
    if arguments.markdown:
        raise SentinelError("--markdown prints the table of all bugs; leave BUG out")
    records = require_bug(folder, arguments.bug)
    if arguments.json:
        echo_json(records)
        return 0
    width = max(20, min(shutil.get_terminal_size().columns - 4, 96))
    for record in records:
        echo(timelines.heading(record))
        echo("\n".join(timelines.story(record, width)) + "\n")
        if record["releases"]:
            echo("\n".join(timelines.releases(record)) + "\n")
    echo(timelines.LEGEND)
    return 0


def _all(arguments: argparse.Namespace, records: list[dict[str, Any]]) -> int:
    headings, rows = timelines.overview(records)
    if arguments.json:
        echo_json([dict(zip(headings, cells)) for cells in rows])
    elif arguments.markdown:
        echo("\n".join(f"* {line}" for line in timelines.counts(records)) + "\n")
        echo(f"{timelines.markdown(headings, rows)}\n\n{timelines.MARKS}")
    else:
        pictures = timelines.pictures(records)
        echo("\n".join(timelines.counts(records)) + "\n")
        pictured = [(*cells[:2], pictures.get((cells[0], cells[1]), ""), *cells[2:]) for cells in rows]
        echo_table((*headings[:2], "history", *headings[2:]), pictured)
        echo(f"\n{timelines.LEGEND}\n{timelines.MARKS}")
    return 0
