"""The matrix of target, bug and ref as a person scans it: refs that bugs share are columns, a bug's own one cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.recipes.reach import counted, realism, root
from sentinel.site.material import Bug, Material, Seen, brief, moves

#: A ref is a column where this part of a target's bugs have evidence there.
_SHARED = 0.2


@dataclass(frozen=True)
class Column:
    """:ivar ref: as evidence writes it.
    :ivar short: as item ids show it, without ``git:``.
    :ivar note: what most recipes say of it, or the commit that a moving ref was.
    """

    ref: str
    short: str
    note: str
    newest: bool = False


@dataclass(frozen=True)
class Row:
    """:ivar own: evidence at refs that are no column.
    :ivar cells: one for each column, None where nothing is recorded.
    :ivar now: the verdict at upstream's newest, or empty.
    """

    bug: Bug
    own: tuple[Seen, ...]
    cells: tuple[Seen | None, ...]
    now: str

    @property
    def severity(self) -> str:
        return str(self.bug.document.get("severity") or "")

    @property
    def realism(self) -> str:
        return realism(self.bug.document)

    @property
    def signal(self) -> str:
        return str(self.bug.document.get("signal") or "")


@dataclass(frozen=True)
class Table:
    target: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def now(self) -> Counter[str]:
        """How many bugs have which verdict at upstream's newest."""
        return Counter(row.now or "unknown" for row in self.rows)

    @property
    def counted(self) -> str:
        """How many root causes there are, recipes in brackets."""
        return counted_rows(self.rows)

    @property
    def newest(self) -> Column | None:
        return next((column for column in self.columns if column.newest), None)


def counted_rows(rows: Sequence[Row]) -> str:
    """As :func:`~sentinel.recipes.reach.counted`."""
    return counted({"target": row.bug.target, "root": root(row.bug.document), "realism": row.realism} for row in rows)


def tables(material: Material) -> list[Table]:
    return [_table(material, target) for target in material.targets if material.bugs_of(target)]


def _table(material: Material, target: str) -> Table:
    bugs = material.bugs_of(target)
    branch = material.branch(target)
    counts = Counter(seen.ref for bug in bugs for seen in bug.seen)
    least = max(2, _SHARED * len(bugs))
    shared = [ref for ref, count in counts.items() if count >= least or ref == branch or moves(ref)]
    columns = [_column(ref, bugs, branch) for ref in sorted(shared, key=lambda ref: _order(ref, bugs, branch))]
    refs = [column.ref for column in columns]
    rows = []
    for bug in bugs:
        newest = bug.at(branch)
        own = tuple(seen for seen in bug.seen if seen.ref not in refs)
        rows.append(Row(bug, own, tuple(bug.at(ref) for ref in refs), newest.verdict if newest else ""))
    return Table(target, tuple(columns), tuple(rows))


def _order(ref: str, bugs: Sequence[Bug], branch: str) -> tuple[int, float, str]:
    """Commits as recipes tell the story (before, after, later), then releases, then what moves; the newest last."""
    kind = 3 if ref == branch else 2 if moves(ref) else 1 if ref.startswith("pypi:") else 0
    places = [
        index for bug in bugs for index, pin in enumerate(bug.recipe.pins if bug.recipe else ()) if str(pin.ref) == ref
    ]
    return kind, sum(places) / len(places) if places else 0.0, ref


def _column(ref: str, bugs: Sequence[Bug], branch: str) -> Column:
    if not moves(ref):
        notes = Counter(note for bug in bugs if (note := bug.note(ref)))
        note = max(sorted(notes), key=lambda text: notes[text]) if notes else ""
        note = "release" if ref.startswith("pypi:") else note
    else:
        commits = sorted({_commit(seen) for bug in bugs if (seen := bug.at(ref)) is not None} - {""})
        note = f"upstream at {', '.join(commits)}" if ref == branch and commits else ", ".join(commits)
    return Column(ref, brief(ref), note, ref == branch)


def _commit(seen: Seen) -> str:
    checkout = seen.document["checkout"]
    return str(checkout["commit"] or "")[:7] if checkout else ""
