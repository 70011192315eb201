"""Write the summary at the end of a run: a table of verdicts, and counts."""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from sentinel.deciding.outcomes import UNDECIDED
from sentinel.recipes import grades
from sentinel.recipes.grades import by_root, count_bugs
from sentinel.reports.brief import command
from sentinel.reports.escaping import message, visible
from sentinel.reports.rows import HEADINGS, Row, counts, headings, legend, row, summarise_laws

_REASON = HEADINGS.index("reason")
_MOST_CAUSES = 8  # maximum number of causes to list; further causes are only counted
#: Commit and tree hashes. Reasons that differ only in these have the same cause.
_NAMES = re.compile(r"\b[0-9a-f]{7,64}\b")
_FEW = 3  # more lines with the same reason are joined into one; of more revisions, only one is listed
_WORST = 5  # maximum number of known bugs to list for a revision
_LEAST_REASON = 45  # 30 columns for the reason, the rest for the gaps between columns
_STYLES = {"reproduced": "red", "fixed": "green", "changed": "magenta", "inconclusive": "yellow", "unavailable": "dim"}
_OUTCOME_STYLES = {"failed": "bold red", "passed": "green", "skipped": "dim", "xfailed": "yellow"}


def summary(
    results: Iterable[tuple[Mapping[str, Any], str]],
    report_dir: str = "",
    *,
    terminal: bool = False,
    width: int = 100,
    environ: Mapping[str, str] | None = None,
    every: bool = True,
    commands: Sequence[str] = (),
) -> str:
    """Return the text of a run's summary.

    :param results: (evidence document, pytest's outcome) pairs.
    :param terminal: whether the output is a terminal. Otherwise, or with ``NO_COLOR`` or ``TERM=dumb``, the table is
        plain aligned text that is never cut or wrapped.
    :param width: the number of columns of the terminal.
    :param every: whether each item has a line of its own. Otherwise, items with the same reason are joined into one
        line unless they failed with a conclusive verdict, and known bugs that fail are listed only below the table.
    :param commands: for each result, the command that repeats it. By default, the command is derived from the evidence.
    """
    results = list(results)
    bugs = _failed_bugs(results, commands)
    rows = sorted(row(document, outcome) for document, outcome in results)
    environ = os.environ if environ is None else environ
    styled = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    loud = [item for item in rows if not item.quiet]
    releases = _releases(results)
    listed = [
        item for item in loud if _is_listed(item) or (item.is_a_known_state and (item.target, item.ref) in releases)
    ]
    shown = loud if every else _group([item for item in loud if item not in listed])
    table = _rich(shown, width) if styled and shown else _plain(shown)
    states = [line for lines in releases.values() for line in lines]
    last = [*bugs, *summarise_laws(rows), *states, *outline(results), legend()]
    if len(shown) < len(loud):
        last[-1] += "; -v lists each item"
    if report_dir:
        last.append(f"evidence: {visible(report_dir)}")
    if not rows:
        return "\n".join(["nothing was decided", *last[len(last) - 1 :]])
    return "\n".join([*([table] if shown else []), *last])


def _releases(results: Sequence[tuple[Mapping[str, Any], str]]) -> dict[tuple[str, str], list[str]]:
    """Return lines about the known bugs at each revision: (target, ref) -> lines.

    The revisions of a target are sorted by the number of bugs whose state is known, with the largest number first. If a
    target has more than three revisions, only the first one is included.
    """
    at: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for document, outcome in results:
        item = row(document, outcome)
        if item.is_a_known_state:
            at.setdefault((item.target, item.ref), {}).setdefault(item.verdict, []).append(document)
    revisions = Counter(target for target, _ in at)
    lines: dict[tuple[str, str], list[str]] = {}

    def weight(item: tuple[tuple[str, str], dict[str, list[Mapping[str, Any]]]]) -> tuple[str, int, str]:
        (target, ref), verdicts = item
        return target, -sum(map(len, verdicts.values())), ref

    for (target, ref), verdicts in sorted(at.items(), key=weight):
        if revisions[target] <= _FEW or all(known != target for known, _ in lines):
            lines[target, ref] = _state(f"{target} {ref}", verdicts)
    return lines


def _state(revision: str, verdicts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return lines about one revision: its known bugs, counted by verdict, and the most severe present ones."""
    parts = [
        f"{words}: {count_bugs(grades.row(*_about(document)) for document in verdicts[verdict])}"
        for verdict, words in (("reproduced", "present"), ("fixed", "fixed"), ("unavailable", "not in this version"))
        if verdict in verdicts
    ]
    present = by_root(verdicts.get("reproduced", ()), _about)
    worst = [group[0] for group in present[:_WORST]]
    lines = [f"{revision}: {'; '.join(parts)}"]
    if worst:
        shown = f"the {_WORST} most severe bugs that are present" if len(present) > _WORST else "present"
        lines.append(f"  {shown} (`sentinel show BUG` explains one):")
    for document in worst:
        lines.append(f"    {message(_graded(document, 'bug_id'))}: {message(document['title'])}")
    return lines


def _graded(document: Mapping[str, Any], key: str) -> str:
    how = grades.grade(document["recipe"]["document"])
    return f"{document[key]} ({how})" if how else str(document[key])


def _about(document: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    return document["target"], document["recipe"]["document"]


def _is_listed(item: Row) -> bool:
    if item.outcome == "skipped":  # `outline` lists each cause
        return bool(item.cause) or item.verdict == "inconclusive"
    return item.is_failed_bug  # `_failed_bugs` lists it


def _failed_bugs(results: Sequence[tuple[Mapping[str, Any], str]], commands: Sequence[str]) -> list[str]:
    """Return lines about the known bugs that failed, with commands to repeat them; the worst root cause is first."""
    failed = [
        (document, again or command(document))
        for (document, outcome), again in zip_longest(results, commands)
        if row(document, outcome).is_failed_bug
    ]
    failed.sort(key=lambda pair: str(pair[0]["ref"]))
    lines = []
    for group in by_root(failed, lambda pair: _about(pair[0])):
        lines.append(f"  {_graded(group[0][0], 'title')}")
        lines += [f"    {again}" for _, again in group]
    return ["known bugs that fail, by root cause, the worst first:", *map(visible, lines)] if lines else []


def outline(results: Iterable[tuple[Mapping[str, Any], str]]) -> list[str]:
    """Return one line with the counts of verdicts, then one line per cause of inconclusive and unavailable verdicts."""
    rows = [row(document, outcome) for document, outcome in results]
    left = _undecided(rows)
    if not left:
        return [counts(rows)]
    return [counts(rows), f"not decided: {len(left)} of {len(rows)}", *(f"  {line}" for line in causes(left))]


def undecided(results: Iterable[tuple[Mapping[str, Any], str]]) -> dict[str, int]:
    """Count the causes of inconclusive and unavailable verdicts: ``verdict: cause`` -> number."""
    return dict(Counter(map(cause_of, _undecided(row(document, outcome) for document, outcome in results))))


def _undecided(rows: Iterable[Row]) -> list[str]:
    """Return the reasons of inconclusive and unavailable verdicts that no pin expects.

    Laws that do not apply are left out too. Laws that could not be checked because the adapter does not fit the
    revision are included.
    """
    return [
        f"{item.verdict}: {item.cause or item.reason}"
        for item in rows
        if item.verdict in UNDECIDED and (item.cause or not item.quiet) and item.outcome != "passed"
    ]


def causes(reasons: Iterable[str]) -> list[str]:
    """Return one line per cause, with its count, and the most frequent first. The last line counts the causes that are
    left out.

    Reasons that differ only in a commit or a tree have the same cause. At most eight causes are listed.
    """
    reasons = list(reasons)
    if len(reasons) == 1:
        return reasons
    counts = Counter(map(cause_of, reasons))
    first = {cause_of(reason): reason for reason in reversed(reasons)}
    lines = [f"{count}: {first[cause] if count == 1 else cause}" for cause, count in counts.most_common(_MOST_CAUSES)]
    more = len(counts) - len(lines)
    return [*lines, f"and {more} more cause{'' if more == 1 else 's'}"] if more else lines


def cause_of(reason: str) -> str:
    """Return a reason with commit and tree hashes replaced, so that equal causes can be counted together."""
    return _NAMES.sub("…", reason)


def _group(rows: Sequence[Row]) -> list[Row]:
    """Join rows with the same verdict and reason. A failed item keeps its own row if its verdict is conclusive."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for item in rows:
        alone = (item.what, item.ref) if item.outcome in ("failed", "") and item.verdict not in UNDECIDED else ()
        groups.setdefault((item.target, item.verdict, item.outcome, cause_of(item.reason), *alone), []).append(item)
    return [
        item
        for (_, verdict, *_), group in groups.items()
        for item in (_merge_rows(group) if len(group) > (1 if verdict == "inconclusive" else _FEW) else group)
    ]


def _merge_rows(rows: Sequence[Row]) -> list[Row]:
    def of(values: Iterable[str], noun: str) -> str:
        distinct = set(values)
        return distinct.pop() if len(distinct) == 1 else f"{len(distinct)} {noun}s"

    # The joined line counts recipes, not bugs: a bug may have several recipes (sentinel.recipes.grades.count_bugs).
    noun = "law" if all(item.law for item in rows) else "item" if any(item.law for item in rows) else "recipe"
    reason = rows[0].reason if len({item.reason for item in rows}) == 1 else cause_of(rows[0].reason)
    return [
        replace(
            rows[0],
            reason=reason,
            what=of((item.what for item in rows), noun),
            ref=of((item.ref for item in rows), "ref"),
        )
    ]


def _cells(item: Row) -> tuple[str, ...]:
    return tuple(map(visible, (item.target, item.what, item.ref, item.verdict, item.outcome, item.reason)))


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple("" if name == "outcome" else name for name in headings(rows))


def _plain(rows: Sequence[Row]) -> str:
    return aligned([_names(rows), *map(_cells, rows)])


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Format rows as text in aligned columns. Columns without any value are left out."""
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return "\n".join(
        "  ".join(cell.ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _rich(rows: Sequence[Row], width: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [index for index in range(len(HEADINGS)) if any(_cells(item)[index] for item in rows)]
    names = _names(rows)
    longest = {index: max(len(names[index]), *(len(_cells(item)[index]) for item in rows)) for index in shown}
    if sum(size for index, size in longest.items() if index != _REASON) + _LEAST_REASON > width:
        return _plain(rows)  # plain lines, because a wrapped id cannot be copied
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index in shown:
        table.add_column(names[index], no_wrap=index != _REASON, overflow="fold")
    for item in rows:
        # Text objects, because untrusted text must not pass through rich's markup.
        cells = [Text(cell) for cell in _cells(item)]
        cells[3].stylize(_STYLES.get(item.verdict, ""))
        cells[4].stylize(_OUTCOME_STYLES.get(item.outcome, ""))
        table.add_row(*(cells[index] for index in shown))
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, width=width, color_system="standard", highlight=False, legacy_windows=False
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n") if line.strip())
