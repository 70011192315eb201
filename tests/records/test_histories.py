from dataclasses import replace
from typing import Any

from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.history import changes_of, lifetimes_of, runs_of
from sentinel.records.timelines import counts, overview
from sentinel.sources.commits import Commit

WORDS = {
    "R": ("reproduced", ""),
    "F": ("fixed", ""),
    "C": ("changed", ""),
    "D": ("inconclusive", "drift"),
    "A": ("unavailable", "not-in-this-version"),
    "U": ("unavailable", "ref"),
}


def line(text: str, days: list[int] | None = None) -> tuple[list[Commit], dict[str, ClosureVerdict]]:
    days = days or list(range(1, len(text) + 1))
    commits = [Commit(str(n), "", (str(n - 1),), f"2026-01-{day:02}T00:00:00Z", "") for n, day in enumerate(days)]
    return commits, {str(n): ClosureVerdict("", "", *WORDS[letter]) for n, letter in enumerate(text)}


def told(text: str) -> list[tuple[str, str, int]]:
    return [(c["what"], c["commit"]["sha"], c["undecided"]) for c in changes_of(runs_of(*line(text)), {})]


def test_neighbouring_commits_with_one_verdict_form_a_run():
    assert [(run["verdict"], run["kind"], run["commits"]) for run in runs_of(*line("RRFDDU"))] == [
        ("reproduced", "", 2),
        ("fixed", "", 1),
        ("inconclusive", "drift", 2),
        ("unavailable", "ref", 1),
    ]


def test_undecided_commits_with_one_reason_form_a_run():
    commits, entries = line("DDDD")
    reasons = ["no 'f' here", "no 'f' here; the nearest is 'g'", "f(a) has no parameter", "f(a, b) has no parameter"]
    entries = {
        sha: replace(entry, reason=reason) for (sha, entry), reason in zip(entries.items(), reasons, strict=True)
    }
    runs = runs_of(commits, entries)
    assert [(run["commits"], run["reason"]) for run in runs] == [(2, reasons[0]), (2, reasons[2])]


def test_changes_of_a_verdict_are_classified():
    assert told("FRF") == [("introduced", "1", 0), ("fixed", "2", 0)]
    assert told("RRC") == [("present", "0", 0), ("changed", "2", 0)]
    assert told("ARA") == [("introduced", "1", 0), ("removed", "2", 0)]
    assert told("AFR") == [("appeared", "1", 0), ("introduced", "2", 0)]
    assert told("FFF") == []
    assert told("") == []


def test_undecided_commits_are_not_interpolated():
    assert told("DDR") == [("present", "2", 2)]
    assert told("FDUR") == [("introduced", "3", 2)]
    assert told("RDR") == [("present", "0", 0)]
    assert told("RDD") == [("present", "0", 0)]


def spells(text: str, days: list[int] | None = None) -> list[tuple[int, bool, bool]]:
    runs = runs_of(*line(text, days))
    return [
        (lifetime["days"], lifetime["ended"] is not None, lifetime["clock_went_backwards"])
        for lifetime in lifetimes_of(changes_of(runs, {}), runs)
    ]


def test_lifetimes_are_computed_from_changes():
    assert spells("FRRRFR") == [(3, True, False), (0, False, False)]
    assert spells("RRR") == [(2, False, False)]
    assert spells("RDF") == [(2, True, False)]
    assert spells("FFF") == []


def test_dates_that_go_backwards_give_no_negative_days():
    assert spells("FRF", [5, 9, 3]) == [(0, True, True)]


def test_the_overview_has_one_line_per_bug():
    """Tags alone do not show which commit introduced a bug."""
    release = {"name": "v1", "commit": "0", "date": "", "verdict": "reproduced", "kind": ""}
    runs = [{"verdict": "reproduced", "kind": "", "reason": "", "commits": 1}]

    def record(bug: str, kind: str, walk: str, commits: int) -> dict[str, Any]:
        source = {"kind": kind, "walk": walk, "ref": "main"}
        shared: dict[str, Any] = {"target": "tiny", "runs": runs, "changes": [], "spells": [], "releases": [release]}
        return {**shared, "bug_id": bug, "source": source, "commits": commits}

    records = [record("A", "git", "first-parent", 9), record("A", "pypi", "releases", 2), record("B", "git", "tags", 3)]
    headings, rows = overview(records)
    assert headings[-2:] == ("releases with the bug", "on PyPI")
    assert rows == [("tiny", "A", "not decided", "", "", "v1", "v1"), ("tiny", "B", "not swept", "", "", "v1", "")]
    assert counts(records)[0] == "bugs: 1, tested at 9 commits; present at a commit: 0; present in a tagged release: 0"
