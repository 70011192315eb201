"""Declare commands, print their results on standard output, and print messages and progress on standard error."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = Callable[[argparse.Namespace], int]


def _parser(commands: Commands, name: str, text: str, example: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"examples:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def command(
    commands: Commands, name: str, run: Run, text: str, example: str, *, takes_words: bool = False
) -> argparse.ArgumentParser:
    """Add a command to ``sentinel`` and return the command's parser.

    :param takes_words: True if the command accepts words after ``--``, as ``arguments.own_command``.
    """
    parser = _parser(commands, name, text, example)
    parser.set_defaults(run=run, parser=parser, own_command=[] if takes_words else None)
    return parser


def group(commands: Commands, name: str, text: str, example: str) -> Commands:
    """Add a command that has subcommands, and return the object to which they are added."""
    return _parser(commands, name, text, example).add_subparsers(title="commands", metavar="COMMAND", required=True)


def json_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def print_error(text: str) -> None:
    """Print a message on standard error, after the prefix ``sentinel: ``."""
    from sentinel.reports.escaping import visible

    print(f"sentinel: {visible(text, lines=True)}", file=sys.stderr)


def nothing_examined(reason: str) -> int:
    """Report on standard error that a command examined nothing, and return its exit status.

    :param reason: what was missing and where, and what to do.
    """
    from sentinel.reports.escaping import visible

    print(f"nothing was examined: {visible(reason, lines=True)}", file=sys.stderr)
    return 2


def echo(text: str) -> None:
    """Print one or more lines of a result, with control characters as visible escapes."""
    from sentinel.reports.escaping import visible

    print(visible(text, lines=True))


def echo_json(value: Any) -> None:
    # Escape ``##[``, because GitHub's runners execute ``##[command]`` in any output. In JSON, only strings contain it.
    print(json.dumps(value, indent=2, sort_keys=True).replace("##[", "#\\u0023["))


def echo_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as an aligned table. Columns without a value are left out."""
    from sentinel.reports.escaping import visible
    from sentinel.reports.summary import aligned

    echo(aligned([tuple(headings), *(tuple(visible(cell) for cell in row) for row in rows)]))


def size(count: int) -> str:
    """Return a number of bytes as text: ``1.4 MB``."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 error``, ``2 errors``, ``2 boundaries``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def some(names: Sequence[str], most: int = 12) -> str:
    """Join the first ``most`` names with commas, and append how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


_COUNT = re.compile(r"\b(\d+) of (\d+)\b")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Provide a function that prints progress messages on standard error.

    On a terminal, each message replaces the previous one. Otherwise each message is printed on its own line, with two
    exceptions: git's percentages are left out, and a series of counts (``3 of 51: …``) is printed once per quarter.
    """
    terminal = sys.stderr.isatty()
    lock = threading.Lock()
    shown = False
    quarters: dict[str, int] = {}

    def is_due(message: str) -> bool:
        count = _COUNT.search(message)
        if count is None or not int(count[2]):
            return "%" not in message
        series, quarter = message[: count.start()], 4 * int(count[1]) // int(count[2])
        due = quarters.get(series) != quarter
        quarters[series] = quarter
        return due

    def notify(message: str) -> None:
        nonlocal shown
        from sentinel.reports.escaping import visible

        text = f"sentinel: {visible(message)}"
        with lock:
            if terminal:
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(f"\r\x1b[K{text[:width]}")
                shown = True
            elif is_due(message):
                sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    try:
        yield notify
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
