"""Compare a run with a baseline, and find the commit that is responsible for each change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes import Recipe
from sentinel.records.bisection import bisect
from sentinel.records.history import plain_commit
from sentinel.records.ledger import Ledger
from sentinel.reports import store
from sentinel.reports.baseline import difference, direction, is_unavailable_here, verdict_text
from sentinel.reports.brief import Brief, brief

Document = Mapping[str, Any]

#: Kinds of change, in the order in which they are listed.
KINDS = (
    "newly broken",
    "new finding",
    "newly seen",
    "drifted",
    "newly inconclusive",
    "no longer available",
    "newly fixed",
    "not recorded",
)


@dataclass(frozen=True)
class Change:
    """A difference between the evidence of a run and that of its baseline.

    :ivar what: one of :data:`KINDS`.
    :ivar subject: the bug id, or ``<boundary>: <law>`` for a finding.
    :ivar about: title, severity, place and command.
    :ivar before, after: the verdicts with their kinds; ``before`` is empty if the baseline has no verdict.
    :ivar old, new: the commits of the two verdicts; empty for a revision that is not from git.
    :ivar commits: the responsible commit; several if bisection cannot determine which of them it is.
    :ivar why_not: the reason why the responsible commit is unknown.
    """

    what: str
    target: str
    subject: str
    bug_id: str
    ref: str
    about: Brief
    before: str
    after: str
    detail: str
    old: str = ""
    new: str = ""
    commits: tuple[Mapping[str, Any], ...] = ()
    why_not: str = ""

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "commits": [dict(commit) for commit in self.commits]}

    def order(self) -> tuple[int, int, str, str]:
        """Return a sort key: by kind, then the most severe first."""
        return KINDS.index(self.what), self.about.rank, self.target, self.subject


def changes(run: Path, baseline: Path) -> list[Change]:
    """Return the differences between the evidence of a run and of its baseline, sorted by :meth:`Change.order`.

    :raises SentinelError: if a file is not evidence.
    """
    recorded = {place: document for place, (document, _) in store.decided(baseline, store.RESTORE).items()}
    documents = {place: document for place, (document, _) in store.decided(run, store.RUN_AGAIN).items()}
    every = (_change(recorded.get(place), now) for place, now in documents.items())
    return sorted((change for change in every if change is not None), key=Change.order)


def _about(document: Document) -> tuple[str, str, str, str, Brief]:
    bug = document["bug_id"]
    subject = bug or f"{document['boundary']['written']}: {document['law']}"
    return document["target"], subject, bug, document["ref"], brief(document)


def _change(recorded: Document | None, now: Document) -> Change | None:
    alone = not now["bug_id"]
    if recorded is None:
        if now["verdict"] == "unavailable" or (alone and now["verdict"] != "reproduced"):
            return None
        what, lines = ("new finding" if alone else "not recorded"), [now["reason"] or now["verdict"]]
    else:
        if is_unavailable_here(recorded, now):
            return None
        lines = difference(recorded, now)
        if not lines:
            return None
        what = direction(recorded, now)
        if recorded["verdict"] != now["verdict"]:
            lines = lines[:1]  # if the verdict differs, numbers differ too and add nothing
        lines = [line.removeprefix(f"{what}: ") for line in lines]
        if alone and what == "newly broken":
            # Searches of two revisions draw different scenarios, so the bug may be older and only found now. Only
            # `sentinel diff` uses the same scenarios.
            what = "newly seen"
    return Change(
        what,
        *_about(now),
        verdict_text(recorded) if recorded else "",
        verdict_text(now),
        "; ".join(lines),
        _commit(recorded),
        _commit(now),
    )


def _commit(document: Document | None) -> str:
    return str(((document or {}).get("checkout") or {}).get("commit") or "")


def with_commits(
    several: list[Change], recipes: Mapping[str, Recipe], ledger_of: Callable[[str], Ledger]
) -> Iterator[Change]:
    """Yield all changes. If a bug appeared or disappeared, bisect to find the responsible commit, and add the commit.

    :param ledger_of: returns the ledger of a target.
    """
    for change in several:
        if change.what not in ("newly broken", "newly fixed"):
            yield change
            continue
        why = _why_not(change, recipes)
        if why:
            yield replace(change, why_not=why)
            continue
        try:
            recipe, ledger = recipes[change.bug_id], ledger_of(change.target)
            ends = ledger.commit(change.old), ledger.commit(change.new)
            good, bad = ends if change.what == "newly broken" else ends[::-1]
            with ledger.decider([recipe]) as decide:
                bisection = bisect(ledger.mirror, good, bad, lambda commit: decide(commit)[recipe.bug_id])  # noqa: B023
        except SentinelError as error:
            yield replace(change, why_not=str(error))
            continue
        commits = [bisection.first] if bisection.first else bisection.suspects
        yield replace(change, commits=tuple(plain_commit(commit) for commit in commits))


def _why_not(change: Change, recipes: Mapping[str, Recipe]) -> str:
    if change.bug_id not in recipes:
        return "only recipes are bisected, and this is a law" if not change.bug_id else "its recipe is missing"
    if not (change.old and change.new):
        return "the two revisions are not git commits"
    if change.old == change.new:
        return "both verdicts are of the same commit: the recipe, the adapter or the environment has changed"
    return ""
