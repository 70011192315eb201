"""Implement ``sentinel coverage``, which lists signal functions, their bindings, and the lines that laws run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sentinel.commands.console import Commands, command, counted, echo, echo_json, echo_table, json_option, progress
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.comparing import report
from sentinel.deciding.runner import runner_of
from sentinel.deciding.setup import opener
from sentinel.errors import NothingExamined, Unavailable
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.reports.escaping import visible
from sentinel.search.bindings import CheckoutTrees, Definitions, syntax_of
from sentinel.search.checks import subjects
from sentinel.search.coverage import Coverage, Lines, coverage, lines
from sentinel.search.inventory import STATES, Function, Source, State
from sentinel.search.swapped import swapped_calls
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.sources.commits import releases
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target
from sentinel.targets.refs import Ref

GROUP = "search"
#: Maximum seconds of one call. Calls on small tensors are fast, unless they wait for something.
_PATIENCE = 10.0

SUMMARY = "show which signal functions are checked"

T = TypeVar("T")

_EXAMPLE = """\
  sentinel coverage verl                             at the last commit of its branch, by module
  sentinel coverage verl --ref path:~/src/verl -v    also each function, with file and line
  sentinel coverage verl --run -v                    also the lines that never ran while laws were searched
  sentinel coverage verl --run deep                  the same after a long search
  sentinel coverage verl --history                   at each release tag of the mirror
  sentinel coverage verl --save reports/coverage.json    for the site; can be added to each of these

The rule in docs/coverage.md determines from names and syntax whether a function carries training signal. All figures
count every function that this rule selects: bound, not bound, or excluded by the adapter with no_signal, such as
kernels and servers. The code is read; only --run imports and calls it.
exit status: 0; 1 if a file could not be read and the table is incomplete; 2 if the ref or the mirror is not available
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "coverage", _coverage, SUMMARY, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET", help="the framework")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--ref", metavar="REF", help="the revision (default: the last commit of its branch)")
    when.add_argument("--history", action="store_true", help="show all release tags instead")
    parser.add_argument(
        "--run",
        choices=("quick", "deep"),
        nargs="?",
        const="quick",
        dest="lines",
        help="run a search of laws, and report which lines and branches it runs (default: quick)",
    )
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="also write the result to FILE (reports/coverage.json for the site)"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="list each function that carries signal, with file and line"
    )
    settings_options(parser, "repo-url", "python")
    json_option(parser)


def _coverage(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    try:
        if arguments.history:
            return _history(target, arguments)
        return _at(catalog, target, arguments.ref or f"git:{target.branch}", settings, arguments)
    except Unavailable as error:
        if not arguments.json:
            raise
        echo_json({"target": target.name, "unavailable": error.reason})
        return 2


def _at(catalog: Catalog, target: Target, written: str, settings: Settings, arguments: argparse.Namespace) -> int:
    with progress() as notify:
        checkout = opener(settings, notify)(target, Ref.parse(written), None)
    trees = CheckoutTrees(checkout)
    result = coverage(target, trees)
    if not result.functions:
        unread = f", and {counted(len(result.unread), 'file')} could not be read" if result.unread else ""
        raise NothingExamined(
            f"{target.name} at {checkout.ref.short}: the rule in docs/coverage.md selects no function{unread}"
            "; name another revision with --ref"
        )
    if arguments.lines:
        ask = partial(lines, result, checkout.path, arguments.lines, find_recipes(catalog, (target.name,)))
        runs = _in_session(target, settings, catalog, checkout.ref, partial(ask, roots=target.roots))
        _save(arguments, target, "lines", commit=checkout.commit, level=arguments.lines, modules=_by_module(runs))
        return _run(result, runs, arguments)
    _save(arguments, target, "modules", commit=checkout.commit, totals=result.totals, modules=result.modules)
    if arguments.json:
        code = {"target": target.name, "ref": str(checkout.ref), "commit": checkout.commit}
        counts = {name: getattr(result, name) for name in ("totals", "modules", "outside", "unread")}
        echo_json({**code, **counts, "functions": [_plain(each) for each in result.functions]})
        return 1 if result.unread else 0
    echo(f"{target.name} at {visible(checkout.ref.short)}: {_summary(result.totals)}\n")
    if arguments.verbose:
        named = [
            (each.path, f"{each.file}:{each.line}", each.state, "; ".join(each.contracts))
            for each in result.functions
            if each.state != "no signal"
        ]
        echo_table(("function", "place", "state", "contracts"), named)
        echo("")
    rows = [(module, *_numbers(totals)) for module, totals in result.modules.items()]
    echo_table(("module", "functions", *STATES), [*rows, ("total", *_numbers(result.totals))])
    _say_rest(result)
    swapped = _swapped(target, trees, {each.name.rpartition(".")[2] for each in result.functions})
    if swapped:
        echo("\ncalls that pass two arguments in the reverse order of the function's parameters or of another call:")
        echo_table(("function", "place", "arguments", "compare with"), swapped)
    return 1 if result.unread else 0


def _swapped(target: Target, trees: CheckoutTrees, names: Collection[str]) -> list[tuple[str, ...]]:
    """Return a table row for each call of a signal function that seems to swap two arguments. Files that cannot be
    parsed are skipped."""
    parsed = []
    for file, blob in Definitions(trees, target.roots).sources(""):
        with suppress(SyntaxError, ValueError, RecursionError):
            parsed.append((file, syntax_of(trees.blob(blob))))
    calls = (each for each in swapped_calls(parsed) if each.function in names)
    return [(each.function, each.place, ", ".join(each.arguments), each.other) for each in calls]


def _save(arguments: argparse.Namespace, target: Target, name: str, **values: Any) -> None:
    if arguments.save is not None:
        report.save(arguments.save, "coverage", target.name, {name: values})


def _history(target: Target, arguments: argparse.Namespace) -> int:
    mirror = MirrorStore().path(target.name)
    tags = releases(mirror)
    if not tags:
        raise Unavailable(
            f"{target.name}: the mirror has no release tags; `sentinel mirror update {target.name}` fetches new ones"
        )
    results = {}
    parsed: dict[tuple[str, str], Source] = {}
    with progress() as notify, closing(GitTrees(mirror)) as trees:
        for tag in tags:
            results[tag] = coverage(target, trees, tag.commit.tree, parsed)
            notify(f"{target.name}: {len(results)} of {len(tags)} releases")
    lines = [
        {"release": tag.name, "date": tag.commit.date[:10], "commit": tag.commit.sha, "totals": one.totals}
        for tag, one in results.items()
    ]
    _save(arguments, target, "releases", releases=lines)
    if arguments.json:
        echo_json({"target": target.name, "releases": lines})
    else:
        echo(f"{target.name} at {tags[-1].name}: {_summary(results[tags[-1]].totals)}\n")
        rows = [(tag.name, tag.commit.date[:10], *_numbers(one.totals)) for tag, one in results.items()]
        echo_table(("release", "date", "functions", *STATES), rows)
    return 1 if any(one.unread for one in results.values()) else 0


def _plain(function: Function) -> dict[str, Any]:
    return {"path": function.path, **asdict(function)}


def _in_session(target: Target, settings: Settings, catalog: Catalog, ref: Ref, ask: Callable[..., T]) -> T:
    """Start a worker session for the target's bound functions, and return ``ask(session, subjects)``."""
    patient = replace(settings, timeout=min(settings.timeout, _PATIENCE))
    with progress() as notify, closing(runner_of(catalog, patient, notify)) as runner:
        bound, _ = subjects(catalog, target.name, checkout=runner.checkout(target.name, ref))
        session = runner.open_target(target.name, ref, [item.binding for item in bound]).law_session
        return ask(session, bound)


def _run(result: Coverage, runs: Sequence[Lines], arguments: argparse.Namespace) -> int:
    """Print how many lines of each module ran in a search. With ``-v``, also list the lines that did not run."""
    if arguments.json:
        marks = ("ran", "idle", "branches", "taken", "guards", "turned")
        echo_json([{"path": each.function.path, "file": each.function.file,
                   **{name: getattr(each, name) for name in marks}} for each in runs])  # fmt: skip
        return 0
    ran = sum(bool(each.ran) for each in runs if each.function.state == "bound")
    echo(f"{_summary(result.totals)}; {ran} of the bound functions ran while laws were checked\n")
    if arguments.verbose:
        rows = [
            (
                each.function.path,
                f"{each.function.file}:{each.function.line}",
                _idle(each) if each.ran else "never ran",
            )
            for each in runs
            if each.idle or not each.ran
        ]
        echo_table(("function", "place", "lines that never ran"), rows)
        echo("")
    table = [(module, *_shares(counts)) for module, counts in _by_module(runs).items()]
    headings = ("module", "functions", "never ran", "lines", "ran", "branches", "taken")
    echo_table(headings, [*table, ("total", *_shares(_counts(runs)))])
    turned = sum(len(each.turned) for each in runs)
    if turned:
        more = counted(turned, "further line")
        echo(f"\n{more} ran only with options that no scenario sets; no law checked their results")
    return 0


def _by_module(runs: Sequence[Lines]) -> dict[str, dict[str, int]]:
    modules: dict[str, list[Lines]] = {}
    for each in runs:
        modules.setdefault(each.function.module, []).append(each)
    return {module: _counts(modules[module]) for module in sorted(modules)}


def _counts(runs: Sequence[Lines]) -> dict[str, int]:
    return {
        "functions": len(runs),
        "never ran": sum(not each.ran for each in runs),
        "lines": sum(len(each.ran) + len(each.idle) for each in runs),
        "ran": sum(len(each.ran) for each in runs),
        "branches": sum(each.branches for each in runs),
        "taken": sum(each.taken for each in runs),
    }


def _shares(counts: Mapping[str, int]) -> tuple[str, ...]:
    def share(part: str, whole: str) -> str:
        return f"{counts[part] / counts[whole]:.0%}" if counts[whole] else ""

    functions, never, lines, branches = (str(counts[name]) for name in ("functions", "never ran", "lines", "branches"))
    return functions, never, lines, share("ran", "lines"), branches, share("taken", "branches")


def _idle(run: Lines) -> str:
    """Return a function's lines that never ran and the condition around them: ``3-5 (if beta; ran with it), 9``.

    ``ran with it`` marks lines that ran when the option in the condition was set, but were not checked by a law.
    """
    guarded: dict[tuple[str, ...], list[int]] = {}
    for line in run.idle:
        guard = f"if {run.guards[line]}" if line in run.guards else ""
        reasons = filter(None, (guard, "ran with it" if line in run.turned else ""))
        guarded.setdefault(tuple(reasons), []).append(line)
    return ", ".join(_spans(lines) + (f" ({'; '.join(why)})" if why else "") for why, lines in guarded.items())


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def _numbers(totals: Mapping[Any, int]) -> tuple[str, ...]:
    return str(sum(totals.values())), *map(str, totals.values())


def _summary(totals: Mapping[State, int]) -> str:
    total = sum(totals.values())
    states = ", ".join(f"{number} {state} ({number / total:.0%})" for state, number in totals.items())
    return f"laws can check {totals['bound']} of the {total} functions that the rule selects: {states}"


def _say_rest(result: Coverage) -> None:
    if result.outside:
        echo(f"\nbound, but not counted because they carry no signal by the rule: {', '.join(result.outside)}")
    for file, why in sorted(result.unread.items()):
        echo(f"not read: {file}: {why}")
