"""``sentinel coverage``: which of the functions that carry training signal are looked at, and which never were."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from sentinel.commands.console import Commands, command, counted, json_option, progress, say, say_json, say_table
from sentinel.commands.known import PATIENCE, known, settings_options, target_named
from sentinel.deciding.runner import opener, runner_of
from sentinel.errors import Unavailable
from sentinel.history.commits import releases
from sentinel.history.coverage import STATES, CheckoutTrees, Coverage, Looked, called, coverage
from sentinel.history.gittrees import GitTrees
from sentinel.recipes.catalog import Catalog
from sentinel.search.checks import subjects
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.targets import Target
from sentinel.targets.refs import Ref

_EXAMPLE = """\
  sentinel coverage verl                             at the last commit of its branch, a line for each module
  sentinel coverage verl --ref path:~/src/verl -v    and every function, with file and line
  sentinel coverage verl --call                      and call what no adapter names
  sentinel coverage verl --history                   at every release tag of the mirror, a line each

A function carries training signal where its parameters, name, class and body speak of it: docs/coverage.md has the
rule. It is looked at by a contract, left out by the adapter with a reason, or never looked at. The code is read;
nothing of it is imported or run, but for --call: then what the lexicon understands and answers is automatic, and what
runs when a boundary or one of these is called is within a call.
exit status: 0; 1 where a file could not be read, so that the table is not whole; 2 where the ref, or the mirror, is not
available
"""


def declare(commands: Commands, text: str) -> None:
    parser = command(commands, "coverage", _coverage, text, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET", help="the framework")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--ref", metavar="REF", help="the revision (default: the last commit of its branch)")
    when.add_argument("--history", action="store_true", help="every release tag instead")
    parser.add_argument(
        "--call", action="store_true", help="call what nobody has bound and the lexicon understands; it runs the code"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="name every function, with file and line")
    settings_options(parser, "repo-url", "python")
    json_option(parser)


def _coverage(arguments: argparse.Namespace) -> int:
    catalog, settings = known(arguments)
    target = target_named(catalog, arguments.target)
    try:
        if arguments.history:
            return _history(target, arguments.json)
        return _at(catalog, target, arguments.ref or f"git:{target.branch}", settings, arguments)
    except Unavailable as error:
        if not arguments.json:
            raise
        say_json({"target": target.name, "unavailable": error.reason})
        return 2


def _at(catalog: Catalog, target: Target, written: str, settings: Settings, arguments: argparse.Namespace) -> int:
    with progress() as tell:
        checkout = opener(settings, tell)(target, Ref.parse(written), None)
    found = coverage(target, CheckoutTrees(checkout))
    if arguments.call:
        found = _called(target, found, settings, catalog, checkout.ref)
    if arguments.json:
        say_json(
            {
                "target": target.name,
                "ref": str(checkout.ref),
                "commit": checkout.commit,
                "totals": found.totals,
                "modules": found.modules,
                "functions": [_plain(each) for each in found.functions],
                "outside": found.outside,
                "unread": found.unread,
            }
        )
        return 1 if found.unread else 0
    if arguments.verbose:
        named = [(each.path, f"{each.file}:{each.line}", each.state, "; ".join(each.by)) for each in found.functions]
        say_table(("function", "place", "state", "contract, or reason"), named)
        say("")
    rows = [(module, *_numbers(totals)) for module, totals in found.modules.items()]
    say_table(("module", "functions", *STATES), [*rows, ("total", *_numbers(found.totals))])
    _say_rest(found)
    return 1 if found.unread else 0


def _history(target: Target, as_json: bool) -> int:
    mirror = MirrorStore().path(target.name)
    tags = releases(mirror)
    if not tags:
        raise Unavailable(f"{target.name}: the mirror has no release tags")
    found = {}
    trees = GitTrees(mirror)
    try:
        with progress() as tell:
            for tag in tags:
                found[tag] = coverage(target, trees, tag.commit.tree)
                tell(f"{target.name}: {len(found)} of {len(tags)} releases")
    finally:
        trees.close()
    if as_json:
        lines = [{"release": tag.name, "commit": tag.commit.sha, "totals": one.totals} for tag, one in found.items()]
        say_json({"target": target.name, "releases": lines})
    else:
        rows = [(tag.name, tag.commit.date[:10], *_numbers(one.totals)) for tag, one in found.items()]
        say_table(("release", "date", "functions", *STATES), rows)
    return 1 if any(one.unread for one in found.values()) else 0


def _plain(function: Looked) -> dict[str, Any]:
    told = {"path": function.path, **asdict(function)}
    del told["signature"]  # what it is read from
    return told


def _called(target: Target, found: Coverage, settings: Settings, catalog: Catalog, ref: Ref) -> Coverage:
    with progress() as tell:
        runner = runner_of(catalog, replace(settings, timeout=min(settings.timeout, PATIENCE)), tell)
        try:
            bound, _ = subjects(catalog, target.name, checkout=runner.checkout(target.name, ref))
            session = runner.open_target(target.name, ref, [item.binding for item in bound]).law_session
            return called(catalog.adapters[target.name], found, catalog.laws, session, bound)
        finally:
            runner.close()


def _numbers(totals: Mapping[Any, int]) -> tuple[str, ...]:
    return str(sum(totals.values())), *map(str, totals.values())


def _say_rest(found: Coverage) -> None:
    total, never = len(found.functions), found.totals["never looked at"]
    share = f" ({never / total:.0%})" if total else ""
    say(f"\n{counted(total, 'function')} of training signal, {never} never looked at{share}")
    if found.outside:
        say(f"bound, and not counted: the rule does not see signal in {', '.join(found.outside)}")
    for file, why in sorted(found.unread.items()):
        say(f"not read: {file}: {why}")
