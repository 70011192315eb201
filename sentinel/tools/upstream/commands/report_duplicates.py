"""Implement ``sentinel report duplicates``, which finds out whether a bug is already known or fixed."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from sentinel.commands.console import (
    Commands,
    command,
    counted,
    echo,
    echo_json,
    echo_table,
    json_option,
    nothing_examined,
    print_error,
    progress,
)
from sentinel.commands.options import catalog_and_settings, recipe_named, settings_options
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.fixes import fix_of
from sentinel.records.ledger import Ledger
from sentinel.reports.summary import causes
from sentinel.sources import MirrorStore
from sentinel.tools.upstream.duplicates import duplicates
from sentinel.tools.upstream.heads import Head, heads
from sentinel.tools.upstream.words import searches

_EXAMPLE = """\
  sentinel report duplicates VERL-REJECTED-ROW-GRPO      recipes, upstream's history, every pull request of the mirror
  sentinel report duplicates 'VERL-*' --run              run each unreported bug at the head of each pull request that
                                                         changes its function, to find fixes

All sources are listed, with the reason if a source was not searched. Matches are hints that a person must check.
exit status: 0; 1 if a pull request fixes a bug (only with --run); 2 if only the recipes could be searched
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "duplicates", _duplicates, "find out whether a bug is already known or fixed", _EXAMPLE)
    parser.add_argument("bug", metavar="BUG", help="a bug id; with --run also a pattern, for unreported bugs")
    parser.add_argument(
        "--run", dest="at_heads", action="store_true", help="run the recipe at the heads of pull requests"
    )
    settings_options(parser, "recipes")
    json_option(parser)


def _duplicates(arguments: argparse.Namespace) -> int:
    if arguments.at_heads:
        return _run(arguments)
    catalog, _ = catalog_and_settings(arguments)
    recipe = recipe_named(catalog, arguments.bug)
    with progress() as notify:
        notify(f"looking for {recipe.bug_id}")
        target, fix = catalog.targets[recipe.target], fix_of(catalog, recipe.target, recipe.bug_id)
        sources = duplicates(recipe, find_recipes(catalog), target, MirrorStore(), fix)
    asked = searches([recipe], fix)
    if arguments.json:
        echo_json([asdict(source) for source in sources])
    else:
        for source in sources:
            echo(f"{source.name}: {'searched' if source.searched else 'not searched'}: {source.note}")
            if source.found:
                echo_table(("found", "why"), [(f"  {item.what}", item.why) for item in source.found])
            elif source.searched:
                echo("  no matches")
            if source.more:
                echo(f"  and {source.more} more")
        if asked:
            echo(f"issues were not searched, because mirrors have none; search upstream's for {', '.join(asked)}")
    if any(source.searched for source in sources[1:]):
        return 0
    return nothing_examined("only the recipes could be searched; run `sentinel mirror add TARGET`")


def _run(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    matches = find_recipes(catalog, (), [arguments.bug])
    recipes = (
        matches if len(matches) == 1 else [item for item in matches if item.upstream.get("status") == "unreported"]
    )
    results: list[Head] = []
    interrupted = False
    with progress() as notify:
        try:
            for name in sorted({recipe.target for recipe in recipes}):
                ledger = Ledger(catalog, settings, catalog.targets[name])
                for head in heads(ledger, [recipe for recipe in recipes if recipe.target == name]):
                    results.append(head)
                    notify(f"{name}: #{head.pull}")
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        _print_heads(arguments, recipes, results)
        print_error("interrupted; the other heads were not run")
        return 130
    if not results:
        return nothing_examined(
            f"the mirror has no pull request that changes the function of {arguments.bug}; `sentinel mirror update "
            "TARGET` fetches new pull requests"
        )
    undecided = [head for head in results if head.undecided]
    if len(undecided) == len(results):
        reasons = "; ".join(causes(f"{head.verdict}: {head.reason}" for head in undecided))
        return nothing_examined(f"no head could be decided ({reasons}); `sentinel mirror update TARGET` may help")
    return _print_heads(arguments, recipes, results)


def _print_heads(arguments: argparse.Namespace, recipes: Sequence[Recipe], results: Sequence[Head]) -> int:
    """Print the results, and return the exit status: 1 if a head fixes a bug."""
    fixing = [head for head in results if head.verdict == "fixes"]
    undecided = [head for head in results if head.undecided]
    if arguments.json:
        echo_json([asdict(head) for head in results])
    else:
        if fixing:
            rows = [(h.bug_id, f"#{h.pull}", "open" if h.open else "", h.commit[:12], h.subject) for h in fixing]
            echo_table(("bug", "fixed by", "", "head", "subject"), rows)
        why = Counter((head.bug_id, "open" if head.open else "", head.verdict, head.reason) for head in undecided)
        if why:
            rows = [(bug, str(count), open_, verdict, reason) for (bug, open_, verdict, reason), count in why.items()]
            echo_table(("bug", "heads", "", "verdict", "why it could not be decided"), rows)
        heads_ = counted(len({(head.bug_id.partition("-")[0], head.pull) for head in results}), "head")
        absent = sum(head.verdict == "absent" for head in results)
        echo(
            f"{counted(len(recipes), 'recipe')} at {heads_}: {len(fixing)} fixed, {absent} whose base lacks the bug, "
            f"{len(undecided)} could not be decided"
        )
    return 1 if fixing else 0
