"""``sentinel report query``: what sweeps have kept, by target, bug, law, verdict, date and release."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sentinel.commands.console import command, json_option, say, say_json, say_table
from sentinel.commands.history import folder_of, records_option
from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from sentinel.commands.console import Commands

_EXAMPLE = """\
  sentinel report query --verdict reproduced --until 2026-01-01      what was broken before 2026
  sentinel report query --release v0.8.0 --verdict reproduced        the bugs that a release has
  sentinel report query --target verl --law '*masked*'
  sentinel report query --bug 'VERL-AGGLOSS-*' --json

exit status: 0 something was found, 1 nothing was
"""
_VERDICTS = ("reproduced", "fixed", "changed", "inconclusive", "unavailable")


def declare(commands: Commands) -> None:
    parser = command(commands, "query", _query, "ask what sweeps have found", _EXAMPLE)
    for name in ("target", "bug", "law", "release"):
        parser.add_argument(f"--{name}", metavar="GLOB", default="")
    parser.add_argument("--verdict", choices=_VERDICTS, default="")
    parser.add_argument("--since", metavar="DAY", default="", help="only what was so on this day or later")
    parser.add_argument("--until", metavar="DAY", default="", help="only what was so on this day or earlier")
    records_option(parser)
    json_option(parser)


def _query(arguments: argparse.Namespace) -> int:
    from sentinel.history.commits import is_day
    from sentinel.history.query import Question, ask

    for name in ("since", "until"):
        text = getattr(arguments, name)
        if text and not is_day(text):
            raise SentinelError(f"--{name} {text}: write a day, such as 2026-08-21")
    names = ("target", "bug", "law", "verdict", "since", "until", "release")
    rows = ask(folder_of(arguments), Question(**{name: getattr(arguments, name) for name in names}))
    if arguments.json:
        say_json(rows)
    elif not rows:
        say("nothing")
    elif arguments.release:
        say_table(
            ("target", "bug", "release", "verdict", "kind"),
            [(r["target"], r["bug"], r["release"], r["verdict"], r["kind"]) for r in rows],
        )
    else:
        say_table(
            ("target", "bug", "verdict", "kind", "commits", "from", "", "to", ""),
            [
                (
                    *(r["target"], r["bug"], r["verdict"], r["kind"], str(r["commits"])),
                    *(r["first_date"][:10], r["first"][:9], r["last_date"][:10], r["last"][:9]),
                )
                for r in rows
            ],
        )
    return 0 if rows else 1
