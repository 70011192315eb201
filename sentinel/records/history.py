"""Store and read histories. A history is the result of a sweep for one bug, and one line of
``<folder>/<target>.jsonl``.

The folder is ``SENTINEL_HOME/history``, or ``reports/history`` for committed histories. A line contains runs
(neighbouring revisions with the same verdict) and the releases by verdict. Changes of verdict and the periods with the
bug are derived from these and not stored.

A revision is *decided* if its verdict is conclusive, or if the version lacks the code (:func:`state_of`). Undecided
revisions form runs too, and a change next to such a run is marked as uncertain. A sweep with the same recipe, adapter
and environment writes the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.errors import NothingExamined, SentinelError, nearest
from sentinel.recipes import Recipe
from sentinel.recipes.json_schema import JsonSchema
from sentinel.records.basis import Basis
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.origins import Origin
from sentinel.reports import jsonlines
from sentinel.reports.escaping import message
from sentinel.reports.store import file_name, own, write_atomically
from sentinel.sources.commits import Commit, Tag, is_moment
from sentinel.sources.home import Home
from sentinel.sources.locks import locked

#: An upper bound for numbers of commits, lines and days.
_MANY = 10**9

_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0, "maximum": _MANY}
_COMMIT = {
    "type": "object",
    "required": ["sha"],
    "properties": {"sha": _TEXT, "date": _TEXT, "subject": _TEXT, "pull": _COUNT},
    "additionalProperties": False,
}
#: The schema of a line. Lines are checked, because a history file may come from another machine.
_SCHEMA = JsonSchema({
    "type": "object",
    "required": ["bug_id", "source", "basis", "recipe", "closures", "runs"],
    "properties": {
        "bug_id": _TEXT,
        "basis": {"type": "object"},
        "recipe": _TEXT,
        "closures": _COUNT,
        "source": {
            "type": "object",
            "required": ["kind", "ref", "walk"],
            "properties": {
                "kind": {"enum": ["git", "pypi"]},
                "begins": {"type": "array", "items": _TEXT},
                **dict.fromkeys(("ref", "head", "walk", "since", "until"), _TEXT),
            },
        },
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["verdict", "first"],
                "properties": {
                    "verdict": {"enum": ["reproduced", "fixed", "changed", "inconclusive", "unavailable"]},
                    "kind": _TEXT,
                    "reason": _TEXT,
                    "commits": {**_COUNT, "minimum": 1},
                    "first": _COMMIT,
                    "last": _COMMIT,
                },
            },
        },
        "origins": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2},
        },
        "tags": {"type": "array", "items": {"type": "array", "items": _TEXT, "minItems": 3, "maxItems": 3}},
        "releases": {"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}},
    },
})  # fmt: skip
_FIRST = ("bug_id", "source")
_SHARED = ("basis", "tags")
_NO_RUN = {"kind": "", "reason": "", "commits": 1}
_NO_COMMIT = {"date": "", "subject": "", "pull": None}
_NO_SOURCE = {"since": "", "until": "", "head": "", "begins": []}

History = Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """The choice of commits that a sweep examines.

    :ivar ref: the branch or commit, as the user wrote it.
    :ivar since, until: days or refs, as the user wrote them; empty for the whole history.
    :ivar begins: if the mirror is shallow, the oldest commits that it has.
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


# -- from verdicts to a history ---------------------------------------------------------------------------------------


def history_of(
    recipe: Recipe,
    basis: Basis,
    source: Selection,
    commits: Sequence[Commit],
    tags: Sequence[Tag],
    entries: Mapping[str, ClosureVerdict],
    origin: Callable[[Commit, ClosureVerdict], Origin | None] = lambda commit, entry: None,
) -> dict[str, Any]:
    """Convert the verdicts of one recipe at many commits to a history.

    :param entries: the verdict at each commit, including the commits of tags outside the branch.
    :param origin: returns the origin of the code at the first decided commit.
    """
    runs = runs_of(commits, entries)
    by_sha = {commit.sha: commit for commit in commits}
    begun = (by_sha[change["commit"]["sha"]] for change in changes_of(runs, {}) if change["begins"])
    origins = {commit.sha: origin(commit, entries[commit.sha]) for commit in begun}
    released = [tag for tag in tags if tag.commit.sha in entries]
    line = {
        "bug_id": recipe.bug_id,
        "source": {**asdict(source), "begins": list(source.begins)},
        "basis": {key: value for key, value in asdict(basis).items() if key != "recipe"},
        "recipe": basis.recipe,
        "closures": len({(entries[c.sha].closure, entries[c.sha].answers) for c in commits}),
        "runs": runs,
        "origins": {sha: [found.lines, found.older] for sha, found in origins.items() if found is not None},
        "tags": [[tag.name, tag.commit.sha, tag.commit.date] for tag in released],
        "releases": _tags_by_outcome(released, entries),
    }
    return expand(_clean(line), recipe.target)


def _tags_by_outcome(tags: Sequence[Tag], entries: Mapping[str, ClosureVerdict]) -> dict[str, list[str]]:
    outcomes: dict[str, list[str]] = {}
    for tag in tags:
        outcomes.setdefault(" ".join(filter(None, entries[tag.commit.sha].outcome)), []).append(tag.name)
    return outcomes


def _clean(value: Any) -> Any:
    """Escape control characters and remove local paths, because commit subjects and tags are untrusted."""
    if isinstance(value, Mapping):
        return {message(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return message(value) if isinstance(value, str) else value


def plain_commit(commit: Commit) -> dict[str, Any]:
    """Convert a commit to the JSON data that a history stores."""
    return {"sha": commit.sha, "date": commit.date, "subject": commit.subject, "pull": commit.pull}


def state_of(verdict: str, kind: str) -> str | None:
    """Return the state of the code: ``reproduced``, ``fixed``, ``changed``, ``absent`` (the version lacks it), or None
    if undecided."""
    if verdict in ("reproduced", "fixed", "changed"):
        return verdict
    return "absent" if kind == "not-in-this-version" else None


def runs_of(commits: Sequence[Commit], entries: Mapping[str, ClosureVerdict]) -> list[dict[str, Any]]:
    """Group consecutive commits with the same verdict. Commits without a conclusive verdict must also have the same
    reason."""
    runs: list[dict[str, Any]] = []
    for commit in commits:
        entry, last = entries[commit.sha], runs[-1] if runs else None
        undecided = state_of(*entry.outcome) is None
        alike = last is not None and (last["verdict"], last["kind"]) == entry.outcome
        if last is not None and alike and (not undecided or _gist(last["reason"]) == _gist(entry.reason)):
            last |= {"last": plain_commit(commit), "commits": last["commits"] + 1}
        else:
            reason = entry.reason if undecided else ""
            ends = {"first": plain_commit(commit), "last": plain_commit(commit)}
            runs.append({"verdict": entry.verdict, "kind": entry.kind, "reason": reason, "commits": 1, **ends})
    return runs


def _gist(reason: str) -> str:
    """Remove signatures and suggested names from a reason, because they vary between commits."""
    return re.split(r"[;(\[]", reason, maxsplit=1)[0]


# -- from a line to a history -----------------------------------------------------------------------------------------

#: Maps (state before, state after) to a change; the state before the first decided revision is ``""``. Other changes
#: depend only on the state after.
_CHANGES = {("", "reproduced"): "present", ("absent", "fixed"): "appeared", ("absent", "changed"): "appeared"}
_BY_STATE = {"reproduced": "introduced", "fixed": "fixed", "changed": "changed", "absent": "removed"}


def changes_of(runs: Sequence[History], origins: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Return the commits of a branch at which the verdict changes.

    Each change has these keys:

    * ``what``: ``present`` (the bug, at the first decided revision), ``introduced``, ``fixed``, ``changed`` (the code
      matches neither value set), ``removed`` (the code is gone) or ``appeared`` (the code is new and has no bug)
    * ``commit``: the first revision with the new state
    * ``after``: the last decided revision with the previous state, or None
    * ``undecided``: the number of undecided revisions between ``after`` and ``commit``, each of which may be the one
      that made the change; ``why``: the kinds of their reasons
    * ``begins``: True if all earlier revisions are undecided or lack the code
    * ``origin``: if ``begins``, the number of ``lines`` of the code, and how many of them are ``older``
    """
    changes: list[dict[str, Any]] = []
    before: History | None = None
    gap: list[History] = []
    for run in runs:
        state = state_of(run["verdict"], run["kind"])
        if state is None:
            gap.append(run)
            continue
        was = (state_of(before["verdict"], before["kind"]) if before else "") or ""
        # The first decided revision counts as a change only if the bug is present there.
        if was != state and (before is not None or state == "reproduced"):
            lines = origins.get(run["first"]["sha"])
            changes.append({
                "what": _CHANGES.get((was, state)) or _BY_STATE[state],
                "commit": run["first"],
                "after": before["last"] if before else None,
                "undecided": sum(item["commits"] for item in gap),
                "why": ", ".join(dict.fromkeys(item["kind"] for item in gap)),
                "begins": was in ("", "absent"),
                "origin": {"lines": int(lines[0]), "older": int(lines[1])} if lines and was in ("", "absent") else None,
            })  # fmt: skip
        before, gap = run, []
    return changes


def lifetimes_of(changes: Sequence[History], runs: Sequence[History]) -> list[dict[str, Any]]:
    """Return the periods in which a bug was present.

    ``introduced`` and ``ended`` are changes (``ended`` is None if the bug is still present), ``last`` is the last
    revision with the bug, and ``days`` is the time between the author dates (0 if they go backwards).
    """
    lifetimes: list[dict[str, Any]] = []
    start: History | None = None
    for change in changes:
        if change["what"] in ("present", "introduced"):
            start = change
        elif start is not None:
            lifetimes.append(_lifetime(start, change, change["after"], change["commit"]))
            start = None
    if start is not None:
        last = [run for run in runs if run["verdict"] == "reproduced"][-1]["last"]
        lifetimes.append(_lifetime(start, None, last, runs[-1]["last"]))
    return lifetimes


def _lifetime(start: History, end: History | None, last: History, until: History) -> dict[str, Any]:
    days = 0
    if until["date"] and start["commit"]["date"]:  # no date is known for PyPI releases
        days = (_moment(until["date"]) - _moment(start["commit"]["date"])).days
    return {"introduced": start, "ended": end, "last": last, "days": max(days, 0), "clock_went_backwards": days < 0}


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def expand(line: History, target: str) -> dict[str, Any]:
    """Return the full history for a stored line, with changes and periods added.

    :raises SentinelError: if a date is invalid.
    """
    # int(): JSON Schema accepts 2.0 as an integer
    runs = [
        {
            **_NO_RUN,
            **run,
            "commits": int(run.get("commits", 1)),
            "first": {**_NO_COMMIT, **run["first"]},
            "last": {**_NO_COMMIT, **run.get("last", run["first"])},
        }
        for run in line["runs"]
    ]
    dates = [run[end]["date"] for run in runs for end in ("first", "last")]
    dates += [date for _, _, date in line.get("tags", ())]
    if (line["source"]["kind"] == "git" or any(dates)) and not all(map(is_moment, dates)):
        raise SentinelError("invalid date; write YYYY-MM-DDTHH:MM:SSZ")
    changes = changes_of(runs, line.get("origins", {}))
    outcomes = {name: outcome for outcome, names in line.get("releases", {}).items() for name in names}
    releases = []
    for name, commit, date in line.get("tags", ()):
        verdict, _, kind = outcomes[name].partition(" ")
        releases.append({"name": name, "commit": commit, "date": date, "verdict": verdict, "kind": kind})
    return {
        "target": target,
        "bug_id": line["bug_id"],
        "basis": {**line["basis"], "recipe": line["recipe"]},
        "closures": line["closures"],
        "source": {**_NO_SOURCE, **line["source"]},
        "commits": sum(run["commits"] for run in runs),
        "runs": runs,
        "changes": changes,
        "spells": lifetimes_of(changes, runs),
        "releases": releases,
    }


# -- the store --------------------------------------------------------------------------------------------------------


def fold(history: History) -> dict[str, Any]:
    """Convert a history to the line to store, without nulls, defaults and values that :func:`expand` derives."""
    runs = []
    for run in history["runs"]:
        first, last = (_without_defaults(run[end], _NO_COMMIT) for end in ("first", "last"))
        runs.append({**_without_defaults(run, _NO_RUN), "first": first, "last": last})
        if first == last:
            del runs[-1]["last"]
    begun = [(change["commit"]["sha"], change["origin"]) for change in history["changes"] if change["origin"]]
    outcome = {item["name"]: " ".join(filter(None, (item["verdict"], item["kind"]))) for item in history["releases"]}
    names = sorted(outcome, key=outcome.__getitem__)
    line = {
        "bug_id": history["bug_id"],
        "source": _without_defaults(history["source"], _NO_SOURCE),
        "basis": {key: value for key, value in history["basis"].items() if key != "recipe"},
        "recipe": history["basis"]["recipe"],
        "closures": history["closures"],
        "runs": runs,
        "origins": {sha: [origin["lines"], origin["older"]] for sha, origin in begun},
        "tags": [[item["name"], item["commit"], item["date"]] for item in history["releases"]],
        "releases": {which: list(group) for which, group in groupby(names, outcome.__getitem__)},
    }
    return {key: value for key, value in line.items() if value not in ({}, [], "")}


def _without_defaults(value: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item != defaults.get(key, ...)}


def save(folder: Path, histories: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write histories into a folder, and return them. Each replaces the stored history of the same bug and source."""
    fresh = list(histories)
    for target in sorted({history["target"] for history in fresh}):
        file = own(folder, PurePosixPath(f"{file_name(target)}.jsonl"))
        folder.mkdir(parents=True, exist_ok=True)
        with locked(Home.default().path / "history" / ".lock"):
            stored = {_key(history): history for history in (_read(file) if file.is_file() else [])}
            stored |= {_key(history): history for history in fresh if history["target"] == target}
            text = jsonlines.to_text((fold(stored[key]) for key in sorted(stored)), _FIRST, _SHARED)
            write_atomically(file, text, "choose another folder")
    return fresh


def _key(history: History) -> tuple[str, str]:
    source = Selection(**{**history["source"], "begins": tuple(history["source"]["begins"])})
    return history["bug_id"], source.key


def _read(file: Path) -> list[dict[str, Any]]:
    def history(line: dict[str, Any]) -> dict[str, Any]:
        for error in _SCHEMA.errors(line):
            place = ".".join(map(str, error.instance_path))
            raise SentinelError(f"at {place or 'the top'}: {message(error.message)[:200]}")
        return expand(line, file.stem)

    try:
        return jsonlines.read(file, _SHARED, history)
    except OSError as error:
        raise SentinelError(f"{file}: cannot be read: {error.strerror}") from None
    except SentinelError as error:
        raise SentinelError(f"{error}; remove the file and run `sentinel sweep` again") from None


def load_all(folder: Path, target: str = "", on_error: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Return all histories in a folder.

    :param target: return only histories of this target; empty for all targets.
    :param on_error: called with a message for each unreadable file, which is then skipped.
    :raises SentinelError: if a file is unreadable and ``on_error`` is None.
    """
    histories = []
    for file in sorted(folder.glob(f"{file_name(target) if target else '*'}.jsonl")):
        if file.is_symlink():
            continue
        try:
            histories += _read(file)
        except SentinelError as error:
            if on_error is None:
                raise
            on_error(str(error))
    return histories


def require_all(folder: Path) -> list[dict[str, Any]]:
    """Return all histories in a folder, of which there must be at least one.

    :raises NothingExamined: if the folder has no history.
    """
    histories = load_all(folder)
    if not histories:
        raise NothingExamined(
            f"no histories in {folder}; create them with `sentinel sweep TARGET`; in a clone of Sentinel, use "
            "--from reports/history"
        )
    return histories


def require_bug(folder: Path, bug: str) -> list[dict[str, Any]]:
    """Return the histories of a bug. The history with the most commits is first.

    :raises NothingExamined: if the folder has no history of the bug.
    """
    every = load_all(folder)
    histories = [history for history in every if history["bug_id"].lower() == bug.lower()]
    if not histories:
        bugs = [history["bug_id"] for history in every]
        raise NothingExamined(
            f"no history of {bug!r} in {folder}{nearest(bug, bugs)}; create it with `sentinel sweep TARGET`"
        )
    return sorted(histories, key=lambda history: -int(history["commits"]))
