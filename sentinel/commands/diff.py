"""``sentinel diff``: what changes in the numbers between two revisions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sentinel.commands.console import Commands, command, json_option, progress, say, say_json
from sentinel.commands.known import known, settings_options, target_named
from sentinel.deciding.runner import runner_of
from sentinel.diff import report
from sentinel.diff.comparing import Compared, Comparison
from sentinel.diff.since import with_commits
from sentinel.errors import SentinelError, nearest
from sentinel.recipes import find_recipes
from sentinel.sources import MirrorStore
from sentinel.targets.refs import Ref

_EXAMPLE = """\
  sentinel diff verl pypi:0.9.0 pypi:0.9.1                   what a release changes
  sentinel diff verl git:main path:~/src/verl                what a working tree changes
  sentinel diff slime git:main git:pull/1917/head --markdown
  sentinel diff verl git:v0.8.0 git:main --boundary 'compute_grpo*' --examples 500

The same scenarios go through each boundary at both revisions, where anything that it reaches has changed: those of
known bugs first, then drawn ones, shrunk to the smallest that differs and measured again in fresh processes. Laws and
known bugs say whether a difference is for the better. Where both revisions are commits of the mirror (or releases with
a tag), the commit is bisected.
exit status: 0 nothing differs, 1 something does, 2 it could not be compared
"""


def declare(commands: Commands, text: str) -> None:
    parser = command(commands, "diff", _diff, text, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("before", metavar="A", help="a ref")
    parser.add_argument("after", metavar="B", help="a ref")
    parser.add_argument(
        "--boundary", metavar="GLOB", action="append", default=[], help="only these (dotted path or its last part)"
    )
    parser.add_argument("--examples", metavar="N", type=int, default=100, help="scenarios a boundary (default: 100)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="draw other scenarios (default: 0)")
    parser.add_argument("--no-bisect", action="store_true", help="do not look for the commits")
    parser.add_argument("--worse", action="store_true", help="status 1 only where something is worse, or mixed")
    settings_options(parser)
    parser.add_argument("--save", metavar="FILE", type=Path, help="also put it there: reports/changes.json")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--markdown", action="store_true", help="print Markdown")
    json_option(shape)


def _diff(arguments: argparse.Namespace) -> int:
    catalog, settings = known(arguments)
    target = target_named(catalog, arguments.target)
    refs = Ref.parse(arguments.before), Ref.parse(arguments.after)
    if arguments.examples < 1:
        raise SentinelError(f"--examples {arguments.examples}: at least one scenario has to be drawn")
    store, interrupted = MirrorStore(), False
    found: list[Compared] = []
    with progress() as tell:
        runner = runner_of(catalog, settings, tell, store)
        try:
            recipes = find_recipes(catalog, (target.name,), ())
            comparison = Comparison(
                catalog, runner, target, refs, recipes, arguments.examples, arguments.seed, arguments.boundary, tell
            )
            if arguments.boundary and not comparison.subjects:
                bound = [binding.boundary.rpartition(".")[2] for binding in target.bindings]
                globs = " or ".join(map(repr, arguments.boundary))
                raise SentinelError(
                    f"no boundary of {target.name} matches {globs}{nearest(arguments.boundary[0], bound)}"
                )
            try:
                for compared in comparison.run():
                    found.append(compared)
                if not arguments.no_bisect:
                    found = with_commits(comparison, found, runner, store, tell)
            except KeyboardInterrupt:
                interrupted = True
        finally:
            runner.close()
    if arguments.save is not None:
        name = "..".join(ref.short for ref in refs)
        report.save(arguments.save, "revisions", target.name, {name: report.brief(comparison, found, interrupted)})
    if arguments.json:
        say_json(report.document(comparison, found, interrupted))
    elif arguments.markdown:
        sys.stdout.write(report.markdown(comparison, found, interrupted))
    else:
        say("\n".join(report.lines(comparison, found, interrupted)))
    states = {item.state for item in found}
    if interrupted:
        return 130
    if any(item.judgement in ("worse", "mixed") for item in found) if arguments.worse else "differs" in states:
        return 1
    return 0 if states & {"same code", "same numbers", "differs"} else 2
