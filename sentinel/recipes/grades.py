"""Grade a recipe: how a training run triggers the bug, how realistic that is, and the bug's root cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

#: How realistic a bug is, from the most (a run with default settings triggers it) to the least (no run can).
REALISMS = ("default", "configuration", "fault", "unreachable")
SEVERITIES = ("high", "medium", "low")


def realism(document: Mapping[str, Any]) -> str:
    """Return how realistic a bug is, from its recipe's ``reach``; empty if the recipe has none.

    * ``default``: default settings or a shipped example trigger it.
    * ``configuration``: a user must choose settings that trigger it.
    * ``fault``: something else must fail first.
    * ``unreachable``: nothing in the framework produces the value that triggers it, so a fix is hardening.
    """
    reach = document.get("reach")
    if not isinstance(reach, Mapping):
        return ""
    if reach.get("producer") == "none":
        return "unreachable"
    return "fault" if reach.get("fault") else "default" if reach.get("shipped") else "configuration"


def order(document: Mapping[str, Any]) -> tuple[int, int]:
    """Return a sort key for recipes: by severity, then by how realistic the bug is."""
    severity, real = str(document.get("severity") or ""), realism(document)
    place = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return place, 2 * REALISMS.index(real) if real else 3


def grade(document: Mapping[str, Any]) -> str:
    """Return severity and realism as text, such as ``high, default``. A part that the recipe lacks is left out."""
    real = realism(document)
    return ", ".join(
        filter(None, [str(document.get("severity") or ""), "hardening" if real == "unreachable" else real])
    )


def describe_reach(document: Mapping[str, Any]) -> str:
    """Return how a run triggers the bug and which code produces the triggering value, as text; empty if unknown."""
    reach = document.get("reach")
    if not isinstance(reach, Mapping):
        return ""
    shipped = f"; set by {reach['shipped']}" if reach.get("shipped") else ""
    return f"{' '.join(str(reach.get('how', '')).split())} ({reach.get('producer')}{shipped})"


def root(document: Mapping[str, Any]) -> str:
    """Return the name of a bug's root cause, which is the bug id if the recipe has no ``root``."""
    return str(document.get("root") or document.get("bug_id", ""))


def by_root(items: Iterable[T], about: Callable[[T], tuple[str, Mapping[str, Any]]]) -> list[list[T]]:
    """Group recipes by root cause. The groups, and the recipes in each group, are sorted by severity.

    :param about: returns the target and the document of a recipe.
    """

    def place(item: T) -> tuple[object, ...]:
        document = about(item)[1]
        return order(document), str(document.get("bug_id"))

    groups: dict[tuple[str, str], list[T]] = {}
    for item in sorted(items, key=place):
        target, document = about(item)
        groups.setdefault((target, root(document)), []).append(item)
    return list(groups.values())


def row(target: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a recipe that :func:`count_bugs` needs."""
    return {"target": target, "root": root(document), "realism": realism(document)}


def count_bugs(rows: Iterable[Mapping[str, Any]]) -> str:
    """Count bugs and hardening issues, as text: ``9 bugs (12 recipes) and 2 of hardening (3)``.

    Every count of bugs uses this function. All recipes with one root cause in one target count as one bug. A recipe
    that no run can trigger counts as hardening, not as a bug.

    :param rows: ``target``, ``root`` and ``realism`` of each recipe.
    """
    bugs: list[tuple[str, str]] = []
    hard: list[tuple[str, str]] = []
    for row in rows:
        (hard if row["realism"] == "unreachable" else bugs).append((row["target"], row["root"]))
    number, recipes = len(set(bugs)), len(bugs)
    text = f"{number} bug{'' if number == 1 else 's'} ({recipes} recipe{'' if recipes == 1 else 's'})"
    return f"{text} and {len(set(hard))} of hardening ({len(hard)})" if hard else text
