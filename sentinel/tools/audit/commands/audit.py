"""``sentinel audit``: list the known bugs in a copy of a framework, and those that a configuration triggers."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
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
from sentinel.tools.audit.composing import composed, groups
from sentinel.tools.audit.declared import (
    classes_of,
    finder,
    newest_with,
    options_of,
    packages_digest,
    places,
    search_path,
    tree_folders,
)
from sentinel.tools.audit.effective import Training, covers, training
from sentinel.tools.audit.files import MISSING, flattened, position_of, read_mapping, settings_of
from sentinel.tools.audit.launch import Launch, launch_of, setting_of
from sentinel.tools.audit.option_classes import Find, lineage_in, lineage_of, options_of_class, trainer_next_to
from sentinel.tools.audit.options import Option, Options
from sentinel.tools.audit.python_script import ANY
from sentinel.tools.audit.reach import Reach, reach
from sentinel.tools.audit.validation import Rejection, rejections, with_accepted

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
exit status: 0 no bug is present (or no setting triggers one), 1 at least one is (or is triggered); 2, also if a bug is
triggered: nothing was examined, a bug depends on a setting that could not be read, the configuration class rejects an
argument or a value, or the tree of --repo changes signal code
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
        raise SentinelError("--repo is a working tree, --python an environment, --ref a revision; give one of them")
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
        """Return the file of a Python program or module that the audited copy contains; None for a module of the
        framework's packages."""
        checkout, _ = opened()
        top = checkout.source if arguments.repo and checkout.source else checkout.path
        found = (
            places(target, replace(checkout, path=top), name) if name.endswith(".py") else _modules(name, script, top)
        )
        own = name.partition(".")[0] in target.packages and not name.endswith(".py")
        return None if own else next((place for place in found if place.is_file()), None)

    classes, script = classes_of(catalog, target), arguments.script
    launch = launch_of(script, arguments.own_command, classes, configured, find_program)
    for sentence in launch.read:
        print_error(visible(sentence))
    single = [*launch.settings, *map(setting_of, arguments.set)]
    config: Path | None = arguments.config or launch.config
    not_read = [*launch.unread]
    if launch.config and config != launch.config:
        not_read.append(f"not read, because --config is given: {launch.config}")
    data: Mapping[Any, Any] | None = read_mapping(config) if config else None
    checkout, ref = opened()
    if ref.kind != "installed" and not arguments.repo and not arguments.ref:
        audited = f"{target.name} is not installed here, so {_name(checkout)} is audited"
        print_error(f"{audited}; name your copy {_OTHER_COPY}")
    recipes = find_recipes(catalog, [target.name])
    hidden = launch.hidden
    if launch.missing and config is None:
        name = launch.missing.get("config_name", "").removesuffix(".yaml")
        files = (folder / f"{name}.yaml" for folder in tree_folders(catalog, target, checkout))
        config = next((place for place in files if name and "\0" not in name and place.is_file()), None)
        if config is None:
            hidden |= {""}
            words = ", ".join(f"--{name} {value}" for name, value in launch.missing.items())
            not_read.append(f"not read: the configuration that {words} names, because it is not a file here")
        else:
            data = read_mapping(config)
    own: Mapping[str, str] = {}
    choices = groups(tree_folders(catalog, target, checkout))
    chosen = {name: value for name, value in single if name in choices}
    single = [(name, value) for name, value in single if name not in chosen]
    if chosen and config is None:
        hidden |= {""}
        written = ", ".join(f"{name}={value}" for name, value in chosen.items())
        not_read.append(
            f"not read: other files of the configuration, which {written} chooses; give the composed configuration, "
            "which a Hydra program prints with --cfg job"
        )
    if config is not None and data is not None:
        folders, left_out = search_path(data, catalog, target, checkout)
        data, bases = composed(config, data, folders, chosen)
        # If the file is the copy's own, its settings are the defaults.
        if config not in (arguments.config, launch.config):
            own, data = flattened(settings_of(data)), None
        not_read += [f"{config}: {sentence}" for sentence in left_out]
        if bases:
            hidden |= {""}
            not_read.append(
                f"{config}: these entries of its defaults list were not read: {', '.join(bases)}; give the composed "
                "configuration, which a Hydra program prints with --cfg job"
            )
    python = settings.python_of(target.name)
    trainers = options_of(catalog, target, checkout, python)
    if own and trainers:
        near = max(trainers, key=lambda trainer: len(own.keys() & trainer.options.keys()))
        defaults = {name: Option(None if text == MISSING else text) for name, text in own.items()}
        named_by = replace(near, file=Path(config or "").name, options={**near.options, **defaults})
        trainers = (named_by, *(trainer for trainer in trainers if trainer is not near))
    configuration = _configuration(data, single)
    added = launch.added | {setting_of(word)[0] for word in arguments.set if word.startswith("+")}
    own_settings = {name for name, _ in single if launch.own.intersection(name.split("."))}
    if launch.made_by and trainers and all(trainer.made_by != launch.made_by for trainer in trainers):
        have = ", ".join(trainer.made_by for trainer in trainers if trainer.made_by)
        raise NothingExamined(
            f"the options of {launch.made_by} cannot be read in {_name(checkout)}; these can be read: "
            f"{have or 'no class'}"
        )
    again = {option for one in trainers for name in launch.own for option in _meant(name, one.options)}
    again -= {name for name, _ in single}
    if again and launch.program:
        not_read.append(f"not known: the defaults that {launch.program[0].name} declares itself: {some(sorted(again))}")
    run, refused = None, list[Rejection]()
    if configuration is not None:
        typed = frozenset(name for name, _ in launch.settings)
        run = training(configuration, trainers, launch.made_by, added | own_settings, typed, hidden | again)
        run, left_out = _completed(run, launch, {setting_of(word)[0] for word in arguments.set})
        not_read += left_out
        run = with_accepted(run, target, checkout)
        find = finder(target, checkout, python)
        run = _of_program(run, launch, find, [recipe.boundary for recipe in recipes])
        refused = rejections(run, target, checkout, find, launch.processes)
    reaches = {recipe.bug_id: reach(recipe.affects, run, recipe.boundary) for recipe in recipes if run}
    # A bug that the settings do not trigger is harmless at every revision, so its code need not run.
    safe = frozenset[str]() if run is None or arguments.json else _select_safe(recipes, reaches)
    others = [recipe for recipe in recipes if recipe.bug_id not in safe]
    decisions, changes = _decide(others, checkout, ref, catalog, settings, target, reuse=not arguments.sarif)
    there = [item for item in decisions if item.verdict.name == "reproduced"]
    decided = [item for item in decisions if item.verdict.name in _DECIDED]
    if not decided and not (safe and all(item.verdict.kind in _LASTING for item in decisions)):
        reason = "; ".join(causes(item.verdict.reason for item in decisions)) or f"{target.name} has no recipes"
        raise NothingExamined(f"no known bug could be decided: {reason}; name another copy {_OTHER_COPY}")
    bugs = [Bug(item, reaches.get(item.recipe.bug_id)) for item in there]
    unused = sorted({each.unused for each in reaches.values() if each.unused})
    hardening = [bug for bug in bugs if _is_hardening(bug.decision.recipe)]
    bugs = [bug for bug in bugs if not _is_hardening(bug.decision.recipe)]
    bugs.sort(key=lambda bug: (order(bug.document), bug.decision.recipe.bug_id))
    name = _name(checkout)
    rejected, doubts = _of_settings(run, launch, config, target, name, added) if run else ([], [])
    rejected += [_of_rejection(each, run, launch, config, name) for each in refused if run]
    unread = [*([f"not used by this script: {some(unused)}"] if unused else []), *not_read, *doubts]
    settings_named = (run.references if run else {}).items()
    named = [
        option if text == NOT_KNOWN else f"{option}={text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}"
        for option, text in ((_spelled(run, name), text) for name, text in settings_named)
    ]
    named += launch.references
    if named:
        unread.append(f"not examined (your reward functions and data): {some(named)}")
    if run is not None and (not run.configuration or ((bugs or safe) and not _examined(run, recipes))):
        for line in (*changes, *rejected, *unread):
            print_error(visible(line))
        raise NothingExamined(_no_setting(run, name))
    if arguments.sarif:
        results = [(evidence(bug.decision), "") for bug in bugs if bug.answer != "does not"]
        write_atomically(
            arguments.sarif, sarif(results, {target.name: target.repository}), "name another file with --sarif"
        )
    if arguments.json:
        echo_json({**_plain(name, decisions, bugs, run, trainers), "not_examined": [*changes, *rejected, *unread]})
    else:
        for line in (*changes, *rejected):
            echo(visible(line))
        if run is None:
            _list_bugs(name, bugs, hardening)
        else:
            undecided = {item.recipe.bug_id for item in decisions if item.verdict.name not in _DECIDED}
            _list_reached(name, recipes, undecided, bugs, run, unread)
        for line in _undecided(decisions):
            echo(visible(line))
    open_bugs = [bug.decision.recipe.bug_id for bug in bugs if bug.reach is not None and bug.reach.unread]
    if open_bugs:
        settings_of_bugs = dict.fromkeys(name for bug in bugs if bug.reach for name in bug.reach.unread)
        print_error(
            f"not decided: {some(open_bugs)}, because these settings were not read: "
            f"{some(list(settings_of_bugs))}; give them with --set"
        )
    if open_bugs or changes or rejected:
        return 2
    return 1 if any(bug.reached for bug in bugs) or (run is None and bugs) else 0


def _spelled(run: Training | None, name: str) -> str:
    """Return a setting's name in the run's version of the framework."""
    return run.options.spelling(name) if run and run.options else name


def _modules(name: str, script: Path | None, top: Path) -> Iterator[Path]:
    """Yield the paths where a launch script's module may be: in the current folder, in the script's folder or one above
    it, or in the copy of the framework.
    """
    path = f"{name.replace('.', '/')}.py"
    above = script.absolute().parents if script else ()
    yield from (folder / path for folder in (Path(), *above, top) if "\0" not in name)


def _of_program(run: Training, launch: Launch, find: Find, boundaries: Iterable[str]) -> Training:
    """Add to a run what its Python script shows: the trainers that it uses, and the options of other classes that it
    sets.

    Modules are also looked up in the script's folder.

    :param boundaries: dotted paths of functions. Those that belong to a trainer that the script does not use are added
        to :attr:`Training.apart`.
    """
    if launch.program is None:
        return run
    file, classes = launch.program

    def near(module: str) -> Path | None:
        return find(module) or next(filter(Path.is_file, [file.parent / f"{module.replace('.', '/')}.py"]), None)

    lineages = [lineage_of(path, near) or lineage_in(file, path, near) for path in launch.trainers]
    if all(lineages):
        files = {name: source for one in lineages for name, source in one.items()}
        callers = {file, *files.values()}
        owners = {each: trainer_next_to(each, files, callers, find) for each in boundaries if files}
        apart = {boundary: trainer for boundary, trainer in owners.items() if trainer}
        run = replace(run, trainers=tuple(files), apart=apart)
    if run.options is None:
        return run
    options, unread = dict(run.options.options), dict(run.options.open)
    for name in classes:
        others, more = options_of_class(file, name, near)
        options = {**others, **options}
        unread |= more if others else {"": name}
    return replace(run, options=replace(run.options, options=options, open=unread))


def _of_rejection(each: Rejection, run: Training, launch: Launch, config: Path | None, copy: str) -> str:
    """Return a line that names an exception of the configuration class, and the settings that cause it."""
    found = (launch.places.get(name) or (position_of(config, name) if config else "") for name in each.names)
    place = next(filter(None, found), "")
    given = ", ".join(f"{name}={run.configuration[name]}" for name in each.names)
    processes = f" with {' or '.join(map(str, each.processes))} processes" if each.processes else ""
    what = f"{run.options.made_by if run.options else ''} of {copy} raises a {each.raised.kind} for {given}{processes}"
    return f"{f'{place}: ' if place else ''}{what}: {each.raised.message}"


def _of_settings(
    run: Training, launch: Launch, config: Path | None, target: Target, copy: str, added: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return two lists of lines about settings that the run's trainer does not have, with the option that each may
    mean.

    The first list has the arguments with which the script's call of the configuration class fails.

    :param added: settings that the user adds with ``+``.
    """
    options, lines, rejected = run.options, list[str](), list[str]()
    if options is None:
        return [], []
    meant = run.meant()
    nested = {name.removesuffix(f".{option}"): None for name, option in run.nested.items()}
    if nested:
        lines.append(
            f"not read: {some(list(run.nested))}; {options.name} ({options.file}) has no section "
            f"{' or '.join(nested)}, so these are not known: {some(list(run.nested.values()))}"
        )
    unknown = [name for name in run.unknown() if name not in run.nested and name not in nested]
    for name in unknown[:_MOST_LINES]:
        other = None if meant.get(name) and launch.made_by else run.elsewhere(name)
        near = f" (it is one of {other})" if other else f"; did you mean {meant[name]}?" if meant.get(name) else ""
        place = next((launch.places[each] for each in launch.places if f"{each}.".startswith(f"{name}.")), "")
        place = place or (position_of(config, name) if config else "")
        own = launch.made_by == options.made_by != "" and name in launch.places
        broken = own and name not in launch.silent
        newest, since = newest_with(target, options, name)
        # If another release has the name, it is not misspelled, so a similar option is a different one.
        if since:
            near = f"; {since} removed it ({newest} still has it)"
        elif newest:
            near = f"; the newest release, {newest}, has it"
        if broken:
            rejected.append(f"{place}: {options.made_by} of {copy} has no option {name} and raises a TypeError{near}")
        elif own:
            assigns = f"{options.made_by} of {copy} has no option {name}"
            lines.append(f"{place}: {assigns}; assigning it raises no error and has no effect on the options{near}")
        else:
            where = f"{place}: " if place else ""
            lines.append(f"{where}{name} is not an option of {options.name} ({options.file}) in this version{near}")
    left = unknown[_MOST_LINES:]
    if left:
        lines.append(f"also not options of {options.name} in this version: {', '.join(left)}")
    lines += [
        f"{name}={run.configuration[name]}: not a value of this option, which accepts {expected}"
        for name, expected in run.invalid.items()
    ]
    new = sorted(name for name in added if name not in options)
    if new:
        lines.append(f"added with +, and not an option of {options.name} in this version: {some(new)}")
    by_source: dict[str, list[str]] = {}
    for name in (name for name in run.unread() if name not in run.nested):
        near = f" (did you mean {meant[name]}?)" if name in meant else ""
        by_source.setdefault(options.may_declare(name), []).append(f"{name}{near}")
    for source, names in by_source.items():
        package = source.partition(" of ")[2]
        advice = f"; install {package}, or name an environment that has it with --python" if package else ""
        lines.append(f"not checked, because the options of {source} were not read: {some(names)}{advice}")
    return rejected, lines


#: Maximum number of printed lines of one kind, and maximum number of characters of a value.
_MOST_LINES, _LONGEST = 10, 80


def _examined(run: Training, recipes: Sequence[Recipe]) -> bool:
    """Return True if at least one setting was compared with the options of this version or with a bug's conditions."""
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

#: Causes that count as the same for several bugs, although the reasons name different code.
_CAUSES = {
    "not-in-this-version": "this version does not have the code",
}


def _undecided(decisions: Sequence[Decision]) -> list[str]:
    """List the known bugs without a conclusive verdict, grouped by cause."""
    groups: dict[str, list[Decision]] = {}
    for item in decisions:
        if item.verdict.name == "changed":
            cause = "the results are neither the buggy nor the correct ones"
        elif item.verdict.name in ("reproduced", "fixed"):
            continue
        else:
            missing = item.verdict.reason.removeprefix("not in this version: ").partition("; the nearest there")[0]
            cause = _CAUSES.get(item.verdict.kind) or (
                missing if item.verdict.kind == "drift" else f"{item.verdict.kind}: {item.verdict.reason}"
            )
        groups.setdefault(cause, []).append(item)
    if not groups:
        return []

    def count(items: Sequence[Decision]) -> str:
        return roots(row(item.recipe.target, item.recipe.document) for item in items)

    lines = [f"not decided: {count([item for items in groups.values() for item in items])}"]
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for cause, items in ordered[:_MOST_LINES]:
        lines.append(f"  {count(items)}: {cause}: {some([item.recipe.bug_id for item in items])}")
    rest = [item for _, items in ordered[_MOST_LINES:] for item in items]
    return [*lines, *([f"  {count(rest)}: other causes; --json lists them"] if rest else [])]


@dataclass(frozen=True)
class Bug:
    """A known bug in the copy of the framework. ``reach`` says whether the settings trigger it."""

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
        """Return ``hits`` if the settings trigger the bug, ``does not`` if they do not, and ``only if`` if that depends
        on further conditions or on settings that were not read."""
        if self.reach is None or (self.reached and not self.reach.where and self.realism != "fault"):
            return "hits"
        return "does not" if self.reach.answer == "not reached" else "only if"


def _configuration(data: Mapping[Any, Any] | None, single: Sequence[tuple[str, Any]]) -> dict[str, str] | None:
    """Return the settings of the configuration file, overridden by the command line; None if neither is given."""
    if data is None and not single:
        return None
    configuration = {name: text for name, text in flattened(settings_of(data or {})).items() if text != MISSING}
    for name, value in single:
        below = f"{name}."
        configuration = {other: text for other, text in configuration.items() if not other.startswith(below)}
        configuration |= flattened({name: value})
    return configuration


def _completed(run: Training, launch: Launch, given: Collection[str]) -> tuple[Training, list[str]]:
    """Add to a run the settings that its launch command reads from files and code. Also return lines for the user,
    which say what was read and what was not.

    :param given: the names of the settings of ``--set``, which apply whatever the code assigns.
    """
    options = run.options.options if run.options is not None else {}
    configuration = dict(run.configuration)
    not_read = []
    for option, file in launch.files.items():
        try:
            values = flattened(settings_of(read_mapping(file)))
        except SentinelError as error:
            not_read.append(f"the file of --{option} was not read: {error}")
            continue
        known = {name: text for name, text in values.items() if name in options}
        twice = [name for name in known if name in configuration]
        # If the file has a name that is not an option, the program may interpret the file in its own way.
        unread = list(known) if len(known) < len(values) else twice
        configuration |= known | dict.fromkeys(unread, NOT_KNOWN)
        if len(known) < len(values) or not values:
            others = [name for name in values if name not in known]
            not_read.append(f"not read in {file}, the file of --{option}: {some([*known, *others]) or 'it is empty'}")
        elif twice:
            not_read.append(f"not known: settings that the command and {file} both set: {some(twice)}")
        else:
            print_error(visible(f"{file}: {counted(len(known), 'setting')} read, because --{option} names it"))
    changed: dict[str, str] = {}
    for name, place in launch.assigned.items():
        meant = [""] if name.startswith(ANY) else _meant(name, options)
        changed |= dict.fromkeys(meant, f"{name} ({place})")
    if changed:
        places = list(dict.fromkeys(changed.values()))
        not_read.append(f"not known: settings that the program's code assigns: {some(places)}")
    configuration |= {name: NOT_KNOWN for name in configuration if covers(changed, name) and not covers(given, name)}
    return replace(run, configuration=configuration, doubtful=run.doubtful | changed.keys()), not_read


def _meant(name: str, options: Iterable[str]) -> list[str]:
    """Return the options and sections that a dotted name in code may denote. The first part of the name may be the name
    of a variable.
    """
    found: dict[str, None] = {}
    for option in options:
        for tail in filter(None, (name, name.partition(".")[2])):
            if f".{option}".endswith(f".{tail}") or f".{name}".endswith(f".{option}"):
                found[option] = None
            elif option.startswith(f"{tail}."):
                found[f"{tail}."] = None
    return list(found)


def _decide(
    recipes: Sequence[Recipe],
    checkout: Checkout,
    ref: Ref,
    catalog: Catalog,
    settings: Settings,
    target: Target,
    reuse: bool,
) -> tuple[list[Decision], list[str]]:
    """Return the verdicts of recipes on a copy of the framework, and lines about the copy's own changes.

    :param reuse: whether stored verdicts of a release may be used; these come without observations.
    """
    decisions: list[Decision] = []

    def opened(of: Target, other: Ref, pull: int | None) -> Checkout:
        return checkout if other == ref else opener(settings)(of, other, pull)  # pins show where a function has moved

    with progress() as notify, closing(runner_of(catalog, settings, opened=opened)) as runner:
        changes = _changes(target, ref, checkout, opener(settings, notify))
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
    """Open the copy that the user names. If none is named, open the installed copy, or else the newest release or
    main."""
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


def _changes(target: Target, ref: Ref, checkout: Checkout, open_: OpenCheckout) -> list[str]:
    """Return a line for the user if the signal code of a working tree differs, or may differ, from upstream's."""
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
    """Return the known bugs that the settings do not trigger, and those that no code of the framework triggers."""
    safe = (each for each in recipes if reaches[each.bug_id].answer == "not reached" or _is_hardening(each))
    return frozenset(each.bug_id for each in safe)


def _is_hardening(recipe: Recipe) -> bool:
    return realism(recipe.document) == "unreachable"


def _list_bugs(name: str, bugs: Sequence[Bug], hardening: Sequence[Bug]) -> None:
    """Print the bugs of a copy: a line of counts, then a table."""
    count = len({root(bug.document) for bug in bugs})
    echo(f"{roots(map(_counted, bugs))} {'is' if count == 1 else 'are'} in {name}.")
    if bugs:
        echo_table(("bug", "severity", "realism", "it concerns"), [_row(bug) for bug in bugs])
    if hardening:
        echo(
            f"in all {roots(map(_counted, [*bugs, *hardening]))}; "
            "the framework's own code never triggers the hardening bugs"
        )


def _list_reached(
    name: str,
    recipes: Sequence[Recipe],
    undecided: Collection[str],
    bugs: Sequence[Bug],
    run: Training,
    unread: Sequence[str],
) -> None:
    """Print the known bugs that a run's settings trigger: a line of counts, then each bug.

    :param recipes: all recipes of the target.
    :param undecided: the bugs that the settings may trigger, and that could not be decided.
    :param bugs: the bugs that hit or may hit the run.
    """
    recipes = [recipe for recipe in recipes if not _is_hardening(recipe)]
    worst = {root(recipe.document): "does not" for recipe in recipes}  # a bug counts once, by the worst answer
    worst |= {root(recipe.document): "not decided" for recipe in recipes if recipe.bug_id in undecided}
    for bug in sorted(bugs, key=lambda bug: bug.answer == "hits"):
        worst[root(bug.document)] = bug.answer
    answers = Counter(worst.values())
    known = f"{roots(row(each.target, each.document) for each in recipes)} of {recipes[0].target if recipes else name}"
    counts = [f"{answers['hits']} hit you", f"{answers['only if']} may hit you", f"{answers['does not']} do not"]
    counts += [f"{answers['not decided']} not decided"] if answers["not decided"] else []
    echo(f"{known} {'is' if len(worst) == 1 else 'are'} known. In {name}, with your settings: {', '.join(counts)}.")
    for line in unread:
        echo(visible(line))
    for answer, heading in (("hits", "hits you"), ("only if", "may hit you")):
        if answers[answer]:
            echo(f"\n{heading}")
        listed: dict[str, list[Bug]] = {}  # each bug once, as in the counts
        for bug in bugs:
            if bug.answer == answer == worst[root(bug.document)]:
                listed.setdefault(root(bug.document), []).append(bug)
        for first, *others in listed.values():
            _tell_of(first, run, [bug.decision.recipe.bug_id for bug in others])
    if answers["does not"]:
        echo("\n--json lists the bugs that do not hit you, each with the setting that rules it out")
    if run.options is not None:
        echo(f"defaults are those of {run.options.name} ({run.options.source})")


def _counted(bug: Bug) -> dict[str, str]:
    return row(bug.decision.recipe.target, bug.document)


def _tell_of(bug: Bug, run: Training, others: Sequence[str]) -> None:
    """Print a bug, together with other recipes for the same bug that have the same answer."""
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
    """Return the settings that avoid a bug, if a trainer has all of them and accepts their values; otherwise none."""

    def takes(trainer: Options, name: str, value: str) -> bool:
        option = trainer.options.get(name)
        return name in trainer and (option is None or not option.choices or value in option.choices)

    one = next((one for one in trainers if all(takes(one, name, value) for name, value in until.items())), None)
    return {one.spelling(name): value for name, value in until.items()} if one else {}


def _row(bug: Bug) -> tuple[str, ...]:
    recipe = bug.decision.recipe
    concerns = "; ".join(map(str, recipe.affects)) or describe_reach(recipe.document)
    return recipe.bug_id, str(recipe.document.get("severity") or ""), bug.realism, concerns


def _plain(
    name: str,
    decisions: Sequence[Decision],
    bugs: Sequence[Bug],
    run: Training | None,
    trainers: Sequence[Options],
) -> dict[str, Any]:
    if run is not None and run.options is not None:
        trainers = (run.options,)
    reaches = {
        bug.decision.recipe.bug_id: {"reach": bug.reach.answer, "because": bug.reach.because, "where": bug.reach.where}
        for bug in bugs
        if bug.reach
    }
    defaults = {"trainer": run.options.name, "file": run.options.file} if run and run.options else None
    return {
        "copy": name,
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
            for item in decisions
        ],
    }
