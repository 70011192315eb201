"""``sentinel history``: when a bug came, when it went, and which releases had it; from what sweeps have kept."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.commands.console import command, json_option, say, say_json

if TYPE_CHECKING:
    from sentinel.commands.console import Commands

_EXAMPLE = """\
  sentinel history VERL-REJECTED-ROW-GRPO
  sentinel history VERL-REJECTED-ROW-GRPO --from reports/history     what is committed
  sentinel history VERL-REJECTED-ROW-GRPO --json
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "history", _history, "tell the history of one bug, as sweeps have found it", _EXAMPLE)
    parser.add_argument("bug", metavar="BUG")
    records_option(parser)
    json_option(parser)


def records_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="folder", metavar="DIR", type=Path, help="where records lie (default: SENTINEL_HOME/history)"
    )


def folder_of(arguments: argparse.Namespace) -> Path:
    from sentinel.sources import Home

    given: Path | None = arguments.folder
    return given or Home.default().path / "history"


def _history(arguments: argparse.Namespace) -> int:
    from sentinel.history import rendering
    from sentinel.history.index import of_bug

    found = of_bug(folder_of(arguments), arguments.bug)
    if arguments.json:
        say_json(found)
        return 0
    width = max(20, min(shutil.get_terminal_size().columns - 4, 96))
    for record in found:
        say(rendering.heading(record))
        say("\n".join(rendering.story(record, width)) + "\n")
        if record["releases"]:
            say("\n".join(rendering.releases(record)) + "\n")
    say(rendering.LEGEND)
    return 0
