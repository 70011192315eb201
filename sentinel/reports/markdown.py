"""A run as Markdown: for a pull request's comment or ``GITHUB_STEP_SUMMARY``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sentinel.reports.escaping import visible
from sentinel.reports.evidence import dumps
from sentinel.reports.rows import HEADINGS, Row, counts, headings, held, legend, ordered, row

#: GitHub refuses a comment of this many characters.
LIMIT = 65_536
_LEAST_BLOCK = 2_000  # no evidence is shorter
_NOTE = 200  # room for the two lines that say what was left out

#: What GitHub's Markdown makes links of without being asked.
_LINKED = re.compile(r"(?i)\bwww\.|:/(?=/)")

Document = Mapping[str, Any]


def markdown(results: Iterable[tuple[Document, str]], title: str = "Sentinel") -> str:
    """The run's table, then the evidence of each verdict in a block that opens; what does not fit is counted. Laws that
    hold are counted only.

    :param results: each evidence document with pytest's outcome of its item. Failures come first in the evidence.
    """
    pairs = sorted(((row(document, outcome), document) for document, outcome in results), key=lambda p: p[0].ordering)
    rows = [item for item, _ in pairs]
    pairs = [pair for pair in pairs if not pair[0].quiet]
    head = "\n\n".join([f"## {escaped(title)}", counts(rows), *map(escaped, held(rows))]) + "\n\n"
    table, left_out = _table([item for item, _ in pairs], LIMIT // 2 - len(head)) if pairs else ("", "")
    text = head + table + left_out + f"\n<sub>{legend()}</sub>\n"
    missing = 0
    for item, document in sorted(pairs, key=lambda pair: pair[0].outcome != "failed"):
        full = len(text) + _LEAST_BLOCK > LIMIT
        block = "" if full else _block(item, document)
        if block and len(text) + len(block) + _NOTE < LIMIT:
            text += block
        else:
            missing += 1
    return text + (f"\nThe evidence of {missing} more is in the report folder.\n" if missing else "")


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


def _block(item: Row, document: Document) -> str:
    # JSON's own escapes keep the fence, the tags and mentions out of the text, and its value the same.
    text = dumps(document).replace("<", "\\u003c").replace("`", "\\u0060")
    name = f"{_code(f'{item.target} {item.what} {item.ref}')}: {item.verdict}"
    return f"\n<details><summary>{name}</summary>\n\n```json\n{text}```\n\n</details>\n"


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
