"""Convert one item of a run to a table row, for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.deciding.outcomes import UNDECIDED
from sentinel.reports.escaping import message
from sentinel.targets.refs import Ref

#: The order of verdicts in reports.
VERDICTS = ("reproduced", "changed", "inconclusive", "unavailable", "fixed")

MEANING = {
    "reproduced": "the bug is present",
    "fixed": "it is absent",
    "changed": "neither the buggy nor the fixed values",
    "inconclusive": "could not be decided",
    "unavailable": "not available",
}


#: The columns of a table of rows.
HEADINGS = ("target", "bug", "ref", "verdict", "outcome", "reason")


def is_decided(document: Mapping[str, Any]) -> bool:
    """Return True if a verdict is conclusive, or if the pin expects that the code does not exist in this version."""
    expected = document["verdict"] == document["expect"] and document["kind"] == "not-in-this-version"
    return expected or document["verdict"] not in UNDECIDED


@dataclass(frozen=True, order=True)
class Row:
    """A table row for one item. Rows are sorted by target, bug and ref.

    :ivar what: the bug id, or the law and its boundary.
    :ivar outcome: pytest's outcome: ``passed``, ``failed``, ``skipped`` or ``xfailed``; empty outside pytest.
    :ivar law: True for a law without a recipe.
    :ivar reason: why the verdict is inconclusive or unavailable, or which verdict was expected. All fields are safe to
        print.
    :ivar cause: why the adapter does not fit the revision; empty if it fits.
    :ivar is_failed_bug: True for a known bug that fails at a ref without an expectation.
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
        """Return True if a summary can omit this law: it holds, does not apply, or is broken by a listed bug."""
        if self.outcome == "skipped":
            return self.law and self.verdict != "inconclusive"
        return self.law and self.verdict in ("fixed", "unavailable") and self.outcome != "failed"

    @property
    def is_a_known_state(self) -> bool:
        """Return True if a recipe's verdict is as expected: the bug is present, fixed, or not in this version."""
        known = ("reproduced", "xfailed"), ("fixed", "passed"), ("unavailable", "passed")
        return not self.law and (self.verdict, self.outcome) in known


#: Kinds of reason for which adapter and revision do not match. They are not bugs.
_MISFIT = ("adapter", "drift", "not-in-this-version")


def row(document: Mapping[str, Any], outcome: str = "") -> Row:
    """Convert an evidence document and pytest's outcome of its item to a table row."""
    kind, colon, name = str(document["ref"]).partition(":")
    why = message(document["reason"])
    if document["title"]:  # the statement of a law is the same in all rows of that law
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
    verdict, kind, expect = document["verdict"], document["kind"], document["expect"]
    parts = [f"expected {expect}"] if expect not in (None, verdict) and verdict != "unavailable" else []
    if why and (verdict not in ("reproduced", "fixed") or outcome == "failed"):
        # The reason may already begin with its kind.
        whole = not kind or verdict == "unavailable" or why.startswith(f"{kind}:")
        parts.append(why if whole else f"{message(kind)}: {why}")
    if verdict == expect == "unavailable" and outcome == "passed":
        parts.append("as the recipe's pin expects")
    return "; ".join(parts)


def headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the column headings for a table of bugs, of laws, or of both."""
    law, bug = any(item.law for item in rows), not all(item.law for item in rows)
    what = " or ".join(word for word, there in (("bug", bug or not rows), ("law", law)) if there)
    return tuple(what if heading == "bug" else heading for heading in HEADINGS)


def summarise_laws(rows: Sequence[Row]) -> list[str]:
    """Return one line per target: how many laws the summary omits."""
    lines = []
    for target in dict.fromkeys(item.target for item in rows if item.quiet):
        verdicts = [item.verdict for item in rows if item.quiet and item.target == target]
        count, mute, broken = (verdicts.count(name) for name in ("fixed", "unavailable", "reproduced"))
        holds = "1 law holds" if count == 1 else f"{count} laws hold"
        lines.append(
            f"{target}: {holds}"
            + (f", {mute} not applicable" if mute else "")
            + (f", {broken} broken by known bugs that are listed" if broken else "")
        )
    return lines


def counts(rows: Iterable[Row]) -> str:
    """Count verdicts, as in ``3 reproduced, 2 fixed``."""
    verdicts = Counter(item.verdict for item in rows)
    return ", ".join(f"{verdicts[name]} {name}" for name in VERDICTS if verdicts[name]) or "no verdicts"


def legend() -> str:
    return ", ".join(f"{name}: {meaning}" for name, meaning in MEANING.items())
