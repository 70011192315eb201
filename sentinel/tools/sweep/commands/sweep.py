"""Implement ``sentinel sweep``, which runs recipes at every commit, tag or release of a target."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sentinel.commands.console import (
    Commands,
    command,
    echo,
    echo_json,
    echo_table,
    json_option,
    nothing_examined,
    print_error,
    progress,
)
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.records import timelines
from sentinel.records.history import Selection, save
from sentinel.records.ledger import Account, Ledger
from sentinel.reports.summary import causes
from sentinel.tools.sweep.releases import sweep_releases

GROUP = "search"
SUMMARY = "decide recipes at every commit of a history"

_EXAMPLE = """\
  sentinel sweep verl                                every recipe of verl at every commit of main
  sentinel sweep verl --bug 'VERL-REJECTED-ROW-*' --since v0.7.0
  sentinel sweep verl --tags                         only the release tags
  sentinel sweep verl --releases                     the releases on PyPI; needs no mirror
  sentinel sweep verl --save reports/history         histories to commit, for `sentinel report history --from`
  sentinel sweep verl --bug VERL-AGGLOSS-RANKS-TWICE --json

A verdict depends only on the code that the boundary imports, so each distinct version of this code is run once.
Results are stored in SENTINEL_HOME/history immediately, so the same command continues after Ctrl-C.
exit status: 0 done, 2 nothing could be decided, 130 interrupted
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "sweep", _sweep, SUMMARY, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--bug", metavar="GLOB", action="append", default=[], help="only these recipes")
    parser.add_argument("--ref", metavar="REF", default="", help="the branch (default: the target's own, main)")
    parser.add_argument("--since", metavar="REF|DAY", default="", help="the first commit, or a day such as 2026-08-21")
    parser.add_argument("--until", metavar="REF|DAY", default="", help="the last commit")
    walk = parser.add_mutually_exclusive_group()
    walk.add_argument("--tags", action="store_true", help="only the release tags")
    walk.add_argument("--releases", action="store_true", help="the releases on PyPI")
    parser.add_argument("--jobs", metavar="N", type=int, help="parallel probes (default: one per core)")
    settings_options(parser, without="repo-url")  # histories are recorded for upstream only
    parser.add_argument("--save", metavar="DIR", type=Path, help="also write the histories to this folder")
    json_option(parser)


def _sweep(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    recipes = find_recipes(catalog, (target.name,), arguments.bug)
    if not recipes:
        raise NothingExamined(f"{target.name} has no recipes; create one with `sentinel recipe new`")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise SentinelError(f"--jobs {arguments.jobs}: must be at least 1")
    with progress() as notify:
        if arguments.releases:
            for name in ("since", "until", "ref"):
                if getattr(arguments, name):
                    raise SentinelError(
                        f"--{name} selects commits and --releases selects PyPI releases; remove one of them"
                    )
            account = sweep_releases(catalog, settings, target, recipes, notify)
        else:
            ledger = Ledger(catalog, settings, target)
            ref = arguments.ref or target.branch
            selection = Selection(ref, arguments.since, arguments.until, "tags" if arguments.tags else "first-parent")
            account = _run(ledger, recipes, selection, arguments.jobs, notify)
    if arguments.save is not None:
        save(arguments.save, account.records)
    show(account, arguments)
    decided = any(run["verdict"] in ("reproduced", "fixed", "changed") for r in account.records for run in r["runs"])
    if decided:
        return 0
    runs = [run for record in account.records for run in record["runs"]]
    why = "; ".join(causes(f"{run['verdict']}: {run['reason'] or run['kind']}" for run in runs))
    return nothing_examined(f"no recipe could be decided at any commit ({why})")


def _run(
    ledger: Ledger,
    recipes: Sequence[Recipe],
    selection: Selection,
    jobs: int | None,
    notify: Callable[[str], None],
) -> Account:
    started = time.monotonic()
    last = 0.0

    def report(done: int, total: int, probed: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > (0.2 if sys.stderr.isatty() else 15.0) or done == total:
            last = now
            left = (now - started) / max(done, 1) * (total - done)
            notify(f"{ledger.target.name}: {done} of {total} commits, {probed} verdicts probed, {left:.0f} s left")

    try:
        return ledger.sweep(recipes, selection, jobs, report)
    except KeyboardInterrupt:
        print_error("interrupted; the results are stored, and the same command continues from here")
        raise


def show(account: Account, arguments: argparse.Namespace) -> None:
    if arguments.json:
        echo_json({"probed": account.probed, "records": account.records})
        return
    width = max(20, min(shutil.get_terminal_size().columns - 4, 96))
    for record in account.records:
        echo("\n".join(timelines.story(record, width)) + "\n")
    echo(f"{timelines.LEGEND}\n")
    echo_table(timelines.HEADINGS, [timelines.row(record) for record in account.records])
    commits, closures = (sum(record[name] for record in account.records) for name in ("commits", "closures"))
    echo(f"\n{commits} verdicts from {closures} distinct versions of the code, {account.probed} of them probed now")
