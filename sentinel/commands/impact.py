"""``sentinel impact``: what a bug does to the gradient, and to every other number, on its recipe's own scenario."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from itertools import groupby
from pathlib import Path

from sentinel.commands.console import Commands, command, complain, counted, json_option, progress, say, say_json
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.deciding.runner import runner_of
from sentinel.errors import SentinelError
from sentinel.impact import Impact, impact_of
from sentinel.recipes import find_recipes
from sentinel.reports.store import write_below
from sentinel.sources import MirrorStore

_EXAMPLE = """\
  sentinel impact ROLL-AGGLOSS-TOKENMEAN-MASK          a table, and impact/<BUG>/impact.json
  sentinel impact '*'                                  every bug, a line each
  sentinel impact MY-BUG --recipes . --base git:<sha> --head path:~/src/verl
  sentinel impact VERL-REJECTED-ROW-GRPO --json        for programs

Angle, norm and finiteness of each gradient at base against head, and how far every other number is off. Where no
revision is known to be without the bug, head is the contract's reference in float64, which is no code of upstream's.
exit status: 0 whatever the impact; 2 it could not be measured
"""


def declare(commands: Commands, text: str) -> None:
    parser = command(commands, "impact", _impact, text, _EXAMPLE)
    parser.add_argument("bug", metavar="BUG", nargs="+", help="a bug id, or a pattern with *")
    parser.add_argument("--base", metavar="REF", help="where the bug is (default: the first pin that has it)")
    parser.add_argument(
        "--head",
        metavar="REF",
        help="where it is not (default: the first pin without it; else `reference`, the contract's own)",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("impact"), help="default: impact")
    settings_options(parser)
    json_option(parser)


def _impact(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    recipes = find_recipes(catalog, (), arguments.bug)
    measured: list[Impact] = []
    store = MirrorStore()
    with progress() as tell:
        for target, group in groupby(recipes, lambda recipe: recipe.target):
            with closing(runner_of(catalog, settings, tell, store)) as runner:
                runner.start([target])
                for recipe in group:
                    tell(recipe.bug_id)
                    try:
                        measured.append(impact_of(runner, catalog, recipe, arguments.base, arguments.head))
                    except SentinelError as error:
                        if len(recipes) == 1:
                            raise
                        complain(str(error))
                        continue
                    _tell(measured[-1], arguments, brief=len(recipes) > 1)
    if arguments.json:
        documents = [impact.document() for impact in measured]
        say_json(documents if len(recipes) > 1 else documents[0])
    elif len(recipes) > 1:
        gradients = sum(any(row.is_gradient for row in impact.rows) for impact in measured)
        say(f"{len(measured)} of {counted(len(recipes), 'bug')} measured, {gradients} with a gradient")
    return 2 if len(measured) < len(recipes) else 0


def _tell(impact: Impact, arguments: argparse.Namespace, brief: bool) -> None:
    """Write what was measured, and show it: of several bugs a line each."""
    bug = impact.recipe.bug_id
    document = json.dumps(impact.document(), indent=2, sort_keys=True) + "\n"
    write_below(arguments.out, f"{bug}/impact.json", document, "name another folder with --out")
    if brief and not arguments.json:
        say(f"{bug}: {impact.summary}")
    elif not arguments.json:
        say("\n".join([*impact.lines, f"{arguments.out / bug}: impact.json"]))
