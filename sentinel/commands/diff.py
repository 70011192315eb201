"""Implement ``sentinel diff``, which shows which results differ between two revisions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from sentinel.commands.console import Commands, command, echo, echo_json, json_option, nothing_examined, progress
from sentinel.commands.options import boundary_option, catalog_and_settings, settings_options, target_named
from sentinel.comparing import report
from sentinel.comparing.comparison import Comparison
from sentinel.comparing.processes import Shared
from sentinel.comparing.reached import Code
from sentinel.comparing.results import BoundaryDiff
from sentinel.deciding.runner import runner_of
from sentinel.errors import SentinelError
from sentinel.recipes import find_recipes
from sentinel.sources import MirrorStore, commits
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target
from sentinel.targets.refs import Ref

GROUP = "my branch"
SUMMARY = "show which results differ between two revisions"

_EXAMPLE = """\
  sentinel diff verl pypi:0.9.0 pypi:0.9.1                   what a release changes
  sentinel diff verl git:main path:~/src/verl                what a working tree changes
  sentinel diff slime git:main git:pull/1917/head --markdown
  sentinel diff verl git:v0.7.0 git:v0.8.0 git:v0.9.0         each revision with the previous one
  sentinel diff verl git:v0.8.0 git:main --boundary 'compute_grpo*' --examples 500

Calls each boundary that reaches changed code with the same scenarios at both revisions: first with random scenarios,
then with those of known bugs. A difference is shrunk to the smallest scenario and confirmed in fresh processes. Laws
and known bugs determine whether the change is better or worse. Changed lines that did not run, and changed signal
functions that no boundary calls, are listed as not examined. Results are printed as soon as they are known: changed
functions first, then their callers, nearest first. Ctrl-C and SIGTERM end the command and print the finished results.
exit status: 0 no difference where it was examined, 1 a boundary differs, 2 nothing was examined, 130 interrupted
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "diff", _diff, SUMMARY, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("before", metavar="A", help="the first ref")
    parser.add_argument(
        "after", metavar="B", nargs="+", help="one or more refs; each is compared with the previous one"
    )
    boundary_option(parser)
    parser.add_argument(
        "--examples", metavar="N", type=int, default=100, help="scenarios for each boundary (default: 100)"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="seed of the random scenarios (default: 0)")
    parser.add_argument("--worse", action="store_true", help="exit with status 1 only if a boundary is worse")
    settings_options(parser)
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="also write the result to FILE, such as reports/changes.json"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--markdown", action="store_true", help="print Markdown")
    json_option(shape)


def _diff(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    refs = [Ref.parse(text) for text in (arguments.before, *arguments.after)]
    if arguments.examples < 1:
        raise SentinelError(f"--examples {arguments.examples}: must be at least 1")
    store, recipes = MirrorStore(), cache(lambda: find_recipes(catalog, (target.name,), ()))
    documents, statuses = [], []
    with progress() as notify, ExitStack() as stack:
        runner = stack.enter_context(closing(runner_of(catalog, settings, notify, store)))
        shared = _shared(target, store, refs, stack) if len(refs) > 2 else None
        for pair in pairwise(refs):
            comparison = Comparison(
                catalog,
                runner,
                target,
                pair,
                recipes,
                arguments.examples,
                arguments.seed,
                arguments.boundary,
                notify,
                shared=shared and shared[0],
                trees=(shared[1][pair[0]], shared[1][pair[1]]) if shared else ("", ""),
            )
            if arguments.boundary and not comparison.selection.subjects:
                raise SentinelError("; ".join(target.explain_unbound(glob) for glob in arguments.boundary))
            outcomes: list[BoundaryDiff] = []
            interrupted = False
            try:
                for compared in comparison.run():
                    outcomes.append(compared)
                    _print_boundary(arguments, comparison, outcomes, notify)
            except KeyboardInterrupt:
                interrupted = True
            outcomes = comparison.settle(outcomes)
            documents.append(_print(arguments, comparison, outcomes, interrupted))
            statuses.append(_status(comparison, outcomes, interrupted, arguments.worse))
            if interrupted:
                break
    if arguments.json:
        echo_json(documents[0] if len(refs) == 2 else documents)
    return next((status for status in (130, 1, 2) if status in statuses), 0)


def _shared(
    target: Target, store: MirrorStore, refs: Sequence[Ref], stack: ExitStack
) -> tuple[Shared, dict[Ref, str]] | None:
    """Return a cache for all comparisons, and each ref's git tree. Return None unless all refs are git refs."""
    if any(ref.kind != "git" for ref in refs):
        return None
    mirror = store.path(target.name)
    trees = {ref: commits.commit(mirror, store.resolve(target, ref.name)).tree for ref in refs}
    return Shared(Code(target, stack.enter_context(closing(GitTrees(mirror))))), trees


def _print_boundary(
    arguments: argparse.Namespace,
    comparison: Comparison,
    outcomes: Sequence[BoundaryDiff],
    notify: Callable[[str], None],
) -> None:
    """Print the result of the last compared boundary. With ``--json`` or ``--markdown``, print it on standard error."""
    compared = outcomes[-1]
    if arguments.json or arguments.markdown:
        if compared.state != "same code":
            notify(f"{compared.name}: {compared.judgement or compared.state}")
        return
    text = "\n".join(report.write_result(comparison, compared, sum(each.state == "differs" for each in outcomes)))
    if text:
        echo(text)
        sys.stdout.flush()


def _print(
    arguments: argparse.Namespace, comparison: Comparison, outcomes: list[BoundaryDiff], interrupted: bool
) -> dict[str, Any] | None:
    """Print one comparison; with ``--json``, return it as data instead. With ``--save``, also write it to a file."""
    if arguments.save is not None:
        name = "..".join(ref.short for ref in comparison.refs.values())
        entry = {name: report.to_page(comparison, outcomes, interrupted)}
        report.save(arguments.save, "revisions", comparison.target.name, entry)
    if arguments.json:
        return report.to_document(comparison, outcomes, interrupted)
    if arguments.markdown:
        sys.stdout.write(report.to_markdown(comparison, outcomes, interrupted))
    else:
        echo("\n".join(report.write_ending(comparison, outcomes, interrupted)))
    return None


def _status(comparison: Comparison, outcomes: Sequence[BoundaryDiff], interrupted: bool, worse: bool) -> int:
    states = {item.state for item in outcomes}
    if interrupted:
        return 130
    if any(item.judgement == "worse" for item in outcomes) or (not worse and "differs" in states):
        return 1
    nothing = report.why_nothing_examined(comparison, outcomes)
    return nothing_examined(nothing) if nothing else 0
