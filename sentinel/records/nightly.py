"""A night's run beside what is recorded: what changed, which way it went, and with which commit."""

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
from sentinel.reports.baseline import difference, named, not_here, which_way
from sentinel.reports.brief import Brief, brief

Document = Mapping[str, Any]

#: In the order in which they are told, of those that are as bad: what needs a person first.
KINDS = (
    "newly broken",
    "new finding",
    "newly seen",
    "missing",
    "drifted",
    "newly inconclusive",
    "no longer to be had",
    "newly fixed",
    "not recorded",
)


@dataclass(frozen=True)
class Change:
    """:ivar what: one of :data:`KINDS`.
    :ivar subject: the bug, or ``<boundary>: <law>``.
    :ivar about: what is wrong, how bad it is, where, and how to see it again.
    :ivar before, after: the verdicts, with the kind of reason where there is one; empty: nothing is recorded.
    :ivar old, new: the commits of the two, where they come from git.
    :ivar commits: the commit with which it changed; several where it could not be told apart further.
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
        """Give what is worse comes first, by severity."""
        return not self.worse, self.about.rank, KINDS.index(self.what), self.target, self.subject

    @property
    def worse(self) -> bool:
        """Whether a pull request must not bring it: a bug that was not there, or a verdict that moved away from the
        recorded one without a reason to call it no worse."""
        return not self.why_not_worse

    @property
    def why_not_worse(self) -> str:
        """Say why the change makes nothing worse; empty where it does."""
        before, after = self.before.partition(" ")[0], self.after.partition(" ")[0]
        if self.what == "newly seen":
            return "two searches draw what their revisions take; `sentinel diff` asks both revisions the same"
        if self.what == "missing" or (after == "reproduced" != before):
            return ""
        if after == "fixed":
            return "the bug is not there"
        if not before:
            return f"nothing is recorded, and it is {after}"
        if before == after:
            return "the verdict is the same"
        if before == "reproduced" and self.after == "unavailable (not-in-this-version)":
            return "the code with the bug is not in this version"
        if before in ("inconclusive", "unavailable"):
            return "nothing was decided before"
        return ""


def changes(run: Path, baseline: Path, across_refs: bool = False) -> list[Change]:
    """Give what a run found that its baseline does not say.

    :param across_refs: compare what the two say of each bug or law, at whatever revision: a branch with its base. Each
        then holds one revision, of which the branch's must have decided something.
    :raises SentinelError: where either holds a file that is no evidence, or nothing was decided.
    """
    there = {place: document for place, (document, _) in store.decided(baseline, store.RESTORE).items()}
    recorded = {_subject(document): document for document in there.values()} if across_refs else {}
    documents = {place: document for place, (document, _) in store.decided(run, store.RUN_AGAIN).items()}
    if not documents:
        raise SentinelError(
            f"nothing was examined: nothing was decided in {run}; run pytest with --sentinel-target first"
        )
    if across_refs and all(now["verdict"] in ("inconclusive", "unavailable") for now in documents.values()):
        raise SentinelError(
            f"{run}: nothing was decided, so nothing can be compared; see `sentinel report --from {run}`"
        )
    every = [
        _change(recorded.get(_subject(now)) if across_refs else there.get(place), now, across_refs)
        for place, now in documents.items()
    ]
    missing = recorded.keys() - {_subject(now) for now in documents.values()}
    every += [_missing(recorded[subject]) for subject in missing]
    different = [change for change in every if change is not None]
    return sorted(different, key=Change.order)


def _subject(document: Document) -> tuple[str, str, str, str]:
    written = document["boundary"]["written"] if not document["bug_id"] else ""
    return document["target"], document["bug_id"], written, document["law"] or ""


def _missing(recorded: Document) -> Change:
    """Report what a base decided, and its branch left no evidence of; the branch itself may have seen to that."""
    detail = "the run left no evidence of it"
    return Change("missing", *_about(recorded), named(recorded), "", detail, _commit(recorded))


def _about(document: Document) -> tuple[str, str, str, str, Brief]:
    """Give target, subject, bug, ref and what there is to say of it, as a change names them."""
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
        if not across_refs and not_here(recorded, now):
            return None
        lines = difference(recorded, now)
        if not lines:
            return None
        what = which_way(recorded, now)
        if recorded["verdict"] != now["verdict"]:
            lines = lines[:1]  # that other numbers come with another verdict goes without saying
        lines = [line.removeprefix(f"{what}: ") for line in lines]
        if alone and what == "newly broken" and not across_refs:
            # Of two searches, that draw what their revisions take: `sentinel diff` asks both the same, and tells.
            what = "newly seen"
    return Change(
        what,
        *_about(now),
        named(recorded) if recorded else "",
        named(now),
        "; ".join(lines),
        _commit(recorded),
        _commit(now),
    )


def _commit(document: Document | None) -> str:
    return str(((document or {}).get("checkout") or {}).get("commit") or "")


def with_commits(
    several: list[Change], recipes: Mapping[str, Recipe], ledger_of: Callable[[str], Ledger]
) -> Iterator[Change]:
    """Give the changes, those of a bug that came or went with the commit that brought or took it."""
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
            with ledger.deciding([recipe], lambda: ledger.local(1)) as decide:  # noqa: B023 (called in this turn alone)
                bisection = bisect(ledger.mirror, good, bad, lambda commit: decide(commit)[recipe.bug_id])  # noqa: B023
        except SentinelError as error:
            yield replace(change, why_not=str(error))
            continue
        commits = [bisection.first] if bisection.first else bisection.suspects
        yield replace(change, commits=tuple(plain_commit(commit) for commit in commits))


def _why_not(change: Change, recipes: Mapping[str, Recipe]) -> str:
    if change.bug_id not in recipes:
        return "it is about a law, and only recipes are bisected" if not change.bug_id else "its recipe is not here"
    if not (change.old and change.new):
        return "the two do not come from git"
    if change.old == change.new:
        return "both are the same commit: the recipe, the adapter or the environment has changed"
    return ""
