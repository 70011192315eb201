"""Compute a table with one row per framework: its open bugs by part of the training signal, and over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sentinel.recipes.grades import SEVERITIES
from sentinel.tools.site.lifetimes import life_of
from sentinel.tools.site.material import Material
from sentinel.tools.site.matrix import Row, Table, tables

PARTS = ("loss", "advantages", "masks", "rollout", "data", "metrics")
_MASKS = ("masked_values_have_no_influence", "a_rejected_row_is_an_absent_row", "padding_is_invisible")
_OF_SIGNAL = {"advantage": "advantages", "reward": "advantages", "data": "data", "metric": "metrics"}


@dataclass(frozen=True)
class Place:
    """A framework's row in the table.

    :ivar cells: part (one of :data:`PARTS`) -> severity -> open bugs, with one row for each root cause.
    :ivar fixed_after: the median number of days from the introduction of a bug to its fix, in the recorded histories;
        None if no bug was fixed.
    :ivar fixed: the number of fixes from which ``fixed_after`` is computed.
    :ivar bound: how many functions that carry training signal are bound to a contract, and how many there are; None if
        unknown.
    :ivar over_time: version -> number of known bugs in it. The versions are the oldest and the newest release with a
        conclusive verdict, then main.
    """

    target: str
    cells: Mapping[str, Mapping[str, tuple[Row, ...]]]
    fixed_after: int | None
    fixed: int
    bound: tuple[int, int] | None
    over_time: Mapping[str, int]

    @property
    def open(self) -> int:
        return sum(len(rows) for cell in self.cells.values() for rows in cell.values())


def leaderboard(material: Material) -> Iterator[Place]:
    """Yield each framework's row, sorted by name."""
    for table in tables(material):
        lives = [life for row in table.rows if (life := life_of(row.bug)) is not None]
        days = [span["days"] for life in lives for span in life["spans"] if span["over"] and span["days"] is not None]
        totals = material.coverage.get("coverage", {}).get(table.target, {}).get("modules", {}).get("totals")
        yield Place(
            target=table.target,
            cells=_cells(table.rows),
            fixed_after=round(median(days)) if days else None,
            fixed=len(days),
            bound=(int(totals["bound"]), sum(map(int, totals.values()))) if totals else None,
            over_time=_over_time(table),
        )


def part(row: Row) -> str:
    """Return which part of the training signal (one of :data:`PARTS`) a bug makes wrong."""
    if row.bug.contract.startswith("rollout") or row.signal in ("log_prob", "setup"):
        return "rollout"
    if row.signal in _OF_SIGNAL:
        return _OF_SIGNAL[row.signal]
    return "masks" if any(law in _MASKS for law in row.bug.laws[:1]) else "loss"


def _cells(rows: Sequence[Row]) -> dict[str, dict[str, tuple[Row, ...]]]:
    """Group the bugs at main by part and severity, with one row for each root cause. Hardening is left out."""
    first: dict[str, Row] = {}
    for row in rows:
        if row.now == "reproduced" and row.realism != "unreachable":
            first.setdefault(row.root, row)
    cells: dict[str, dict[str, tuple[Row, ...]]] = {}
    for name in PARTS:
        here = [row for row in first.values() if part(row) == name]
        by_severity = {severity: tuple(row for row in here if row.severity == severity) for severity in SEVERITIES}
        cells[name] = {severity: found for severity, found in by_severity.items() if found}
    return cells


def _over_time(table: Table) -> dict[str, int]:
    """Return version -> number of root causes, for the oldest and newest decided release and for main."""
    rows = [row for row in table.rows if row.realism != "unreachable"]
    places = [n for n in range(len(table.versions)) if any(row.versions[n] in "x-" for row in rows)]
    chosen = sorted({*places[:2], *places[-1:]}, reverse=True)
    return {table.versions[n]: len({row.root for row in rows if row.versions[n] == "x"}) for n in chosen}
