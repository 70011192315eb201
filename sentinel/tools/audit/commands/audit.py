"""Implement ``sentinel audit``, which lists the known bugs that a configuration triggers in a copy of a framework."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from sentinel.commands.console import (
    Commands,
    command,
    counted,
    echo,
    echo_json,
    echo_table,
    json_option,
    print_error,
    progress,
    some,
)
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.comparing.reached import Code, changed_files, signal_changes
from sentinel.deciding.outcomes import Decision, Verdict
from sentinel.deciding.runner import Job, runner_of
from sentinel.deciding.setup import OpenCheckout, opener
from sentinel.deciding.setup import options_of as worker_options
from sentinel.errors import NothingExamined, SentinelError, Unavailable
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.affects import settings_in_words
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.grades import count_bugs as roots
from sentinel.recipes.grades import describe_reach, grade, order, realism, root, row
from sentinel.records.closure_verdicts import ClosureVerdictStore, ReleaseVerdicts
from sentinel.reports.escaping import visible
from sentinel.reports.evidence import evidence
from sentinel.reports.sarif import sarif
from sentinel.reports.store import write_atomically
from sentinel.reports.summary import causes
from sentinel.search.bindings import CheckoutTrees
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.sources.bases import find_base
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.command_line import NOT_KNOWN
from sentinel.tools.audit.complaints import complaints
from sentinel.tools.audit.declared import classes_of, packages_digest, places
from sentinel.tools.audit.effective import Training
from sentinel.tools.audit.files import read_mapping
from sentinel.tools.audit.launch import Launch, launch_of
from sentinel.tools.audit.options import Options
from sentinel.tools.audit.reach import Reach, reach
from sentinel.tools.audit.reading import Copy, Given, Run, read_run

GROUP = "my run"
SUMMARY = "list the known bugs that your configuration triggers"

_EXAMPLE = """\
  sentinel audit verl                              the copy that is installed here
  sentinel audit verl --python ~/train/bin/python  the copy in another environment
  sentinel audit verl --config run.yaml            also compare the bugs with this configuration
  sentinel audit verl --set algorithm.adv_estimator=grpo --set actor_rollout_ref.rollout.n=8
  sentinel audit verl -- python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo
  sentinel audit slime --script run-qwen3-4B.sh    the settings of a launch script, which is not executed
  sentinel audit trl --script train.py             the arguments of GRPOConfig(...) in a Python script
  sentinel audit trl --script train.py -- --config grpo.yaml --beta 0.1    a script with its arguments
  sentinel audit roll --repo ~/src/ROLL            a working tree
  sentinel audit verl --ref pypi:0.9.0 --config run.yaml    a release that is not installed here

After --, give the command that starts the training, or the arguments of the script. Files in a Hydra `defaults` list,
and files of settings that an option names, are read too.
The settings that trigger each known bug are compared with yours; a setting that your configuration does not set has the
copy's default. If your settings may trigger the bug, its scenario is run on the copy's own code.
"hits you": your settings trigger the bug. "may hit you": another condition must hold too, or a setting is not known.
Bugs that no code of the framework can trigger are not listed. GitHub code scanning shows the file of --sarif.
exit status: 0 if your settings trigger no bug (without settings: if the copy has none), 1 if they trigger at least one;
2 in any case if nothing was examined, if a bug depends on a setting that could not be read, if the version rejects a
setting or a value, or if the tree of --repo changes signal code
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "audit", _audit, SUMMARY, _EXAMPLE, takes_words=True)
    parser.add_argument("target", metavar="TARGET", help="see `sentinel list targets`")
    settings_options(parser, without="repo-url")  # audit reads what is installed, not a fork's history
    parser.add_argument("--repo", metavar="DIR", type=Path, help="a working tree instead of the installed copy")
    parser.add_argument(
        "--ref",
        metavar="REF",
        help="another revision (default: the installed copy, or else the newest release or main)",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="the training configuration: YAML, JSON or TOML")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a setting; may be repeated")
    parser.add_argument(
        "--script", metavar="FILE", type=Path, help="the shell or Python script that starts the training"
    )
    parser.add_argument(
        "--sarif", metavar="FILE", type=Path, help="also write bugs that hit or may hit you as SARIF 2.1.0"
    )
    json_option(parser)


def _audit(arguments: argparse.Namespace) -> int:
    if sum(map(bool, (arguments.repo, arguments.python, arguments.ref))) > 1:
        raise SentinelError("--repo, --python and --ref each name the copy to audit; give only one of them")
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    if arguments.repo and not arguments.repo.is_dir():
        raise SentinelError(f"--repo {arguments.repo}: no such folder; name a working tree of {target.name}")
    worker_options(settings, target.name)  # raises if the device is not on this machine, before anything is downloaded
    configured = arguments.config is not None or bool(arguments.set)

    @cache
    def opened() -> tuple[Checkout, Ref]:
        with progress() as notify:
            return _open(arguments, target, opener(settings, notify))

    def find_program(name: str) -> Path | None:
        checkout, _ = opened()
        top = checkout.source if arguments.repo and checkout.source else checkout.path
        found = (
            places(target, replace(checkout, path=top), name) if name.endswith(".py") else _modules(name, script, top)
        )
        own = name.partition(".")[0] in target.packages and not name.endswith(".py")
        return None if own else next((place for place in found if place.is_file()), None)

    script = arguments.script
    launch = launch_of(script, arguments.own_command, classes_of(catalog, target), configured, find_program)
    for sentence in launch.read:
        print_error(visible(sentence))
    config: Path | None = arguments.config or launch.config
    given = Given(launch, config, read_mapping(config) if config else None, arguments.set)
    checkout, ref = opened()
    name = _name(checkout)
    if ref.kind != "installed" and not arguments.repo and not arguments.ref:
        print_error(f"{target.name} is not installed here, so {name} is audited; name your copy {_OTHER_COPY}")
    recipes = find_recipes(catalog, [target.name])
    copy = Copy(catalog, target, checkout, name, settings.python_of(target.name))
    run = read_run(given, copy, [recipe.boundary for recipe in recipes])
    training = run.training
    reaches = {recipe.bug_id: reach(recipe.affects, training, recipe.boundary) for recipe in recipes if training}
    # A bug that the settings do not trigger is harmless at every revision, so its code need not run.
    safe = frozenset[str]() if training is None or arguments.json else _select_safe(recipes, reaches)
    others = [recipe for recipe in recipes if recipe.bug_id not in safe]
    decisions, changes = _decide(others, checkout, ref, catalog, settings, target, reuse=not arguments.sarif)
    decided = any(item.verdict.name in _DECIDED for item in decisions)
    if not decided and not (safe and all(item.verdict.kind in _LASTING for item in decisions)):
        reason = "; ".join(causes(item.verdict.reason for item in decisions)) or f"{target.name} has no recipes"
        raise NothingExamined(f"no known bug could be decided: {reason}; name another copy {_OTHER_COPY}")
    found = complaints(run, given, copy)
    unread = (
        *_list_unused_trainers(run, launch, reaches.values()),
        *run.unread,
        *found.doubtful,
        *_list_references(run, launch),
    )
    result = Result(name, recipes, decisions, reaches, run, (*changes, *found.rejected), unread)
    must = bool(result.bugs or safe)
    if training is not None and (not training.configuration or (must and not _examined(training, recipes))):
        for line in (*result.first, *unread):
            print_error(visible(line))
        raise NothingExamined(_no_setting(training, name))
    if arguments.sarif:
        results = [(evidence(bug.decision), "") for bug in result.bugs if bug.answer != "does not"]
        repositories = {target.name: target.repository}
        write_atomically(arguments.sarif, sarif(results, repositories), "name another file with --sarif")
    if arguments.json:
        echo_json(_plain(result))
    else:
        _print(result)
    return _exit_status(result)


@dataclass(frozen=True)
class Result:
    """The result of an audit of one copy of a framework.

    :ivar copy: the name of the audited copy.
    :ivar recipes: all recipes of the target.
    :ivar reaches: bug id -> whether the settings trigger the bug; empty if there are no settings.
    :ivar first: lines about problems that lead to exit status 2: rejected settings, and signal code that the copy
        changes.
    :ivar unread: lines about what was not read or not examined.
    """

    copy: str
    recipes: Sequence[Recipe]
    decisions: Sequence[Decision]
    reaches: Mapping[str, Reach]
    run: Run
    first: tuple[str, ...]
    unread: tuple[str, ...]

    @cached_property
    def present(self) -> list[Bug]:
        """Return the bugs in the copy, with the most severe ones first."""
        there = [item for item in self.decisions if item.verdict.name == "reproduced"]
        bugs = [Bug(item, self.reaches.get(item.recipe.bug_id)) for item in there]
        return sorted(bugs, key=lambda bug: (order(bug.document), bug.decision.recipe.bug_id))

    @cached_property
    def bugs(self) -> list[Bug]:
        """Return the bugs in the copy that code of the framework can trigger."""
        return [bug for bug in self.present if not _is_hardening(bug.decision.recipe)]

    @cached_property
    def undecided(self) -> set[str]:
        others = (item for item in self.decisions if not _is_absent(item.verdict))
        return {item.recipe.bug_id for item in others if item.verdict.name not in _DECIDED}

    @cached_property
    def absent(self) -> set[str]:
        """Return the ids of bugs whose code this version does not have."""
        return {item.recipe.bug_id for item in self.decisions if _is_absent(item.verdict)}


def _exit_status(result: Result) -> int:
    bugs = result.bugs
    if open_bugs := [bug.decision.recipe.bug_id for bug in bugs if bug.reach is not None and bug.reach.unread]:
        settings_of_bugs = dict.fromkeys(name for bug in bugs if bug.reach for name in bug.reach.unread)
        print_error(
            f"not decided: {some(open_bugs)}, because these settings were not read: "
            f"{some(list(settings_of_bugs))}; give them with --set"
        )
    if open_bugs or result.first:
        return 2
    return 1 if any(bug.reached for bug in bugs) or (result.run.training is None and bugs) else 0


def _list_unused_trainers(run: Run, launch: Launch, reaches: Iterable[Reach]) -> list[str]:
    unused = sorted({each.unused for each in reaches if each.unused})
    used_by = "used by this script"
    if launch.program is None and run.training is not None:
        used_by = f"made with {' or '.join(dict.fromkeys(one.made_by for one in run.training.fits))}"
    return [f"not {used_by}: {some(unused)}"] if unused else []


def _list_references(run: Run, launch: Launch) -> list[str]:
    training = run.training
    named = (
        []
        if training is None
        else [
            spelled if text == NOT_KNOWN else f"{spelled}={text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}"
            for name, text in training.references.items()
            for spelled in [training.options.spelling(name) if training.options else name]
        ]
    )
    named += launch.references
    return [f"not examined (your reward functions and data): {some(named)}"] if named else []


def _modules(name: str, script: Path | None, top: Path) -> Iterator[Path]:
    """Yield where a launch script's module may be: in the current folder, in or above the script's folder, or in the
    copy."""
    path = f"{name.replace('.', '/')}.py"
    above = script.absolute().parents if script else ()
    yield from (folder / path for folder in (Path(), *above, top) if "\0" not in name)


#: Maximum number of causes that are printed, and maximum number of characters of a value.
_MOST_CAUSES, _LONGEST = 10, 80


def _examined(run: Training, recipes: Sequence[Recipe]) -> bool:
    """Return True if some setting was compared with the version's options or with a bug's conditions."""
    if run.options is not None and any(name in run.options for name in run.configuration):
        return True
    named = {name for recipe in recipes for entry in recipe.affects for name in entry.when}
    return any(run.setting(name) is not None for name in named if name in run.configuration)


def _no_setting(run: Training, name: str) -> str:
    count = counted(len(run.configuration), "setting")
    if not run.configuration:
        return "the configuration sets nothing; give another with --config, --script, --set or --"
    if run.options is None:
        return f"the options of {name} cannot be read, and no known bug depends on any of your {count}"
    return f"none of your {count} is an option of {run.options.name} in {name}; name the copy that you train with"


_DECIDED = ("reproduced", "fixed", "changed")

#: Causes of ``unavailable`` that depend only on the release, and causes that also depend on the installed packages.
_LASTING, _OF_PACKAGES = ("drift", "not-in-this-version"), ("adapter", "import", "raised")

#: Matches the reason of a verdict if no file of the checkout defines the recipe's function. A missing parameter, such
#: as ``f(x)``, does not match, because it may only have been renamed.
_GONE = re.compile(r"this version has no [\w.]+( \(|;|$)")


def _is_absent(verdict: Verdict) -> bool:
    """Return True if a verdict states that the version does not have the buggy code."""
    gone = verdict.kind == "drift" and _GONE.match(verdict.reason)
    return verdict.name not in _DECIDED and (verdict.kind == "not-in-this-version" or bool(gone))


def _undecided(every: Sequence[Decision]) -> list[str]:
    """Return lines about bugs without a conclusive verdict: those whose code is absent, then the others by cause."""
    groups: dict[str, list[Decision]] = {}
    absent = [item for item in every if _is_absent(item.verdict)]
    decisions = [item for item in every if not _is_absent(item.verdict)]
    for item in decisions:
        if item.verdict.name == "changed":
            cause = "the results are neither the buggy nor the correct ones"
        elif item.verdict.name in ("reproduced", "fixed"):
            continue
        else:
            missing = item.verdict.reason.partition("; the nearest there")[0]
            cause = missing if item.verdict.kind == "drift" else f"{item.verdict.kind}: {item.verdict.reason}"
        groups.setdefault(cause, []).append(item)

    def count(items: Sequence[Decision]) -> str:
        return roots(row(item.recipe.target, item.recipe.document) for item in items)

    names = some([item.recipe.bug_id for item in absent])
    first = [f"not in this version: the code of {count(absent)}: {names}"] if absent else []
    if not groups:
        return first
    lines = [*first, f"not decided: {count([item for items in groups.values() for item in items])}"]
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for cause, items in ordered[:_MOST_CAUSES]:
        lines.append(f"  {count(items)}: {cause}: {some([item.recipe.bug_id for item in items])}")
    rest = [item for _, items in ordered[_MOST_CAUSES:] for item in items]
    return [*lines, *([f"  {count(rest)}: other causes; --json lists them"] if rest else [])]


@dataclass(frozen=True)
class Bug:
    """A known bug in the copy of the framework. ``reach`` is None if the user gives no settings."""

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
        """Return ``hits`` if the settings trigger the bug, and ``does not`` if they do not.

        Return ``only if`` if that depends on further conditions or on settings that were not read.
        """
        if self.reach is None or (self.reached and not self.reach.where and self.realism != "fault"):
            return "hits"
        return "does not" if self.reach.answer == "not reached" else "only if"


def _decide(
    recipes: Sequence[Recipe],
    checkout: Checkout,
    ref: Ref,
    catalog: Catalog,
    settings: Settings,
    target: Target,
    reuse: bool,
) -> tuple[list[Decision], list[str]]:
    """Return the verdicts of recipes on a copy of the framework, and lines about changed signal code.

    :param reuse: whether to use the stored verdicts of a release or commit, which have no observations.
    """
    decisions: list[Decision] = []

    def opened(of: Target, other: Ref, pull: int | None) -> Checkout:
        return checkout if other == ref else opener(settings)(of, other, pull)  # pins, to find where a function moved

    with progress() as notify, closing(runner_of(catalog, settings, opened=opened)) as runner:
        changes = _describe_changed_signal_code(target, ref, checkout, opener(settings, notify))
        stored, with_packages = None, ref
        fixed = {"pypi": checkout.version, "git": checkout.commit}.get(ref.kind)  # a revision that cannot change
        if fixed and reuse:
            ref = Ref(ref.kind, fixed)
            with_packages = Ref(ref.kind, f"{fixed} with {packages_digest(settings.python_of(target.name))}")
            stored = ReleaseVerdicts(catalog, settings, target, recipes, ClosureVerdictStore())
            for recipe in recipes:
                entry = stored.find(recipe, ref)
                if entry is None or entry.kind in _OF_PACKAGES:
                    entry = stored.find(recipe, with_packages)
                if entry is not None and (entry.verdict in _DECIDED or entry.kind in (*_LASTING, *_OF_PACKAGES)):
                    verdict = Verdict(cast("Any", entry.verdict), reason=entry.reason, kind=cast("Any", entry.kind))
                    decisions.append(Decision(recipe, ref, verdict, checkout=checkout))
            if decisions:
                count = counted(len(decisions), "verdict")
                print_error(f"{count} of {_name(checkout)} from an earlier run, which had the same code and recipes")
        left = {recipe.bug_id for recipe in recipes} - {item.recipe.bug_id for item in decisions}
        jobs = [Job(recipe, ref) for recipe in recipes if recipe.bug_id in left]
        runner.plan(jobs)
        for number, job in enumerate(jobs, 1):
            notify(f"{number} of {len(jobs)}: {job.recipe.bug_id}")
            decisions.append(runner.decide(job))
            if stored is not None:
                stored.add(decisions[-1])
                if decisions[-1].verdict.kind in _OF_PACKAGES:
                    stored.add(replace(decisions[-1], ref=with_packages))
    return sorted(decisions, key=lambda item: item.recipe.bug_id), changes


def _open(arguments: argparse.Namespace, target: Target, open_: OpenCheckout) -> tuple[Checkout, Ref]:
    """Open the copy that the user names, or else the installed copy, or else the newest release or main."""
    ref = Ref.parse(arguments.ref or "installed")
    if arguments.repo:
        ref = Ref("path", str(arguments.repo.expanduser().absolute()))
    try:
        return open_(target, ref, None), ref
    except Unavailable as error:
        if ref.kind != "installed" or arguments.python:
            raise _not_opened(error.reason) from None
        ref = Ref("pypi", "latest") if target.pypi else Ref("git", target.branch)
        try:
            return open_(target, ref, None), ref
        except Unavailable as other:
            raise _not_opened(f"{error.reason}; {other.reason}") from None


def _describe_changed_signal_code(target: Target, ref: Ref, checkout: Checkout, open_: OpenCheckout) -> list[str]:
    if ref.kind != "path":
        return []
    try:
        base = open_(target, find_base(target, ref, MirrorStore()), None)
    except SentinelError as error:
        return [f"not known whether this tree changes signal code: {error}"]
    before, after = ((Code(target, CheckoutTrees(one)), "") for one in (base, checkout))
    changed = [name for each in changed_files(before, after) for _, name in signal_changes(*each)]
    if not changed:
        return []
    return [
        f"this tree changes {counted(len(changed), 'function')} of signal code ({some(changed)}); audit finds only "
        f"known bugs, so check the changes with `pytest --sentinel-target={target.name} "
        f"--sentinel-repo={shlex.quote(ref.name)}`"
    ]


_OTHER_COPY = "with --repo, --python or --ref"


def _not_opened(reason: str) -> NothingExamined:
    return NothingExamined(f"no known bug could be decided: {reason}; name another copy {_OTHER_COPY}")


def _name(checkout: Checkout) -> str:
    if checkout.version:
        return f"{checkout.target} {checkout.version}"
    return f"{checkout.target} at {checkout.commit[:12]}" if checkout.commit else checkout.target


def _select_safe(recipes: Sequence[Recipe], reaches: Mapping[str, Reach]) -> frozenset[str]:
    """Return the ids of bugs that the settings do not trigger, or that no code of the framework can trigger."""
    safe = (each for each in recipes if reaches[each.bug_id].answer == "not reached" or _is_hardening(each))
    return frozenset(each.bug_id for each in safe)


def _is_hardening(recipe: Recipe) -> bool:
    return realism(recipe.document) == "unreachable"


def _print(result: Result) -> None:
    for line in result.first:
        echo(visible(line))
    if result.run.training is None:
        _list_bugs(result)
    else:
        _list_reached(result, result.run.training)
    for line in _undecided(result.decisions):
        echo(visible(line))


def _list_bugs(result: Result) -> None:
    bugs = result.bugs
    count = len({root(bug.document) for bug in bugs})
    echo(f"{roots(map(_counted, bugs))} {'is' if count == 1 else 'are'} in {result.copy}.")
    if bugs:
        echo_table(("bug", "severity", "realism", "it concerns"), [_row(bug) for bug in bugs])
    if len(result.present) > len(bugs):
        echo(
            f"in all {roots(map(_counted, result.present))}; the framework's own code never triggers the hardening bugs"
        )


def _list_reached(result: Result, run: Training) -> None:
    name, bugs = result.copy, result.bugs
    recipes = [recipe for recipe in result.recipes if not _is_hardening(recipe)]
    worst = {root(recipe.document): "does not" for recipe in recipes}  # the worst answer of all recipes for a bug
    worst |= {root(recipe.document): "absent" for recipe in recipes if recipe.bug_id in result.absent}
    worst |= {root(recipe.document): "not decided" for recipe in recipes if recipe.bug_id in result.undecided}
    for bug in sorted(bugs, key=lambda bug: bug.answer == "hits"):
        worst[root(bug.document)] = bug.answer
    answers = Counter(worst.values())
    known = f"{roots(row(each.target, each.document) for each in recipes)} of {recipes[0].target if recipes else name}"
    counts = [f"{answers['hits']} hit you", f"{answers['only if']} may hit you", f"{answers['does not']} do not"]
    counts += [f"{answers['absent']} not in this version"] if answers["absent"] else []
    counts += [f"{answers['not decided']} not decided"] if answers["not decided"] else []
    echo(f"{known} {'is' if len(worst) == 1 else 'are'} known. In {name}, with your settings: {', '.join(counts)}.")
    for line in result.unread:
        echo(visible(line))
    for answer, heading in (("hits", "hits you"), ("only if", "may hit you")):
        if answers[answer]:
            echo(f"\n{heading}")
        listed: dict[str, list[Bug]] = {}  # each bug once, as in the counts
        for bug in bugs:
            if bug.answer == answer == worst[root(bug.document)]:
                listed.setdefault(root(bug.document), []).append(bug)
        for first, *others in listed.values():
            _print_bug(first, run, [bug.decision.recipe.bug_id for bug in others])
    if answers["does not"]:
        echo("\n--json lists the bugs that do not hit you, each with the setting that rules it out")
    if run.options is not None:
        echo(f"defaults are those of {run.options.name} ({run.options.source})")


def _counted(bug: Bug) -> dict[str, str]:
    return row(bug.decision.recipe.target, bug.document)


def _print_bug(bug: Bug, run: Training, others: Sequence[str]) -> None:
    """Print a bug. ``others`` are the ids of recipes for the same bug with the same answer."""
    recipe, reach = bug.decision.recipe, bug.reach
    assert reach is not None
    echo(f"  {recipe.bug_id}" + (f" ({label})" if (label := grade(recipe.document)) else ""))
    echo(f"    {recipe.title}")
    if recipe.document.get("effect"):
        echo(f"    effect: {' '.join(str(recipe.document['effect']).split())}")
    if others:
        echo(f"    the same bug: {some(others)}")
    fault = "another failure comes first" if bug.realism == "fault" and bug.reached else ""
    only_if = "; ".join(filter(None, [reach.where, fault]))
    if only_if:
        echo(f"    only {'if' if reach.settings else 'for'} {visible(only_if)}")
    how = "" if recipe.affects else describe_reach(recipe.document)
    if how:
        echo(f"    how a run triggers it: {visible(how)}")
    elif bug.reached or reach.settings:
        echo(f"    because {visible(reach.because)}")
    advice = _advice(recipe.until, () if run.options is None else (run.options,))
    if advice:
        echo(f"    until it is fixed, set {visible(settings_in_words(advice))}")


def _advice(until: Mapping[str, str], trainers: Sequence[Options]) -> Mapping[str, str]:
    """Return the settings that avoid a bug. Return none unless one trainer has all of them and accepts their values."""

    def takes(trainer: Options, name: str, value: str) -> bool:
        option = trainer.options.get(name)
        return name in trainer and (option is None or not option.choices or value in option.choices)

    one = next((one for one in trainers if all(takes(one, name, value) for name, value in until.items())), None)
    return {one.spelling(name): value for name, value in until.items()} if one else {}


def _row(bug: Bug) -> tuple[str, ...]:
    recipe = bug.decision.recipe
    concerns = "; ".join(map(str, recipe.affects)) or describe_reach(recipe.document)
    return recipe.bug_id, str(recipe.document.get("severity") or ""), bug.realism, concerns


def _plain(result: Result) -> dict[str, Any]:
    run = result.run.training
    trainers = result.run.trainers if run is None or run.options is None else (run.options,)
    reaches = {
        bug.decision.recipe.bug_id: {"reach": bug.reach.answer, "because": bug.reach.because, "where": bug.reach.where}
        for bug in result.bugs
        if bug.reach
    }
    defaults = {"trainer": run.options.name, "file": run.options.file} if run and run.options else None
    return {
        "copy": result.copy,
        "defaults": defaults,
        "settings": {name: None if text == NOT_KNOWN else text for name, text in run.configuration.items()}
        if run
        else {},
        "bugs": [
            {
                "bug": item.recipe.bug_id,
                "verdict": item.verdict.name,
                "reason": item.verdict.reason,
                "severity": item.recipe.document.get("severity"),
                "realism": realism(item.recipe.document),
                "affects": [str(entry) for entry in item.recipe.affects],
                "until": dict(_advice(item.recipe.until, trainers)),
                **reaches.get(item.recipe.bug_id, {}),
            }
            for item in result.decisions
        ],
        "not_examined": [*result.first, *result.unread],
    }
