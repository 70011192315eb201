"""``sentinel impact``: what a bug does to the gradient, and to a policy that is trained."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.commands.console import command, complain, counted, json_option, progress, say, say_json
from sentinel.commands.known import known, settings_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from sentinel.commands.console import Commands
    from sentinel.deciding.runner import Runner
    from sentinel.impact.report import Report
    from sentinel.impact.training import Training
    from sentinel.recipes import Recipe
    from sentinel.recipes.catalog import Catalog

_EXAMPLE = """\
  sentinel impact ROLL-AGGLOSS-TOKENMEAN-MASK                    tables, impact/<BUG>/impact.json and impact.svg
  sentinel impact VERL-REJECTED-ROW-GRPO --seeds 10 --steps 200  more training
  sentinel impact '*' --steps 0                                  every bug's numbers on its scenario, no training
  sentinel impact MY-BUG --recipes . --base git:<sha> --head path:~/src/verl
  sentinel impact VERL-REJECTED-ROW-GRPO --json                  for programs

First the recipe's own scenario: angle, norm and finiteness of each gradient at base against head, and how far every
other number is off. Then, where the boundary is a loss over log-probs or computes advantages, a table of 1928
parameters learns to answer five prompts, on the CPU. Of each step, the part that the bug is in is done by the real
boundary at base and at head; all else is the same plain numpy, with the same random numbers. The configuration is that
of the scenario, whose rows stand in every 10th batch. Where no revision is known to be without the bug, head is the
contract's reference in float64, which is no code of upstream's. A toy is no proof of what a run of yours will lose: it
shows which way the bug pulls.
exit status: 0 whatever the impact; 2 it could not be measured; 130 interrupted, with what was done by then
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "impact", _impact, "measure what a bug does to gradients and to learning", _EXAMPLE)
    parser.add_argument("bug", metavar="BUG", nargs="+", help="a bug id, or a pattern with *")
    parser.add_argument("--base", metavar="REF", help="where the bug is (default: the first pin that has it)")
    parser.add_argument(
        "--head",
        metavar="REF",
        help="where it is not (default: the first pin without it; else `reference`, the contract's own)",
    )
    parser.add_argument("--seeds", metavar="N", type=_at_least(2), default=5, help="how many runs each (default: 5)")
    parser.add_argument("--steps", metavar="N", type=_at_least(0), default=100, help="of training (default: 100)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("impact"), help="default: impact")
    settings_options(parser)
    json_option(parser)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= 10_000:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to 10000")
        return int(text)

    return number


def _impact(arguments: argparse.Namespace) -> int:
    from sentinel.deciding.runner import runner_of
    from sentinel.errors import SentinelError
    from sentinel.recipes import find_recipes
    from sentinel.sources import MirrorStore

    catalog, settings = known(arguments)
    recipes = find_recipes(catalog, (), arguments.bug)
    reports: list[Report] = []
    store, stopped = MirrorStore(), False
    with progress() as tell:
        for target, group in groupby(recipes, lambda recipe: recipe.target):
            runner = runner_of(catalog, settings, tell, store)  # its processes, one a revision, end with the target
            try:
                runner.start([target])
                for recipe in group:
                    try:
                        report, stopped = _measure(arguments, catalog, recipe, runner, tell)
                    except SentinelError as error:
                        if len(recipes) == 1:
                            raise
                        complain(str(error))
                        continue
                    reports.append(report)
                    _tell(report, arguments, brief=len(recipes) > 1)
                    if stopped:
                        complain(f"interrupted after {len(report.steps)} of {counted(arguments.steps, 'step')}")
                        break
            finally:
                runner.close()
            if stopped:
                break
    if arguments.json:
        documents = [report.document() for report in reports]
        say_json(documents if len(recipes) > 1 else documents[0])
    elif len(recipes) > 1:
        gradients, trained = (sum(map(bool, of)) for of in zip(*((r.has_gradient, r.steps) for r in reports)))
        say(
            f"{len(reports)} of {counted(len(recipes), 'bug')} measured, {gradients} with a gradient, {trained} trained"
        )
    return 130 if stopped else 2 if len(reports) < len(recipes) else 0


def _measure(
    arguments: argparse.Namespace, catalog: Catalog, recipe: Recipe, runner: Runner, tell: Callable[[str], None]
) -> tuple[Report, bool]:
    """Measure one bug; whether the user ended its training."""
    from sentinel.impact.places import REFERENCE, at_reference, at_revision
    from sentinel.impact.report import Report
    from sentinel.impact.setup import NotTakenError, setups
    from sentinel.impact.training import Training
    from sentinel.targets.refs import Ref

    named = Ref.parse(arguments.head) if arguments.head and arguments.head != REFERENCE else None
    base, head = recipe.revisions(Ref.parse(arguments.base) if arguments.base else None, named)
    tell(f"{recipe.bug_id} at {base.short}")
    contract, untrained = catalog.contracts[recipe.contract], ""
    with ExitStack() as places:
        first = places.enter_context(closing(at_revision(runner, catalog, recipe, base)))
        if head is None or arguments.head == REFERENCE:
            second = places.enter_context(closing(at_reference(runner, catalog, recipe, base)))
        else:
            second = places.enter_context(closing(at_revision(runner, catalog, recipe, head)))
        for way in setups(recipe, contract, second.variants) if arguments.steps else ():
            training = Training(way, first.observe, second.observe, arguments.seeds)
            try:
                stopped = _train(training, arguments.steps, tell)
            except NotTakenError as error:
                untrained = str(error)
                continue
            return Report(recipe, contract, first, second, training), stopped
    if arguments.steps and not untrained:
        untrained = "its boundary computes neither a loss of log-probs nor advantages"
    return Report(recipe, contract, first, second, untrained=untrained), False


def _train(training: Training, steps: int, tell: Callable[[str], None]) -> bool:
    """Train; whether the user ended it."""
    try:
        for number in range(1, steps + 1):
            training.step()
            if number % max(steps // 10, 1) == 0:
                tell(f"step {number} of {steps}, {counted(training.seeds, 'seed')}")
    except KeyboardInterrupt:
        if not training.steps:
            raise
        return True
    return False


def _tell(report: Report, arguments: argparse.Namespace, brief: bool) -> None:
    """Write what was measured, and show it: of several bugs a line each."""
    from sentinel.reports.store import write_below

    bug = report.recipe.bug_id
    files = {"impact.json": json.dumps(report.document(), indent=2, sort_keys=True) + "\n"}
    if report.steps:
        try:
            from sentinel.impact.picture import picture

            files["impact.svg"] = picture(report)
        except ImportError as error:
            complain(f"no picture: {error.name} is not installed; pip install 'rl-sentinel[site]'")
    for name, text in files.items():
        write_below(arguments.out, f"{bug}/{name}", text, "name another folder with --out")
    if not arguments.json:
        lines = [f"{bug}: {'; '.join(report.sentences)}"] if brief else report.lines
        say("\n".join(lines if brief else [*lines, f"{arguments.out / bug}: {', '.join(files)}"]))
