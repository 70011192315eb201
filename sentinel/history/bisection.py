"""Bisection: the first commit at which a recipe's verdict is another one. As ``git bisect``, whose log it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.history.chronicle import state_of
from sentinel.history.closure_verdicts import ClosureVerdict
from sentinel.history.commits import Commit, commit
from sentinel.sources.gitbinary import run, run_checked

#: Decides one commit.
Decide = Callable[[Commit], ClosureVerdict]

#: Told of each step: the commit, its verdict, how many commits are left.
Told = Callable[[Commit, ClosureVerdict, int], None]

#: After an undecided commit the next one is looked for elsewhere, for its neighbours are likely to be undecided too.
_GOLDEN = 0.618033988749895


@dataclass(frozen=True)
class Step:
    """:ivar answer: ``old``, ``new`` or ``skip``."""

    commit: Commit
    unit: ClosureVerdict
    answer: str


@dataclass
class Bisection:
    """:ivar old, new: the two ends, in the order of history; ``seeks`` says which of the user's they are.
    :ivar seeks: ``bad`` for the commit that brought the bug, ``fixed`` for the one that took it away.
    :ivar found: the first commit that is like ``new``; None where it cannot be told apart from ``suspects``.
    :ivar suspects: where commits next to the change could not be decided: those among which it is.
    """

    old: Step
    new: Step
    seeks: str
    first_parent: bool
    steps: list[Step] = field(default_factory=list)
    found: Commit | None = None
    suspects: list[Commit] = field(default_factory=list)

    def log(self) -> Iterator[str]:
        """Lines that ``git bisect replay`` takes."""
        words = {"old": "good", "new": "bad"} if self.seeks == "bad" else {"old": "broken", "new": "fixed"}
        terms = "" if self.seeks == "bad" else " '--term-old' 'broken' '--term-new' 'fixed'"
        yield f"git bisect start{' --first-parent' if self.first_parent else ''}{terms}"
        for step in (self.new, self.old, *self.steps):
            word = words.get(step.answer, "skip")
            verdict = f"{step.unit.verdict}{f' ({step.unit.kind})' if step.unit.kind else ''}"
            yield f"# {verdict}: [{step.commit.sha}] {step.commit.subject}"
            yield f"git bisect {word} {step.commit.sha}"
        if self.found:
            yield f"# first {words['new']} commit: [{self.found.sha}] {self.found.subject}"
        for suspect in self.suspects:
            yield f"# possible first {words['new']} commit: [{suspect.sha}] {suspect.subject}"


def bisect(
    mirror: Path, good: Commit, bad: Commit, decide: Decide, first_parent: bool = False, told: Told | None = None
) -> Bisection:
    """Find the first commit between two whose verdict is the later one's.

    Where ``bad`` is the older of the two, that is the commit with which the bug went.

    :raises SentinelError: where the two ends do not have different verdicts, or no history joins them.
    """
    begun = _begin(mirror, good, bad, decide, first_parent)
    states = {"old": _state(begun.old.unit), "new": _state(begun.new.unit)}
    old = [begun.old.commit.sha]
    new = begun.new.commit.sha
    skipped: dict[str, int] = {}
    in_a_row = 0
    while True:
        listed = _halves(mirror, new, old, first_parent)
        untried = [sha for sha in listed if sha != new and sha not in skipped]
        if not untried:
            break
        at = int(len(untried) * (in_a_row * _GOLDEN % 1) ** 1.5)
        candidate = commit(mirror, untried[at])
        unit = decide(candidate)
        state = _state(unit)
        answer = next((name for name, value in states.items() if value == state), "skip")
        begun.steps.append(Step(candidate, unit, answer))
        if told:
            told(candidate, unit, len(untried) - 1)
        in_a_row = in_a_row + 1 if answer == "skip" else 0
        if answer == "new":
            new = candidate.sha
        elif answer == "old":
            old.append(candidate.sha)
        else:
            skipped[candidate.sha] = len(skipped)
    left = [sha for sha in listed if sha in skipped]
    if left:
        begun.suspects = [commit(mirror, sha) for sha in (new, *left)]
    else:
        begun.found = commit(mirror, new)
    return begun


def _begin(mirror: Path, good: Commit, bad: Commit, decide: Decide, first_parent: bool) -> Bisection:
    units = {"good": decide(good), "bad": decide(bad)}
    if good.sha == bad.sha:
        raise SentinelError(f"--good and --bad are the same commit, {good.sha[:9]}")
    for name, which in (("good", good), ("bad", bad)):
        unit = units[name]
        reproduced = unit.verdict == "reproduced"
        if _state(unit) is None:
            raise SentinelError(
                f"--{name} {which.sha[:9]} cannot be decided: {unit.verdict} ({unit.kind}): {unit.reason}"
            )
        if reproduced != (name == "bad"):
            raise SentinelError(
                f"--{name} {which.sha[:9]} is {unit.verdict}; --bad has to have the bug and --good not "
                "(which of them is the older does not matter)"
            )
    if _is_ancestor(mirror, good.sha, bad.sha):
        old, new, seeks = ("good", good), ("bad", bad), "bad"
    elif _is_ancestor(mirror, bad.sha, good.sha):
        old, new, seeks = ("bad", bad), ("good", good), "fixed"
    else:
        base = merge_base(mirror, good.sha, bad.sha)
        if base is None:
            raise SentinelError(f"no history joins {good.sha[:9]} and {bad.sha[:9]} in this mirror")
        unit, joined = decide(commit(mirror, base)), commit(mirror, base)
        if _state(unit) == _state(units["good"]):
            units["good"], old, new, seeks = unit, ("good", joined), ("bad", bad), "bad"
        elif _state(unit) == _state(units["bad"]):
            units["bad"], old, new, seeks = unit, ("bad", joined), ("good", good), "fixed"
        else:
            raise SentinelError(
                f"{base[:9]}, where the two parted, is {unit.verdict}{f' ({unit.kind})' if unit.kind else ''}; "
                "give ends of which one leads to the other"
            )
    begun = Bisection(Step(old[1], units[old[0]], "old"), Step(new[1], units[new[0]], "new"), seeks, first_parent)
    if first_parent and old[1].sha not in _line(mirror, new[1].sha):
        raise SentinelError(
            f"{old[1].sha[:9]} is not on the first-parent line of {new[1].sha[:9]}; leave --first-parent out"
        )
    return begun


def _state(unit: ClosureVerdict) -> str | None:
    return state_of(unit.verdict, unit.kind)


def _halves(mirror: Path, new: str, old: list[str], first_parent: bool) -> list[str]:
    """The commits that are left, the one that halves them best first."""
    options = ["--first-parent"] if first_parent else []
    out = run_checked(mirror, "rev-list", "--bisect-all", *options, new, *(f"^{sha}" for sha in old), "--")
    return [line.split()[0].decode() for line in out.splitlines()]


def _line(mirror: Path, head: str) -> set[str]:
    return set(run_checked(mirror, "rev-list", "--first-parent", head, "--").decode().split())


def _is_ancestor(mirror: Path, old: str, new: str) -> bool:
    return run(mirror, "merge-base", "--is-ancestor", old, new).status == 0


def merge_base(mirror: Path, one: str, other: str) -> str | None:
    finished = run(mirror, "merge-base", one, other)
    return finished.out.decode().split()[0] if finished.status == 0 else None
