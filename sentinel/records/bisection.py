"""Bisection: the first commit of a branch at which a recipe's verdict is another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.history import state_of
from sentinel.sources.commits import Commit, commit, history, merge_base

#: Decides one commit.
Decide = Callable[[Commit], ClosureVerdict]

#: Told of each step: the commit, its verdict, how many commits are left.
Told = Callable[[Commit, ClosureVerdict, int], None]


@dataclass
class Bisection:
    """:ivar seeks: ``bad`` for the commit that brought the bug, ``fixed`` for the one that took it away.
    :ivar first: the first commit that is like the later end; None where it cannot be told apart from ``suspects``.
    :ivar suspects: where commits next to the change could not be decided: those among which it is.
    """

    seeks: str
    steps: list[tuple[Commit, ClosureVerdict]] = field(default_factory=list)
    first: Commit | None = None
    suspects: list[Commit] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        return sum(_state(entry) is None for _, entry in self.steps)


def bisect(mirror: Path, good: Commit, bad: Commit, decide: Decide, on_step: Told | None = None) -> Bisection:
    """Find the first commit between two, along first parents, whose verdict is the later one's.

    Where ``bad`` is the older of the two, that is the commit with which the bug went.

    :raises SentinelError: where the two ends do not have different verdicts, or no history joins them.
    """
    old, new, seeks, state = _ends(mirror, good, bad, decide)
    line = history(mirror, new.sha, since=old.sha)
    low, high, skipped = 0, len(line) - 1, set[int]()
    bisection = Bisection(seeks)
    while untried := [place for place in range(low + 1, high) if place not in skipped]:
        middle = min(untried, key=lambda place: abs(2 * place - low - high))
        entry = decide(line[middle])
        bisection.steps.append((line[middle], entry))
        if on_step:
            on_step(line[middle], entry, len(untried) - 1)
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


def _ends(mirror: Path, good: Commit, bad: Commit, decide: Decide) -> tuple[Commit, Commit, str, str | None]:
    """Give the older end, the later one, what is sought, and the state of the older one."""
    if good.sha == bad.sha:
        raise SentinelError(f"--good and --bad are the same commit, {good.sha[:9]}")
    entries = {"good": decide(good), "bad": decide(bad)}
    for name, which in (("good", good), ("bad", bad)):
        entry = entries[name]
        if _state(entry) is None:
            raise SentinelError(
                f"--{name} {which.sha[:9]} cannot be decided: {entry.verdict} ({entry.kind}): {entry.reason}"
            )
        if (entry.verdict == "reproduced") != (name == "bad"):
            raise SentinelError(
                f"--{name} {which.sha[:9]} is {entry.verdict}; --bad has to have the bug and --good not "
                "(which of them is the older does not matter)"
            )
    base = merge_base(mirror, good.sha, bad.sha)
    if base is None:
        raise SentinelError(f"no history joins {good.sha[:9]} and {bad.sha[:9]} in this mirror")
    parted = commit(mirror, base)  # one of the ends, where one leads to the other
    state = _state(decide(parted))
    if state == _state(entries["good"]) and parted.sha != bad.sha:
        return parted, bad, "bad", state
    if state == _state(entries["bad"]):
        return parted, good, "fixed", state
    raise SentinelError(
        f"{parted.sha[:9]}, where the two parted, is {decide(parted).verdict}; "
        "give ends of which one leads to the other"
    )


def _state(entry: ClosureVerdict) -> str | None:
    return state_of(entry.verdict, entry.kind)
