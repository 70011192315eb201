"""How a real run gets to a bug, how real that makes it, and which recipes show one root cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

#: From what a run meets by itself to what no run meets.
REALISMS = ("default", "configuration", "fault", "unreachable")
SEVERITIES = ("high", "medium", "low")


def realism(document: Mapping[str, Any]) -> str:
    """Say how real a bug is, as follows from its recipe's ``reach``; empty where the recipe says nothing.

    ``default``: a default or a shipped example sets what it takes. ``configuration``: a user must. ``fault``: something
    else must fail before. ``unreachable``: nothing in the framework produces the value; it is hardening and no bug.
    """
    reach = document.get("reach")
    if not isinstance(reach, Mapping):
        return ""
    if reach.get("producer") == "none":
        return "unreachable"
    return "fault" if reach.get("fault") else "default" if reach.get("shipped") else "configuration"


def order(document: Mapping[str, Any]) -> tuple[int, int]:
    """Order by severity, then by realism; a bug without a known reach comes before faults."""
    severity, real = str(document.get("severity") or ""), realism(document)
    place = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return place, 2 * REALISMS.index(real) if real else 3


def grade(document: Mapping[str, Any]) -> str:
    """Severity and realism, as far as the recipe says them: ``high, default``."""
    real = realism(document)
    return ", ".join(
        filter(None, [str(document.get("severity") or ""), "hardening" if real == "unreachable" else real])
    )


def reached(document: Mapping[str, Any]) -> str:
    """Say how a real run gets there, with the places in the framework that say so."""
    reach = document.get("reach")
    if not isinstance(reach, Mapping):
        return ""
    shipped = f"; set by {reach['shipped']}" if reach.get("shipped") else ""
    return f"{' '.join(str(reach.get('how', '')).split())} ({reach.get('producer')}{shipped})"


def root(document: Mapping[str, Any]) -> str:
    """Give the name of the root cause: by default the bug's own id."""
    return str(document.get("root") or document.get("bug_id", ""))


def by_root(items: Iterable[T], about: Callable[[T], tuple[str, Mapping[str, Any]]]) -> list[list[T]]:
    """Group recipes by root cause: the most severe group first, and in each group the most severe recipe.

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
    """Give what :func:`counted` reads of a recipe."""
    return {"target": target, "root": root(document), "realism": realism(document)}


def counted(rows: Iterable[Mapping[str, Any]]) -> str:
    """Count bugs: ``9 bugs (12 recipes) and 2 of hardening (3)``.

    Every count of bugs uses this function. A bug is a root cause in one target, however many recipes show it. A recipe
    that no run can trigger is hardening, not a bug.

    :param rows: ``target``, ``root`` and ``realism`` of each recipe.
    """
    bugs: list[tuple[str, str]] = []
    hard: list[tuple[str, str]] = []
    for row in rows:
        (hard if row["realism"] == "unreachable" else bugs).append((row["target"], row["root"]))
    number, recipes = len(set(bugs)), len(bugs)
    text = f"{number} bug{'' if number == 1 else 's'} ({recipes} recipe{'' if recipes == 1 else 's'})"
    return f"{text} and {len(set(hard))} of hardening ({len(hard)})" if hard else text
