"""Questions across bugs and targets, answered from the records of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError, nearest
from sentinel.history import record as records


@dataclass(frozen=True)
class Question:
    """What is asked for; empty: anything. Globs where it says so.

    :ivar target, bug, law: globs.
    :ivar verdict: of a run of commits, or of the release where one is asked for.
    :ivar since, until: days: runs that have a commit between them.
    :ivar release: a glob: the verdicts in releases, instead of those of commits.
    """

    target: str = ""
    bug: str = ""
    law: str = ""
    verdict: str = ""
    since: str = ""
    until: str = ""
    release: str = ""


def ask(folder: Path, question: Question) -> list[dict[str, Any]]:
    """The runs of commits (or the releases) that a question is about, by target, bug and time.

    :raises SentinelError: where the folder holds no records.
    """
    found = [record for record in every(folder) if _is_about(record, question)]
    found.sort(key=lambda record: (record["target"], record["bug_id"], record["source"]["kind"]))
    return [row for record in found for row in _rows(record, question)]


def _is_about(record: Mapping[str, Any], question: Question) -> bool:
    return (
        fnmatchcase(record["target"].lower(), question.target.lower() or "*")
        and fnmatchcase(record["bug_id"].lower(), question.bug.lower() or "*")
        and (not question.law or any(fnmatchcase(law, question.law) for law in record["laws"]))
    )


def _rows(record: Mapping[str, Any], question: Question) -> Iterator[dict[str, Any]]:
    """The runs of commits or the releases of a record that are asked for, in order of time."""
    about = {"target": record["target"], "bug": record["bug_id"]}
    rows: list[dict[str, Any]]
    if question.release:
        releases = sorted(record["releases"], key=lambda item: (item["date"], item["name"]))
        rows = [
            {"release": r["name"], **{name: r[name] for name in ("verdict", "kind", "date")}, "sha": r["commit"]}
            for r in releases
            if fnmatchcase(r["name"], question.release)
        ]
    else:
        rows = [
            {
                **{name: run[name] for name in ("verdict", "kind", "commits")},
                **{end: run[end]["sha"] for end in ("first", "last")},
                **{f"{end}_date": run[end]["date"] for end in ("first", "last")},
                "source": record["source"]["kind"],
            }
            for run in record["runs"]
        ]
    for row in rows:
        first, last = (str(row.get(name, row.get("date"))) for name in ("first_date", "last_date"))
        if question.verdict not in ("", row["verdict"]):
            continue
        if question.since <= last[:10] and first[:10] <= (question.until or "9999"):
            yield {**about, **row}


def of_bug(folder: Path, bug: str) -> list[dict[str, Any]]:
    """The records of a bug, whole: the one over most commits first.

    :raises SentinelError: where there is none; names the nearest.
    """
    kept = every(folder)
    found = [record for record in kept if record["bug_id"].lower() == bug.lower()]
    if not found:
        known = [record["bug_id"] for record in kept]
        raise SentinelError(f"no history of {bug!r} in {folder}{nearest(bug, known)}; `sentinel sweep TARGET` makes it")
    return sorted(found, key=lambda record: -record["commits"])


def every(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder.

    :raises SentinelError: where there is none, or a file that is none.
    """
    found = [records.load(file) for file in records.files(folder)]
    if not found:
        raise SentinelError(
            f"no histories in {folder}; `sentinel sweep TARGET` makes them; in a clone of Sentinel, "
            "--from reports/history has them"
        )
    return found
