"""How long each bug was upstream, from records of histories, and which releases carried it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.history.chronicle import state_of
from sentinel.history.timelines import came_with_its_code, carried_by, change_text
from sentinel.site.material import Bug, Material

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """A time for which the bug was there.

    :ivar start, end: dates, ``2025-03-01``; the end is that of the last commit looked at where the bug is still there.
    :ivar open_start: whether it was there before the history that could be looked at.
    :ivar over: whether it ended.
    """

    start: str
    end: str
    days: int
    over: bool
    open_start: bool


@dataclass(frozen=True)
class Stretch:
    """Neighbouring commits that are not said to have the bug.

    :ivar state: ``fixed``, ``changed``, or empty where they could not be decided.
    """

    start: str
    end: str
    state: str


@dataclass(frozen=True)
class Release:
    """:ivar date: empty where the index does not say."""

    name: str
    date: str
    verdict: str


@dataclass(frozen=True)
class Life:
    """:ivar changes: what happened, as sentences.
    :ivar releases: tags of the repository where it was looked at, else releases of the package index.
    :ivar on_pypi: the releases of the package index that carry the bug.
    :ivar until: the date of the last commit that was looked at.
    :ivar looked: how much was looked at: ``1,204 commits``.
    """

    bug: Bug
    spans: tuple[Span, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    changes: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()
    carried: tuple[str, ...] = ()
    on_pypi: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    looked: str = ""

    @property
    def drawable(self) -> bool:
        """Whether there are dates to draw it over; the package index gives none."""
        return bool(self.since and self.until)


def lives(material: Material) -> list[tuple[str, list[Life], list[Bug]]]:
    """Return each target with the lives of its bugs, the earliest introduced first, and its bugs without a record."""
    found = []
    for target in material.targets:
        bugs = material.bugs_of(target)
        told = [life for bug in bugs if (life := life_of(bug)) is not None]
        told.sort(key=lambda life: ([span.start for span in life.spans] or ["9"], life.bug.bug_id))
        found.append((target, told, [bug for bug in bugs if not bug.histories]))
    return found


def life_of(bug: Bug) -> Life | None:
    """What the records of a bug say, or None where it has none."""
    if not bug.histories:
        return None
    line = max(
        (r for r in bug.histories if r["source"]["kind"] == "git"), key=lambda r: int(r["commits"]), default=None
    )
    index = next((r for r in bug.histories if r["source"]["kind"] == "pypi"), None)
    record = line or index
    assert record is not None
    tagged = line is not None and line["releases"]
    releases: Sequence[Record] = line["releases"] if line is not None and tagged else index["releases"] if index else ()
    runs = record["runs"]
    return Life(
        bug,
        tuple(_span(lifetime) for lifetime in record["spells"] if lifetime["introduced"]["commit"]["date"]),
        tuple(_stretches(runs)),
        tuple(change_text(change) for change in record["changes"]),
        tuple(Release(item["name"], item["date"][:10], item["verdict"]) for item in releases),
        tuple(carried_by(line)) if line is not None else (),
        tuple(carried_by(index)) if index is not None else (),
        runs[0]["first"]["date"][:10] if runs else "",
        runs[-1]["last"]["date"][:10] if runs else "",
        _looked(record),
    )


def _stretches(runs: Sequence[Record]) -> Iterator[Stretch]:
    """Where the code was not there yet, or not any more, there is nothing to draw."""
    for run in runs:
        state = state_of(run["verdict"], run["kind"])
        if state not in ("reproduced", "absent"):
            yield Stretch(run["first"]["date"][:10], run["last"]["date"][:10], state or "")


def _looked(record: Record) -> str:
    source, number = record["source"], int(record["commits"])
    noun = "release" if source["kind"] == "pypi" else "tag" if source["walk"] == "tags" else "commit"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _span(lifetime: Record) -> Span:
    begun, ended = lifetime["introduced"], lifetime["ended"]
    until = ended["commit"] if ended else lifetime["last"]
    return Span(
        begun["commit"]["date"][:10],
        until["date"][:10],
        lifetime["days"],
        ended is not None,
        begun["what"] == "present" and not came_with_its_code(begun),
    )
