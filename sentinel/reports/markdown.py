"""A run as Markdown: for a pull request's comment or ``GITHUB_STEP_SUMMARY``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sentinel.reports.brief import Brief, brief
from sentinel.reports.escaping import visible
from sentinel.reports.rows import HEADINGS, Row, counts, headings, held, legend, ordered, row

#: GitHub refuses a comment of this many characters.
LIMIT = 65_536
_NOTE = 400  # room for the legend and the line that says what was left out

#: What GitHub's Markdown makes links of without being asked.
_LINKED = re.compile(r"(?i)\bwww\.|:/(?=/)")

Document = Mapping[str, Any]


def markdown(results: Iterable[tuple[Document, str]], title: str = "Sentinel") -> str:
    """What failed, the worst first, then the run's table; what does not fit, and laws that hold, are counted.

    :param results: each evidence document with pytest's outcome of its item.
    """
    pairs = sorted(((row(document, outcome), document) for document, outcome in results), key=lambda p: p[0].ordering)
    rows = [item for item, _ in pairs]
    pairs = [pair for pair in pairs if not pair[0].quiet]
    failed = [(item, brief(document)) for item, document in pairs if item.outcome == "failed"]
    failed.sort(key=lambda pair: pair[1].rank)
    text = "\n\n".join([f"## {escaped(title)}", counts(rows), *map(escaped, held(rows))]) + "\n\n"
    text += listed(((f"{item.what} at {item.ref}: {item.verdict}", about) for item, about in failed), LIMIT // 3)
    table, left_out = _table([item for item, _ in pairs], LIMIT - len(text) - _NOTE) if pairs else ("", "")
    return text + table + left_out + f"\n<sub>{legend()}</sub>\n"


def listed(told: Iterable[tuple[str, Brief]], room: int = LIMIT) -> str:
    """Bugs as a list: what is said of each, then title, severity, file and line, one number, and the command.

    :param room: characters.
    """
    text, missing = "", 0
    for said, about in told:
        grade = f" ({escaped(about.grade)})" if about.grade else ""
        lines = [f"**{escaped(about.title)}**", escaped(said) + grade, *map(_code, about.lines[1:])]
        item = f"* {'<br>'.join(lines)}\n"
        if len(text) + len(item) > room:
            missing += 1
        else:
            text += item
    text += f"* {missing} more, of which the table tells\n" if missing else ""
    return f"{text}\n" if text else ""


def _table(rows: Sequence[Row], room: int) -> tuple[str, str]:
    text = f"| {' | '.join(headings(rows))} |\n|{' --- |' * len(HEADINGS)}\n"
    lines = {item: f"| {' | '.join(map(_code, _cells(item)))} |\n" for item in rows}
    chosen: set[Row] = set()
    for item in sorted(rows, key=lambda item: item.outcome != "failed"):
        if len(lines[item]) <= room - len(text):
            room -= len(lines[item])
            chosen.add(item)
    text += "".join(lines[item] for item in ordered(set(rows)) if item in chosen)
    missing = len(set(rows) - chosen)
    return text, f"\n{missing} more are left out here.\n" if missing else ""


def _cells(item: Row) -> tuple[str, ...]:
    reason = item.reason if len(item.reason) <= 300 else item.reason[:297] + "..."
    return (item.target, item.what, item.ref, item.verdict, item.outcome, reason)


def _code(text: str) -> str:
    """Foreign text in a table cell. GitHub links no mention and no issue number inside ``<code>``."""
    return f"<code>{escaped(text)}</code>" if text else ""


def escaped(text: str) -> str:
    """Every character that Markdown or HTML could obey, as an entity; what acts unseen is shown, or else would act as
    an entity too."""
    return unlinked("".join(c if c.isalnum() or c in " -.:,;≤…" else f"&#{ord(c)};" for c in visible(text)))


def unlinked(text: str) -> str:
    """Text of which GitHub makes no link by itself; a link is as good a place for a lie as any other."""
    return _LINKED.sub(lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", text)
