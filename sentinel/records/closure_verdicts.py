"""Store one verdict per closure (the file lookups of a probe), and find the verdict for a commit.

    history/<target>/closures/<id>.json        the file lookups of a closure
    history/<target>/<BUG-ID>/<basis>.jsonl    one line per verdict, after a first line with the basis

Lines are only appended, each in one write under a lock. A killed run loses at most the line that it was writing, which
readers skip. Two stores can be merged by copying the files and joining the lines.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentinel.deciding.outcomes import Decision
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.records.basis import Basis, basis
from sentinel.records.closures import Closure, Revision, closure_of
from sentinel.reports.evidence import reason
from sentinel.reports.store import file_name
from sentinel.settings import Settings
from sentinel.sources.commits import Lineage
from sentinel.sources.home import Home, read_json, write_atomically, writing
from sentinel.sources.locks import locked
from sentinel.targets import Target
from sentinel.targets.refs import Ref

#: Kinds of reason that may not recur, such as a timeout. Verdicts with such a reason are not stored, so the next run
#: tries again.
TEMPORARY = frozenset({"ref", "timeout", "memory", "harness"})


@dataclass(frozen=True)
class ClosureVerdict:
    """A stored verdict. It applies to every revision in which the files of the closure have the same content.

    :ivar closure, answers: the key: the id of the closure, and the digest of the results of its lookups.
    :ivar verdict, kind, reason: as in :class:`~sentinel.deciding.outcomes.Verdict`. Line numbers in a reason refer to
        ``commit``.
    :ivar commit: the commit that was measured; for a release, the ref.
    :ivar boundary: the dotted path that was called; empty if no boundary was found.
    :ivar file, line, blob: the place and the git blob of the boundary's definition.
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

    @classmethod
    def of(cls, decision: Decision, closure: Closure, answers: str, commit: str) -> ClosureVerdict:
        """Convert a decision at a commit to a stored verdict."""
        verdict, place = decision.verdict, decision.provenance
        where = {name: getattr(place, name) for name in ("boundary", "file", "line", "blob")} if place else {}
        return cls(closure.id, answers, verdict.name, verdict.kind, reason(decision), commit, **where)

    @property
    def outcome(self) -> tuple[str, str]:
        return self.verdict, self.kind


class ClosureVerdicts:
    """The stored verdicts of one recipe, decided with the same adapter, contract and packages. Not thread-safe.

    :class:`~sentinel.records.basis.Basis` identifies them.
    """

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
        """Read the stored verdicts from disk."""
        for line in lines(self._file):
            with suppress(TypeError, KeyError):
                entry = ClosureVerdict(**line)
                closure = self._store.closure(self._target, entry.closure)
                if closure is not None:
                    self._remember(entry, closure)

    def find(self, revision: Revision, commit: str, lineage: Lineage) -> ClosureVerdict | None:
        """Return the stored verdict that applies to a revision, or None."""
        for closure in reversed(list(self._recent.values())):
            for entry in self._by_answers.get((closure.id, revision.answers(closure)), ()):
                if lineage.vouches(entry.commit, commit):
                    # Move the closure to the end, so that it is tried first: neighbouring commits nearly always have
                    # the same one.
                    self._recent[closure.id] = self._recent.pop(closure.id)
                    return entry
        return None

    def add(self, entry: ClosureVerdict, closure: Closure) -> None:
        """Store a verdict on disk, or only in memory if its kind is :data:`TEMPORARY`.

        :raises SentinelError: if the disk is full or not writable.
        """
        if any(other.commit == entry.commit for other in self._by_answers.get((entry.closure, entry.answers), ())):
            return
        self._remember(entry, closure)
        if entry.kind not in TEMPORARY:
            self._store.keep_closure(self._target, closure)
            self._store.append(self._file, {"basis": asdict(self.basis)}, asdict(entry))

    def _remember(self, entry: ClosureVerdict, closure: Closure) -> None:
        self._by_answers.setdefault((entry.closure, entry.answers), []).append(entry)
        self._recent[closure.id] = closure


class ReleaseVerdicts:
    """The stored verdicts of one target's recipes, one for each PyPI release. They are found by release, not closure.

    :ivar of: maps each bug id to its stored verdicts.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        target: Target,
        recipes: Iterable[Recipe],
        store: ClosureVerdictStore,
    ) -> None:
        self._whole = closure_of(None, target.roots)
        self.of = {
            recipe.bug_id: ClosureVerdicts(store, target.name, recipe.bug_id, basis(catalog, recipe, settings))
            for recipe in recipes
        }

    def find(self, recipe: Recipe, ref: Ref) -> ClosureVerdict | None:
        """Return the stored verdict of a recipe at a release; None if there is none."""
        return next((entry for entry in self.of[recipe.bug_id] if entry.answers == _digest(ref)), None)

    def add(self, decision: Decision) -> ClosureVerdict:
        """Store the decision about a recipe at a release."""
        entry = ClosureVerdict.of(decision, self._whole, _digest(decision.ref), str(decision.ref))
        self.of[decision.recipe.bug_id].add(entry, self._whole)
        return entry


def _digest(ref: Ref) -> str:
    return hashlib.sha256(str(ref).encode()).hexdigest()[:40]


class ClosureVerdictStore:
    """The files of stored verdicts in one ``SENTINEL_HOME``."""

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
        """Append a line to a file, after the line ``head`` if the file is new."""
        with writing(self.home.path):
            file.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / ".lock"), open(file, "ab+") as stream:
                text = json.dumps(line, sort_keys=True) + "\n"
                if not _remove_partial_line(stream):
                    text = json.dumps(head, sort_keys=True) + "\n" + text
                rest = text.encode()
                while rest:  # on a full disk, the first write is partial and raises nothing; the second write raises
                    rest = rest[os.write(stream.fileno(), rest) :]

    def _closure_file(self, target: str, name: str) -> Path:
        return self.folder / file_name(target) / "closures" / f"{file_name(name)}.json"


def _remove_partial_line(stream: Any) -> int:
    """Remove an incomplete last line, which a killed run left, and return the file's length in bytes."""
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
    """Yield the lines of a file as JSON data, without the first line."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue  # an incomplete line
        if isinstance(value, dict) and "basis" not in value:
            yield value
