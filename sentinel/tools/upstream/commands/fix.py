"""Implement ``sentinel fix``, which prints or tests the patch for a bug."""

from __future__ import annotations

import argparse
import html
from typing import Any

from sentinel.commands.console import Commands, command, echo, echo_json, group, json_option, progress
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.errors import NothingExamined
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.fixes import SUFFIX, Fix, fix_of
from sentinel.sources import MirrorStore
from sentinel.tools.upstream.page import trial_lines
from sentinel.tools.upstream.trying import diff_of, try_fix

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
    """Return the fixes of all bugs whose ids match these patterns, each only once.

    :raises NothingExamined: if no bug that matches a pattern has a fix.
    """
    by_path: dict[Any, Fix] = {}
    for glob in globs:
        recipes = find_recipes(catalog, (), [glob])
        fixes = [fix for item in recipes if (fix := fix_of(catalog, item.target, item.bug_id)) is not None]
        if not fixes:
            place = f"recipes/{recipes[0].target}/{recipes[0].bug_id}{SUFFIX}"
            raise NothingExamined(f"{glob} has no fix in the recipe folders; write one as {place}")
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
            document = documents[fix.bugs[0]]
            for bug, (before, after) in document["bugs"].items():
                echo(f"{bug}: {before} without the fix, {after} with it")
            for line in trial_lines(fix.target, document):
                echo(f"  {html.unescape(line)}")
    return 1 if any(document["problems"] for document in documents.values()) else 0
