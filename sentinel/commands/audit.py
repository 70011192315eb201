"""``sentinel audit``: which known bugs are in a copy of a framework, and which of them a configuration reaches."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.commands.console import command, counted, json_option, progress, say, say_json, say_table
from sentinel.commands.known import known, target_named
from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from sentinel.commands.console import Commands
    from sentinel.outcomes import Decision

_EXAMPLE = """\
  sentinel audit verl                              the copy that is installed here
  sentinel audit verl --python ~/train/bin/python  the copy in another environment
  sentinel audit verl --config run.yaml            and which of its bugs this configuration reaches
  sentinel audit roll --repo ~/src/ROLL            a working tree

Every known bug is decided by running the copy's own code. Whether a configuration reaches one is read off the settings
(key=value) that the recipe names; "not known" is for a person to read.
exit status: 0 none of them is there (or reached), 1 some are, 2 it could not be looked at
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "audit", _audit, "say which known bugs are in the copy that you train with", _EXAMPLE)
    parser.add_argument("target", metavar="TARGET", help="see `sentinel list targets`")
    parser.add_argument("--python", metavar="PYTHON", help="the interpreter that the framework is installed for")
    parser.add_argument("--repo", metavar="DIR", type=Path, help="a working tree instead of what is installed")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the training configuration, YAML or JSON")
    json_option(parser)


def _audit(arguments: argparse.Namespace) -> int:
    from sentinel.findings.reach import reach, read
    from sentinel.recipes import find_recipes

    if arguments.repo and arguments.python:
        raise SentinelError("--repo is a working tree, --python an environment; give one of them")
    catalog, settings = known()
    target = target_named(catalog, arguments.target)
    configuration = read(arguments.config) if arguments.config else None
    decisions = _decide(arguments, catalog, settings, find_recipes(catalog, [target.name]))
    there = [item for item in decisions if item.verdict.name == "reproduced"]
    decided = [item for item in decisions if item.verdict.name in ("reproduced", "fixed", "changed")]
    if not decided:
        reasons = sorted({item.verdict.reason for item in decisions})
        raise SentinelError(f"nothing could be decided: {reasons[0] if reasons else f'no recipe of {target.name}'}")
    rows = []
    for item in there:
        answer = reach(item.recipe.affects, configuration) if configuration is not None else ("", "")
        rows.append((item, *answer))
    rows.sort(key=lambda row: (row[1] != "reached", row[1], row[0].recipe.bug_id))
    reached = [row for row in rows if row[1] == "reached"]
    if arguments.json:
        say_json(_plain(target.name, decisions, rows))
    else:
        _tell(arguments, target.name, decided, rows, reached, len(decisions) - len(decided))
    return 1 if (reached if configuration is not None else there) else 0


def _decide(arguments: argparse.Namespace, catalog: Any, settings: Any, recipes: Any) -> list[Decision]:
    from sentinel.refs import Ref
    from sentinel.runner import Job, Runner
    from sentinel.sources import MirrorStore, open_checkout
    from sentinel.worker.client import Options

    ref = Ref("path", str(arguments.repo.expanduser().absolute())) if arguments.repo else Ref("installed")
    options = Options(timeout=settings.timeout, sandbox=settings.sandbox, python=arguments.python)
    store = MirrorStore()
    with progress() as tell:
        runner = Runner(
            catalog,
            lambda target, ref, pull: open_checkout(target, ref, store=store, python=arguments.python, progress=tell),
            options,
        )
        decisions = []
        try:
            for number, recipe in enumerate(recipes, 1):
                tell(f"{number} of {len(recipes)}: {recipe.bug_id}")
                decisions.append(runner.decide(Job(recipe, ref)))
        finally:
            runner.close()
    return decisions


def _name(decisions: list[Decision], target: str) -> str:
    checkout = next((item.checkout for item in decisions if item.checkout), None)
    if checkout is None:
        return target
    if checkout.version:
        return f"{target} {checkout.version}"
    return f"{target} at {checkout.commit[:12]}" if checkout.commit else target


def _tell(
    arguments: argparse.Namespace, target: str, decided: list[Decision], rows: Any, reached: Any, undecided: int
) -> None:
    """In words first, then the table."""
    said = f"{len(rows)} of {counted(len(decided), 'known bug')} {'is' if len(rows) == 1 else 'are'} in "
    said += _name(decided, target)
    if arguments.config:
        unknown = sum(row[1] == "not known" for row in rows)
        said += f"; your configuration reaches {len(reached)}"
        said += f", of {unknown} that is not known" if unknown else ""
    say(said + ".")
    for item, _, why in reached:
        advice = item.recipe.document.get("effect") or item.recipe.title
        say(f"  {item.recipe.bug_id} ({why}): {advice}")
    if rows:
        say("")
        say_table(
            ("bug", "configuration", "because", "it concerns"),
            [(item.recipe.bug_id, answer, why, "; ".join(item.recipe.affects)) for item, answer, why in rows],
        )
    if undecided:
        say(f"\n{undecided} more could not be decided here: not in this version, or not to be imported")


def _plain(target: str, decisions: list[Decision], rows: Any) -> dict[str, Any]:
    reaches = {item.recipe.bug_id: {"reach": answer, "because": why} for item, answer, why in rows}
    return {
        "copy": _name(decisions, target),
        "bugs": [
            {
                "bug": item.recipe.bug_id,
                "verdict": item.verdict.name,
                "reason": item.verdict.reason,
                "affects": list(item.recipe.affects),
                **reaches.get(item.recipe.bug_id, {}),
            }
            for item in decisions
        ],
    }
