"""Whether a decision passes: by its pin, by itself, or by what is recorded in a baseline."""

from __future__ import annotations

from pathlib import Path

from sentinel.deciding.outcomes import Decision


def expected_unavailable(decision: Decision) -> bool:
    """Whether ``unavailable`` is what the pin expects, and was established by looking at the code."""
    return decision.expect == "unavailable" and decision.verdict.kind == "not-in-this-version"


def complaint(decision: Decision, baseline: Path | None = None) -> str | None:
    """Why the item fails; None where it passes or is skipped.

    :param baseline: the folder of recorded evidence that then decides alone.
    """
    verdict = decision.verdict
    name = decision.recipe.bug_id or f"{decision.recipe.boundary}: {decision.law}"
    head = f"{name} at {decision.ref.short}"
    if baseline is not None:
        return _against(baseline, decision, head)
    if decision.expect is not None:
        absent = verdict.name == "unavailable" and verdict.kind != "not-in-this-version"
        return (
            None
            if absent or verdict.name == decision.expect
            else f"{head}: expected {decision.expect}, got {verdict.name}"
        )
    return None if verdict.name in ("fixed", "unavailable") else f"{head}: {verdict.name}"


def _against(baseline: Path, decision: Decision, head: str) -> str | None:
    from sentinel.reports.baseline import difference
    from sentinel.reports.evidence import evidence
    from sentinel.reports.store import find

    recorded = find(baseline, decision)
    if recorded is None:
        if decision.verdict.name == "unavailable" or (decision.law_alone and decision.verdict.name == "fixed"):
            return None  # a baseline records what a search found, and not each of the thousand laws that hold
        return f"{head}: nothing is recorded in {baseline}; accept it with `sentinel report accept`"
    if decision.verdict.kind == "ref":
        return None  # not available on this machine: no statement about the code, so no difference
    changes = difference(recorded, evidence(decision))
    return f"{head}: " + "; ".join(changes) if changes else None
