"""The index: every record of a folder as rows of SQLite, so that questions across bugs and targets take no reading.

It holds nothing that the records do not, and is made anew whenever it is missing, damaged or older than they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.history import record as records
from sentinel.sources.locks import locked

NAME = "index.sqlite"
_VERSION = 1
_TABLES = """
create table record (id integer primary key, target, bug, title, laws, kind, ref, walk, head, commits, file);
create table run (record, position, verdict, kind, commits, first, first_date, last, last_date);
create table change (record, what, sha, date, subject, pull, after, undecided);
create table spell (record, started, started_date, ended, ended_date, days);
create table release (record, name, sha, date, verdict, kind);
create table about (version, stamp);
create index run_record on run (record);
create index release_name on release (name);
"""


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
    with _opened(folder) as database:
        where, values = _conditions(question)
        if question.release:
            where += ["release.name glob ?"]
            values += [question.release]
            columns = "release.name as release, release.verdict, release.kind, release.date, release.sha"
            table, order = "release", "release.date, release.name"
        else:
            columns = (
                "run.verdict, run.kind, run.commits, run.first, run.first_date, run.last, run.last_date, "
                "record.kind as source"
            )
            table, order = "run", "run.position"
        if question.verdict:
            where += [f"{table}.verdict = ?"]
            values += [question.verdict]
        date = ("run.first_date", "run.last_date") if table == "run" else ("release.date", "release.date")
        if question.since:
            where += [f"substr({date[1]}, 1, 10) >= ?"]
            values += [question.since]
        if question.until:
            where += [f"substr({date[0]}, 1, 10) <= ?"]
            values += [question.until]
        condition = f" where {' and '.join(where)}" if where else ""
        rows = database.execute(
            f"select record.target, record.bug, {columns} from {table} join record on record.id = {table}.record"
            f"{condition} order by record.target, record.bug, record.kind, {order}",
            values,
        )
        return [dict(row) for row in rows]


def of_bug(folder: Path, bug: str) -> list[dict[str, Any]]:
    """The records of a bug, whole: the one over most commits first.

    :raises SentinelError: where there is none; names the nearest.
    """
    with _opened(folder) as database:
        found = database.execute(
            "select file from record where lower(bug) = lower(?) order by commits desc", (bug,)
        ).fetchall()
        known = [row["bug"] for row in database.execute("select distinct bug from record")]
    if not found:
        from sentinel.settings import nearest

        raise SentinelError(f"no history of {bug!r} in {folder}{nearest(bug, known)}; `sentinel sweep TARGET` makes it")
    return [records.load(folder / row["file"]) for row in found]


def _conditions(question: Question) -> tuple[list[str], list[str]]:
    where, values = [], []
    for column, glob in (("target", question.target), ("bug", question.bug)):
        if glob:
            where.append(f"lower(record.{column}) glob lower(?)")
            values.append(glob)
    if question.law:
        where.append("exists (select 1 from json_each(record.laws) where value glob ?)")
        values.append(question.law)
    return where, values


@contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    files = list(records.files(folder)) if folder.is_dir() else []
    if not files:
        raise SentinelError(f"no histories in {folder}; `sentinel sweep TARGET` makes them")
    stamp = _stamp(folder, files)
    place = folder / NAME
    try:
        with locked(folder / ".index.lock"):
            if _told(place) != (_VERSION, stamp):
                _rebuild(place, folder, files, stamp)
        connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
    except (OSError, sqlite3.Error):  # a folder that cannot be written, such as a committed one on a read-only disk
        connection = sqlite3.connect(":memory:")
        _fill(connection, folder, files, stamp)
    with closing(connection):
        connection.row_factory = sqlite3.Row
        yield connection


def _stamp(folder: Path, files: Sequence[Path]) -> str:
    """What changes when a record does."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.relative_to(folder)} {status.st_mtime_ns} {status.st_size}\n".encode())
    return digest.hexdigest()


def _told(place: Path) -> tuple[int, str] | None:
    """The version and the stamp of an index; None where there is none that is whole, in its last page too."""
    try:
        with closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as database:
            (state,) = database.execute("pragma quick_check(1)").fetchone()
            version, stamp = database.execute("select version, stamp from about").fetchone()
            if state != "ok":
                return None
            return int(version), str(stamp)
    except (sqlite3.Error, TypeError, ValueError):
        return None


def _rebuild(place: Path, folder: Path, files: Sequence[Path], stamp: str) -> None:
    part = place.with_name(f".{NAME}.new")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(part)) as database:
        _fill(database, folder, files, stamp)
    os.replace(part, place)


def _fill(database: sqlite3.Connection, folder: Path, files: Sequence[Path], stamp: str) -> None:
    database.executescript(_TABLES)
    for number, file in enumerate(files):
        _insert(database, number, records.load(file), file.relative_to(folder).as_posix())
    database.execute("insert into about values (?, ?)", (_VERSION, stamp))
    database.commit()


def _insert(database: sqlite3.Connection, number: int, record: Mapping[str, Any], file: str) -> None:
    source = record["source"]
    head = (record["target"], record["bug_id"], record["title"], json.dumps(record["laws"]))
    about = (source["kind"], source["ref"], source["walk"], source["head"], record["commits"], file)
    _row(database, "record", number, *head, *about)
    for position, run in enumerate(record["runs"]):
        ends = [run[end][key] for end in ("first", "last") for key in ("sha", "date")]
        _row(database, "run", number, position, run["verdict"], run["kind"], run["commits"], *ends)
    for change in record["changes"]:
        commit, after = change["commit"], change["after"] or {}
        named = [commit[key] for key in ("sha", "date", "subject", "pull")]
        _row(database, "change", number, change["what"], *named, after.get("sha"), change["undecided"])
    for spell in record["spells"]:
        began, ended = spell["introduced"]["commit"], (spell["ended"] or {}).get("commit") or {}
        dates = (began["sha"], began["date"], ended.get("sha"), ended.get("date"))
        _row(database, "spell", number, *dates, spell["days"])
    for item in record["releases"]:
        _row(database, "release", number, *(item[key] for key in ("name", "commit", "date", "verdict", "kind")))


def _row(database: sqlite3.Connection, table: str, *values: Any) -> None:
    database.execute(f"insert into {table} values ({', '.join('?' * len(values))})", values)
