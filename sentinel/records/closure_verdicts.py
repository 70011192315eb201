"""Entries: what was decided once for each distinct closure, kept as they come; and how a commit is recognised in them.

history/<target>/closures/<id>.json        the questions of a closure
history/<target>/<BUG-ID>/<basis>.jsonl    a line for each entry: closure, answers, verdict; the first line is the basis

Lines are only ever added, each in one write, under a lock: a run that is killed loses at most the line that it was
writing, which the next one passes over, and two runs on one store add to each other's work. Merging two stores is
copying one over the other and joining the lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentinel.records.basis import Basis
from sentinel.records.closures import Closure, Revision
from sentinel.reports.store import file_name
from sentinel.sources.commits import Lineage
from sentinel.sources.home import Home, read_json, write_atomically, writing
from sentinel.sources.locks import locked

#: Kinds of reason that are about this machine, or about a moment of it: not kept, so the next run tries again.
PASSING = frozenset({"ref", "timeout", "memory", "harness"})


@dataclass(frozen=True)
class ClosureVerdict:
    """One verdict, for every revision that answers the closure's questions in the same way and that ``commit`` vouches
    for.

    :ivar closure, answers: by which it is recognised.
    :ivar verdict, kind, reason: as in :class:`~sentinel.deciding.outcomes.Verdict`; a reason may name lines of
        ``commit``.
    :ivar boundary: the dotted path that was found there; empty where none was.
    """

    closure: str
    answers: str
    verdict: str
    kind: str = ""
    reason: str = ""
    commit: str = ""
    boundary: str = ""
    file: str = ""
    line: int = 0
    blob: str = ""

    @property
    def outcome(self) -> tuple[str, str]:
        return self.verdict, self.kind


class ClosureVerdicts:
    """The entries of one recipe on one basis, in memory and on disk. Not locked: one thread at a time."""

    def __init__(self, store: ClosureVerdictStore, target: str, bug_id: str, basis: Basis) -> None:
        self._store = store
        self._target = target
        self._file = store.folder / file_name(target) / file_name(bug_id) / f"{basis.id}.jsonl"
        self.basis = basis
        self._by_answers: dict[tuple[str, str], list[ClosureVerdict]] = {}
        self._recent: dict[str, Closure] = {}
        self.read()

    def __len__(self) -> int:
        return sum(map(len, self._by_answers.values()))

    def __iter__(self) -> Iterator[ClosureVerdict]:
        return iter([entry for entries in self._by_answers.values() for entry in entries])

    def read(self) -> None:
        """Take over what is on disk."""
        for line in lines(self._file):
            with suppress(TypeError, KeyError):
                entry = ClosureVerdict(**line)
                closure = self._store.closure(self._target, entry.closure)
                if closure is not None:
                    self._remember(entry, closure)

    def find(self, revision: Revision, commit: str, lineage: Lineage) -> ClosureVerdict | None:
        """Give the entry that a revision belongs to, if one is known that was measured at a commit which vouches for
        this one."""
        for closure in reversed(list(self._recent.values())):
            for entry in self._by_answers.get((closure.id, revision.answers(closure)), ()):
                if lineage.vouches(entry.commit, commit):
                    # What held last holds next, nearly always.
                    self._recent[closure.id] = self._recent.pop(closure.id)
                    return entry
        return None

    def add(self, entry: ClosureVerdict, closure: Closure) -> None:
        """Keep an entry; on disk too unless its reason passes.

        :raises SentinelError: where the disk is full or cannot be written.
        """
        if any(other.commit == entry.commit for other in self._by_answers.get((entry.closure, entry.answers), ())):
            return
        self._remember(entry, closure)
        if entry.kind not in PASSING:
            self._store.keep_closure(self._target, closure)
            self._store.append(self._file, {"basis": asdict(self.basis)}, asdict(entry))

    def _remember(self, entry: ClosureVerdict, closure: Closure) -> None:
        self._by_answers.setdefault((entry.closure, entry.answers), []).append(entry)
        self._recent[closure.id] = closure


class ClosureVerdictStore:
    """The entries under one ``SENTINEL_HOME``."""

    def __init__(self, home: Home | None = None) -> None:
        self.home = home or Home.default()
        self.folder = self.home.path / "history"
        self._closures: dict[tuple[str, str], Closure | None] = {}

    def closure(self, target: str, name: str) -> Closure | None:
        key = (target, name)
        if key not in self._closures:
            document = read_json(self._closure_file(target, name))
            questions = document.get("questions") if document else None
            closure = Closure(tuple(map(str, questions))) if isinstance(questions, list) else None
            self._closures[key] = closure if closure is not None and closure.id == name else None
        return self._closures[key]

    def keep_closure(self, target: str, closure: Closure) -> None:
        if self.closure(target, closure.id) is None:
            with writing(self.home.path):
                text = json.dumps({"questions": closure.questions}, indent=0)
                write_atomically(self._closure_file(target, closure.id), text + "\n")
            self._closures[target, closure.id] = closure

    def append(self, file: Path, head: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        """Add a line to a file, after a first line where it is new."""
        with writing(self.home.path):
            file.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / ".lock"), open(file, "ab+") as stream:
                text = json.dumps(line, sort_keys=True) + "\n"
                if not _mended(stream):
                    text = json.dumps(head, sort_keys=True) + "\n" + text
                rest = text.encode()
                while rest:  # a disk that becomes full takes a part without an error, and says so at the rest
                    rest = rest[os.write(stream.fileno(), rest) :]

    def _closure_file(self, target: str, name: str) -> Path:
        return self.folder / file_name(target) / "closures" / f"{file_name(name)}.json"


def _mended(stream: Any) -> int:
    """Say where the last whole line ends. What stands behind it is part of a line that a run did not get to the end
    of, and is taken away."""
    end = at = stream.seek(0, os.SEEK_END)
    while at:
        begin = max(0, at - 4096)
        stream.seek(begin)
        feed = stream.read(at - begin).rfind(b"\n")
        at = begin + feed + 1
        if feed >= 0:
            break
    if at < end:
        stream.truncate(at)
    return int(at)


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """Read the lines that were added to a file, but for its first."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off while it was written
        if isinstance(value, dict) and "basis" not in value:
            yield value
