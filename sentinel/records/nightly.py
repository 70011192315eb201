"""Compare the evidence of a run with a baseline: list what changed, whether it is worse, and the responsible commit."""

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

#: Changes of equal severity are listed in this order.
KINDS = (
    "newly broken",
    "new finding",
    "newly seen",
    "missing",
    "drifted",
    "newly inconclusive",
    "no longer available",
    "newly fixed",
    "not recorded",
)


@dataclass(frozen=True)
class Change:
    """A difference between a run and its baseline.

    :ivar what: one of :data:`KINDS`.
    :ivar subject: the bug, or ``<boundary>: <law>``.
    :ivar about: title, severity, place and command.
    :ivar before, after: the verdicts with their kinds; empty if nothing is recorded.
    :ivar old, new: the commits of the two; empty if they are not from git.
    :ivar commits: the commit of the change; several if it could not be narrowed down further.
    :ivar why_not: why the responsible commit is unknown.
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
        return {**asdict(self), "commits": [dict(commit) for commit in self.commits], "worse": self.worse}

    def order(self) -> tuple[bool, int, int, str, str]:
        """Return the sort key: worse changes first, then by severity."""
        return not self.worse, self.about.rank, KINDS.index(self.what), self.target, self.subject

    @property
    def worse(self) -> bool:
        """Return True if a pull request with this change must not be merged."""
        return not self.why_not_worse

    @property
    def why_not_worse(self) -> str:
        """Return the reason why this change is not worse; empty if it is worse."""
        before, after = self.before.partition(" ")[0], self.after.partition(" ")[0]
        if self.what == "newly seen":
            return "the two searches drew different scenarios; compare the revisions with `sentinel diff`"
        if self.what == "missing" or (after == "reproduced" != before):
            return ""
        if after == "fixed":
            return "the bug is not present"
        if not before:
            return f"the baseline has no verdict for this item, which is now {after}"
        if before == after:
            return "the verdict is the same"
        if before == "reproduced" and self.after == "unavailable (not-in-this-version)":
            return "the code with the bug is not in this version"
        if before in ("inconclusive", "unavailable"):
            return "the recorded verdict is undecided"
        return ""


def changes(run: Path, baseline: Path, across_refs: bool = False) -> list[Change]:
    """Return the differences between a run and its baseline, the worst first.

    :param across_refs: compare each bug or law across revisions, such as a branch and its base. Each folder then
        contains one revision, and the run must have decided something.
    :raises SentinelError: if a file is not evidence, or nothing was decided.
    """
    there = {place: document for place, (document, _) in store.decided(baseline, store.RESTORE).items()}
    recorded = {_subject(document): document for document in there.values()} if across_refs else {}
    documents = {place: document for place, (document, _) in store.decided(run, store.RUN_AGAIN).items()}
    if not documents:
        raise SentinelError(f"nothing was examined: {run} has no decided item; run pytest with --sentinel-target first")
    if across_refs and all(now["verdict"] in ("inconclusive", "unavailable") for now in documents.values()):
        raise SentinelError(
            f"{run}: no item was decided, so nothing can be compared; see `sentinel report --from {run}`"
        )
    every = [
        _change(recorded.get(_subject(now)) if across_refs else there.get(place), now, across_refs)
        for place, now in documents.items()
    ]
    missing = recorded.keys() - {_subject(now) for now in documents.values()}
    for document in (recorded[subject] for subject in missing):
        # The branch itself may have suppressed the evidence.
        before, detail = verdict_text(document), "the run did not decide this item"
        every.append(Change("missing", *_about(document), before, "", detail, _commit(document)))
    different = [change for change in every if change is not None]
    return sorted(different, key=Change.order)


def _subject(document: Document) -> tuple[str, str, str, str]:
    written = document["boundary"]["written"] if not document["bug_id"] else ""
    return document["target"], document["bug_id"], written, document["law"] or ""


def _about(document: Document) -> tuple[str, str, str, str, Brief]:
    """Return the target, subject, bug, ref and summary of a document."""
    bug = document["bug_id"]
    subject = bug or f"{document['boundary']['written']}: {document['law']}"
    return document["target"], subject, bug, document["ref"], brief(document)


def _change(recorded: Document | None, now: Document, across_refs: bool) -> Change | None:
    alone = not now["bug_id"]
    if recorded is None:
        if now["verdict"] == "unavailable" or (alone and now["verdict"] != "reproduced"):
            return None
        what, lines = ("new finding" if alone else "not recorded"), [now["reason"] or now["verdict"]]
    else:
        if not across_refs and is_unavailable_here(recorded, now):
            return None
        lines = difference(recorded, now)
        if not lines:
            return None
        what = direction(recorded, now)
        if recorded["verdict"] != now["verdict"]:
            lines = lines[:1]  # a different verdict implies different numbers
        lines = [line.removeprefix(f"{what}: ") for line in lines]
        if alone and what == "newly broken" and not across_refs:
            # Two searches draw different scenarios for two revisions; only `sentinel diff` uses the same.
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
    """Yield the changes. Add the responsible commit if a bug appeared or disappeared."""
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
