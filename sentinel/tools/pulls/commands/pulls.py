"""Implement ``sentinel pulls``, which shows how each open pull request of a target changes numeric results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from sentinel.commands.console import (
    Commands,
    command,
    echo,
    echo_json,
    json_option,
    nothing_examined,
    print_error,
    progress,
)
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.comparing import report
from sentinel.deciding.runner import runner_of
from sentinel.errors import NothingExamined
from sentinel.recipes import find_recipes
from sentinel.reports.escaping import message
from sentinel.sources import MirrorStore
from sentinel.tools.pulls.pulls import ANSWERS, Pull, Radar, brief, comment, headline, markdown, open_heads

GROUP = "search"
SUMMARY = "show what each open pull request changes in the numbers"

_EXAMPLE = """\
  sentinel pulls verl                        every open pull request
  sentinel pulls verl --since 7400 --json    pull requests from this number on
  sentinel pulls verl --comment 7022         the result for one pull request as Markdown

Each head is compared with its merge base. A pull request introduces a known bug or a broken law (or a function can no
longer be called), redefines a definition, fixes a bug, changes numbers, or changes nothing. Code that was not examined
is listed. Results are stored for each head, so the next run examines only new heads; `sentinel mirror update` fetches
them.
exit status: 0 no pull request introduces a bug, 1 at least one does, 2 nothing was examined, 130 interrupted
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "pulls", _pulls, SUMMARY, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--since", metavar="N", type=int, default=0, help="only pull requests from this number on")
    parser.add_argument("--examples", metavar="N", type=int, default=40, help="scenarios per boundary (default: 40)")
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="also write the summary to this file: reports/changes.json"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--markdown", action="store_true", help="print a table, for the summary of a job")
    shape.add_argument("--comment", metavar="N", type=int, help="print the result for this pull request as Markdown")
    json_option(shape)
    settings_options(parser, without="repo-url")  # pull requests exist upstream only


def _pulls(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    store = MirrorStore()
    branch = store.resolve(target, target.branch)
    heads = [head for head in open_heads(store.path(target.name), branch) if head[0] >= arguments.since]
    if arguments.comment is not None:
        heads = [head for head in heads if head[0] == arguments.comment]
    if not heads:
        which = f"pull request {arguments.comment}" if arguments.comment else "pull request"
        which += f" with number {arguments.since} or above" if arguments.since else ""
        raise NothingExamined(
            f"{target.name}: the mirror has no open {which}; `sentinel mirror update {target.name}` fetches new ones"
        )
    pulls: list[Pull] = []
    stopped = False
    with progress() as notify, closing(runner_of(catalog, settings, notify, store)) as runner:
        recipes = find_recipes(catalog, (target.name,), ())
        with closing(Radar(catalog, runner, target, store, recipes, arguments.examples, notify)) as radar:
            try:
                for number, head in radar.sort_heads(heads):
                    notify(f"{len(pulls)} of {len(heads)}: pull request {number}")
                    pulls.append(radar.look(number, head))
            except KeyboardInterrupt:
                print_error("interrupted; the results are stored, and the same command continues from here")
                stopped = True
    pulls.sort(key=lambda pull: pull.number, reverse=True)
    summary = brief(pulls, len(heads), branch)
    if arguments.save is not None:
        report.save(arguments.save, "pulls", target.name, summary)
    if arguments.comment is not None:
        sys.stdout.write("".join(comment(pull) for pull in pulls))
    elif arguments.markdown:
        sys.stdout.write(markdown(target.name, summary))
    elif arguments.json:
        echo_json([asdict(pull) for pull in pulls])
    else:
        _show(pulls, len(heads))
    if stopped:
        return 130
    if any(pull.answer == "introduces" for pull in pulls):
        return 1
    if all(pull.answer == "cannot be decided" for pull in pulls):
        return nothing_examined(
            f"no pull request could be decided; {pulls[0].findings[0] if pulls[0].findings else ''}"
        )
    return 0


def _show(pulls: Sequence[Pull], total: int) -> None:
    for answer in ANSWERS:
        for pull in pulls if answer != "nothing" else ():
            if pull.answer == answer:
                echo(f"{answer}: #{pull.number} {message(pull.subject)} ({pull.head[:9]})")
                echo("\n".join(f"    {message(line)}" for line in pull.findings[:6]))
    echo(f"\n{headline(pulls, total)}")
