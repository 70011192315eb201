"""Format histories as text: the changes of one bug, a timeline for the terminal, and a table of all bugs."""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.deciding.outcomes import UNDECIDED
from sentinel.records.history import History
from sentinel.reports.markdown import escaped

#: The character for each verdict. A column with several verdicts gets the first of their characters in this order.
_MARKS = {"reproduced": "#", "changed": "~", "fixed": ".", "inconclusive": "?", "unavailable": " "}
LEGEND = "# reproduced   . fixed   ~ changed   ? inconclusive   (blank) unavailable"
_CHANGE_TEXTS = {
    "present": "present at the first revision with a clear result",
    "introduced": "introduced",
    "fixed": "fixed",
    "changed": "changed: the results are neither the buggy nor the correct ones",
    "removed": "its code was removed",
    "appeared": "the code was added, without the bug",
}
HEADINGS = ("target", "bug", "introduced", "ended", "days", "releases with the bug")
#: The marks that :func:`_date` puts before a day.
MARKS = (
    "+ introduced together with its code   ≤ present at the first commit with a clear result   "
    "~ in that commit, or in one without a clear result before it"
)


def timeline(record: History, width: int = 72) -> str:
    """Draw a history as a string in which each column stands for the same number of commits. Every run has at least one
    column."""
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


def pictures(records: Sequence[History], width: int = 24) -> dict[tuple[str, str], str]:
    """Return (target, bug) -> a timeline of the branch, the oldest commit first."""
    commits = [record for record in records if _kind_of(record) == "commits" and record["commits"] > 1]
    return {(record["target"], record["bug_id"]): f"|{timeline(record, width)}|" for record in commits}


def story(record: History, width: int = 72) -> list[str]:
    """Describe the history of one bug in lines of text."""
    lines = [record["bug_id"]]
    if record["commits"] > 1:
        lines.append(f"  |{timeline(record, width)}|")
    lines += [f"  {change_text(change)}" for change in record["changes"]]
    if not record["changes"]:
        decided = sum(run["commits"] for run in record["runs"] if run["verdict"] not in UNDECIDED)
        same = "the same verdict at all revisions with a clear result" if decided else "nothing could be decided"
        lines.append(f"  {same} ({decided} of {count(record['commits'], record)})")
    for lifetime in record["spells"]:
        lines.append(f"  {lifetime_text(lifetime)}")
    affected = releases_with_bug(record)
    if affected:
        lines.append(f"  in {span(affected)}")
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
    """Return the first line of a printed history: target, number of revisions, and where they are from."""
    source = record["source"]
    if source["kind"] == "pypi":
        return f"{record['target']}: {count(record['commits'], record)} of {source['ref']} on PyPI"
    span = "".join(f", {name} {source[name]}" for name in ("since", "until") if source[name])
    return f"{record['target']}: {count(record['commits'], record)} of {source['ref']} ({source['walk']}{span})"


def releases(record: History) -> list[str]:
    """Return one line per release with its verdict."""
    width = max(len(item["name"]) for item in record["releases"])
    lines = []
    for item in record["releases"]:
        kind = f" ({item['kind']})" if item["kind"] else ""
        lines.append(f"  {item['name']:<{width}}  {item['date'][:10]}  {item['verdict']}{kind}")
    return lines


def change_text(change: History) -> str:
    """Describe a change of verdict: ``introduced: 2025-03-01 0123456 "subject" (#12)``."""
    text = f"{_CHANGE_TEXTS[change['what']]}: {commit_line(change['commit'])}"
    origin = change["origin"]
    if origin:
        text += f" [{origin['older']} of the {origin['lines']} lines of its code are older than this commit]"
    if not change["undecided"]:
        return text
    number = change["undecided"]
    before = f"{number} revision{'' if number == 1 else 's'} before it"
    if not change["after"]:
        return f"{text} (or earlier: no clear result at {before}: {change['why']})"
    return f"{text} (or at one of {before} without a clear result: {change['why']})"


def lifetime_text(lifetime: History) -> str:
    ended = lifetime["ended"]
    text = f"present for {lifetime['days']} days" if ended else f"still present after {lifetime['days']} days"
    return text + (" (the dates of the commits go backwards)" if lifetime["clock_went_backwards"] else "")


def releases_with_bug(record: History) -> list[str]:
    """Return the names of the releases that have the bug."""
    return [item["name"] for item in record["releases"] if item["verdict"] == "reproduced"]


def span(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(names)} releases)"


def row(record: History) -> tuple[str, ...]:
    """Return the table row of a bug's history, with the columns :data:`HEADINGS`."""
    lifetimes = record["spells"]
    started = "; ".join(_date(lifetime["introduced"]) for lifetime in lifetimes)
    ended = "; ".join(_date(lifetime["ended"]) if lifetime["ended"] else "still present" for lifetime in lifetimes)
    dated = record["source"]["kind"] == "git"  # no date is known for PyPI releases
    days = "; ".join(str(lifetime["days"]) for lifetime in lifetimes) if dated else ""
    decided = {"fixed", "changed"} & {run["verdict"] for run in record["runs"]}
    return (
        record["target"],
        record["bug_id"],
        started or ("never seen" if decided else "not decided"),
        ended,
        days,
        span(releases_with_bug(record)),
    )


def overview(records: Sequence[History]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and rows of a table of all bugs, each with the releases that have it."""
    bugs: dict[tuple[str, str], dict[str, History]] = {}
    for record in sorted(records, key=lambda record: int(record["commits"])):
        bugs.setdefault((record["target"], record["bug_id"]), {})[_kind_of(record)] = record
    rows = []
    for key, kinds in sorted(bugs.items()):
        # A history of tags does not show which commit between two tags introduced a bug, so only releases are listed.
        tags = span(releases_with_bug(kinds["tags"])) if "tags" in kinds else ""
        cells = row(kinds["commits"]) if "commits" in kinds else (*key, "not swept", "", "", tags)
        rows.append((*cells, span(releases_with_bug(kinds["pypi"])) if "pypi" in kinds else ""))
    return (*HEADINGS, "on PyPI"), rows


def _kind_of(record: History) -> str:
    source = record["source"]
    return str(source["kind"]) if source["kind"] != "git" else "tags" if source["walk"] == "tags" else "commits"


def counts(records: Sequence[History]) -> list[str]:
    """Return sentences that count changes and periods over the histories of all bugs."""
    of_git = [record for record in records if _kind_of(record) == "commits"]
    with_bug = [record for record in of_git if record["spells"]]
    lifetimes = [lifetime for record in with_bug for lifetime in record["spells"]]
    with_code = sum(came_with_its_code(lifetime["introduced"]) for lifetime in lifetimes)
    later = sum(not lifetime["introduced"]["begins"] for lifetime in lifetimes)
    ended = sorted(lifetime["days"] for lifetime in lifetimes if lifetime["ended"])
    lasting = sorted(lifetime["days"] for lifetime in lifetimes if not lifetime["ended"])
    released = sum(bool(releases_with_bug(record)) for record in with_bug)
    commits = sum({record["target"]: record["commits"] for record in of_git}.values())
    return [
        f"bugs: {len(of_git)}, tested at {commits:,} commits; present at a commit: {len(with_bug)}; "
        f"present in a tagged release: {released}",
        f"introduced with their code: {with_code}; introduced into existing code: {later}",
        f"fixed or removed: {len(ended)}, after {_middle(ended)} days (median); still present: {len(lasting)}, "
        f"for {_middle(lasting)} days (median)",
    ]


def _middle(days: Sequence[int]) -> str:
    return str(days[len(days) // 2]) if days else "0"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format headings and rows as a Markdown table."""
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
    """Return True if the bug came with new code, of which less than half is older than the commit.

    Otherwise the commit may only have moved or renamed the code, and the bug may be older.
    """
    origin = change["origin"]
    return bool(origin) and 2 * origin["older"] < origin["lines"]


def commit_line(commit: History) -> str:
    return f"{commit['date'][:10]} {commit['sha'][:9]} {commit['subject']}".strip()


def short(commit: History) -> str:
    return f"{commit['sha'][:9]}{f' ({day})' if (day := commit['date'][:10]) else ''}"


def count(number: int, record: History) -> str:
    noun = "release" if record["source"]["kind"] == "pypi" else "commit"
    return f"{number} {noun}{'' if number == 1 else 's'}"
