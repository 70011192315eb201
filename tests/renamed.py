"""Search a history for boundaries under names that the adapter does not list."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sentinel.records.origins import code_lines, rows
from sentinel.search.bindings import ALIKE, Definition, Definitions, Name, Sighting, Trees, sighting
from sentinel.sources import commits
from sentinel.sources.commits import Commit
from sentinel.targets import Target

#: Besides the releases, one of every 25 commits of a branch is examined.
_EVERY = 25

#: The place of a definition: the object name of its file, and its first and last line.
_Place = tuple[str, tuple[int, int]]


@dataclass(frozen=True)
class Seen:
    """The place of a binding at one commit, or of functions that may be the same under another name: ``name
    (file:line)``.
    """

    where: Sighting
    alike: tuple[str, ...] = ()

    @property
    def missing(self) -> bool:
        """Return True if the framework has the function but the adapter does not find it."""
        one = self.where
        return bool(self.alike) or (one.definition is not None and not one.lacks and bool(one.needs))


def revisions(mirror: Path, head: str) -> dict[str, Commit]:
    """Return releases, every 25th commit of a branch and its last one: name -> commit, by date.

    :param head: the branch's last commit.
    """
    line = commits.history(mirror, head)
    found = {one.sha: (one.sha[:12], one) for one in [*line[::_EVERY], *line[-1:]]}
    found |= {tag.commit.sha: (tag.name, tag.commit) for tag in commits.releases(mirror)}
    return dict(sorted(found.values(), key=lambda item: (item[1].date, item[0])))


def sightings(target: Target, trees: Trees, revisions: Sequence[str]) -> list[list[Seen]]:
    """Return the place of each binding in each of these trees.

    If a tree lacks a boundary, the boundary's function at the nearest revision that has it is compared with all unbound
    functions of the tree. A function with at least half of the same lines may be the same function under another name.
    """
    definitions = Definitions(trees, target.roots)
    seen = [[sighting(definitions, tree, binding) for tree in revisions] for binding in target.bindings]
    return _Search(trees, definitions, revisions, seen).completed()


class _Search:
    """Searches for boundaries under other names."""

    def __init__(
        self, files: Trees, definitions: Definitions, trees: Sequence[str], seen: Sequence[Sequence[Sighting]]
    ) -> None:
        self._files, self._definitions, self._trees, self._seen = files, definitions, trees, seen
        self._rows = lru_cache(maxsize=None)(self._rows_of)
        self._nearest = [
            [
                _nearest(ones, number) if one.definition is None and not one.lacks else None
                for number, one in enumerate(ones)
            ]
            for ones in seen
        ]
        self._holders: dict[tuple[bytes, ...], set[_Place]] = defaultdict(set)
        for place in {one[1].place for ones in self._nearest for one in ones if one is not None}:
            for row in self._rows(*place):
                self._holders[row].add(place)
        self._near = lru_cache(maxsize=None)(self._near_in)

    def completed(self) -> list[list[Seen]]:
        there = [{one.definition.place for one in ones if one.definition} for ones in zip(*self._seen)]
        return [
            [
                Seen(one, tuple(self._alike(*near, number, there[number])) if near else ())
                for number, (one, near) in enumerate(zip(ones, nearest))
            ]
            for ones, nearest in zip(self._seen, self._nearest)
        ]

    def _alike(self, nearest: int, sought: Definition, number: int, bound: Container[_Place]) -> Iterator[str]:
        for file, blob in sorted(self._definitions.sources(self._trees[number])):
            if sought.place in self._near(blob):
                for name, span in _functions(self._definitions.module(blob)):
                    place = blob, span
                    if place not in bound and self._one(sought.place, place) and not self._beside(nearest, file, name):
                        yield f"{name} ({file}:{span[0]})"

    def _beside(self, number: int, file: str, name: str) -> bool:
        """Return True if the nearest revision also has this function, which therefore is not the renamed boundary."""
        return any(
            name == other
            for where, blob in self._definitions.sources(self._trees[number])
            if where == file
            for other, _ in _functions(self._definitions.module(blob))
        )

    def _near_in(self, blob: str) -> frozenset[_Place]:
        """Return the definitions in a file that may share half of the lines."""
        common = Counter(place for row in self._rows(blob) for place in self._holders.get(row, ()))
        return frozenset(p for p, count in common.items() if count >= ALIKE * len(self._rows(*p)))

    def _rows_of(self, blob: str, span: tuple[int, int] | None = None) -> frozenset[tuple[bytes, ...]]:
        """Return the line triples of a definition or of a whole file."""
        lines = self._files.blob(blob).splitlines()
        lines = lines if span is None else lines[span[0] - 1 : span[1]]
        return frozenset(row for _, row in rows(code_lines(b"\n".join(lines))))

    def _one(self, place: _Place, other: _Place) -> bool:
        one, two = self._rows(*place), self._rows(*other)
        return len(one & two) >= ALIKE * max(len(one), len(two))


def _nearest(ones: Sequence[Sighting], number: int) -> tuple[int, Definition] | None:
    """Return the nearest revision that has a boundary, and its function there."""
    there = [
        (n, one.definition) for n, one in enumerate(ones) if one.definition and one.definition.name.kind == "function"
    ]
    return min(there, key=lambda item: abs(item[0] - number), default=None)


def _functions(names: Mapping[str, Name], owner: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    for key, name in names.items():
        if name.kind == "function":
            yield f"{owner}{key}", name.span
        elif name.kind == "class":
            yield from _functions(name.names, f"{key}.")
