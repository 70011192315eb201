"""The life of a finding: found, confirmed, reported, fixed upstream, released; one small file each.

The state follows from facts that a machine can know (a recipe, recorded evidence, the recipe's word on its report); a
file keeps when each state was first seen, which nothing else remembers.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes import Recipe
from sentinel.reports.escaping import message
from sentinel.reports.store import file_name, own, parse, write_atomically

STATES = ("found", "confirmed", "reported", "fixed upstream", "released")

#: What a recipe's ``upstream.status`` says where nobody has been told.
_UNREPORTED = ("unreported", None, "")
#: What it says where the code went, and the bug with it.
_REMOVED = "removed"

_FULL_SHA, _SHORT = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{33}\b"), r"\1"


@dataclass(frozen=True)
class Step:
    """:ivar on: the day on which the state was first seen, ISO.
    :ivar because: the fact behind it.
    """

    state: str
    on: str
    because: str


@dataclass(frozen=True)
class Finding:
    """:ivar steps: in the order of time; the last one is the state. A bug that comes back goes back."""

    bug_id: str
    target: str
    title: str
    upstream: Mapping[str, Any]
    steps: tuple[Step, ...] = ()

    @property
    def state(self) -> str:
        return self.steps[-1].state if self.steps else "found"


def state_of(recipe: Recipe, documents: Iterable[Mapping[str, Any]], branch: str = "main") -> tuple[str, str]:
    """The state, and the fact behind it.

    :param documents: recorded evidence of the recipe.
    :param branch: the target's default branch.
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
    told = [f"{name} #{recipe.upstream[name]}" for name in ("pull", "issue") if recipe.upstream.get(name)]
    if told or recipe.upstream.get("status") not in _UNREPORTED:
        return "reported", ", ".join(told) or str(recipe.upstream["status"])
    if buggy:
        return "confirmed", f"reproduced at {_FULL_SHA.sub(_SHORT, buggy[0])}"
    return "found", "a recipe"


def advanced(finding: Finding | None, recipe: Recipe, state: str, because: str, day: str) -> Finding:
    """The finding with a step more where its state is another than before."""
    steps = finding.steps if finding else ()
    if not steps or steps[-1].state != state:
        steps = (*steps, Step(state, day, message(because)))
    return Finding(recipe.bug_id, recipe.target, message(recipe.title), dict(recipe.upstream), steps)


def place(folder: Path, recipe: Recipe) -> Path:
    return own(folder, PurePosixPath(file_name(recipe.target), f"{file_name(recipe.bug_id)}.json"))


def load(file: Path) -> Finding | None:
    """A finding's file; None where there is none.

    :raises SentinelError: where it is not one.
    """
    try:
        if not os.path.lexists(file):
            return None
        data = parse(file)
        steps = tuple(Step(str(s["state"]), str(s["on"]), str(s["because"])) for s in data["steps"])
        if any(step.state not in STATES for step in steps):
            raise ValueError(f"a state is one of {', '.join(STATES)}")
        return Finding(str(data["bug_id"]), str(data["target"]), str(data["title"]), data["upstream"], steps)
    except (SentinelError, ValueError, KeyError, TypeError) as error:
        raise SentinelError(f"{file} is no finding: {error}; remove it to begin anew") from None


def save(file: Path, finding: Finding) -> bool:
    """Write a finding; whether anything was changed."""
    document = {
        "bug_id": finding.bug_id,
        "target": finding.target,
        "title": finding.title,
        "upstream": dict(finding.upstream),
        "steps": [vars(step) for step in finding.steps],
    }
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return False
    write_atomically(file, text, "name another folder with --to")
    return True


def page(findings: Sequence[Finding]) -> str:
    """``BUG_FINDINGS.md``: a table a state, the unreported first."""
    counts = Counter(finding.state for finding in findings)
    counted = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    total = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
    text = f"# Findings\n\nGenerated by `sentinel report findings`.\n\n{total}: {counted}.\n"
    for state in STATES:
        members = sorted((f for f in findings if f.state == state), key=lambda f: (f.target, f.bug_id))
        if members:
            text += f"\n## {state} ({len(members)})\n\n| bug | what | since | because |\n| --- | --- | --- | --- |\n"
            text += "".join(
                f"| {f.bug_id} | {_cell(f.title)} | {f.steps[-1].on} | {_cell(f.steps[-1].because)} |\n"
                for f in members
            )
    return text


def _cell(text: str) -> str:
    return "".join(f"&#{ord(c)};" if c in "|<>&@#*`[]" else c for c in message(text))
