"""``sentinel fix``: show or test the patch for a bug."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from sentinel.commands.console import Commands, command, counted, echo, echo_json, group, json_option, progress
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.errors import NothingExamined
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.fixes import SUFFIX, Fix, fix_of
from sentinel.sources import MirrorStore
from sentinel.tools.upstream.trying import diff_of, elsewhere, try_fix

GROUP = "publish"
SUMMARY = "show a bug's patch, or test it"

_SHOW = """\
  sentinel fix show ROLL-CRITIC-CLIPFRAC-IS-THE-LOSS | git apply
"""
_CHECK = """\
  sentinel fix check ROLL-CRITIC-CLIPFRAC-IS-THE-LOSS       the recipe, its neighbours, laws, numbers, upstream's tests
  sentinel fix check 'ROLL-*' --no-tests                    without upstream's tests

A fix is `recipes/<target>/<BUG-ID>.fix.yaml`. It is tested in a scratch tree of the commit that it names.
exit status: 0 the fix removes the bug and changes nothing else, 1 a check failed, 2 the fix could not be tested
"""


def declare(commands: Commands) -> None:
    own = group(commands, "fix", SUMMARY, _SHOW + _CHECK)
    show = command(own, "show", _show, "print the patch as an ordinary diff", _SHOW)
    show.add_argument("bug", metavar="BUG")
    settings_options(show, "recipes")
    check = command(own, "check", _check, "test the patch", _CHECK)
    check.add_argument("bug", metavar="BUG", nargs="+", help="a bug id, or a pattern with *")
    tests_options(check)
    settings_options(check)
    json_option(check)


def tests_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-tests", action="store_true", help="do not run upstream's own tests")
    parser.add_argument("--tests-python", metavar="PYTHON", help="the interpreter that runs upstream's tests")


def fixes_of(catalog: Catalog, globs: list[str]) -> list[Fix]:
    """Return the fixes of the bugs that match, each fix once."""
    by_path: dict[Any, Fix] = {}
    for glob in globs:
        recipes = find_recipes(catalog, (), [glob])
        fixes = [fix for item in recipes if (fix := fix_of(catalog, item.target, item.bug_id)) is not None]
        if not fixes:
            place = f"recipes/{recipes[0].target}/{recipes[0].bug_id}{SUFFIX}"
            raise NothingExamined(f"{glob} has no fix that can be tested; write one as {place}")
        by_path |= {fix.path: fix for fix in fixes}
    return list(by_path.values())


def _show(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings(arguments)
    for fix in fixes_of(catalog, [arguments.bug]):
        echo(diff_of(fix, MirrorStore()).rstrip("\n"))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    fixes, store = fixes_of(catalog, arguments.bug), MirrorStore()
    documents = {}
    with progress() as notify:
        for fix in fixes:
            how = (not arguments.no_tests, arguments.tests_python)
            documents[fix.bugs[0]] = try_fix(catalog, settings, fix, store, notify, *how)
    if arguments.json:
        echo_json(documents)
    else:
        for fix in fixes:
            for line in trial_lines(documents[fix.bugs[0]]):
                echo(line)
    return 1 if any(document["problems"] for document in documents.values()) else 0


def trial_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the result of testing a fix as lines of text."""
    lines = [f"{bug}: {before} without the fix, {after} with it" for bug, (before, after) in document["bugs"].items()]
    others = document["others"]
    mended = [bug for bug, (before, after) in others.items() if before != after == "fixed"]
    also = f", {', '.join(mended)} fixed too" if mended else ""
    lines.append(f"  {counted(len(others), 'other recipe')}: as before{also}")
    for boundary, result in document["boundaries"].items():
        if not result["scenarios"]:
            lines.append(f"  {boundary}: no scenario was drawn, so other inputs were not compared")
            continue
        shown = f" ({', '.join(result['mended_laws'])})" if result["mended_laws"] else ""
        lines.append(
            f"  {boundary}: {counted(result['scenarios'], 'drawn scenario')}: {result['mended']} show the bug{shown}, "
            f"{result['unjudged']} differ but no law applies, {result['refused']} are rejected; on the other "
            f"{result['outside']} the largest difference is {float(result['largest_difference']):g}"
        )
    scenarios, functions, largest = elsewhere(document)
    most = f"the largest difference is {largest:g}" if scenarios else "so nothing was compared"
    lines.append(f"  {functions} other functions: {scenarios} drawn scenarios, {most}")
    for file, result in document["tests"].items():
        counts = ", ".join(f"{b} {name}" if b == a else f"{b} {name} (with the fix {a})" for name, (b, a) in
                           result.get("outcomes", {}).items())  # fmt: skip
        lines.append(f"  {file}: {counts or 'cannot run here: ' + result['not_runnable']}")
    for test, result in document["regression"].items():
        why = f": {result['reason']}" if "reason" in result else ""
        lines.append(f"  {test}: {result['without']} without the fix, {result['with']} with it{why}")
    return [*lines, *(f"  PROBLEM: {problem}" for problem in document["problems"])]
