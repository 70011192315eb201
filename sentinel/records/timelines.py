"""Historys for readers: what happened, a timeline that a terminal can show, and the table of all."""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.deciding.outcomes import UNDECIDED
from sentinel.records.history import History
from sentinel.reports.markdown import escaped

#: How a verdict is drawn in a timeline; of several in one place the first of this order is shown.
_MARKS = {"reproduced": "#", "changed": "~", "fixed": ".", "inconclusive": "?", "unavailable": " "}
LEGEND = "# reproduced   . fixed   ~ changed   ? inconclusive   (blank) unavailable"
_SAID = {
    "present": "there where it is first decided",
    "introduced": "introduced",
    "fixed": "fixed",
    "changed": "changed: neither value set fits from here on",
    "removed": "its code is gone",
    "appeared": "the code appears, without the bug",
}
HEADINGS = ("target", "bug", "introduced", "ended", "days", "releases with the bug")
#: What :func:`_date` puts before a day.
MARKS = (
    "+ it came with its code, which is new in that commit   ≤ there at the first commit   "
    "~ then, or in a commit before that could not be decided"
)


def timeline(record: History, width: int = 72) -> str:
    """Give one line for the whole history, evenly by commits; what is rare keeps a place of its own."""
    total = record["commits"]
    width = min(width, total)
    cells: list[set[str]] = [set() for _ in range(width)]
    at = 0
    for run in record["runs"]:
        end = at + run["commits"]
        for cell in range(at * width // total, max(at * width // total + 1, -(-end * width // total))):
            cells[min(cell, width - 1)].add(run["verdict"])
        at = end
    return "".join(next(mark for name, mark in _MARKS.items() if name in cell) for cell in cells)


def story(record: History, width: int = 72) -> list[str]:
    """Say what a person wants to know of one bug, as lines."""
    lines = [record["bug_id"]]
    if record["commits"] > 1:
        lines.append(f"  |{timeline(record, width)}|")
    lines += [f"  {change_text(change)}" for change in record["changes"]]
    if not record["changes"]:
        decided = sum(run["commits"] for run in record["runs"] if run["verdict"] not in UNDECIDED)
        same = f"the same verdict at each of {decided} decided commits" if decided else "no commit could be decided"
        lines.append(f"  {same}, of {record['commits']}")
    for lifetime in record["spells"]:
        lines.append(f"  {lifetime_text(lifetime)}")
    carried = carried_by(record)
    if carried:
        lines.append(f"  in {span(carried)}")
    for run in record["runs"]:
        if run["verdict"] in UNDECIDED:
            lines.append(
                f"  {run['verdict']} ({run['kind']}) for {count(run['commits'], record)}, "
                f"{short(run['first'])} to {short(run['last'])}: {run['reason']}"
            )
    begins = record["source"]["begins"]
    if begins:
        lines.append(f"  the mirror is shallow: its history begins at {', '.join(sha[:7] for sha in begins)}")
    return lines


def heading(record: History) -> str:
    """Say what a record is about."""
    source = record["source"]
    if source["kind"] == "pypi":
        return f"{record['target']}: {count(record['commits'], record)} of {source['ref']} on PyPI"
    span = "".join(f", {name} {source[name]}" for name in ("since", "until") if source[name])
    return f"{record['target']}: {count(record['commits'], record)} of {source['ref']} ({source['walk']}{span})"


def releases(record: History) -> list[str]:
    """Give each release with its verdict."""
    width = max(len(item["name"]) for item in record["releases"])
    return [
        f"  {item['name']:<{width}}  {item['date'][:10]}  {item['verdict']}{_kind(item)}" for item in record["releases"]
    ]


def _kind(item: History) -> str:
    return f" ({item['kind']})" if item["kind"] else ""


def change_text(change: History) -> str:
    """Write ``introduced 2025-03-01 0123456 "subject" (#12)``, with how sure that is."""
    text = f"{_SAID[change['what']]}: {named(change['commit'])}"
    origin = change["origin"]
    if origin:
        text += f" [{origin['older']} of the {origin['lines']} lines of its code are older]"
    if not change["undecided"]:
        return text
    before = f"{change['undecided']} before it that could not be decided: {change['why']}"
    return f"{text} (or earlier: there are {before})" if not change["after"] else f"{text} (or in one of the {before})"


def lifetime_text(lifetime: History) -> str:
    ended = lifetime["ended"]
    text = f"there for {lifetime['days']} days" if ended else f"still there after {lifetime['days']} days"
    return text + (" (the dates of the commits go backwards)" if lifetime["clock_went_backwards"] else "")


def carried_by(record: History) -> list[str]:
    """Give the releases that have the bug."""
    return [item["name"] for item in record["releases"] if item["verdict"] == "reproduced"]


def span(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(names)} releases)"


def row(record: History) -> tuple[str, ...]:
    """Give a bug's line in the table of :data:`HEADINGS`."""
    lifetimes = record["spells"]
    started = "; ".join(_date(lifetime["introduced"]) for lifetime in lifetimes)
    ended = "; ".join(_date(lifetime["ended"]) if lifetime["ended"] else "still there" for lifetime in lifetimes)
    dated = record["source"]["kind"] == "git"  # the package index does not say when
    days = "; ".join(str(lifetime["days"]) for lifetime in lifetimes) if dated else ""
    decided = {"fixed", "changed"} & {run["verdict"] for run in record["runs"]}
    return (
        record["target"],
        record["bug_id"],
        started or ("never seen" if decided else "not decided"),
        ended,
        days,
        span(carried_by(record)),
    )


def overview(records: Sequence[History]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Give a line a bug: what its longest record of commits says, and which tags and releases on PyPI have it."""
    bugs: dict[tuple[str, str], dict[str, History]] = {}
    for record in sorted(records, key=lambda record: int(record["commits"])):
        bugs.setdefault((record["target"], record["bug_id"]), {})[_kind_of(record)] = record
    rows = []
    for key, kinds in sorted(bugs.items()):
        # Tags alone do not say with which of the commits between two of them a bug came.
        tags = span(carried_by(kinds["tags"])) if "tags" in kinds else ""
        cells = row(kinds["commits"]) if "commits" in kinds else (*key, "not swept", "", "", tags)
        rows.append((*cells, span(carried_by(kinds["pypi"])) if "pypi" in kinds else ""))
    return (*HEADINGS, "on PyPI"), rows


def _kind_of(record: History) -> str:
    source = record["source"]
    return str(source["kind"]) if source["kind"] != "git" else "tags" if source["walk"] == "tags" else "commits"


def counts(records: Sequence[History]) -> list[str]:
    """Say what the records of commits come to, as sentences."""
    of_git = [record for record in records if _kind_of(record) == "commits"]
    with_bug = [record for record in of_git if record["spells"]]
    lifetimes = [lifetime for record in with_bug for lifetime in record["spells"]]
    with_code = sum(came_with_its_code(lifetime["introduced"]) for lifetime in lifetimes)
    later = sum(not lifetime["introduced"]["begins"] for lifetime in lifetimes)
    ended = sorted(lifetime["days"] for lifetime in lifetimes if lifetime["ended"])
    lasting = sorted(lifetime["days"] for lifetime in lifetimes if not lifetime["ended"])
    released = sum(bool(carried_by(record)) for record in with_bug)
    commits = sum({record["target"]: record["commits"] for record in of_git}.values())
    return [
        f"bugs: {len(of_git)}, at {commits:,} commits; seen: {len(with_bug)}; in a tagged release: {released}",
        f"came with their code: {with_code}; into code that was otherwise before: {later}",
        f"ended: {len(ended)}, after {_middle(ended)} days (median); still there: {len(lasting)}, "
        f"for {_middle(lasting)} days",
    ]


def _middle(days: Sequence[int]) -> str:
    return str(days[len(days) // 2]) if days else "0"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Give a table as Markdown."""
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    for cells in rows:
        lines.append(f"| {' | '.join(map(escaped, cells))} |")
    return "\n".join(lines)


def _date(change: History) -> str:
    commit = change["commit"]
    unsure = "~" if change["undecided"] else "≤" if change["what"] == "present" else ""
    mark = "+" if came_with_its_code(change) else unsure
    if not commit["date"]:
        return f"{mark}{commit['sha'].removeprefix('pypi:')}"
    return f"{mark}{commit['date'][:10]} {'#' if commit['pull'] else ''}{commit['pull'] or commit['sha'][:7]}"


def came_with_its_code(change: History) -> bool:
    """Say whether a history begins with code that was written in that commit: most of it is in no file of the one
    before.

    A commit that moved the code, or gave it another name, says nothing of what was there before.
    """
    origin = change["origin"]
    return bool(origin) and 2 * origin["older"] < origin["lines"]


def named(commit: History) -> str:
    return f"{commit['date'][:10]} {commit['sha'][:9]} {commit['subject']}".strip()


def short(commit: History) -> str:
    return f"{commit['sha'][:9]}{f' ({day})' if (day := commit['date'][:10]) else ''}"


def count(number: int, record: History) -> str:
    noun = "release" if record["source"]["kind"] == "pypi" else "commit"
    return f"{number} {noun}{'' if number == 1 else 's'}"
