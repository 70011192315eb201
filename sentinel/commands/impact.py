"""``sentinel impact``: what a bug costs a policy that is trained."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.commands.bisect import recipe_named
from sentinel.commands.console import command, complain, counted, json_option, progress, say, say_json
from sentinel.commands.known import known, settings_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sentinel.catalog import Catalog
    from sentinel.commands.console import Commands
    from sentinel.impact.report import Report
    from sentinel.impact.training import Course
    from sentinel.recipes import Recipe
    from sentinel.settings import Settings

_EXAMPLE = """\
  sentinel impact ROLL-AGGLOSS-TOKENMEAN-MASK                    words, impact/<BUG>/impact.json and impact.svg
  sentinel impact VERL-REJECTED-ROW-GRPO --seeds 10 --steps 200  more of it
  sentinel impact MY-BUG --recipes . --base git:<sha> --head path:~/src/verl
  sentinel impact VERL-REJECTED-ROW-GRPO --json                  for programs

A table of 2529 parameters learns to answer five prompts, on the CPU. Of each step, the part that the bug is in is done
by the real boundary at base and at head; all else is the same plain numpy, with the same random numbers. The
configuration is that of the recipe's scenario. What the scenario has and ordinary batches have not (a NaN at a masked
token, a log-ratio of 90) is put into every 10th batch, and said. Where no revision is known to be without the bug, head
is the contract's reference in float64, which is no code of upstream's. A toy is no proof of what a run of yours will
lose: it shows which way the bug pulls. "no visible effect" is an answer.
exit status: 0 whatever the effect; 2 it could not be done; 130 interrupted, with what was done by then
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "impact", _impact, "train a toy policy with a bug and without it", _EXAMPLE)
    parser.add_argument("bug", metavar="BUG")
    parser.add_argument("--base", metavar="REF", help="where the bug is (default: the first pin that has it)")
    parser.add_argument(
        "--head",
        metavar="REF",
        help="where it is not (default: the first pin without it; else `reference`, the contract's own)",
    )
    parser.add_argument("--seeds", metavar="N", type=_at_least(2), default=5, help="how many runs each (default: 5)")
    parser.add_argument("--steps", metavar="N", type=_at_least(1), default=100, help="of training (default: 100)")
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
    catalog, settings = known(arguments)
    recipe = recipe_named(catalog, arguments.bug)
    report, stopped = _train(arguments, catalog, settings, recipe)
    folder = arguments.out / recipe.bug_id
    unwritten = _write(report, folder)
    if arguments.json:
        say_json(report.document())
    else:
        say("\n".join(_said(report)))
        say(f"{folder}: impact.json{'' if unwritten else ', impact.svg'}")
    if unwritten:
        complain(unwritten)
    if stopped:
        complain(f"interrupted after {len(report.moments)} of {counted(report.asked, 'step')}")
    return 130 if stopped else 0


def _train(arguments: argparse.Namespace, catalog: Catalog, settings: Settings, recipe: Recipe) -> tuple[Report, bool]:
    """What was found, and whether the user ended it before its end."""
    from sentinel.export.exporting import revisions
    from sentinel.impact.places import REFERENCE, at_reference, at_revision, subject_of, variants_of
    from sentinel.impact.report import Report
    from sentinel.impact.scenes import concessions, entered, scene
    from sentinel.impact.training import Course
    from sentinel.refs import Ref
    from sentinel.runner import runner_of

    entered(recipe, catalog.contracts[recipe.contract])  # before anything is fetched
    subject = subject_of(recipe, catalog)
    named = Ref.parse(arguments.head) if arguments.head and arguments.head != REFERENCE else None
    base, head = revisions(recipe, Ref.parse(arguments.base) if arguments.base else None, named)
    if arguments.head == REFERENCE:
        head = None
    told = scene(recipe, subject.contract, variants_of(recipe, subject, head is None))
    with progress() as tell:
        runner = runner_of(catalog, settings, tell, pull=recipe.upstream.get("pull"))
        try:
            runner.start([recipe.target])
            tell(f"preparing {recipe.target} at {base.short}")
            first = at_revision(runner, subject, recipe, base)
            tell(f"preparing {recipe.target} at {head.short}" if head else "preparing the contract's reference")
            second = at_revision(runner, subject, recipe, head) if head else at_reference(subject, first.bench)
            courses = [Course(item, first.observe, second.observe, arguments.seeds) for item in concessions(told)]
            course, stopped = _first_taken(courses, arguments.steps, tell)
        finally:
            runner.close()
    return Report(recipe, course.scene, first, second, arguments.steps, course.moments), stopped


def _first_taken(courses: Sequence[Course], steps: int, tell: Callable[[str], None]) -> tuple[Course, bool]:
    """Train in the first way whose batches are taken; whether the user ended it.

    :raises NotTakenError: where none is.
    """
    from sentinel.impact.places import NotTakenError

    for course in courses[:-1]:
        try:
            return course, _run(course, steps, tell)
        except NotTakenError:
            continue
    return courses[-1], _run(courses[-1], steps, tell)


def _run(course: Course, steps: int, tell: Callable[[str], None]) -> bool:
    """Train; whether the user ended it."""
    try:
        for number in range(1, steps + 1):
            course.step()
            if number % max(steps // 10, 1) == 0:
                tell(f"step {number} of {steps}, {counted(course.seeds, 'seed')}")
    except KeyboardInterrupt:
        if not course.moments:
            raise
        return True
    return False


def _write(report: Report, folder: Path) -> str:
    """Write what was found; why there is no picture, where there is none."""
    from sentinel.reports.store import write_atomically

    otherwise = "name another folder with --out"
    text = json.dumps(report.document(), indent=2, sort_keys=True) + "\n"
    write_atomically(folder / "impact.json", text, otherwise)
    try:
        from sentinel.impact.picture import picture

        write_atomically(folder / "impact.svg", picture(report), otherwise)
    except ImportError as error:
        return f"no picture: {error.name} is not installed; pip install 'rl-sentinel[site]'"
    return ""


def _said(report: Report) -> list[str]:
    from sentinel.impact.effects import RULE

    recipe, scene, moments = report.recipe, report.scene, report.moments
    lines = [
        f"{recipe.bug_id}: {recipe.title}",
        f"base {report.base.short}, head {report.head.short}: {counted(len(moments[0]), 'seed')}, "
        f"{counted(len(moments), 'step')}; {recipe.boundary} {scene.entrance.part}",
    ]
    shown = " ".join(shlex.quote(f"{name}={value}") for name, value in scene.configuration.items())
    lines += [f"configuration: {shown}"] if shown else []
    return [*lines, *report.premises, *report.words, f"({RULE})"]
