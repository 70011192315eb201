"""Run the command line ``sentinel``. :mod:`sentinel.commands.discovery` finds its commands."""

from __future__ import annotations

import argparse
import errno
import io
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from types import FrameType
from typing import NoReturn

import sentinel
from sentinel.commands.console import nothing_examined, print_error
from sentinel.commands.discovery import ENTRIES, find_command, find_commands
from sentinel.errors import NothingExamined, SentinelError, Unavailable, nearest
from sentinel.interruption import postpone_in_collection

#: Options that can be used without a command.
_NO_COMMAND = {"-h", "--help", "--version"}

#: Command -> its default subcommand: ``sentinel list`` runs ``sentinel list targets``.
FIRST = {"list": "targets", "report": "run"}

_DESCRIPTION = "Does this code corrupt the training signal?"
_EPILOG = """\
`sentinel COMMAND --help` shows options and examples.
exit status: 0 success, 1 problems found, 2 failed, 130 interrupted
"""
#: Heading in the help -> a line to print before the commands of this heading.
_FIRST_OF = {
    "my branch": "pytest --sentinel-target=verl --sentinel-repo=.    is it worse?",
    "my own loss": "sentinel.testing in your own tests: docs/own.md",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. For ``--help`` and for invalid options, argparse raises
    SystemExit with status 0 or 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # so that a terminal without Unicode does not end the command
    try:
        words = _with_kind(sys.argv[1:] if argv is None else argv)
        parser = _parser(words[:1] or ["--help"])
        words, own = _cut(parser, words)
        arguments, unknown = parser.parse_known_args(words)
        arguments.own_command = own
        if unknown:
            _refuse(arguments.parser or parser, unknown)
        if arguments.run is None:
            parser.print_help()
            return 0
        with _interruptible():
            status = int(arguments.run(arguments))
        sys.stdout.flush()  # so that a closed pipe raises here and not at exit
    except (NothingExamined, Unavailable) as error:
        return nothing_examined(error.reason)
    except SentinelError as error:
        print_error(str(error))
        return 2
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # the interpreter flushes once more while it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as the shell reports SIGPIPE
    except OSError as error:  # a disk or folder error that no command handles
        where = f": {error.filename}" if error.filename else ""
        advice = "; free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        print_error(f"{error.strerror or error}{where}{advice}")
        return 2
    return status


#: Signals within this many seconds count as one, because tools that enforce a time limit send the signal both to the
#: process and to its group.
_AT_ONCE = 1.0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM and SIGINT, so that a stopped command prints its finished results. Signals
    that arrive together raise it once."""
    last = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if postpone_in_collection(number, frame):
            return
        before, last = last, time.monotonic()
        if last - before > _AT_ONCE:
            raise KeyboardInterrupt

    replaced = {}
    if threading.current_thread() is threading.main_thread():
        kept = signal.SIGINT if signal.getsignal(signal.SIGINT) is signal.default_int_handler else None
        replaced = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, kept) if number}
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


class _Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest choice. From Python 3.14 on, argparse can do this itself."""

    def error(self, message: str) -> NoReturn:
        invalid = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)$", message)
        hint = nearest(invalid[1], re.findall(r"[^', ]+", invalid[2])) if invalid else ""
        super().error(f"{message}{hint}")


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    option = unknown[0].partition("=")[0]
    name = option.lstrip("-")
    hint = nearest(option, parser._option_string_actions) if name != option else ""
    for action in parser._actions:
        if not action.option_strings and name == action.dest:
            hint = f"; write {action.metavar or name} without --{name}"
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _cut(parser: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line at ``--``, which argparse cannot do if options precede it. If the command accepts no ``--``,
    return all words and an empty list."""
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    command = commands.get(words[0]) if words else None
    if command is None or command.get_default("own_command") is None or "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _with_kind(words: Sequence[str]) -> list[str]:
    """Insert the default subcommand into ``sentinel list`` or ``sentinel report`` if no subcommand is given."""
    has_kind = len(words) > 1 and (words[1] in ("-h", "--help") or not words[1].startswith("-"))
    return [words[0], FIRST[words[0]], *words[1:]] if words and words[0] in FIRST and not has_kind else list(words)


def _parser(first: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the argument parser. Import only the module of the command that the user typed.

    :param first: the first word of the command line. If it is an unknown command, all commands are imported, so
        that argparse can list them.
    """
    typed = find_command(first[0]) if first else None
    found = find_commands(print_error) if typed is None else {typed.name: typed}
    lines: list[str] = []
    for heading, group in groupby(found.values(), key=lambda command: command.group):
        rows = [_FIRST_OF[heading]] if heading in _FIRST_OF else []
        rows += [f"{command.name:<11}{command.summary}" for command in group]
        lines += [f"{heading if not place else '':<12}{row}" for place, row in enumerate(rows)]
        lines += [""] if heading == ENTRIES[-1] else []
    parser = _Parser(
        prog="sentinel",
        usage="sentinel [--help] [--version] COMMAND ...",
        description="\n".join([_DESCRIPTION, "", *lines]),
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
    for entry in () if set(first) & _NO_COMMAND else found.values():
        entry.load().declare(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
