"""Read a training run from the user's input: a launch command or script, a configuration file, and single settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sentinel.commands.console import counted, print_error, some
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.reports.escaping import visible
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.tools.audit.command_line import NOT_KNOWN
from sentinel.tools.audit.composing import composed, groups
from sentinel.tools.audit.declared import finder, options_of, search_path, tree_folders
from sentinel.tools.audit.effective import Training, covers, training
from sentinel.tools.audit.files import MISSING, classes_recorded, flattened, read_mapping, settings_of
from sentinel.tools.audit.launch import Launch, setting_of
from sentinel.tools.audit.option_classes import (
    Find,
    lineage_in,
    lineage_of,
    options_of_class,
    trainer_next_to,
    trainers_with,
)
from sentinel.tools.audit.options import Option, Options
from sentinel.tools.audit.python_script import ANY
from sentinel.tools.audit.validation import Rejection, rejections, with_accepted


@dataclass(frozen=True)
class Copy:
    """The audited copy of a framework.

    :ivar name: its name in messages.
    :ivar python: the interpreter whose packages are used; None for the running one.
    """

    catalog: Catalog
    target: Target
    checkout: Checkout
    name: str
    python: str | None

    @cached_property
    def find(self) -> Find:
        return finder(self.target, self.checkout, self.python)

    @cached_property
    def folders(self) -> tuple[Path, ...]:
        """Return the folders with Hydra configurations."""
        return tree_folders(self.catalog, self.target, self.checkout)

    @property
    def modules(self) -> list[Path]:
        """Return the Python files of the framework's packages."""
        folders = (root / name for root in self.checkout.import_roots for name in self.target.packages)
        return sorted(file for folder in folders for file in folder.rglob("*.py"))

    def with_accepted(self, options: Options, configuration: Mapping[str, str]) -> Options:
        return with_accepted(options, configuration, self.target, self.checkout)


@dataclass(frozen=True)
class Given:
    """What the user gives: a launch command or script, a configuration file and single settings.

    :ivar config: the configuration file; None if there is none.
    :ivar data: its content.
    :ivar words: the settings of ``--set``.
    """

    launch: Launch
    config: Path | None
    data: Mapping[Any, Any] | None
    words: Sequence[str]

    @cached_property
    def set_names(self) -> frozenset[str]:
        return frozenset(setting_of(word)[0] for word in self.words)

    @cached_property
    def recorded(self) -> list[str] | None:
        """Return the configuration's classes if ``sentinel watch`` recorded the configuration; otherwise None."""
        return classes_recorded(self.data or {})

    @cached_property
    def added(self) -> frozenset[str]:
        """Return the settings that the user adds with ``+``."""
        return self.launch.added | {setting_of(word)[0] for word in self.words if word.startswith("+")}


@dataclass(frozen=True)
class Composed:
    """All settings of a run, from the command line and the files of the configuration.

    :ivar texts: the text of each setting; None if the user gives no settings.
    :ivar single: the settings of the command line and of ``--set``.
    :ivar config: the configuration file.
    :ivar own: the settings of a configuration file that belongs to the copy. They are defaults.
    :ivar hidden: options that unread files may set, as in :attr:`Training.doubtful`.
    :ivar unread: lines about what was not read.
    """

    texts: dict[str, str] | None
    single: Sequence[tuple[str, Any]]
    config: Path | None
    own: Mapping[str, str]
    hidden: frozenset[str]
    unread: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A training run, as the user configures it.

    :ivar training: its settings; None if the user gives none.
    :ivar trainers: the options of each trainer in the copy.
    :ivar refused: the exceptions that the configuration class raises for the settings.
    :ivar unread: lines about what was not read.
    """

    training: Training | None
    trainers: tuple[Options, ...]
    config: Path | None
    refused: Sequence[Rejection]
    unread: tuple[str, ...]


_COMPOSED = "give the composed configuration, which a Hydra program prints with --cfg job"


def read_settings(given: Given, copy: Copy) -> Composed:
    """Read the settings of a run, from the user's input and from files of the copy that the input names."""
    launch, config, data = given.launch, given.config, given.data
    hidden, unread, own = launch.hidden, [*launch.unread], dict[str, str]()
    if launch.config and config != launch.config:
        unread.append(f"not read, because --config is given: {launch.config}")
    if launch.missing and config is None:
        name = launch.missing.get("config_name", "").removesuffix(".yaml")
        files = (folder / f"{name}.yaml" for folder in copy.folders)
        config = next((place for place in files if name and "\0" not in name and place.is_file()), None)
        if config is None:
            hidden |= {""}
            words = ", ".join(f"--{name} {value}" for name, value in launch.missing.items())
            unread.append(f"not read: the configuration of {words}, because there is no such file here")
        else:
            data = read_mapping(config)
    single = [*launch.settings, *map(setting_of, given.words)]
    choices = groups(copy.folders)
    chosen = {name: value for name, value in single if name in choices}
    single = [(name, value) for name, value in single if name not in chosen]
    if chosen and config is None:
        hidden |= {""}
        written = ", ".join(f"{name}={value}" for name, value in chosen.items())
        unread.append(f"not read: other files of the configuration, which {written} chooses; {_COMPOSED}")
    if config is not None and data is not None:
        folders, left_out = search_path(data, copy.catalog, copy.target, copy.checkout)
        data, bases = composed(config, data, folders, chosen)
        if config != given.config:  # a file of the copy: its settings are the defaults
            own, data = flattened(settings_of(data)), None
        unread += [f"{config}: {sentence}" for sentence in left_out]
        if bases:
            hidden |= {""}
            entries = f"these entries of its defaults list were not read: {', '.join(bases)}"
            unread.append(f"{config}: {entries}; {_COMPOSED}")
    return Composed(_merge_settings(data, single), single, config, own, hidden, tuple(unread))


def read_run(given: Given, copy: Copy, boundaries: Collection[str]) -> Run:
    """Read a training run from what the user gives.

    :param boundaries: dotted paths of functions with known bugs, as in :func:`_trainers_of`.
    :raises NothingExamined: if the options of the script's configuration class cannot be read.
    """
    launch, settings = given.launch, read_settings(given, copy)
    recorded = given.recorded
    trainers, unread = options_of(copy.catalog, copy.target, copy.checkout, copy.python), [*settings.unread]
    trainers = _with_defaults_of_file(trainers, settings)
    if launch.made_by and trainers and all(trainer.made_by != launch.made_by for trainer in trainers):
        have = ", ".join(trainer.made_by for trainer in trainers if trainer.made_by)
        raise NothingExamined(
            f"the options of {launch.made_by} cannot be read in {copy.name}; these can be read: {have or 'no class'}"
        )
    near = _finder_near(launch, copy)
    trainers = tuple(_with_other_classes(one, launch, near) for one in trainers)
    again = {option for one in trainers for name in launch.own for option in _meant(name, one.options)}
    again -= {name for name, _ in settings.single}
    if again and launch.program:
        unread.append(f"not known: the defaults that {launch.program[0].name} declares itself: {some(sorted(again))}")
    if settings.texts is None:
        return Run(None, trainers, settings.config, (), tuple(unread))
    own = {name for name, _ in settings.single if launch.own.intersection(name.split("."))}
    typed = frozenset(name for name, _ in launch.settings)
    trainers = tuple(copy.with_accepted(one, one.meaning(settings.texts, typed)) for one in trainers)
    known = [name for name in recorded or () if any(trainer.made_by == name for trainer in trainers)]
    made_by = launch.made_by or next(iter(known), "")
    had = frozenset(settings.texts).difference(given.set_names, typed) if recorded is not None else frozenset[str]()
    run = training(settings.texts, trainers, made_by, given.added | own, typed, settings.hidden | again, had)
    run, left_out = _completed(run, launch, given.set_names)
    if run.options is not None:
        run = replace(run, options=copy.with_accepted(run.options, run.configuration))
    run = _with_trainers(run, launch, copy, boundaries)
    # A recorded run includes values that its configuration class computed, and the class may reject them as inputs.
    # Therefore no rejections are looked for in a recorded run.
    refused = rejections(run, copy.target, copy.checkout, copy.find, launch.processes) if recorded is None else []
    return Run(run, trainers, settings.config, refused, (*unread, *left_out))


def _with_defaults_of_file(trainers: tuple[Options, ...], settings: Composed) -> tuple[Options, ...]:
    own = settings.own
    if not own or not trainers:
        return trainers
    near = max(trainers, key=lambda trainer: len(own.keys() & trainer.options.keys()))
    defaults = {name: Option(None if text == MISSING else text) for name, text in own.items()}
    named_by = replace(near, file=Path(settings.config or "").name, options={**near.options, **defaults})
    return (named_by, *(trainer for trainer in trainers if trainer is not near))


def _merge_settings(data: Mapping[Any, Any] | None, single: Sequence[tuple[str, Any]]) -> dict[str, str] | None:
    if data is None and not single:
        return None
    configuration = {name: text for name, text in flattened(settings_of(data or {})).items() if text != MISSING}
    for name, value in single:
        below = f"{name}."
        configuration = {other: text for other, text in configuration.items() if not other.startswith(below)}
        configuration |= flattened({name: value})
    return configuration


def _completed(run: Training, launch: Launch, given: Collection[str]) -> tuple[Training, list[str]]:
    """Add the settings of files that the launch command names, and mark those that the program assigns as unknown.

    :param given: the names of the settings of ``--set``. They remain known even if the code assigns them.
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
    """Return the options and sections that a dotted name in code may mean. Its first part may be the name of a
    variable."""
    found: dict[str, None] = {}
    for option in options:
        for tail in filter(None, (name, name.partition(".")[2])):
            if f".{option}".endswith(f".{tail}") or f".{name}".endswith(f".{option}"):
                found[option] = None
            elif option.startswith(f"{tail}."):
                found[f"{tail}."] = None
    return list(found)


def _finder_near(launch: Launch, copy: Copy) -> Find:
    """Return a function that finds a module's file with :attr:`Copy.find` or in the folder of the script."""
    folder = launch.program[0].parent if launch.program else None

    def find(module: str) -> Path | None:
        near = [folder / f"{module.replace('.', '/')}.py"] if folder else []
        return copy.find(module) or next(filter(Path.is_file, near), None)

    return find


def _with_other_classes(options: Options, launch: Launch, find: Find) -> Options:
    """Add the options of other classes that the script, or else the framework's own scripts, fill from the same
    configuration."""
    if launch.program is None:
        return replace(options, options={**options.companions, **options.options})
    file, classes = launch.program
    found, unread = dict(options.options), dict(options.open)
    for name in classes:
        others, more = options_of_class(file, name, find)
        found = {**others, **found}
        unread |= more if others else {"": name}
    keys = {key: Option("") for key in launch.parser.keys}
    return replace(options, options={**keys, **found}, open=unread, companions={})


def _with_trainers(run: Training, launch: Launch, copy: Copy, boundaries: Iterable[str]) -> Training:
    """Add the trainers that the script uses or, without a script, those whose configuration classes fit the settings.

    :param boundaries: dotted paths of functions. A function of a trainer that the run does not use is added to
        :attr:`Training.apart`.
    """
    find = _finder_near(launch, copy)
    if launch.program is not None:
        file = launch.program[0]
        lineages = [lineage_of(path, find) or lineage_in(file, path, find) for path in launch.trainers]
        files = {name: source for one in lineages for name, source in one.items()} if all(lineages) else {}
        callers = {file, *files.values()}
    else:
        classes = [one.made_by for one in run.fits]
        known = bool(classes) and all(classes) and len(classes) <= len(run.others)
        files = trainers_with(classes, copy.modules, find) if known else {}
        callers = {*files.values()}
    owners = {each: trainer_next_to(each, files, callers, copy.find) for each in boundaries if files}
    return replace(run, trainers=tuple(files), apart={each: trainer for each, trainer in owners.items() if trainer})
