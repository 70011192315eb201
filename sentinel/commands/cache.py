"""Implement ``sentinel cache``, which lists and removes checkouts and downloaded wheels."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict
from datetime import datetime, timezone

from sentinel.commands.console import Commands, command, counted, echo, echo_json, echo_table, group, json_option, size
from sentinel.sources import Home, MirrorStore
from sentinel.sources.pruning import entries, prune

GROUP = "tidy"
SUMMARY = "list and remove checkouts and downloads"

_LIST = """\
  sentinel cache list                the least recently used first
  sentinel cache list --json
"""
_PRUNE = """\
  sentinel cache prune                    entries that were not used for 30 days
  sentinel cache prune --older-than 7     entries that were not used for a week
  sentinel cache prune --all              all entries that no run is using; mirrors are kept
"""
_DAY = 86400


def declare(commands: Commands) -> None:
    own = group(commands, "cache", SUMMARY, _LIST + _PRUNE)
    json_option(command(own, "list", _list, "list the entries of the cache", _LIST))
    prune = command(own, "prune", _prune, "remove entries that were not used for some time", _PRUNE)
    which = prune.add_mutually_exclusive_group()
    which.add_argument(
        "--older-than", metavar="DAYS", type=_days, default=30.0, help="minimum time since the last use (default: 30)"
    )
    which.add_argument("--all", action="store_true", help="remove all entries that no run is using")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days; write 7 or 0.5")
    return days


def _list(arguments: argparse.Namespace) -> int:
    home = Home.default()
    contents = entries(home)
    if arguments.json:
        moments = [datetime.fromtimestamp(entry.last_used, timezone.utc) for entry in contents]
        echo_json(
            [
                {**asdict(entry), "path": str(entry.path), "last_used": moment.isoformat(timespec="seconds")}
                for entry, moment in zip(contents, moments)
            ]
        )
        return 0
    if not contents:
        echo(f"the cache in {home.path} is empty")
        return 0
    rows = [
        (e.kind, e.owner, e.name[:40], size(e.size), _ago(e.last_used), "in use" if e.in_use else "") for e in contents
    ]
    echo_table(("kind", "of", "name", "size", "last used", ""), rows)
    echo(f"{counted(len(contents), 'item')}, {size(sum(entry.size for entry in contents))} in {home.path}")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    # The import takes half a second, and listing does not need it.
    from sentinel.records.executors import sweep_leftovers

    gone = prune(Home.default(), older_than=None if arguments.all else arguments.older_than * _DAY)
    MirrorStore().sweep()
    sweep_leftovers(Home.default().path / "history" / "copies")
    for entry in gone:
        echo(f"removed {entry.kind} {entry.owner} {entry.name}")
    echo(f"{counted(len(gone), 'item')} removed, {size(sum(entry.size for entry in gone))} freed")
    return 0


def _ago(seconds: float) -> str:
    days = (time.time() - seconds) / _DAY
    return "today" if days < 1 else f"{counted(int(days), 'day')} ago"
