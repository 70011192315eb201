"""``sentinel audit``: which known bugs are in a copy of a framework, and which of them a configuration reaches."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.commands.console import (
    Commands,
    command,
    complain,
    counted,
    json_option,
    progress,
    say,
    say_json,
    say_table,
)
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.configuration.command_line import of_script, of_words
from sentinel.configuration.composing import HydraMissingError, NotComposedError, composed, named, search_path
from sentinel.configuration.declared import options_of
from sentinel.configuration.effective import Training, training
from sentinel.configuration.files import MISSING, flattened, read_mapping, settings_of, spelled, value_of
from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job, runner_of
from sentinel.errors import INSTALL, SentinelError, nearest
from sentinel.findings.reach import Reach, reach
from sentinel.recipes import find_recipes
from sentinel.recipes.affects import settings_in_words
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.grades import counted as roots
from sentinel.recipes.grades import grade, order, reached, realism, root
from sentinel.reports.escaping import visible
from sentinel.reports.evidence import evidence
from sentinel.reports.sarif import sarif
from sentinel.reports.store import write_atomically
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

_EXAMPLE = """\
  sentinel audit verl                              the copy that is installed here
  sentinel audit verl --python ~/train/bin/python  the copy in another environment
  sentinel audit verl --config run.yaml            and which of its bugs this configuration reaches
  sentinel audit verl --set algorithm.adv_estimator=grpo --set actor_rollout_ref.rollout.n=8
  sentinel audit verl -- python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo
  sentinel audit slime --script run-qwen3-4B.sh    what a launch script sets; nothing of it is executed
  sentinel audit roll --repo ~/src/ROLL            a working tree

What stands after -- is the command that starts the training, as it is typed.
A configuration with a Hydra `defaults` list is composed first, where hydra-core is installed beside Sentinel.
Every known bug is decided by running the copy's own code. Whether a configuration reaches one is decided by the
settings that the recipe names; what the configuration leaves out has the copy's default.
"Hits you": the settings alone decide it. "Hits you only if": something else must be so, or a setting is not known.
What nothing in the framework gets to is left out. --sarif is for a build: GitHub code scanning shows it.
exit status: 0 no bug is there (or no setting leads to one), 1 some are (or some do), 2 it could not be looked at
"""


def declare(commands: Commands, text: str) -> None:
    parser = command(commands, "audit", _audit, text, _EXAMPLE, takes_words=True)
    parser.add_argument("target", metavar="TARGET", help="see `sentinel list targets`")
    settings_options(parser, without="repo-url")  # a fork's history is not what is installed
    parser.add_argument("--repo", metavar="DIR", type=Path, help="a working tree instead of what is installed")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the training configuration: YAML, JSON or TOML")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="one setting of it; may be repeated"
    )
    parser.add_argument("--script", metavar="FILE", type=Path, help="the launch script that starts the training")
    parser.add_argument("--sarif", metavar="FILE", type=Path, help="also write what may hit you as SARIF 2.1.0")
    json_option(parser)


def _audit(arguments: argparse.Namespace) -> int:
    if arguments.repo and arguments.python:
        raise SentinelError("--repo is a working tree, --python an environment; give one of them")
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    if arguments.repo and not arguments.repo.is_dir():
        raise SentinelError(f"--repo {arguments.repo}: no such folder; name a working tree of {target.name}")
    launched = _launched(arguments)
    single = [_setting(word) for word in [*launched, *arguments.set]]
    data: Mapping[Any, Any] | None = read_mapping(arguments.config) if arguments.config else None
    decisions = _decide(arguments, catalog, settings, find_recipes(catalog, [target.name]))
    there = [item for item in decisions if item.verdict.name == "reproduced"]
    decided = [item for item in decisions if item.verdict.name in ("reproduced", "fixed", "changed")]
    if not decided:
        reasons = sorted({item.verdict.reason for item in decisions})
        raise SentinelError(f"nothing could be decided: {reasons[0] if reasons else f'no recipe of {target.name}'}")
    checkout = next((item.checkout for item in decisions if item.checkout), None)
    why_not = None
    if data is not None and checkout is not None:
        data, why_not = _composed(arguments.config, data, catalog, target, checkout)
    configuration = _configuration(data, single)
    typed = [name for name, _ in single[len(launched) :]]
    run = None if configuration is None else _run(catalog, target, configuration, typed, checkout)
    if data is not None and why_not is not None:
        _tell_of_bases(arguments.config, data, run, why_not)
    bugs = [Bug(item, reach(item.recipe.affects, run) if run else None) for item in there]
    bugs = [bug for bug in bugs if bug.realism != "unreachable"]
    bugs.sort(key=lambda bug: (order(bug.document), bug.decision.recipe.bug_id))
    name = _name(checkout, target.name)
    if arguments.sarif:
        results = [(evidence(bug.decision), "") for bug in bugs if bug.answer != "does not"]
        write_atomically(
            arguments.sarif, sarif(results, {target.name: target.repository}), "name another file with --sarif"
        )
    if arguments.json:
        say_json(_plain(name, decisions, bugs, run))
    else:
        _tell(name, bugs, run, len(there) - len(bugs), len(decisions) - len(decided))
    return 1 if any(bug.reached for bug in bugs) or (run is None and bugs) else 0


def _launched(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The settings of the command, or of the launch script's; what only a shell could know is said to be left out."""
    if arguments.script and arguments.own_command:
        raise SentinelError("--script is a file that holds the command, -- the command itself; give one of them")
    if not arguments.script and not arguments.own_command:
        return ()
    line = of_script(arguments.script) if arguments.script else of_words(arguments.own_command)
    if not line.settings:
        where = line.where or " ".join(arguments.own_command)
        raise SentinelError(
            f"{visible(where)}: no settings after the program; they are written KEY=VALUE or --key value"
        )
    if line.where:
        complain(f"{visible(line.where)}: {counted(len(line.settings), 'setting')} read")
    if line.unknown:
        complain(f"not known, as only a shell puts them in: {visible(', '.join(line.unknown))}")
    return line.settings


@dataclass(frozen=True)
class Bug:
    """A known bug that the copy has; ``reach`` is None without a configuration."""

    decision: Decision
    reach: Reach | None

    @property
    def document(self) -> Mapping[str, Any]:
        return self.decision.recipe.document

    @property
    def realism(self) -> str:
        return realism(self.document)

    @property
    def reached(self) -> bool:
        return self.reach is not None and self.reach.answer == "reached"

    @property
    def answer(self) -> str:
        """``hits``, ``only if`` or ``does not``."""
        if self.reach is None or (self.reached and not self.reach.where and self.realism != "fault"):
            return "hits"
        return "does not" if self.reach.answer == "not reached" else "only if"


def _configuration(data: Mapping[Any, Any] | None, single: Sequence[tuple[str, Any]]) -> dict[str, str] | None:
    """Merge single settings over those of the file; None where there are neither."""
    if data is None and not single:
        return None
    configuration = {name: text for name, text in flattened(settings_of(data or {})).items() if text != MISSING}
    for name, value in single:
        below = f"{name}."
        configuration = {other: text for other, text in configuration.items() if not other.startswith(below)}
        configuration |= flattened({name: value})
    return configuration


def _setting(word: str) -> tuple[str, Any]:
    """``KEY=VALUE`` as Hydra and argparse take it: ``+KEY``, ``--key-of-words``, ``[a, b]``, ``None``."""
    name, equals, text = word.partition("=")
    name = spelled(name.strip("+ "))
    if not equals or not name:
        raise SentinelError(f"--set {word}: a setting is written KEY=VALUE")
    return name, value_of(text)


def _run(
    catalog: Catalog,
    target: Target,
    configuration: Mapping[str, str],
    typed: Sequence[str],
    checkout: Checkout | None,
) -> Training:
    run = training(configuration, options_of(catalog, target, checkout) if checkout else ())
    if run.options is not None:
        for name in typed:
            if run.options.closed(name):
                near = nearest(name, run.options.options)
                complain(f"{name} is no option of {run.options.name} ({run.options.file}){near}")
    return run


def _composed(
    file: Path, data: Mapping[Any, Any], catalog: Catalog, target: Target, checkout: Checkout
) -> tuple[Mapping[Any, Any], NotComposedError | None]:
    """The configuration with what its Hydra ``defaults`` list names; else itself, and why that could not be had."""
    if not named(data):
        return data, None
    folders, left_out = search_path(data, catalog, target, checkout)
    for sentence in left_out:
        complain(f"{file}: {sentence}")
    try:
        return composed(file, folders), None
    except NotComposedError as error:
        return data, error


def _tell_of_bases(file: Path, data: Mapping[Any, Any], run: Training | None, why: NotComposedError) -> None:
    """Warn of what a Hydra configuration is composed of and is not read, but for the copy's own, which is."""
    unread, mend = named(data), "mend it, or "
    if isinstance(why, HydraMissingError):
        own = Path(run.options.file).stem if run is not None and run.options is not None else ""
        unread, mend = [entry for entry in unread if entry not in own], f"{INSTALL.format('hydra')}, or "
    if unread:
        complain(
            f"{file}: what its defaults list names is not read ({', '.join(unread)}): {why}; {mend}give the "
            "composed configuration, which a Hydra program prints with --cfg job"
        )


def _decide(arguments: argparse.Namespace, catalog: Any, settings: Any, recipes: Any) -> list[Decision]:
    ref = Ref("path", str(arguments.repo.expanduser().absolute())) if arguments.repo else Ref("installed")
    decisions: list[Decision] = []
    with progress() as tell, closing(runner_of(catalog, settings, tell)) as runner:
        for number, recipe in enumerate(recipes, 1):
            tell(f"{number} of {len(recipes)}: {recipe.bug_id}")
            decisions.append(runner.decide(Job(recipe, ref)))
            if decisions[-1].checkout is None:  # the copy itself is not available, whatever the recipe
                break
    return decisions


def _name(checkout: Checkout | None, target: str) -> str:
    if checkout is not None and checkout.version:
        return f"{target} {checkout.version}"
    return f"{target} at {checkout.commit[:12]}" if checkout is not None and checkout.commit else target


def _tell(name: str, bugs: Sequence[Bug], run: Training | None, hardening: int, undecided: int) -> None:
    """Print the counts in words, then what a person has to read."""
    worst: dict[str, str] = {}  # a bug counts once, by the worst that any of its recipes says
    for bug in sorted(bugs, key=lambda bug: ("hits", "only if", "does not").index(bug.answer)):
        worst.setdefault(root(bug.document), bug.answer)
    answers = Counter(worst.values())
    rows = ({"target": "", "root": root(bug.document), "realism": bug.realism} for bug in bugs)
    head = f"{roots(rows)} {'is' if len(worst) == 1 else 'are'} in {name}"
    if run is None:
        say(f"{head}.")
        if bugs:
            say_table(("bug", "severity", "realism", "it concerns"), [_row(bug) for bug in bugs])
    else:
        say(
            f"{head}: {answers['hits']} hit you, {answers['only if']} only if more is so, {answers['does not']} do not."
        )
        for answer, heading in (("hits", "hits you"), ("only if", "hits you only if …")):
            if answers[answer]:
                say(f"\n{heading}")
            for bug in bugs:
                if bug.answer == answer:
                    _tell_of(bug)
        if any(bug.answer == "does not" for bug in bugs):
            say("\nof what does not hit you, --json tells the setting that says so")
        if run.options is not None:
            say(f"defaults are those of {run.options.name} ({run.options.file})")
    if hardening:
        say(f"{hardening} more are hardening: nothing in the framework gets there")
    if undecided:
        say(f"{undecided} more could not be decided here: not in this version, or not to be imported")


def _tell_of(bug: Bug) -> None:
    recipe, reach = bug.decision.recipe, bug.reach
    assert reach is not None
    say(f"  {recipe.bug_id}" + (f" ({label})" if (label := grade(recipe.document)) else ""))
    say(f"    {' '.join(str(recipe.document.get('effect') or recipe.title).split())}")
    fault = "something else fails first" if bug.realism == "fault" and bug.reached else ""
    only_if = "; ".join(filter(None, [reach.where, fault]))
    if only_if:
        say(f"    only {'if' if reach.settings else 'for'} {visible(only_if)}")
    how = "" if recipe.affects else reached(recipe.document)
    if how:
        say(f"    how a run gets there: {visible(how)}")
    elif bug.reached or not reach.where:
        say(f"    because {visible(reach.because)}")
    if recipe.until:
        say(f"    until it is fixed, set {visible(settings_in_words(recipe.until))}")


def _row(bug: Bug) -> tuple[str, ...]:
    recipe = bug.decision.recipe
    concerns = "; ".join(map(str, recipe.affects)) or reached(recipe.document)
    return recipe.bug_id, str(recipe.document.get("severity") or ""), bug.realism, concerns


def _plain(name: str, decisions: Sequence[Decision], bugs: Sequence[Bug], run: Training | None) -> dict[str, Any]:
    reaches = {
        bug.decision.recipe.bug_id: {"reach": bug.reach.answer, "because": bug.reach.because, "where": bug.reach.where}
        for bug in bugs
        if bug.reach
    }
    defaults = {"trainer": run.options.name, "file": run.options.file} if run and run.options else None
    return {
        "copy": name,
        "defaults": defaults,
        "bugs": [
            {
                "bug": item.recipe.bug_id,
                "verdict": item.verdict.name,
                "reason": item.verdict.reason,
                "severity": item.recipe.document.get("severity"),
                "realism": realism(item.recipe.document),
                "affects": [str(entry) for entry in item.recipe.affects],
                "until": dict(item.recipe.until),
                **reaches.get(item.recipe.bug_id, {}),
            }
            for item in decisions
        ],
    }
