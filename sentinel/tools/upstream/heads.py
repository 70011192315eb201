"""Find pull requests that fix a bug. The bug's recipe is run at the head of each one that changes its function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.recipes import Recipe
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.ledger import Ledger
from sentinel.reports.escaping import message
from sentinel.sources import gitbinary
from sentinel.sources.commits import merge_base
from sentinel.targets import Target
from sentinel.tools.upstream.history import touching_pulls


@dataclass(frozen=True)
class Head:
    """The verdict of a recipe at the head of a pull request.

    :ivar verdict: ``fixes`` if the recipe is ``reproduced`` at the pull request's base and ``fixed`` at its head;
        ``absent`` if the base lacks the bug or the function; the verdict at the base if it is inconclusive and the
        head does not have the bug; otherwise the verdict at the head.
    :ivar open: whether the pull request is open: GitHub creates a merge commit only for open pull requests.
    :ivar reason: why the recipe has no conclusive verdict; empty if it has one.
    """

    bug_id: str
    pull: int
    commit: str
    subject: str
    verdict: str
    open: bool
    reason: str = ""

    @property
    def undecided(self) -> bool:
        return self.verdict not in ("reproduced", "fixes", "absent")


def pulls(mirror: Path, target: Target, recipe: Recipe) -> list[int]:
    """Return the pull requests whose own commits change lines of the boundary's function, the newest first."""
    return sorted({touch.pull for touch in touching_pulls(mirror, target, recipe)}, reverse=True)


def heads(ledger: Ledger, recipes: Sequence[Recipe], most: int | None = None) -> Iterator[Head]:
    """Run recipes at the heads of pull requests that change the function of at least one of them.

    :param most: the maximum number of pull requests; the newest are chosen.
    """
    numbers = {number for recipe in recipes for number in pulls(ledger.mirror, ledger.target, recipe)}
    with ledger.decider(recipes) as decide:
        for number in sorted(numbers, reverse=True)[:most]:
            try:
                head = ledger.commit(f"pull/{number}/head")
                verdicts = decide(head)
                before: Mapping[str, ClosureVerdict] = {}
                if any(entry.verdict != "reproduced" for entry in verdicts.values()):
                    began = merge_base(ledger.mirror, head.sha, f"refs/heads/{ledger.target.branch}")
                    if began is None:
                        raise Unavailable(f"the head shares no history with {ledger.target.branch}")
                    before = decide(ledger.commit(began))
            except (Unavailable, gitbinary.GitError) as error:  # the mirror does not have the whole history
                problem = message(str(error))
                yield from (Head(recipe.bug_id, number, "", "", "unavailable", False, problem) for recipe in recipes)
                continue
            merge = f"refs/pull/{number}/merge"
            ready = not gitbinary.run(ledger.mirror, "rev-parse", "--quiet", "--verify", merge).status
            for bug, entry in verdicts.items():
                verdict, reason = verdict_at(entry, before.get(bug))
                yield Head(bug, number, head.sha, message(head.subject), verdict, ready, reason)


def verdict_at(entry: ClosureVerdict, before: ClosureVerdict | None) -> tuple[str, str]:
    """Return the values of :attr:`Head.verdict` and :attr:`Head.reason` for a pull request.

    :param entry: the verdict at the head.
    :param before: the verdict at the base; None if it was not needed.
    """
    if before is None or entry.verdict == "reproduced":
        return entry.verdict, entry.reason
    if before.verdict == "reproduced":
        return ("fixes", "") if entry.verdict == "fixed" else (entry.verdict, message(entry.reason))
    absent = before.kind == "not-in-this-version" or (before.kind == "drift" and not before.boundary)
    if before.verdict == "fixed" or absent:
        return "absent", ""
    return before.verdict, f"at its base: {message(before.reason)}"
