"""``sentinel …``: what is not a test run. Each group of commands is one module of :mod:`sentinel.commands`."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import sentinel
from sentinel.commands import (
    audit,
    bisect,
    cache,
    compare,
    contribute,
    coverage,
    diff,
    discover,
    doctor,
    fix,
    impact,
    listing,
    mirror,
    pulls,
    recipe,
    reporting,
    show,
    sweep,
    verify,
    watch,
)
from sentinel.commands.console import complain
from sentinel.errors import SentinelError

#: As ``--help`` shows them. Their modules import next to nothing before a command runs.
GROUPS = {
    "begin": (doctor, mirror, listing, show),
    "check": (audit, watch, verify),
    "search": (coverage, discover, diff, compare, pulls, sweep, bisect, impact),
    "tell": (reporting, contribute, fix, recipe),
    "tidy": (cache,),
}

#: What was a command of its own before 0.1: the first words of a command line, and what they are now.
RENAMED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("boundaries",): ("list", "boundaries"),
    ("export",): ("contribute",),
    ("schema", "evidence"): ("report", "schema"),
    ("schema", "recipe"): ("recipe", "schema"),
    ("baseline", "update"): ("report", "accept"),
    **{(name,): ("report", name) for name in ("changes", "history", "findings", "duplicates", "site")},
}

#: What a command of several kinds shows where none is named.
FIRST = {"list": "targets", "report": "run"}

_EPILOG = """\
`sentinel COMMAND --help` shows options and examples. First steps:
  sentinel mirror add verl; pytest --sentinel-target=verl   verl's known bugs
  sentinel audit verl --config run.yaml                     which concern me?
exit status: 0 yes or done, 1 no, 2 it could not be done, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :returns: the exit status. argparse itself exits (0 for ``--help``, 2 for a wrong option).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no dash must not end the command
    try:
        parser = _parser()
        words, own = _cut(parser, _current(sys.argv[1:] if argv is None else argv))
        arguments, unknown = parser.parse_known_args(words)
        arguments.own_command = own
        if unknown:
            _refuse(arguments.parser or parser, unknown)
        if arguments.run is None:
            parser.print_help()
            return 2
        status = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a reader that went away is dealt with
    except SentinelError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # the interpreter flushes once more while it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as the shell reports SIGPIPE
    except OSError as error:  # a disk or a folder that is in no state that a command foresaw
        where = f": {error.filename}" if error.filename else ""
        advice = "; free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        complain(f"{error.strerror or error}{where}{advice}")
        return 2
    return status


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Say which words a command does not take, with its own usage."""
    name = unknown[0].partition("=")[0].lstrip("-")
    hint = ""
    for action in parser._actions:
        if not action.option_strings and name == action.dest:
            hint = f"; write {action.metavar or name} by itself, without --{name}"
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _cut(parser: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[str]]:
    """The words, and those after ``--`` where the command declares that it takes them (see :func:`console.command`):
    argparse finds none behind options."""
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    chosen = commands.get(words[0]) if words else None
    if chosen is None or chosen.get_default("own_command") is None or "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _current(words: Sequence[str]) -> list[str]:
    """A command line under the names of today."""
    for old, new in RENAMED.items():
        if tuple(words[: len(old)]) == old:
            complain(f"`sentinel {' '.join(old)}` is now `sentinel {' '.join(new)}`")
            words = [*new, *words[len(old) :]]
            break
    named = len(words) > 1 and (words[1] in ("-h", "--help") or not words[1].startswith("-"))
    return [words[0], FIRST[words[0]], *words[1:]] if words and words[0] in FIRST and not named else list(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sentinel",
        usage="sentinel [--help] [--version] COMMAND ...",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    version = f"sentinel {sentinel.__version__}"
    parser.add_argument("--version", action="version", version=version, help=argparse.SUPPRESS)
    parser.set_defaults(run=None, parser=None)
    commands = parser.add_subparsers(prog="sentinel", metavar="COMMAND", help=argparse.SUPPRESS)
    lines = ["Does this code corrupt the training signal? pytest checks; this does the rest."]
    for heading, group in GROUPS.items():
        for place, module in enumerate(group):
            module.declare(commands)
            made = commands._choices_actions[-1]
            lines.append(f"{heading if not place else '':<8}{made.dest:<11}{made.help}")
    parser.description = "\n".join([lines[0], "", *lines[1:]])
    return parser


if __name__ == "__main__":
    sys.exit(main())
