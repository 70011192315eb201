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
    boundaries,
    cache,
    changes,
    coverage,
    discover,
    doctor,
    duplicates,
    export,
    findings,
    history,
    impact,
    listing,
    mirror,
    query,
    recipe,
    reporting,
    show,
    site,
    sweep,
    verify,
)
from sentinel.commands.console import complain
from sentinel.errors import SentinelError

#: In the order in which ``--help`` shows them. Their modules import next to nothing before a command runs.
GROUPS = (
    *(mirror, listing, boundaries, coverage, show, recipe, verify, export, audit, impact, findings, duplicates),
    *(discover, sweep, bisect, history, query, changes, reporting, site, cache, doctor),
)

_EPILOG = """\
examples:
  sentinel doctor                                   is everything there?
  sentinel mirror add verl                          have the history of verl on this machine
  pytest --sentinel-target=verl                     the main job
  sentinel verify sentinel-reports/verl/BUG/git-0123456789ab.json
  sentinel sweep verl --bug 'VERL-REJECTED-*'        when did these bugs come and go, and in which releases?
  sentinel recipe new MY-BUG --target verl          pin a bug of your own

exit status: 0 yes or done, 1 no (a check failed, a number differs), 2 it could not be done, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :returns: the exit status. argparse itself exits (0 for ``--help``, 2 for a wrong option).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no dash must not end the command
    try:
        parser = _parser()
        arguments, unknown = parser.parse_known_args(argv)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sentinel",
        description="The conformance suite for LLM reinforcement-learning frameworks: mirrors, recipes and evidence.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sentinel {sentinel.__version__}")
    parser.set_defaults(run=None, parser=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in GROUPS:
        group.declare(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
