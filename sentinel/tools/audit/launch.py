"""Read the settings of a command, shell script or Python script that starts a training run, without executing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sentinel.commands.console import counted, some
from sentinel.errors import NothingExamined, SentinelError
from sentinel.tools.audit.command_line import NOT_KNOWN, of_script, of_words
from sentinel.tools.audit.files import spelled, value_of
from sentinel.tools.audit.python_command import read_command
from sentinel.tools.audit.python_script import ANY, Call, Parser, read_script


@dataclass(frozen=True)
class Launch:
    """The command or script that starts a training run, with the settings that it passes.

    :ivar settings: the value of each setting, in the order of the command or script.
    :ivar made_by: the configuration class that a Python script calls; empty if none is called.
    :ivar config: the configuration file that the command names; None if there is none.
    :ivar missing: the arguments that name a configuration file, if the file does not exist here.
    :ivar files: other option whose value is a file of settings -> this file.
    :ivar assigned: option that the program's own code may set later -> ``file:line`` of this code.
    :ivar hidden: sections, with a final dot, whose members unread code may set; the empty name stands for all options.
    :ivar added: settings that the command adds to the configuration with ``+``.
    :ivar references: the reward functions and data that a Python script uses.
    :ivar trainers: the trainer classes that a Python script uses, as in :class:`Script`.
    :ivar program: the Python script, and the classes that it fills from its command line, except for ``made_by``.
    :ivar parser: the parser with which the script fills these classes.
    :ivar places: setting of a script -> ``file:line``.
    :ivar silent: settings that a script assigns as attributes. This raises no error if there is no such option.
    :ivar own: the fields that the script's own configuration classes declare.
    :ivar processes: the number of processes that a launcher starts; None if the command does not specify it.
    :ivar read: lines about what was read.
    :ivar unread: lines about what could not be read.
    """

    settings: tuple[tuple[str, Any], ...] = ()
    made_by: str = ""
    config: Path | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    assigned: Mapping[str, str] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    references: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    program: tuple[Path, tuple[str, ...]] | None = None
    parser: Parser = field(default_factory=Parser)
    places: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    processes: int | None = None
    read: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def launch_of(
    script: Path | None,
    words: Sequence[str],
    classes: Sequence[str],
    configured: bool = False,
    find: Callable[[str], Path | None] = lambda _: None,
) -> Launch:
    """Read the script or command that starts a training run.

    :param words: the command, or the arguments of the script.
    :param classes: the names of the configuration classes of trainers.
    :param configured: whether the user also gives settings in another way. Otherwise the script must have settings.
    :param find: returns the Python file of a program that is not a file here, but in the framework.
    :raises NothingExamined: if neither settings nor a configuration are found.
    """
    if not script and not words:
        return Launch()
    is_python = script is not None and script.suffix == ".py"
    given = dict(map(setting_of, of_words(words).settings)) if is_python else {}
    built = read_command(script, classes, given) if script and is_python else None
    if script and is_python and built is None and not words:
        return _of_python(script, (), classes, must=not configured)
    if script and is_python:
        line = built or of_words(["python", str(script), *words])
    else:
        line = of_script(script, arguments=words) if script else of_words(words)
    where = line.where or " ".join(words)
    read = (f"{where}: {counted(len(line.settings), 'setting')} read",) if line.where else ()
    unread: list[str] = []
    if line.unknown:
        who = "the script computes" if is_python else "only a shell can compute"
        unread.append(f"not known: settings that {who}: {', '.join(line.unknown)}")
    if line.missing:
        what = "the script sources files that do not exist, so variables that it sets earlier are not known: "
        unread.append(f"{what}{', '.join(line.missing)}")
    if line.further:
        unread.append(f"not known: further options that may be set by {', '.join(line.further)}")
    if line.arguments:
        unread.append(f"{line.arguments} was assumed to contain no options; give the script's arguments after --")
    if line.assumed:
        by = "arguments after -- replace" if is_python else "the environment may replace"
        unread.append(f"read as the script's defaults, which {by}: {some(line.assumed)}")
    if line.others:
        unread.append(f"not read: other commands of the script: {some(line.others)}")
    is_file = line.program.endswith(".py")
    near = _find_near_script(script, line.program) if is_file else None
    program = near or (find(line.program) if is_file or "." in line.program else None)
    made = Launch()
    if program is not None:
        made = _of_python(
            program,
            line.settings,
            classes,
            must=not line.settings and not line.unknown and not line.further,
            shown="" if near else line.program if is_file else program.name,
        )
        if made.read:
            return replace(made, unread=(*unread, *made.unread), processes=line.processes)
    settings = [setting_of(word) for word in line.settings]
    named = {name: str(value) for name, value in settings if name in _NAMES_A_FILE}
    settings = [(name, value) for name, value in settings if name not in _NAMES_A_FILE]
    config = _find_configuration(script, line.program, named) if named else None
    single = {word: file for word in line.words if (file := _settings_file(script, word)) is not None}
    if config is None and single:
        config = next(iter(single.values()))
    left = [word for word in line.words if word != "@" and (word not in single or single[word] != config)]
    if left:
        unread.append(f"not read: arguments without a name: {', '.join(left)}")
    files = {name: file for name, value in settings if (file := _settings_file(script, str(value))) is not None}
    unfound = [word for word in left if word.lower().endswith(_ENDS)]
    if not settings and config is None:
        gone = f", and {line.program} is not a file here" if line.program.endswith(".py") and program is None else ""
        raise NothingExamined(
            f"{where}: no settings follow the program; write settings as KEY=VALUE or --key "
            f"value{gone}; give the configuration with --config, or single settings with --set"
        )
    added = frozenset(setting_of(word)[0] for word in line.settings if word.startswith("+"))
    return Launch(
        tuple(settings),
        made.made_by,
        config=config,
        missing={} if config else named,
        files=files,
        assigned=made.assigned,
        hidden=frozenset([""] if line.further or unfound else []),
        added=added,
        references=made.references,
        trainers=made.trainers,
        program=made.program,
        parser=made.parser,
        own=made.own,
        processes=line.processes,
        places={name: line.where for name, _ in settings} if line.where else {},
        read=read,
        unread=tuple(unread),
    )


def _of_python(file: Path, words: Sequence[str], classes: Sequence[str], must: bool = True, shown: str = "") -> Launch:
    """Read the configuration that a Python script creates for its training run.

    :param words: the script's arguments.
    :param must: whether to raise an error if the script creates no configuration.
    :param shown: the script's name in messages.
    """
    given = dict(map(setting_of, words))
    made, shown = read_script(file, classes, given), shown or str(file)
    calls, parsed = made.calls, made.parsed
    if not calls and must:
        names = f"it calls none of {', '.join(classes)}" if classes else "no configuration class is known"
        if parsed:
            raise NothingExamined(
                f"{shown}: it fills {parsed[0]} from its command line; give its arguments after --, or its --config"
            )
        raise NothingExamined(f"{shown}: {names}; give the configuration with --config, or single settings with --set")
    assigned = {option: f"{shown}:{line}" for option, line in made.assigned.items()}
    if not calls:
        return Launch(
            made_by=parsed[0] if len(parsed) == 1 else "",
            assigned=assigned,
            references=made.references,
            trainers=made.trainers,
            program=(file, made.also_parsed),
            parser=made.parser if parsed else Parser(),
            own=made.fields,
        )
    call, *others = calls
    differ = _differing_options(call, [one for one in others if one.name == call.name])
    read = f"{shown}:{call.line}: {counted(len(call.settings), 'setting')} of {call.name} read"
    unread = []
    if call.unread:
        unread.append(f"not read: arguments that {shown}:{call.line} computes: {', '.join(call.unread)}")
    if others:
        further = ", ".join(f"{one.name} (line {one.line})" for one in others)
        unread.append(f"not read: further calls in {shown}: {further}")
    if differ:
        unread.append(f"not known: arguments that differ between the calls of {call.name}: {', '.join(differ)}")
    left = [word for word in words if setting_of(word)[0] not in made.taken]
    if left:
        unread.append(f"not read: arguments of {file.name} itself: {' '.join(left)}")
    if made.assumed:
        unread.append(f"read as the script's defaults, which arguments after -- replace: {some(made.assumed)}")
    computed = {name: name.partition("*")[0].partition("(")[0] for name in call.unread if {*name} & {*"*("}}
    unknown = [(name, NOT_KNOWN) for name in (*call.unread, *differ) if name not in computed]
    hidden = frozenset("" if name.startswith(ANY) else prefix for name, prefix in computed.items())
    later = {option: place for option, place in assigned.items() if option not in call.later}
    return Launch(
        (*((name, value) for name, value in call.settings.items() if name not in differ), *unknown),
        call.name,
        assigned=later,
        hidden=hidden,
        references=made.references,
        trainers=made.trainers,
        program=(file, ()),
        places={name: f"{shown}:{line}" for name, line in call.lines.items()},
        silent=frozenset(call.silent),
        own=frozenset(call.own),
        read=(read,),
        unread=tuple(unread),
    )


def _differing_options(call: Call, others: Sequence[Call]) -> list[str]:
    names = {name for one in others for name in (*call.settings, *one.settings, *one.unread)} - {*call.unread}
    return sorted(
        name
        for name in names
        if any(name not in one.settings or one.settings[name] != call.settings.get(name, one) for one in others)
    )


#: Arguments that specify the configuration file, by its path or (as in Hydra) by a folder and the name of the file.
_NAMES_A_FILE = ("config", "config_path", "config_name", "config_dir")


def _find_configuration(script: Path | None, program: str, named: Mapping[str, str]) -> Path | None:
    folders = [named[name] for name in ("config_path", "config_dir") if name in named] or [""]
    name = named.get("config_name", "")
    places = [named["config"]] if "config" in named else []
    for folder in folders if name else ():
        for base in ("", str(Path(program).parent)):
            places += [str(Path(base, folder, f"{name}{end}")) for end in ("", ".yaml")]
    return next((file for place in places if (file := _find_near_script(script, place))), None)


def _find_near_script(script: Path | None, name: str) -> Path | None:
    places = [Path(name), *([script.parent / name] if script else [])]
    return next((place for place in places if name and "\0" not in name and place.is_file()), None)


#: Suffixes of files that may contain settings.
_ENDS = (".yaml", ".yml", ".toml", ".json")


def _settings_file(script: Path | None, name: str) -> Path | None:
    return _find_near_script(script, name) if name.lower().endswith(_ENDS) else None


def setting_of(word: str) -> tuple[str, Any]:
    """Split ``KEY=VALUE`` into name and value. The key may be that of Hydra (``+KEY``) or argparse (``--key-word``)."""
    name, equals, text = word.partition("=")
    name = spelled(name.strip("+ "))
    if not equals or not name:
        raise SentinelError(f"--set {word}: a setting must have the form KEY=VALUE")
    return name, value_of(text)
