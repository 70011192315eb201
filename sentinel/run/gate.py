"""Report a comparison of head and base: on the terminal, in GitHub's job summary, as annotations and as SARIF.

A result is a plain dictionary, because a worker of xdist sends it to the process that writes the report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sentinel.comparing.comparison import Comparison
from sentinel.comparing.observations import AFTER
from sentinel.comparing.patch import NO_EFFECT, Key, Line, coverage, describe_share, merge
from sentinel.comparing.report import (
    SIZES,
    explain_guard,
    format_lines,
    join_names,
    list_others,
    list_scenario,
    name_revision,
    summarise,
)
from sentinel.comparing.results import BoundaryDiff
from sentinel.reports.escaping import message
from sentinel.reports.github import MOST, command
from sentinel.reports.markdown import escaped

#: The result for one boundary. ``outcome`` is one of :data:`OUTCOMES`; ``places`` are the changed lines at the head.
Row = dict[str, Any]

#: The outcomes in the order in which they are listed.
OUTCOMES = ("worse", "other", "better", "new", "removed", "not examined", "same")

#: The reason for the outcome ``not examined`` if some changed lines ran at no boundary.
_IDLE = "its numbers agree, but changed lines were not examined"

#: Maximum entries of a list on one line, and maximum lines of one outcome.
_ENTRIES, _LINES = 6, 20


def row_of(comparison: Comparison, result: BoundaryDiff | None) -> dict[str, Any]:
    """Return the result of comparing one boundary as JSON data. If ``result`` is None, the row is about changed code
    that no boundary runs."""
    outcome, sentence = "same", ""
    changed: set[tuple[str, str]] = set()
    here: set[Key] = set()
    if result is not None:
        outcome = outcome_of(result)
        why = result.reason or result.share or _IDLE if outcome == "not examined" else summarise(result)
        sentence = message(why)
        changed = {place for place, _, _ in comparison.selection.candidates[result.name].changed}
        here, _ = comparison.selection.patch.ran_at(result.name, changed)
    lines = comparison.selection.patch.lines(None if result is None else changed)
    places = [] if result is None else _places(lines)
    base, head = (name_revision(checkout) for checkout in comparison.checkouts.values())
    return {
        "target": comparison.target.name,
        "base": message(base),
        "head": message(head),
        "boundary": "" if result is None else result.name,
        "outcome": outcome,
        "sentence": sentence,
        "places": places,
        "changed": sorted(map(list, changed)),
        "undecided": [] if result is None else sorted(map(message, result.undecided)),
        "blind": [] if result is None else sorted(map(message, result.blind)),
        "here": sorted(map(list, here)),
        "agrees": result is not None and result.state in ("same numbers", "not examined") and not result.reason,
        "scenario": [] if result is None else list(list_scenario(comparison, result)),
        "idle": [] if result is None else [format_lines(each) for each in result.unreached[:_ENTRIES]],
        "lines": [list(line) for line in lines],
        "beyond": [] if result is not None else _beyond(comparison),
        "names": comparison.to_call(),
        "cause": "" if result is None else comparison.cause_of(result.name),
    }


def planned_row(comparison: Comparison, names: Sequence[str]) -> Row:
    """Return a row that only lists the boundaries to be compared. It is used until the comparisons have results."""
    base, head = (name_revision(checkout) for checkout in comparison.checkouts.values())
    texts = {"target": comparison.target.name, "base": message(base), "head": message(head), "boundary": ""}
    nothing: dict[str, Any] = {
        key: [] for key in ("places", "changed", "undecided", "blind", "here", "lines", "beyond")
    }
    told = {"outcome": "same", "sentence": "", "agrees": False, "cause": "", "names": list(names)}
    return {**texts, **nothing, **told}


def _beyond(comparison: Comparison) -> list[str]:
    """Return report lines about changes that no boundary can run, such as removed functions."""
    gone = [name for name, each in comparison.selection.candidates.items() if each.result.state == "gone"]
    effects = comparison.selection.effects
    lines = [f"removed, and not called any more: {join_names(gone)}"] if gone else []
    lines += (
        [f"not examined: module-level code that may change other functions: {join_names(effects)}"] if effects else []
    )
    lines += list_others(comparison.selection.unread, comparison.selection.harmless)
    return list(map(message, lines))


def outcome_of(result: BoundaryDiff) -> str:
    """Return the outcome of a comparison, one of :data:`OUTCOMES`."""
    if result.judgement in ("worse", "better"):
        return result.judgement
    if result.state == "differs":
        return "other"
    if result.state == "new" and not result.scenarios:
        return "not examined"
    return {"same numbers": "same", "same code": "same", "new": "new", "gone": "removed"}.get(
        result.state, "not examined"
    )


def _places(lines: Sequence[Sequence[Any]]) -> list[list[Any]]:
    places: dict[tuple[str, str], list[Any]] = {}
    for file, name, side, first, last, *_ in sorted(lines, key=lambda line: (line[2] != AFTER, not line[-1])):
        places.setdefault((file, name), [file, name, first, last, side == AFTER])
    return sorted((place[:4] for place in places.values()), key=lambda place: not place[1])[:_ENTRIES]


def announce(row: Row) -> str:
    """Return the line to print when a boundary has a result, or an empty string if nothing differs.

    The line is also empty if the boundary's numbers agree and its scenarios did not run the changed lines: the final
    report lists all such boundaries on one line.
    """
    if not row["boundary"] or row["outcome"] == "same" or (row["agrees"] and row["sentence"] != _IDLE):
        return ""
    why = f"it calls {row['cause']}" if row["cause"] else row["sentence"]
    idle = f": {'; '.join(row['idle'])}" if why == _IDLE and row["idle"] else ""
    return f"{row['outcome']}: {row['boundary']}: {why}{idle}"


def _examine(row: Row, rows: Sequence[Row], lines: Sequence[Line]) -> tuple[str, str]:
    """Return outcome and sentence for a boundary whose numbers agree.

    The outcome is ``not examined`` unless the changed lines of the boundary ran, here or in calls of other boundaries.
    """
    changed = [line for line in lines if list(line[:2]) in row["changed"]]
    if not all(line[-1] for line in changed):
        return "not examined", _IDLE
    rest = [list(line[:5]) for line in changed if list(line[:5]) not in row["here"]]
    elsewhere = [each["boundary"] for each in rows if each is not row and any(line in each["here"] for line in rest)]
    share = describe_share(len(changed) - len(rest), len(changed), elsewhere)
    return "not examined" if share and len(rest) == len(changed) else "same", message(share)


class Gate:
    """The results of one comparison run, as one row per boundary."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def add(self, nodeid: str, row: Row) -> None:
        self._rows[nodeid] = row

    def _by_pair(self) -> Iterator[tuple[tuple[str, str, str], list[Row]]]:
        def pair(row: Row) -> tuple[str, str, str]:
            return row["target"], row["base"], row["head"]

        for key, group in groupby(sorted(self._rows.values(), key=pair), key=pair):
            rows = list(group)
            lines = merge(line for row in rows for line in row["lines"])
            for row in (row for row in rows if row["agrees"]):
                row["outcome"], row["sentence"] = _examine(row, rows, lines)
            yield key, sorted(rows, key=lambda row: OUTCOMES.index(row["outcome"]))

    def lines(self) -> Iterator[str]:
        """Yield the report's lines: worse functions, functions with other outcomes, changed lines that did not run."""
        for (target, base, head), rows in self._by_pair():
            yield f"{target}: {head} compared with {base}"
            for outcome in OUTCOMES[:-1]:
                there = [row for row in rows if row["outcome"] == outcome and row["boundary"]]
                yield from _group(outcome, there)
            same = [row["boundary"] for row in rows if row["outcome"] == "same" and row["boundary"]]
            if same:
                yield f"same: {join_names(same)}"
            yield from (line for row in rows for line in row["beyond"])
            undecided: dict[str, list[str]] = {}
            for row in (row for row in rows if row["blind"]):
                undecided.setdefault(join_names(row["blind"]), []).append(row["boundary"])
            for parts, names in undecided.items():
                scope = "in every scenario that runs changed lines"
                what = f"some values of {parts} are NaN or infinite at both revisions"
                yield f"undecided: {join_names(names)}: {what}, {scope}"
            waiting = _boundaries_without_result(rows)
            if waiting:
                yield f"not compared, because the run ended first: {join_names(waiting)}"
            if not waiting or any(row["lines"] for row in rows):
                yield cover(rows)
            if any(row["lines"] and row["boundary"] for row in rows):
                yield SIZES

    def document(self) -> dict[str, Any]:
        """Return the report as JSON data, for ``gate.json``."""
        keys = ("boundary", "outcome", "sentence", "places", "undecided")
        return {
            "comparisons": [
                {
                    "target": target,
                    "base": base,
                    "head": head,
                    "patch": _coverage(rows),
                    "boundaries": [{key: row[key] for key in keys} for row in rows if row["boundary"]],
                    "beyond": [line for row in rows for line in row["beyond"]],
                    "not_compared": _boundaries_without_result(rows),
                }
                for (target, base, head), rows in self._by_pair()
            ]
        }

    def markdown(self) -> str:
        """Return the report as Markdown, for a GitHub job summary."""
        items = []
        for line in self.lines():
            word, colon, rest = line.strip().partition(": ")
            items.append(f"* **{escaped(word)}**{colon}{escaped(rest)}" if colon else f"* {escaped(word)}")
        return "\n".join(["## Sentinel", "", *items]) + "\n\n"

    def annotations(self, trees: Mapping[str, Path], environ: Mapping[str, str]) -> list[str]:
        """Return GitHub annotations for changed places. An annotation is an error if results are worse, and a warning
        if they differ but no oracle or law decides whether they are worse."""
        made: dict[str, None] = {}
        for level, outcome in (("error", "worse"), ("warning", "other")):
            for row in (row for row in self._rows.values() if row["outcome"] == outcome):
                for file, name, first, last in row["places"][:1] or [["", "", 1, 1]]:
                    title = f"{outcome}: {name or row['boundary']}"
                    text = f"{row['boundary']}: {row['sentence']}"
                    made.setdefault(command(level, title, text, trees.get(row["target"]), (file, first, last), environ))
        return list(made)[:MOST]

    def sarif(self) -> list[dict[str, Any]]:
        """Return the report as one SARIF run per comparison."""
        runs = []
        for (target, _, head), rows in self._by_pair():
            found = [row for row in rows if row["outcome"] in ("worse", "other")]
            rules = {f"sentinel/{row['outcome']}" for row in found}
            runs.append(
                {
                    "tool": {"driver": {"name": "Sentinel", "rules": [{"id": rule} for rule in sorted(rules)]}},
                    "automationDetails": {"id": f"sentinel/{target}/{head}"},
                    "columnKind": "unicodeCodePoints",
                    "results": [_sarif_result(row) for row in found],
                }
            )
        return runs


def _sarif_result(row: Row) -> dict[str, Any]:
    locations = [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": quote(file), "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": first, "endLine": last},
            },
            "logicalLocations": [{"fullyQualifiedName": name, "kind": "function"}],
        }
        for file, name, first, last in row["places"][:1]
    ]
    return {
        "ruleId": f"sentinel/{row['outcome']}",
        "level": "error" if row["outcome"] == "worse" else "warning",
        "message": {"text": f"{row['boundary']}: {row['sentence']}"},
        "locations": locations,
    }


def _group(outcome: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the report lines of one outcome. Boundaries that were changed at the same places share a line."""
    shown: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(map(tuple, row["places"])) if outcome in ("worse", "other") else (row["sentence"],)
        shown.setdefault(key or (row["boundary"],), []).append(row)
    for group in list(shown.values())[:_LINES]:
        first, *others = group
        where = ", ".join(f"{file}:{start} {name}" for file, name, start, _ in first["places"][:2])
        where = f" (changed: {where})" if where and outcome in ("worse", "other", "better") else ""
        word = "warning: other" if outcome == "other" else outcome
        yield f"{word}: {first['boundary']}{where}: {first['sentence']}"
        if outcome != "worse":  # a failed item prints its scenario itself
            yield from (f"  {line}" for line in first["scenario"])
        if others:
            yield f"  and {join_names([row['boundary'] for row in others])}"
    if len(shown) > _LINES:
        yield f"{outcome}: {len(shown) - _LINES} more"


def cover(rows: Sequence[Row]) -> str:
    """Return the patch coverage as text: how many changed signal lines ran, and which did not."""
    found = _coverage(rows)
    count = found["changed"]
    if not count:
        return "no signal line changed"
    bound = [each for each in found["not_run"] if each["bound"]]
    silent = [each for each in bound if each["guard"] == NO_EFFECT]
    idle = [each for each in bound if each not in silent]
    unbound = [each for each in found["not_run"] if not each["bound"]]
    added = found["added"]
    parts = [f"{count} signal line{'' if count == 1 else 's'} changed ({added} added, {count - added} deleted)"]
    parts.append(f"{found['ran']} ran (added lines at the head, deleted lines at the base)")
    parts += [f"{_count(idle)} not reached ({join_names(list(map(_range, idle)))})"] if idle else []
    if silent:
        places = join_names([_range({**each, "guard": ""}) for each in silent])
        parts.append(f"{_count(silent)} ran, but no compared result depends on them ({places})")
    first = {(each["file"], each["function"]): {**each, "guard": ""} for each in reversed(unbound)}
    parts += (
        [f"{_count(unbound)} not bound ({join_names([_range(first[key]) for key in sorted(first)])})"] if first else []
    )
    return message("; ".join(parts))


def _coverage(rows: Sequence[Row]) -> dict[str, Any]:
    return coverage(merge(line for row in rows for line in row["lines"]))


def _count(entries: Sequence[Mapping[str, Any]]) -> int:
    return sum(each["statements"] for each in entries)


def _range(entry: Mapping[str, Any]) -> str:
    first, last = entry["lines"]
    texts = [] if entry["side"] == AFTER else ["deleted"]
    texts += [explain_guard(entry["guard"])] if entry["guard"] else []
    span = f"{first}-{last}" if last > first else f"{first}"
    return ", ".join([f"{os.path.basename(entry['file'])}:{span} {entry['function']}", *texts])


def _boundaries_without_result(rows: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row["names"])
    return [name for name in names if name not in {row["boundary"] for row in rows}]
