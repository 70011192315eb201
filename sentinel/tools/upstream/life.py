"""Store the states of each bug over time: found, reproduced, reported, fixed upstream, released.

Each finding is one line of ``<folder>/<target>.jsonl``. Its state is derived from the recipe (field ``upstream``) and
from recorded evidence. Only this file stores the days on which the states were first seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes import Recipe
from sentinel.reports import jsonlines
from sentinel.reports.escaping import message
from sentinel.reports.store import file_name, own, write_atomically

STATES = ("found", "reproduced", "reported", "fixed upstream", "released")

#: Values of a recipe's ``upstream.status`` for a bug that has not been reported.
_UNREPORTED = ("unreported", None, "")
#: The value of ``upstream.status`` if upstream removed the code that has the bug.
_REMOVED = "removed"

_DAY = re.compile(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}\b")
_FULL_SHA, _SHORT = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{33}\b"), r"\1"


@dataclass(frozen=True)
class Step:
    """A state that a bug has reached, and when.

    :ivar on: the ISO date on which the state was first seen.
    :ivar because: the reason for the state.
    """

    state: str
    on: str
    because: str


@dataclass(frozen=True)
class Finding:
    """A bug with all states that it has reached so far.

    :ivar steps: the states, oldest first. If a bug reappears, its former state is appended again.
    :ivar since: the ISO date of the first revision that is known to have the bug; empty if unknown.
    :ivar main: ``verdict``, ``commit``, ``file`` and ``line`` at the default branch; empty if nothing is recorded.
    """

    bug_id: str
    target: str
    steps: tuple[Step, ...] = ()
    since: str = ""
    main: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return self.steps[-1].state if self.steps else "found"


def state_of(recipe: Recipe, documents: Iterable[Mapping[str, Any]], branch: str = "main") -> tuple[str, str]:
    """Return the present state of a bug and the reason for it.

    :param documents: the evidence of the bug.
    """
    verdicts = {str(document["ref"]): str(document["verdict"]) for document in documents}
    fixed_there = verdicts.get(f"git:{branch}") == "fixed"
    releases = [ref for ref, verdict in verdicts.items() if ref.startswith("pypi:") and verdict == "fixed"]
    buggy = [ref for ref, verdict in verdicts.items() if verdict == "reproduced"]
    if fixed_there and releases:
        return "released", f"fixed at {releases[-1]}"
    if fixed_there:
        return "fixed upstream", f"fixed at git:{branch}"
    if recipe.upstream.get("status") == _REMOVED:
        return "fixed upstream", "its code was removed"
    reports = [f"{name} #{recipe.upstream[name]}" for name in ("pull", "issue") if recipe.upstream.get(name)]
    if reports or recipe.upstream.get("status") not in _UNREPORTED:
        return "reported", ", ".join(reports) or str(recipe.upstream["status"])
    if buggy:
        at = f"git:{branch}" if f"git:{branch}" in buggy else buggy[0]
        return "reproduced", f"reproduced at {_FULL_SHA.sub(_SHORT, at)}"
    return "found", "a recipe"


def at_main(documents: Iterable[Mapping[str, Any]], branch: str = "main") -> dict[str, Any]:
    """Return the newest verdict on the default branch with its commit, file and line; empty if there is none."""
    main: dict[str, Any] = {}
    for document in documents:
        checkout, boundary = document["checkout"], document["boundary"]
        if document["ref"] == f"git:{branch}" and checkout and boundary["file"]:
            main = {"verdict": document["verdict"], "commit": checkout["commit"]}
            main |= {"file": boundary["file"], "line": boundary["line"]}
    return main


def first_day(recipe: Recipe, record: Mapping[str, Any] | None) -> str:
    """Return the date of the first commit with the bug, from its history or its recipe; "" if neither has one."""
    for run in record["runs"] if record else ():
        if run["verdict"] == "reproduced":
            return str(run["first"]["date"])[:10]
    match = _DAY.search(str(recipe.document.get("introduced_by") or ""))
    return match[0] if match else ""


def fixed_by(state: str, record: Mapping[str, Any] | None) -> str:
    """Return text about the commit that fixed a bug: ``, since 7e02052ee #2238``.

    Return an empty string if the bug is not fixed, or if the history does not contain the commit that fixed it.
    """
    last = record["changes"][-1] if record and record["changes"] else None
    if last is None or last["what"] != "fixed" or state not in ("fixed upstream", "released"):
        return ""
    commit = last["commit"]
    pull = f" #{commit['pull']}" if commit["pull"] else ""
    return f", since {commit['sha'][:9]}{pull}"


def advanced(
    steps: tuple[Step, ...], recipe: Recipe, state: str, because: str, day: str, since: str, main: Mapping[str, Any]
) -> Finding:
    """Return a bug's finding. A step is added if the bug's state has changed.

    :param steps: the steps so far. ``because``: the reason for the state. ``day``: today's ISO date.
    """
    if not steps or steps[-1].state != state:
        steps = (*steps, Step(state, day, message(because)))
    return Finding(recipe.bug_id, recipe.target, steps, since, main)


def place(folder: Path, target: str) -> Path:
    """Return the file in which the findings of a target are stored."""
    return own(folder, PurePosixPath(f"{file_name(target)}.jsonl"))


def load(folder: Path, target: str) -> dict[str, Finding]:
    """Return bug -> finding for a target; empty if the file does not exist.

    :raises SentinelError: if the file is damaged.
    """

    def finding(line: dict[str, Any]) -> Finding:
        steps = tuple(Step(str(s["state"]), str(s["on"]), str(s["because"])) for s in line["steps"])
        if any(step.state not in STATES for step in steps):
            raise ValueError(f"a step has an unknown state; states are {', '.join(STATES)}")
        return Finding(str(line["bug_id"]), target, steps, str(line.get("since", "")), dict(line.get("main", {})))

    file = place(folder, target)
    if not os.path.lexists(file):
        return {}
    try:
        return {each.bug_id: each for each in jsonlines.read(file, (), finding)}
    except OSError as error:
        raise SentinelError(f"{file}: cannot be read: {error.strerror}") from None
    except SentinelError as error:
        raise SentinelError(f"{error}; restore the file from git, or remove it to start again") from None


def save(folder: Path, target: str, findings: Iterable[Finding]) -> None:
    """Write the findings of a target. A file with equal content is not written."""
    file = place(folder, target)
    lines = [
        {name: value for name, value in asdict(each).items() if value and name != "target"}
        for each in sorted(findings, key=lambda each: each.bug_id)
    ]
    text = jsonlines.to_text(lines, ("bug_id", "since", "main"))
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text, "name another folder with --to")
