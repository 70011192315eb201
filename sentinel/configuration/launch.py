"""Read what starts a training run: a command, a shell script or a Python script. None of them is executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.configuration.command_line import NOT_KNOWN, of_script, of_words
from sentinel.configuration.files import spelled, value_of
from sentinel.configuration.python_script import calls_of
from sentinel.errors import SentinelError

#: Other commands of a script that are listed.
_MOST = 10


@dataclass(frozen=True)
class Launch:
    """What starts the training.

    :ivar settings: setting -> value, in order.
    :ivar made_by: the configuration class that a Python script calls; empty if none is called.
    :ivar config: the configuration file that the command names.
    :ivar read: what was read, in words.
    :ivar unread: what could not be read, in words.
    """

    settings: tuple[tuple[str, Any], ...] = ()
    made_by: str = ""
    config: Path | None = None
    read: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def launch_of(script: Path | None, words: Sequence[str], classes: Sequence[str]) -> Launch:
    """Read the shell or Python script, or the words of the command, that start the training.

    :param classes: the classes that Python scripts configure a trainer with.
    """
    if script and words:
        raise SentinelError("--script is a file that holds the command, -- the command itself; give one of them")
    if not script and not words:
        return Launch()
    if script and script.suffix == ".py":
        return _of_python(script, (), classes)
    line = of_script(script) if script else of_words(words)
    where = line.where or " ".join(words)
    read = (f"{where}: {_counted(len(line.settings))} read",) if line.where else ()
    unread: list[str] = []
    if line.unknown:
        unread.append(f"not known, as only a shell puts them in: {', '.join(line.unknown)}")
    if line.others:
        more = f" and {len(line.others) - _MOST} more" if len(line.others) > _MOST else ""
        unread.append(f"not read, other commands of the script: {', '.join(line.others[:_MOST])}{more}")
    program = _beside(script, line.program) if line.program.endswith(".py") else None
    if program is not None:
        made = _of_python(program, line.settings, classes, must=not line.settings and not line.unknown)
        if made.made_by:
            return replace(made, unread=(*unread, *made.unread))
    settings = [setting_of(word) for word in line.settings]
    config = next((_beside(script, str(value)) for name, value in settings if name == "config"), None)
    if not settings:
        gone = f", and {line.program} is not a file here" if line.program.endswith(".py") and program is None else ""
        raise SentinelError(
            f"nothing was examined: {where}: no settings after the program, which are written KEY=VALUE or --key "
            f"value{gone}; give the configuration with --config, or single settings with --set"
        )
    if config is not None:
        settings = [(name, value) for name, value in settings if name != "config"]
    return Launch(tuple(settings), config=config, read=read, unread=tuple(unread))


def _of_python(file: Path, words: Sequence[str], classes: Sequence[str], must: bool = True) -> Launch:
    """Read the configuration that a Python script makes.

    :param words: the arguments of the script, which are its own if it makes the configuration itself.
    :param must: whether a script that makes none is an error.
    """
    calls = calls_of(file, classes)
    if not calls and must:
        names = f"none of {', '.join(classes)} is called in it" if classes else "no configuration class is known"
        raise SentinelError(
            f"nothing was examined: {file}: {names}; give the configuration with --config, or single settings with "
            "--set"
        )
    if not calls:
        return Launch()
    call, *others = calls
    read = f"{file}:{call.line}: {_counted(len(call.settings))} of {call.name} read"
    unread = []
    if call.unread:
        unread.append(f"not read in {file}:{call.line}, as the script computes them: {', '.join(call.unread)}")
    if others:
        unread.append(f"not read in {file}: {', '.join(f'{one.name} (line {one.line})' for one in others)}")
    if words:
        unread.append(f"not read, as arguments of {file.name} itself: {' '.join(words)}")
    unknown = [(name, NOT_KNOWN) for name in call.unread if "*" not in name and "(" not in name]
    return Launch((*call.settings.items(), *unknown), call.name, None, (read,), tuple(unread))


def _beside(script: Path | None, name: str) -> Path | None:
    """Return a file that a command names, in this folder or that of its script; None if it is not there."""
    places = [Path(name), *([script.parent / name] if script else [])]
    return next((place for place in places if name and "\0" not in name and place.is_file()), None)


def setting_of(word: str) -> tuple[str, Any]:
    """Return the name and value of ``KEY=VALUE``, written as for Hydra or argparse: ``+KEY``, ``--key-of-words``."""
    name, equals, text = word.partition("=")
    name = spelled(name.strip("+ "))
    if not equals or not name:
        raise SentinelError(f"--set {word}: a setting is written KEY=VALUE")
    return name, value_of(text)


def _counted(number: int) -> str:
    return f"{number} setting{'' if number == 1 else 's'}"
