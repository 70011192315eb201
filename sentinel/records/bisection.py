"""Find by bisection the first commit of a branch at which a recipe's verdict changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.history import state_of
from sentinel.sources.commits import Commit, commit, history, merge_base

#: Returns the verdict at a commit.
Decide = Callable[[Commit], ClosureVerdict]


@dataclass
class Bisection:
    """The result of a bisection.

    :ivar steps: each tested commit with its verdict.
    :ivar first: the first commit with the verdict of the later end; None if it could not be determined.
    :ivar suspects: if ``first`` is None, the commits of which one changed the verdict. Only the last of them has a
        conclusive verdict.
    """

    steps: list[tuple[Commit, ClosureVerdict]] = field(default_factory=list)
    first: Commit | None = None
    suspects: list[Commit] = field(default_factory=list)


def bisect(mirror: Path, good: Commit, bad: Commit, decide: Decide) -> Bisection:
    """Find the first commit between ``good`` and ``bad`` at which the verdict changes, along first parents.

    If ``bad`` is the older commit, the result is the commit that removed the bug.

    :raises SentinelError: if ``bad`` does not reproduce the bug, ``good`` does, or one of them has no conclusive
        verdict; or if the commits do not belong to one branch.
    """
    old, new, state = _ends(mirror, good, bad, decide)
    line = history(mirror, new.sha, since=old.sha)
    low, high, skipped = 0, len(line) - 1, set[int]()
    bisection = Bisection()
    while untried := [place for place in range(low + 1, high) if place not in skipped]:
        middle = min(untried, key=lambda place: abs(2 * place - low - high))
        entry = decide(line[middle])
        bisection.steps.append((line[middle], entry))
        if _state(entry) == state:
            low = middle
        elif _state(entry) is None:
            skipped.add(middle)
        else:
            high = middle
    if high - low > 1:
        bisection.suspects = line[low + 1 : high + 1]
    else:
        bisection.first = line[high]
    return bisection


def _ends(mirror: Path, good: Commit, bad: Commit, decide: Decide) -> tuple[Commit, Commit, str | None]:
    """Return the older and the newer commit between which to search, and the verdict of the older one.

    If neither commit is an ancestor of the other, the search starts at their merge base.
    """
    if good.sha == bad.sha:
        raise SentinelError(f"the good and the bad commit are the same ({good.sha[:9]}); name two commits")
    entries = {"good": decide(good), "bad": decide(bad)}
    for name, which in (("good", good), ("bad", bad)):
        entry = entries[name]
        if _state(entry) is None:
            raise SentinelError(
                f"the {name} commit {which.sha[:9]} has no conclusive verdict: "
                f"{entry.verdict} ({entry.kind}): {entry.reason}"
            )
        if (entry.verdict == "reproduced") != (name == "bad"):
            raise SentinelError(
                f"the {name} commit {which.sha[:9]} is {entry.verdict}; "
                "the bug must be reproduced at the bad commit, and only there"
            )
    base = merge_base(mirror, good.sha, bad.sha)
    if base is None:
        raise SentinelError(
            f"{good.sha[:9]} and {bad.sha[:9]} have no common history in this mirror; choose commits of one branch"
        )
    # If one of the two commits is an ancestor of the other, the merge base is this ancestor.
    fork_point = commit(mirror, base)
    state = _state(decide(fork_point))
    if state == _state(entries["good"]) and fork_point.sha != bad.sha:
        return fork_point, bad, state
    if state == _state(entries["bad"]):
        return fork_point, good, state
    raise SentinelError(
        f"{fork_point.sha[:9]}, the merge base of the good and the bad commit, is {decide(fork_point).verdict}; "
        "choose commits of one branch"
    )


def _state(entry: ClosureVerdict) -> str | None:
    return state_of(entry.verdict, entry.kind)
