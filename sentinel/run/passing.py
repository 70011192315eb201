"""Decide whether an item passes: compare its verdict with the pin, a baseline, or the verdict at a base revision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentinel.deciding.outcomes import Decision
from sentinel.reports.baseline import difference, is_unavailable_here
from sentinel.reports.evidence import evidence
from sentinel.reports.store import find


def expected_unavailable(decision: Decision) -> bool:
    """Return True if the pin expects ``unavailable`` and the checkout's source confirms that the code is missing."""
    return decision.expect == "unavailable" and decision.verdict.kind == "not-in-this-version"


def headline(decision: Decision) -> str:
    """Return the first line of a failure report: the bug id, or the boundary and its law, and the ref."""
    name = decision.recipe.bug_id or f"{decision.recipe.boundary}: {decision.law}"
    return f"{name} at {decision.ref.short}"


def complaint(decision: Decision, baseline: Path | None = None, bases: Sequence[Decision] = ()) -> str | None:
    """Return why an item fails. Return None if it passes, is skipped or is an expected failure.

    :param baseline: recorded evidence, which replaces the pin's expectation.
    :param bases: decisions of the same recipe at each base revision. If all of them have the same verdict, this verdict
        is expected.
    """
    verdict = decision.verdict
    head = headline(decision)
    if baseline is not None:
        return _against(baseline, decision, head)
    if decision.expect is not None:
        absent = verdict.name == "unavailable" and verdict.kind not in ("not-in-this-version", "drift")
        if absent or verdict.name == decision.expect:
            return None
        return f"{head}: expected {decision.expect}, got {verdict.name}"
    others = [base for base in bases if base.verdict.name != verdict.name]
    if verdict.name in ("fixed", "unavailable") or (bases and not others):
        return None
    return f"{head}: {verdict.name}" + "".join(f", and {base.verdict.name} at {base.ref.short}" for base in others)


def _against(baseline: Path, decision: Decision, head: str) -> str | None:
    recorded = find(baseline, decision)
    if recorded is None:
        if decision.verdict.name == "unavailable" or (decision.law_alone and decision.verdict.name == "fixed"):
            return None  # a baseline has no entry for a law that held
        return f"{head}: {baseline} has no verdict for this item; record one with `sentinel report accept`"
    now = evidence(decision)
    changes = [] if is_unavailable_here(recorded, now) else difference(recorded, now)
    return f"{head}: " + "; ".join(changes) if changes else None
