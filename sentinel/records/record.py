"""Records: the history of one bug as plain JSON, to be kept, compared, committed and asked.

history/<target>/<BUG-ID>/<source>.json            in ``SENTINEL_HOME``; a source is ``git-main``, ``pypi``, …
reports/history/<target>/<BUG-ID>/<source>.json    what is committed of them

The same history, recipe, adapter and environment give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.errors import NothingExamined, SentinelError, nearest
from sentinel.recipes import Recipe
from sentinel.recipes.json_schema import JsonSchema
from sentinel.records import chronicle
from sentinel.records.basis import Basis
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.origins import Origin
from sentinel.reports.escaping import message
from sentinel.reports.evidence import laid_out
from sentinel.reports.store import below, file_name, own, parse, write_atomically
from sentinel.sources.commits import Commit, Tag, is_moment

#: 2: a change says where the code came from that a history begins with.
SCHEMA_VERSION = 2
#: More than there are commits, lines or days.
_MANY = 10**9


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


_TEXT, _SWITCH, _COUNT = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "minimum": 0}
_VERDICT = {"enum": ["reproduced", "fixed", "changed", "inconclusive", "unavailable"]}
_COMMIT = _object(sha=_TEXT, date=_TEXT, subject=_TEXT, pull=_or_null(_COUNT))
_CHANGE = _object(
    what={"enum": ["present", "introduced", "fixed", "changed", "removed", "appeared"]},
    commit=_COMMIT, after=_or_null(_COMMIT), undecided=_COUNT, why=_TEXT, begins=_SWITCH,
    origin=_or_null(_object(lines=_COUNT, older=_COUNT)),
)  # fmt: skip
#: What is read of a record; it may come from anybody's ``reports/``.
_SCHEMA = JsonSchema(_object(
    schema_version=_COUNT, target=_TEXT, bug_id=_TEXT, title=_TEXT, laws=_list(_TEXT), commits=_COUNT,
    source=_object(
        begins=_list(_TEXT), kind={"enum": ["git", "pypi"]},
        **dict.fromkeys(("ref", "head", "walk", "since", "until"), _TEXT),
    ),
    runs=_list(_object(verdict=_VERDICT, kind=_TEXT, reason=_TEXT, commits=_COUNT, first=_COMMIT, last=_COMMIT)),
    changes=_list(_CHANGE),
    spells=_list(_object(
        introduced=_CHANGE, ended=_or_null(_CHANGE), last=_COMMIT, days=_COUNT, clock_went_backwards=_SWITCH
    )),
    releases=_list(_object(name=_TEXT, commit=_TEXT, date=_TEXT, verdict=_VERDICT, kind=_TEXT)),
))  # fmt: skip

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """What is looked at.

    :ivar ref: the branch or commit that was asked for.
    :ivar since, until: days or refs, as they were asked for; empty: the whole history.
    :ivar begins: the commits at which the history begins because the mirror is shallow.
    """

    ref: str = ""
    since: str = ""
    until: str = ""
    walk: str = "first-parent"
    kind: str = "git"
    head: str = ""
    begins: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        if self.kind != "git":
            return self.kind
        parts = [self.ref, "" if self.walk == "first-parent" else self.walk, self.since, self.until]
        return "-".join(["git", *(part for part in parts if part)])


def record(
    recipe: Recipe,
    basis: Basis,
    source: Selection,
    commits: Sequence[Commit],
    tags: Sequence[Tag],
    entries: Mapping[str, ClosureVerdict],
    origin: Callable[[Commit, ClosureVerdict], Origin | None] = lambda commit, entry: None,
) -> dict[str, Any]:
    """Give the record of one recipe.

    :param entries: by commit; those of tags too, also where they lie beside the line.
    :param origin: says where the code came from that is first decided at a commit.
    """
    runs = chronicle.runs_of(commits, entries)
    changes = [
        replace(change, origin=origin(change.commit, entries[change.commit.sha])) if change.begins else change
        for change in chronicle.changes_of(runs)
    ]
    document = {
        "schema_version": SCHEMA_VERSION,
        "target": recipe.target,
        "bug_id": recipe.bug_id,
        "title": recipe.title,
        "laws": list(recipe.laws),
        "boundary": recipe.boundary,
        "source": {**asdict(source), "begins": list(source.begins)},
        "basis": asdict(basis),
        "commits": len(commits),
        "closures": len({(entries[c.sha].closure, entries[c.sha].answers) for c in commits}),
        "runs": chronicle.plain(runs),
        "changes": chronicle.plain(changes),
        "spells": chronicle.plain(chronicle.lifetimes_of(changes, runs)),
        "releases": [_release(tag, entries[tag.commit.sha]) for tag in tags if tag.commit.sha in entries],
    }
    return dict(_clean(document))


def _release(tag: Tag, entry: ClosureVerdict) -> dict[str, Any]:
    plain = {"name": tag.name, "commit": tag.commit.sha, "date": tag.commit.date}
    return {**plain, "verdict": entry.verdict, "kind": entry.kind}


def _clean(value: Any) -> Any:
    """Clean foreign text (subjects, reasons, tag names) of what a terminal would obey or what names this machine."""
    if isinstance(value, Mapping):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return message(value) if isinstance(value, str) else value


def dumps(document: Record) -> str:
    """Give its text: sorted keys, and a line for each commit that is named, so that a diff shows what changed."""
    return laid_out(document, step=" ", flat=True) + "\n"


def kept(folder: Path, documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write records at their places below a folder, and give them."""
    records = list(documents)
    for document in records:
        write_atomically(place(folder, document), dumps(document), "choose another folder")
    return records


def place(folder: Path, document: Record) -> Path:
    """Say where a record lies below a store's folder."""
    source = Selection(**{**document["source"], "begins": tuple(document["source"]["begins"])})
    names = map(file_name, (document["target"], document["bug_id"]))
    return own(folder, PurePosixPath(*names, f"{file_name(source.key)}.json"))


def load(file: Path) -> dict[str, Any]:
    """Read a record.

    :raises SentinelError: where the file is none.
    """
    try:
        document: dict[str, Any] = parse(file)
    except SentinelError as error:
        raise SentinelError(f"{error}; `sentinel sweep` writes it anew") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version is not None and version != SCHEMA_VERSION:
        raise SentinelError(
            f"{file}: a record of schema version {str(version)[:40]}, and this Sentinel reads "
            f"{SCHEMA_VERSION}; sweep again"
        )
    if not _SCHEMA.accepts(document) or not _sound(document):
        raise SentinelError(f"{file}: no record of a history; `sentinel sweep` writes them")
    return document


def _sound(document: Record) -> bool:
    """Say whether numbers count something and come to the whole, and dates are days; releases on PyPI have none."""
    values = list(_leaves(document, ""))
    dates = [value for name, value in values if name == "date"]
    undated = document["source"]["kind"] != "git" and not any(dates)
    numbers = [value for _, value in values if isinstance(value, (int, float))]
    return (
        not any(isinstance(number, float) or abs(number) > _MANY for number in numbers)
        and document["commits"] == sum(run["commits"] for run in document["runs"])
        and (undated or all(map(is_moment, dates)))
    )


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else ((name, item) for item in value):
            yield from _leaves(item, key)
    else:
        yield name, value


def files(folder: Path) -> Iterator[Path]:
    """Give every record below a folder, in order of path."""
    for file in below(folder):
        parts = file.relative_to(folder).parts
        if (
            len(parts) > 1
            and not {"closures", "copies"} & set(parts)
            and not any(part.startswith(".") for part in parts)
        ):
            yield file


def of_bug(folder: Path, bug: str) -> list[dict[str, Any]]:
    """Give the records of a bug, whole: the one over most commits first."""
    name = file_name(bug).lower()  # a damaged record of another bug is no reason to show nothing of this one
    records = [load(file) for file in files(folder) if file.parent.name.lower() == name]
    records = [record for record in records if record["bug_id"].lower() == bug.lower()]
    if not records:
        bugs = [record["bug_id"] for record in every(folder)]
        raise NothingExamined(
            f"no history of {bug!r} in {folder}{nearest(bug, bugs)}; `sentinel sweep TARGET` makes it"
        )
    return sorted(records, key=lambda record: -record["commits"])


def every(folder: Path) -> list[dict[str, Any]]:
    """Give all records of a folder.

    :raises SentinelError: where there is none, or a file that is none.
    """
    records = [load(file) for file in files(folder)]
    if not records:
        raise NothingExamined(
            f"no histories in {folder}; `sentinel sweep TARGET` makes them; in a clone of Sentinel, "
            "--from reports/history has them"
        )
    return records
