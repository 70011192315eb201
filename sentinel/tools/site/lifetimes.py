"""Compute from recorded histories when each bug was present, and in which releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sentinel.records.history import state_of
from sentinel.records.timelines import came_with_its_code, change_text, releases_with_bug
from sentinel.tools.site.material import Bug, Material

Record = Mapping[str, Any]


def lives(material: Material) -> Iterator[dict[str, Any]]:
    """Yield, for each target, when its bugs were present, and which bugs have no history.

    ``drawn`` has the lifetimes that can be drawn on a time axis; histories of PyPI releases have no dates.
    """
    for target in material.targets:
        bugs = material.bugs_of(target)
        stories = [life for bug in bugs if (life := life_of(bug)) is not None]
        stories.sort(key=lambda life: ([span["start"] for span in life["spans"]] or ["9"], life["bug"].bug_id))
        unknown = [bug for bug in bugs if not bug.histories]
        yield {
            "target": target,
            "stories": stories,
            "unknown": unknown,
            "drawn": [life for life in stories if life["until"]],
        }


def life_of(bug: Bug) -> dict[str, Any] | None:
    """Return the periods and releases in which a bug was present, or None if it has no history.

    ``releases`` are the repository's tags if the history has verdicts for them, otherwise the PyPI releases.
    """
    of_git = [record for record in bug.histories if record["source"]["kind"] == "git"]
    line = max(of_git, key=lambda record: int(record["commits"]), default=None)
    index = next((record for record in bug.histories if record["source"]["kind"] == "pypi"), None)
    record = line or index
    if record is None:
        return None
    releases: Sequence[Record] = (line and line["releases"]) or (index["releases"] if index else ())
    runs = record["runs"]
    return {
        "bug": bug,
        "spans": [_span(lifetime) for lifetime in record["spells"] if lifetime["introduced"]["commit"]["date"]],
        "stretches": list(_stretches(runs)),
        "changes": [change_text(change) for change in record["changes"]],
        "releases": [{**release, "date": release["date"][:10]} for release in releases],
        "carried": releases_with_bug(line) if line else [],
        "on_pypi": releases_with_bug(index) if index else [],
        "since": runs[0]["first"]["date"][:10] if runs else "",
        "until": runs[-1]["last"]["date"][:10] if runs else "",
        "extent": _extent(record),
    }


def _span(lifetime: Record) -> dict[str, Any]:
    """Return a period with the bug. ``open_start`` is True if the bug may be older than the first commit with a
    verdict."""
    begun, ended = lifetime["introduced"], lifetime["ended"]
    return {
        "start": begun["commit"]["date"][:10],
        "end": (ended["commit"] if ended else lifetime["last"])["date"][:10],
        "days": lifetime["days"],
        "over": ended is not None,
        "open_start": begun["what"] == "present" and not came_with_its_code(begun),
    }


def _stretches(runs: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield the periods in which the code existed and did not reproduce the bug, each with its state."""
    for run in runs:
        state = state_of(run["verdict"], run["kind"])
        if state not in ("reproduced", "absent"):
            yield {"start": run["first"]["date"][:10], "end": run["last"]["date"][:10], "state": state or ""}


def _extent(record: Record) -> str:
    source, number = record["source"], int(record["commits"])
    noun = "release" if source["kind"] == "pypi" else "tag" if source["walk"] == "tags" else "commit"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
