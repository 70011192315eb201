"""Implement ``sentinel watch``, which checks laws in a training run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.commands.console import command, counted, echo, nothing_examined, print_error, progress
from sentinel.commands.options import settings_options
from sentinel.tools.watch import meeting

if TYPE_CHECKING:
    from sentinel.commands.console import Commands

GROUP = "my run"
SUMMARY = "check the calls of a training run while it runs"

_EXAMPLE = """\
  sentinel watch --target trl -- python train.py
  sentinel watch --target verl --fail-after 1 -- torchrun --nproc-per-node 8 train.py
  SENTINEL_WATCH=verl:events.jsonl python -m verl.trainer.main_ppo …   if you cannot change the command
  sentinel watch replay sentinel-events.jsonl --save recipes/mine

Sentinel watches the functions that the adapter binds, in each process of the command that imports the framework. It
copies one call in N of each function, checks the copy in a separate process, and never changes a call. Each kind of
violation is printed once, and written to the events file as a line of JSON. The last line of the file has the counts.
exit status: that of the command; 1 if --fail-after stopped the command; 2 if the command could not be watched or
nothing was examined, even if the command succeeded
"""


_REPLAY = """\
  sentinel watch replay sentinel-events.jsonl                    at the copy that is installed here
  sentinel watch replay sentinel-events.jsonl --ref pypi:1.16.0 --save recipes/mine
  sentinel watch replay sentinel-events.jsonl --ref path:~/src/trl

exit status: 0 no violation occurs outside the run, 1 at least one occurs, 2 none occurs, but some were not measured
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "watch", _watch, SUMMARY, _EXAMPLE, takes_words=True)
    parser.add_argument("--target", metavar="TARGET", help="the framework that the run trains with")
    parser.add_argument("--events", metavar="FILE", type=Path, default=Path("sentinel-events.jsonl"),
                        help="default: sentinel-events.jsonl; existing lines are kept")  # fmt: skip
    parser.add_argument("--every", metavar="N", type=int, default=100,
                        help="copy at most one call in N of each function (default: 100)")  # fmt: skip
    parser.add_argument("--capture", choices=("numbers", "full"), default="numbers",
                        help="what to write about a call that violates a law: numbers (its numbers, if the call is "
                        "small; the default) or full (the whole call, with the names of its groups)")  # fmt: skip
    parser.add_argument("--without", metavar="NAME", action="append", default=[],
                        help="the name of an invariant to skip; repeatable")  # fmt: skip
    parser.add_argument("--fail-after", metavar="N", type=int, help="stop the run after N kinds of violation")
    parser.usage = (
        "sentinel watch --target TARGET [options] -- COMMAND ...\n       sentinel watch replay EVENTS [options]"
    )
    replay = command(
        parser.add_subparsers(metavar="replay", required=False), "replay", _replay,
        "measure the violations of a run again, outside the run, and shrink them", _REPLAY,
    )  # fmt: skip
    replay.add_argument("events", metavar="EVENTS", type=Path, help="the events file of a watched run")
    replay.add_argument("--ref", metavar="REF", help="the revision of the framework to measure (default: installed)")
    replay.add_argument("--save", metavar="DIR", nargs="?", const=Path("."), type=Path,
                        help="write each reproduced violation as a recipe into DIR (without DIR: into .)")  # fmt: skip
    settings_options(replay)


def _watch(arguments: argparse.Namespace) -> int:
    from sentinel.commands.options import catalog_and_settings, target_named
    from sentinel.errors import SentinelError

    if not arguments.target or not arguments.own_command:
        raise SentinelError("give --target, and the command after --: sentinel watch --target trl -- python train.py")
    target = target_named(catalog_and_settings()[0], arguments.target)
    if arguments.every < 1:
        raise SentinelError("--every must be at least 1")
    if not (Path(sysconfig.get_path("purelib")) / "sentinel_watch.pth").exists():
        raise SentinelError(
            "this installation lacks the file sentinel_watch.pth, which starts watching; install Sentinel again"
        )
    events = arguments.events.absolute()
    if events.is_dir() or not events.parent.is_dir() or not os.access(events.parent, os.W_OK):
        raise SentinelError(f"--events {arguments.events}: cannot write there; name a file in an existing folder")
    if arguments.without:
        from sentinel.tools.watch.invariants import INVARIANTS  # imported here, because it imports torch

        names = [one.name for one in INVARIANTS]
        for name in arguments.without:
            if name not in names:
                raise SentinelError(f"--without {name}: unknown invariant; use one of {', '.join(names)}")
    begin = events.stat().st_size if events.exists() else 0
    environment = {
        **os.environ,
        "SENTINEL_WATCH": f"{target.name}:{events}",
        "SENTINEL_WATCH_RUN": str(os.getpid()),
        "SENTINEL_WATCH_EVERY": str(arguments.every),
        "SENTINEL_WATCH_CAPTURE": arguments.capture,
        "SENTINEL_WATCH_WITHOUT": " ".join(arguments.without),
    }
    print(f"sentinel watch: watching starts when a process of this command imports {target.name}", file=sys.stderr)
    try:
        run = subprocess.Popen(arguments.own_command, env=environment)
    except OSError as error:
        raise SentinelError(f"{arguments.own_command[0]}: {error.strerror}") from None
    stopped, number, before = False, str(os.getpid()), 0
    while True:
        try:
            status = run.wait(1.0 if arguments.fail_after else None)
            break
        except subprocess.TimeoutExpired:
            found = [event for event in _written(events, begin) if event["event"] == "violation"]
            if not stopped and len(found) >= arguments.fail_after:
                stopped, before = True, len(found)
                print_error(f"{counted(before, 'kind')} of violation: stopping the run (--fail-after)")
                meeting.mark_stopped(number)
                run.terminate()
        except KeyboardInterrupt:  # the run receives Ctrl-C too, and ends by itself
            continue
    status = status if status >= 0 else 128 - status
    died = _wait_for_checkers(number)
    meeting.mark_stopped(number, False)
    written = _written(events, begin)
    ends = [event for event in written if event["event"] == "end"]
    kinds = sum(event["event"] == "violation" for event in written)
    if not kinds and all("nothing_examined" in end for end in ends):
        own = f"; the command itself ended with status {status}" if status else ""
        if any(end["invariants"] for end in ends):
            print_error(f"no loss, advantages or samples were compared: {_why(ends, died, target.name)}{own}")
            return 2
        return nothing_examined(_why(ends, died, target.name) + own)
    if died:
        print_error(
            "a checker process ended before it wrote its results: its remaining calls were not examined; it may have "
            "been killed, or run out of memory"
        )
    if lost := sum(len(end.get("lost", ())) for end in ends):
        print_error(
            f"{counted(lost, 'process')} of the run ended without a report, so the last calls were not examined"
        )
    read, looks = (counted(sum(end[key] for end in ends), word) for key, word in (("read", "call"), ("laws", "check")))
    late = f" ({kinds - before} found while the run was stopping)" if stopped and kinds > before else ""
    echo(f"{counted(kinds, 'kind')} of violation{late} in {read} and {looks} by laws and invariants; see {events}")
    return 1 if stopped else status


def _wait_for_checkers(number: str) -> bool:
    """Wait until the checkers of this run end. Return True if one was killed or did not end in time."""
    until = time.monotonic() + meeting.LONG_PATIENCE
    while left := meeting.sockets(number):
        if time.monotonic() > until or not any(map(meeting.is_alive, left)):
            left = meeting.sockets(number)  # a checker that has just ended has removed its socket
            for socket in left:
                socket.unlink(missing_ok=True)
            return bool(left)
        time.sleep(0.1)
    return False


def _why(ends: Sequence[Mapping[str, Any]], died: bool, target: str) -> str:
    if ends:
        return str(ends[0]["nothing_examined"])
    if died:
        return "the checker process ended before it wrote its results; it may have been killed, or run out of memory"
    return (
        f"no process of this command imported {target} in a Python that has Sentinel; install Sentinel in the "
        "environment of the run, and see the messages above"
    )


def _written(events: Path, begin: int) -> list[dict[str, Any]]:
    """Return the events that were written after position ``begin``, without an incomplete last line."""
    if not events.exists():
        return []
    with events.open(encoding="utf-8", errors="replace") as file:
        file.seek(begin if events.stat().st_size >= begin else 0)  # a large file is rotated
        return [event for line in file if line.endswith("\n") and (event := _parse_event(line))]


def _parse_event(line: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            return event
    return {}


def _described(event: Mapping[str, Any]) -> str:
    """Describe a violation in one line: function, law, key and detail. For an invariant, which has no function, name
    the step."""
    where = f"{event['boundary']}: " if event["boundary"] else ""
    what = f", {event['key']}" if event["key"] else f", step {event['step']}"
    return f"{where}{event['law']}{what}: {event['detail']}"


def _replay(arguments: argparse.Namespace) -> int:
    from sentinel.commands.options import catalog_and_settings
    from sentinel.deciding.runner import runner_of
    from sentinel.errors import NothingExamined
    from sentinel.search.saving import CannotDistinguish, save
    from sentinel.targets.refs import Ref
    from sentinel.tools.watch.replay import document_of, replayed, violations

    catalog, settings = catalog_and_settings(arguments)
    ref = Ref.parse(arguments.ref) if arguments.ref else None
    events, shown, undecided = violations(arguments.events), 0, 0
    if not events:
        raise NothingExamined(
            f"{arguments.events} does not contain a violation; name the events file of a run with violations"
        )
    with progress() as notify, contextlib.closing(runner_of(catalog, settings, notify)) as runner:
        for one in replayed(runner, catalog, events, ref):
            echo(_described(one.event))
            undecided += one.open_target is None
            if one.finding is None:
                echo(f"  not reproduced: {one.reason}")
                continue
            shown += 1
            for violation in one.finding.violations[:1]:
                echo(f"  reproduced and shrunk: {violation.key}: {violation.detail}")
            if arguments.save is not None:
                try:
                    document = document_of(one, runner, catalog)
                    echo(f"  saved as {save(arguments.save, document, 'sentinel watch replay')}")
                except CannotDistinguish as error:
                    echo(f"  not saved: {error}")
    echo(f"{counted(shown, 'violation')} of {len(events)} reproduced outside the run")
    if undecided == len(events):
        calls = any(event["boundary"] for event in events)
        alone = "" if calls else "; watch more steps, or more calls with a smaller --every, until a law is violated"
        return nothing_examined(f"no violation could be measured again, for the reasons above{alone}")
    return 1 if shown else 2 if undecided else 0
