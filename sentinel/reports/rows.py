"""One line of a run for a reader: the same for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.deciding.outcomes import UNDECIDED
from sentinel.reports.escaping import message
from sentinel.targets.refs import Ref

#: In the order in which a reader wants to hear of them.
VERDICTS = ("reproduced", "changed", "inconclusive", "unavailable", "fixed")

MEANING = {
    "reproduced": "the bug is there",
    "fixed": "it is not",
    "changed": "neither the buggy nor the fixed values",
    "inconclusive": "could not be decided",
    "unavailable": "not available",
}


#: What a reader's table says of each.
HEADINGS = ("target", "bug", "ref", "verdict", "outcome", "reason")


def is_decided(document: Mapping[str, Any]) -> bool:
    """Return True if evidence decides something: a recipe may expect that a version does not have the code."""
    expected = document["verdict"] == document["expect"] and document["kind"] == "not-in-this-version"
    return expected or document["verdict"] not in UNDECIDED


@dataclass(frozen=True, order=True)
class Row:
    """Sorted by target, bug and ref, so that the order in which processes finish does not show.

    :ivar what: the bug id, or the law and its boundary.
    :ivar outcome: pytest's word for the item: ``passed``, ``failed``, ``skipped``, ``xfailed``; empty outside pytest.
    :ivar law: whether it is about a law that was searched with, and no recipe's bug.
    :ivar reason: why nothing was decided, or which other verdict was expected; all fields are safe to show.
    :ivar cause: why the adapter and the revision do not fit, where that is so.
    :ivar is_failed_bug: whether it is a known bug that fails at a ref without an expectation.
    """

    target: str
    what: str
    ref: str
    verdict: str
    outcome: str
    reason: str
    law: bool = False
    cause: str = ""
    is_failed_bug: bool = False

    @property
    def quiet(self) -> bool:
        """Return True for a law that holds, has nothing to say, or is broken by a bug that has a row of its own."""
        if self.outcome == "skipped":
            return self.law and self.verdict != "inconclusive"
        return self.law and self.verdict in ("fixed", "unavailable") and self.outcome != "failed"


#: Kinds of reason that say that the adapter and the revision do not fit: no bug of the framework.
_MISFIT = ("adapter", "drift", "not-in-this-version")


def row(document: Mapping[str, Any], outcome: str = "") -> Row:
    """Give the row of an evidence document."""
    kind, colon, name = str(document["ref"]).partition(":")
    why = message(document["reason"])
    if document["title"]:  # the statement of a law is the same in each row about that law
        why = why.replace(f" ({message(document['title'])})", "", 1)
    return Row(
        message(document["target"]),
        message(document["bug_id"] or f"{document['law']} of {document['boundary']['written']}"),
        message(Ref("git", name).short if kind == "git" else kind + colon + name),
        document["verdict"],
        outcome,
        _reason(document, why, outcome),
        not document["bug_id"] and bool(document["law"]),
        why if document["kind"] in _MISFIT and outcome != "passed" else "",
        (document["verdict"], document["expect"], outcome) == ("reproduced", None, "failed")
        and bool(document["bug_id"]),
    )


def _reason(document: Mapping[str, Any], why: str, outcome: str) -> str:
    """Write the reason; none where all is as it should be."""
    verdict, kind, expect = document["verdict"], document["kind"], document["expect"]
    parts = [f"expected {expect}"] if expect not in (None, verdict) and verdict != "unavailable" else []
    if why and (verdict not in ("reproduced", "fixed") or outcome == "failed"):
        # The reason itself may say of what kind it is.
        whole = not kind or verdict == "unavailable" or why.startswith(f"{kind}:")
        parts.append(why if whole else f"{message(kind)}: {why}")
    if verdict == expect == "unavailable" and outcome == "passed":
        parts.append("as the recipe's pin expects")
    return "; ".join(parts)


def headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Give those of a table of these rows, which may be about bugs, laws or both."""
    law, bug = any(item.law for item in rows), not all(item.law for item in rows)
    what = " or ".join(word for word, there in (("bug", bug or not rows), ("law", law)) if there)
    return tuple(what if heading == "bug" else heading for heading in HEADINGS)


def held(rows: Sequence[Row]) -> list[str]:
    """Write one line a target for the laws of which there is nothing to read."""
    lines = []
    for target in dict.fromkeys(item.target for item in rows if item.quiet):
        verdicts = [item.verdict for item in rows if item.quiet and item.target == target]
        count, mute, broken = (verdicts.count(name) for name in ("fixed", "unavailable", "reproduced"))
        holds = "1 law holds" if count == 1 else f"{count} laws hold"
        lines.append(
            f"{target}: {holds}"
            + (f", {mute} had nothing to look at" if mute else "")
            + (f", {broken} broken by known bugs" if broken else "")
        )
    return lines


def counts(rows: Iterable[Row]) -> str:
    """``3 reproduced, 2 fixed``; verdicts that did not occur are left out."""
    verdicts = Counter(item.verdict for item in rows)
    return ", ".join(f"{verdicts[name]} {name}" for name in VERDICTS if verdicts[name]) or "no verdicts"


def legend() -> str:
    return ", ".join(f"{name}: {meaning}" for name, meaning in MEANING.items())
