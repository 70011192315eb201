"""``sentinel bisect``: the commit that brought a bug, or took it away."""

from __future__ import annotations

import argparse
from typing import Any

from sentinel.commands.console import Commands, command, counted, json_option, progress, say, say_json
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.errors import SentinelError
from sentinel.history.bisection import Bisection, bisect
from sentinel.history.chronicle import plain_commit
from sentinel.history.closure_verdicts import ClosureVerdict
from sentinel.history.commits import Commit
from sentinel.history.ledger import Ledger
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog

_EXAMPLE = """\
  sentinel bisect ROLL-PAD-TO-LENGTH-BOOL-TO-INT --good main --bad v0.2.1             which commit fixed it?
  sentinel bisect ROLL-PAD-MASK-EOS-IS-PAD --good v0.2.1 --bad v0.1.0                 which one brought it?

--bad has the bug and --good has not; which of them is the older says whether the first bad or the first fixed commit
is looked for, among the branch's own commits: of what was merged, the merge. Commits that cannot be decided are
skipped, as `git bisect skip` does. Verdicts that a sweep has kept are not measured again.
exit status: 0 found, 1 only a range could be found, 2 it could not be done
"""


def declare(commands: Commands, text: str) -> None:
    parser = command(commands, "bisect", _bisect, text, _EXAMPLE)
    parser.add_argument("bug", metavar="BUG")
    parser.add_argument("--good", metavar="REF", required=True, help="a commit without the bug")
    parser.add_argument("--bad", metavar="REF", required=True, help="a commit with it")
    settings_options(parser, without="repo-url")  # histories are upstream's
    json_option(parser)


def _bisect(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    recipe = recipe_named(catalog, arguments.bug)
    ledger = Ledger(catalog, settings, catalog.targets[recipe.target])
    good, bad = ledger.commit(arguments.good), ledger.commit(arguments.bad)
    with progress() as tell, ledger.deciding([recipe], lambda: ledger.local(1)) as decide:

        def report(commit: Commit, entry: ClosureVerdict, left: int) -> None:
            kind = f" ({entry.kind})" if entry.kind else ""
            tell(f"{commit.sha[:9]} is {entry.verdict}{kind}; {counted(left, 'commit')} left")

        tell(f"deciding the two ends of {recipe.bug_id}")
        bisection = bisect(ledger.mirror, good, bad, lambda c: decide(c)[recipe.bug_id], report)
    if arguments.json:
        say_json(_plain(recipe, bisection))
    else:
        say("\n".join(_lines(recipe, bisection)))
    return 0 if bisection.first else 1


def recipe_named(catalog: Catalog, bug: str) -> Recipe:
    """:raises SentinelError: for a bug that no recipe pins, with the nearest; or for a pattern of several."""
    recipes = find_recipes(catalog, (), [bug])
    if len(recipes) > 1:
        raise SentinelError(f"{bug!r} is {len(recipes)} bugs; name one of them")
    return recipes[0]


def _lines(recipe: Recipe, bisection: Bisection) -> list[str]:
    what = "brought" if bisection.seeks == "bad" else "took away"
    steps = f"{counted(len(bisection.steps), 'step')}, {bisection.skipped} skipped"
    if bisection.first is None:
        lines = [f"one of these commits {what} {recipe.bug_id}; those beside the change could not be decided ({steps})"]
        return lines + [f"  {_named(commit)}" for commit in bisection.suspects]
    return [f"{_named(bisection.first)}", f"{what} {recipe.bug_id} ({steps})"]


def _named(commit: Commit) -> str:
    return f"{commit.sha} {commit.date[:10]} {commit.subject}"


def _plain(recipe: Recipe, bisection: Bisection) -> dict[str, Any]:
    return {
        "bug_id": recipe.bug_id,
        "target": recipe.target,
        "seeks": bisection.seeks,
        "steps": [
            {**plain_commit(commit), "verdict": entry.verdict, "kind": entry.kind, "reason": entry.reason}
            for commit, entry in bisection.steps
        ],
        "found": plain_commit(bisection.first) if bisection.first else None,
        "suspects": [plain_commit(commit) for commit in bisection.suspects],
    }
