"""Implement ``sentinel contribute``, which prepares a pull request for a bug: patch, page, evidence and runner."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from sentinel.commands.console import Commands, command, counted, echo, progress
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.deciding.outcomes import UNDECIDED
from sentinel.deciding.setup import opener, options_of
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.fixes import Fix, find_fixes, fix_of
from sentinel.records.ledger import Ledger
from sentinel.reports.store import write_below
from sentinel.reports.summary import causes
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.targets.refs import Ref
from sentinel.tools.upstream.commands.fix import tests_options
from sentinel.tools.upstream.contribution import (
    Contribution,
    contribution,
    documented,
    is_logged,
    load_contribution,
    related,
)
from sentinel.tools.upstream.exporting import Bundle, Exporter
from sentinel.tools.upstream.page import pages, remove_other, title, write
from sentinel.tools.upstream.trying import opening, try_fix

GROUP = "publish"
SUMMARY = "turn a bug into a pull request: patch, page, runner"

_EXAMPLE = """\
  sentinel contribute ROLL-CRITIC-CLIPFRAC-IS-THE-LOSS     the pages and a patch for `git am`, in contribution/
  sentinel contribute MY-BUG --recipes . --base git:<sha> --repo ~/src/verl  a commit without the fix, a tree with it
  sentinel contribute --all --no-check --out export                         every shipped recipe
  sentinel contribute --rewrite findings                                    write these pages again

If recipes/<target>/<BUG>.fix.yaml exists, the fix is tested as by `sentinel fix check`, and the recipe is run at the
heads of the mirror's pull requests that change the same function. Otherwise base and head are the recipe's first pins
with and without the bug. The runner is a script that shows the bug without Sentinel. It is tested in a process with
only torch, numpy and the packages that it lists. Nothing is pushed.
exit status: 0; 1 if a check of the fix fails, or a bug is absent from the base or still present at the head; 2 if the
bug could not be run
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "contribute", _contribute, SUMMARY, _EXAMPLE)
    parser.add_argument("bug", metavar="BUG", nargs="*", help="a bug id, or a pattern with *")
    parser.add_argument("--all", action="store_true", help="every recipe")
    parser.add_argument("--base", metavar="REF", help="the revision with the bug (default: the fix's commit, or a pin)")
    parser.add_argument("--head", metavar="REF", help="the revision without the bug (default: base plus fix, or a pin)")
    parser.add_argument("--repo", metavar="DIR", help="a working tree with the fix, instead of --head")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("contribution"), help="default: contribution")
    parser.add_argument(
        "--rewrite", metavar="DIR", type=Path, help="write the pages in this folder again, from their stored evidence"
    )
    parser.add_argument("--no-check", action="store_true", help="test neither the fix nor the runner")
    tests_options(parser)
    settings_options(parser)


def _contribute(arguments: argparse.Namespace) -> int:
    if arguments.rewrite:
        return _rewrite(arguments)
    if bool(arguments.bug) == arguments.all:
        raise SentinelError("give either bug ids or --all")
    if arguments.repo and arguments.head:
        raise SentinelError("--repo and --head both name the revision with the fix; give one of them")
    catalog, settings = catalog_and_settings(arguments)
    recipes = find_recipes(catalog, (), arguments.bug)
    base = Ref.parse(arguments.base) if arguments.base else None
    head = Ref.parse(arguments.head) if arguments.head else None
    if arguments.repo:
        head = Ref("path", str(Path(arguments.repo).expanduser().absolute()))
    fixes = {recipe.bug_id: fix_of(catalog, recipe.target, recipe.bug_id) for recipe in recipes if not (base or head)}
    left = incomplete = 0
    with progress() as notify, _Maker(arguments, catalog, settings, notify) as maker:
        for recipe in recipes:
            fix = fixes.get(recipe.bug_id)
            if fix and recipe.bug_id != fix.bugs[0] and any(item.bug_id == fix.bugs[0] for item in recipes):
                if not arguments.all:
                    continue  # one pull request for each root cause
                fix = None
            left += 1
            made, bundles, log = maker.of_fix(fix) if fix else (*maker.of_pins(recipe, base, head), "")
            undecided = [side.decision for side in bundles[0].sides if side.decision.verdict.name in UNDECIDED]
            if len(undecided) == len(bundles[0].sides):
                why = "; ".join(causes(decision.verdict.reason for decision in undecided))
                if len(recipes) == 1:
                    raise NothingExamined(f"{recipe.bug_id} could not be decided at any revision ({why})")
                echo(f"{recipe.bug_id}: not decided, nothing written: {why}")
                incomplete += 1
                continue
            folder = write(arguments.out, made, bundles, log)
            problems = (made.document["tried"] or {"problems": []})["problems"]
            bad = bool(problems) or not bundles[0].decided
            incomplete += bad
            if len(recipes) > 1:
                echo(f"{made.recipe.bug_id}: {_state(bundles[0], problems)}")
            else:
                _notify(made, bundles[0], folder, problems, arguments)
    if len(recipes) > 1:
        echo(f"{counted(left - incomplete, 'bug')} complete, {incomplete} incomplete")
    return 1 if incomplete else 0


def _rewrite(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings(arguments)
    store, wanted, stale = MirrorStore(), arguments.bug or ["*"], []
    files = [
        file
        for file in sorted(arguments.rewrite.rglob("evidence.json"))
        if any(fnmatchcase(file.parent.name, glob) for glob in wanted)
    ]
    if not files:
        raise NothingExamined(
            f"{arguments.rewrite} has no evidence.json for {' '.join(wanted)}; `sentinel contribute` writes one"
        )
    for file in files:
        document = load_contribution(file)
        if document is None:
            raise SentinelError(f"{file}: not a contribution; `sentinel contribute` writes one")
        try:
            made = contribution(document, catalog, store)
            texts = pages(replace(made, logged=is_logged(file.parent, made.fix)))
        except SentinelError as error:  # for example, the fix has changed since it was tested
            stale.append(f"{file.parent}: {error}")
            continue
        if not {"PULL_REQUEST.md"} & texts.keys():
            remove_other(file.parent, [*texts, "evidence.json", "tests.log"])
        for name, text in texts.items():
            write_below(file.parent, name, text, "name another folder with --rewrite DIR")
    for each in stale:
        echo(each)
    echo(f"{counted(len(files) - len(stale), 'page')} written again")
    return 1 if stale else 0


class _Maker:
    """Creates the contributions of several bugs, with one worker process per target."""

    def __init__(
        self, arguments: argparse.Namespace, catalog: Catalog, settings: Settings, notify: Callable[[str], None]
    ) -> None:
        self._arguments, self._catalog, self._settings, self._notify = arguments, catalog, settings, notify
        fixes = [fix for target in catalog.targets for fix in find_fixes(catalog, target)]
        self._store = MirrorStore()
        self._opened = opening(fixes, opener(settings, notify, self._store), self._store)
        self._exporters: dict[str, Exporter] = {}

    def __enter__(self) -> _Maker:
        return self

    def __exit__(self, *error: object) -> None:
        for exporter in self._exporters.values():
            exporter.close()

    def of_pins(self, recipe: Recipe, base: Ref | None, head: Ref | None) -> tuple[Contribution, list[Bundle]]:
        """Create the contribution for a bug for which Sentinel has no fix.

        :param base: the revision with the bug; None for the recipe's pin.
        :param head: the revision without the bug; None for the recipe's pin.
        """
        if base is None and recipe.pins and all(pin.expect != "reproduced" for pin in recipe.pins):
            expected = ", ".join(f"{pin.ref.short} {pin.expect}" for pin in recipe.pins)
            raise SentinelError(
                f"{recipe.bug_id}: no pin has the bug ({expected}), so there is nothing to report upstream; name a "
                "revision that has it with --base git:<sha>"
            )
        bundle = self._exporter(recipe.target).export(
            recipe, *recipe.revisions(base, head), check=not self._arguments.no_check
        )
        side = bundle.sides[0]
        if side.decision.verdict.name == "fixed":
            raise SentinelError(
                f"{recipe.bug_id} is fixed at {side.decision.ref.short}, so there is nothing to report upstream; name "
                "a revision that has the bug with --base git:<sha>"
            )
        document = documented([bundle], None, None, ())
        return Contribution((recipe,), self._catalog.targets[recipe.target], None, document), [bundle]

    def of_fix(self, fix: Fix) -> tuple[Contribution, list[Bundle], str]:
        """Test Sentinel's fix for a root cause. Return the contribution and the output of the fix's tests."""
        check = not self._arguments.no_check
        recipes = {recipe.bug_id: recipe for recipe in find_recipes(self._catalog, [fix.target], fix.bugs)}
        exporter = self._exporter(fix.target)
        bundles = [
            exporter.export(recipes[bug], fix.base, fix.patched, check=check and bug == fix.bugs[0]) for bug in fix.bugs
        ]
        tried, others = None, []
        if check:
            how = (not self._arguments.no_tests, self._arguments.tests_python)
            tried = try_fix(self._catalog, self._settings, fix, self._store, self._notify, *how)
            self._notify(f"{fix.bugs[0]} at the heads of pull requests")
            ledger = Ledger(self._catalog, self._settings, self._catalog.targets[fix.target], self._store)
            others = related(ledger, recipes[fix.bugs[0]], fix)
        made = contribution(documented(bundles, fix, tried, others), self._catalog, self._store)
        return made, bundles, (tried or {}).get("log", "")

    def _exporter(self, target: str) -> Exporter:
        if target not in self._exporters:
            options = options_of(self._settings, target)
            self._exporters[target] = Exporter(self._catalog, self._opened, options, self._notify)
        return self._exporters[target]


def _notify(
    made: Contribution,
    bundle: Bundle,
    folder: Path,
    problems: Sequence[str],
    arguments: argparse.Namespace,
) -> None:
    verdicts = ", ".join(f"{side.name} {side.decision.verdict.name}" for side in bundle.sides)
    echo(f"{folder}: {verdicts}")
    for problem in problems:
        echo(f"problem: {problem}")
    if not bundle.runner:
        echo(_state(bundle, ()))
    elif arguments.no_check:
        echo("the runner was not tested")
    repository = made.target.repository.removesuffix(".git").removeprefix("https://github.com/")
    body = shlex.quote(str(folder / "PULL_REQUEST.md"))
    if made.fix and made.fix.comment:
        echo(f"a pull request has this fix already: {folder / 'SENDER.md'} contains a comment for it")
        return
    if not (made.fix and made.fix.head):
        echo(f"gh pr create --repo {repository} --title {shlex.quote(title(made))} --body-file {body}")
    echo(f"gh pr comment {made.recipe.upstream.get('pull') or 'NUMBER'} --repo {repository} --body-file {body}")


def _state(bundle: Bundle, problems: Sequence[str]) -> str:
    if problems:
        return problems[0]
    return "complete" if bundle.runner else f"no runner: {bundle.reason}"
