"""From verdicts to history: runs of one verdict, what changed where, how long a bug was there, and who shipped it.

Nothing is interpolated. A range that could not be decided stays one, and a change beyond it says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import Any

from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.origins import Origin
from sentinel.sources.commits import Commit

#: What a revision can be as far as a bug goes; None where it could not be decided.
State = str | None

#: state before (``""``: there was none) and after -> what happened
_CHANGES = {
    ("", "reproduced"): "present",
    ("absent", "fixed"): "appeared",
    ("absent", "changed"): "appeared",
}
_BY_STATE = {"reproduced": "introduced", "fixed": "fixed", "changed": "changed", "absent": "removed"}


@dataclass(frozen=True)
class Run:
    """Neighbouring revisions with one verdict.

    :ivar reason: of the first one, where they could not be decided.
    """

    verdict: str
    kind: str
    reason: str
    first: Commit
    last: Commit
    commits: int

    @property
    def state(self) -> State:
        return state_of(self.verdict, self.kind)


@dataclass(frozen=True)
class Change:
    """:ivar what: ``present`` (from the first revision that can be decided), ``introduced``, ``fixed``, ``changed``
        (neither value set fits any more), ``removed`` (the code is gone) or ``appeared`` (and without the bug).
    :ivar after: the last revision that was decided otherwise; None where there is none.
    :ivar undecided: how many revisions between the two could not be decided: the change is in one of them, or here.
    :ivar begins: whether nothing before it could be judged: no revision was decided, or the code was absent.
    :ivar origin: where the code came from that a history begins with.
    """

    what: str
    commit: Commit
    after: Commit | None
    undecided: int = 0
    why: str = ""
    begins: bool = False
    origin: Origin | None = None


@dataclass(frozen=True)
class Lifetime:
    """A time for which the bug was there.

    :ivar ended: None where it is still there.
    :ivar days: between the author dates; 0 where the clock went backwards in between.
    """

    introduced: Change
    ended: Change | None
    last: Commit
    days: int
    clock_went_backwards: bool = False


def state_of(verdict: str, kind: str) -> State:
    if verdict in ("reproduced", "fixed", "changed"):
        return verdict
    return "absent" if kind == "not-in-this-version" else None


def runs_of(commits: Sequence[Commit], entries: Mapping[str, ClosureVerdict]) -> list[Run]:
    """Join neighbours of one verdict, and of one reason where they could not be decided."""
    runs: list[Run] = []
    for commit in commits:
        entry = entries[commit.sha]
        last = runs[-1] if runs else None
        if last and (last.verdict, last.kind) == entry.outcome and (last.state or _gist(last) == _gist(entry)):
            runs[-1] = Run(last.verdict, last.kind, last.reason, last.first, commit, last.commits + 1)
        else:
            reason = entry.reason if state_of(*entry.outcome) is None else ""
            runs.append(Run(entry.verdict, entry.kind, reason, commit, commit, 1))
    return runs


def _gist(undecided: Run | ClosureVerdict) -> str:
    """Give the part of a reason that stays while signatures and the nearest names go on changing around it."""
    return re.split(r"[;(\[]", undecided.reason, maxsplit=1)[0]


def changes_of(runs: Sequence[Run]) -> list[Change]:
    """Say what changed along a line of commits."""
    changes: list[Change] = []
    before: Run | None = None
    gap: list[Run] = []
    for run in runs:
        if run.state is None:
            gap.append(run)
            continue
        was = before.state or "" if before else ""
        # A history has to begin somewhere: only with the bug in it is that a change.
        if was != run.state and (before is not None or run.state == "reproduced"):
            what = _CHANGES.get((was, run.state)) or _BY_STATE[run.state]
            why = ", ".join(dict.fromkeys(undecided.kind for undecided in gap))
            after, begins = before.last if before else None, was in ("", "absent")
            changes.append(Change(what, run.first, after, sum(item.commits for item in gap), why, begins))
        before, gap = run, []
    return changes


def lifetimes_of(changes: Sequence[Change], runs: Sequence[Run]) -> list[Lifetime]:
    """Give the times for which the bug was there, along a line of commits."""
    lifetimes: list[Lifetime] = []
    start: Change | None = None
    for change in changes:
        if change.what in ("present", "introduced"):
            start = change
        elif start is not None:
            assert change.after is not None
            lifetimes.append(_lifetime(start, change, change.after, change.commit))
            start = None
    if start is not None:
        last = [run for run in runs if run.state == "reproduced"][-1].last
        lifetimes.append(_lifetime(start, None, last, runs[-1].last))
    return lifetimes


def _lifetime(start: Change, end: Change | None, last: Commit, until: Commit) -> Lifetime:
    if not (until.date and start.commit.date):
        return Lifetime(start, end, last, 0)  # releases on PyPI: the index does not say when
    days = (_moment(until.date) - _moment(start.commit.date)).days
    return Lifetime(start, end, last, max(days, 0), days < 0)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# -- as plain data ----------------------------------------------------------------------------------------------------


def plain_commit(commit: Commit) -> dict[str, Any]:
    return {"sha": commit.sha, "date": commit.date, "subject": commit.subject, "pull": commit.pull}


def plain(value: Any) -> Any:
    """Give what a record holds of a run, a change, a lifetime, or a list of them."""
    if isinstance(value, Commit):
        return plain_commit(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in vars(value).items()} if is_dataclass(value) else value
