"""Looks for an adapter's boundaries in a target's history, in trees and syntax alone: nothing is checked out or run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from sentinel.history import commits
from sentinel.history.commits import Commit
from sentinel.history.gittrees import TREE, Folder, LargeObjectError
from sentinel.history.names import Name, names_of, syntax_of
from sentinel.history.origins import code_lines, rows
from sentinel.sources.trees import FILE
from sentinel.targets import Binding, PackageRoot, Target

#: The share of the longer definition's lines that two must have in common to be one function under two names.
ALIKE = 0.5
#: Imports and base classes that are followed from one name; two modules may import each other's.
_FAR = 8

#: Of the commits of a branch, the ones that are looked at beside the releases.
_EVERY = 25

#: Where a definition is: the object name of its file, and the span.
_Place = tuple[str, tuple[int, int]]


@dataclass(frozen=True)
class Definition:
    """:ivar path: the dotted path under which it was looked for.
    :ivar file: its path in the repository.
    :ivar blob: the file's object name.
    """

    path: str
    file: str
    blob: str
    name: Name

    @property
    def place(self) -> _Place:
        return self.blob, self.name.span


@dataclass(frozen=True)
class Sighting:
    """Where a binding is at one commit.

    :ivar found: its boundary, under one of its names.
    :ivar lacks: the first thing of ``requires`` that this version has not.
    :ivar needs: the first module of ``imports`` that is not there.
    :ivar alike: what may be the boundary under another name, where it is not found: ``name (file:line)``.
    """

    found: Definition | None = None
    lacks: str = ""
    needs: str = ""
    alike: tuple[str, ...] = ()

    @property
    def bound(self) -> bool:
        return self.found is not None and not self.lacks and not self.needs

    @property
    def missing(self) -> bool:
        """Whether the framework has the thing, and the adapter does not reach it."""
        return bool(self.alike) or (self.found is not None and not self.lacks and bool(self.needs))

    @property
    def plain(self) -> dict[str, Any]:
        state = "bound" if self.bound else "not reached" if self.missing else "not in this version"
        path = self.found.path if self.found else ""
        return {"state": state, "path": path, "lacks": self.lacks, "needs": self.needs, "alike": list(self.alike)}


class Trees(Protocol):
    """Trees of files: :class:`~sentinel.history.gittrees.GitTrees`, or what stands for one."""

    def at(self, tree: str, path: str) -> tuple[str, str] | None: ...
    def folder(self, tree: str) -> Folder: ...
    def blob(self, name: str) -> bytes: ...


class Definitions:
    """Finds dotted paths in the trees of one mirror. A file is read once, whichever trees have it.

    :param roots: the target's package roots.
    :param module: what a blob defines, for a caller that has read it already.
    """

    def __init__(
        self, trees: Trees, roots: Sequence[PackageRoot], module: Callable[[str], Mapping[str, Name]] | None = None
    ) -> None:
        self._trees = trees
        self._roots: dict[str, list[str]] = defaultdict(list)
        for root in roots:
            self._roots[root.package].append(root.path)
        self.module = module or lru_cache(maxsize=None)(self._module)
        self.lines = lru_cache(maxsize=64)(self._lines)
        self.rows = lru_cache(maxsize=4096)(self._rows)
        self._below = lru_cache(maxsize=None)(self._files_below)

    def has(self, tree: str, required: str) -> bool:
        """Whether a tree has what a binding requires: a module, an attribute, a field, ``function(parameter)``."""
        path, _, parameter = required.removesuffix(")").partition("(")
        if self.file(tree, path) is not None:
            return True
        found = self.find(tree, path)
        return found is not None and (not parameter or parameter in found.name.parameters)

    def find(self, tree: str, path: str, far: int = _FAR) -> Definition | None:
        """What a dotted path leads to, through imports and base classes; None where it leads nowhere."""
        parts = path.split(".")
        for end in range(len(parts) - 1, 0, -1):
            place = self.file(tree, ".".join(parts[:end]))
            if place is not None:
                names = self.module(place[1])
                found = self._in(tree, place, ".".join(parts[:end]), names, parts[end:], far)
                return found and Definition(path, found.file, found.blob, found.name)
        return None

    def _in(
        self, tree: str, place: tuple[str, str], module: str, names: Mapping[str, Name], parts: list[str], far: int
    ) -> Definition | None:
        if far == 0:
            return None
        first, *rest = parts
        name = names.get(first)
        if name is None:
            stars = (lead for key, star in names.items() if key.startswith("*") for lead in star.leads)
            paths = (".".join((absolute(star, module, place[0]), *parts)) for star in stars)
            return next(filter(None, (self.find(tree, path, far - 1) for path in paths)), None)
        here = Definition(first, *place, name)
        if name.kind == "import":
            imported = absolute(name.leads[0], module, place[0])
            if imported.partition(".")[0] not in self._roots:
                return None if rest else here  # another package's, and none of the target's code
            if not rest and self.file(tree, imported) is not None:
                return here
            return self.find(tree, ".".join((imported, *rest)), far - 1)
        if not rest and name.kind != "value":
            return here
        top = self.module(place[1])
        if name.kind == "value":
            other = next((lead.split(".") for lead in name.leads if lead.partition(".")[0] != first), None)
            assigned = self._in(tree, place, module, top, [*other, *rest], far - 1) if other else None
            return assigned or here
        if name.kind == "function":
            return None
        if rest[0] in name.names:
            return self._in(tree, place, module, name.names, rest, far - 1)
        bases = (self._in(tree, place, module, top, [*base.split("."), *rest], far - 1) for base in name.leads)
        return next(filter(None, bases), None)

    def file(self, tree: str, module: str) -> tuple[str, str] | None:
        """Path and blob of a module's source."""
        package, *rest = module.split(".")
        if package not in self._roots:
            return None
        bases = ["/".join((root, *rest)) for root in self._roots[package]]
        for file in (file for base in bases for file in (f"{base}.py", f"{base}/__init__.py")):
            found = self._trees.at(tree, file)
            if found is not None and found[0] == FILE:
                return file, found[1]
        return None

    def sources(self, tree: str) -> Iterator[tuple[str, str]]:
        """Path and blob of every Python file of the package roots."""
        for root in (root for several in self._roots.values() for root in several):
            found = self._trees.at(tree, root)
            if found is not None and found[0] == TREE:
                yield from ((f"{root}/{path}", blob) for path, blob in self._below(found[1]))

    def _module(self, blob: str) -> Mapping[str, Name]:
        try:
            return names_of(syntax_of(self._trees.blob(blob)).body)
        except (SyntaxError, LargeObjectError):
            return {}

    def _lines(self, blob: str) -> tuple[bytes, ...]:
        try:
            return tuple(self._trees.blob(blob).splitlines())
        except LargeObjectError:
            return ()

    def _rows(self, blob: str, span: tuple[int, int] | None = None) -> frozenset[tuple[bytes, ...]]:
        """The rows of lines of a definition, or of a whole file."""
        lines = self.lines(blob)
        lines = lines if span is None else lines[span[0] - 1 : span[1]]
        return frozenset(row for _, row in rows(code_lines(b"\n".join(lines))))

    def _files_below(self, tree: str) -> frozenset[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        for name, (mode, child) in self._trees.folder(tree).items():
            if mode == TREE:
                found |= {(f"{name}/{path}", blob) for path, blob in self._below(child)}
            elif mode == FILE and name.endswith(".py"):
                found.add((name, child))
        return frozenset(found)


def revisions(mirror: Path, head: str) -> dict[str, Commit]:
    """The releases of a mirror, every 25th commit of a branch and its last: name -> commit, by date.

    :param head: the branch's last commit.
    """
    line = commits.history(mirror, head)
    found = {one.sha: (one.sha[:12], one) for one in [*line[::_EVERY], *line[-1:]]}
    found |= {tag.commit.sha: (tag.name, tag.commit) for tag in commits.releases(mirror)}
    return dict(sorted(found.values(), key=lambda item: (item[1].date, item[0])))


def sightings(
    target: Target, trees: Trees, revisions: Sequence[str], tell: Callable[[int], None] = lambda done: None
) -> list[list[Sighting]]:
    """Each binding of a target (in the adapter's order) at each of these trees.

    A boundary that is not in a tree is compared with every function there that no binding finds: one that has half its
    lines in common with the boundary at the nearest revision that has it may be it under another name.

    :param revisions: object names of trees, in the order of history.
    :param tell: called with the number of trees that were looked at.
    """
    definitions = Definitions(trees, target.roots)
    seen: list[list[Sighting]] = [[] for _ in target.bindings]
    for done, tree in enumerate(revisions):
        tell(done)
        for binding, ones in zip(target.bindings, seen):
            ones.append(sighting(definitions, tree, binding))
    return _Search(definitions, revisions, seen).completed()


def sighting(definitions: Definitions, tree: str, binding: Binding) -> Sighting:
    """Where a binding is in one tree, under its own names."""
    found = next(filter(None, (definitions.find(tree, path) for path in binding.paths)), None)
    return Sighting(found, *_lacking(definitions, tree, binding))


def _lacking(definitions: Definitions, tree: str, binding: Binding) -> tuple[str, str]:
    """What a tree has not: of what the adapter says that only some versions have, and of what a call imports."""
    own = binding.paths
    lacks = (item for item in binding.requires if not any(f"{path}.".startswith(f"{item}.") for path in own))
    needs = (name for name in binding.imports if not any(definitions.has(tree, then) for then in binding.names(name)))
    return next((item for item in lacks if not definitions.has(tree, item)), ""), next(needs, "")


class _Search:
    """Looks for boundaries under other names."""

    def __init__(self, definitions: Definitions, trees: Sequence[str], seen: Sequence[Sequence[Sighting]]) -> None:
        self._definitions, self._trees, self._seen = definitions, trees, seen
        self._nearest = [
            [_nearest(ones, number) if one.found is None and not one.lacks else None for number, one in enumerate(ones)]
            for ones in seen
        ]
        self._holders: dict[tuple[bytes, ...], set[_Place]] = defaultdict(set)
        for place in {one[1].place for ones in self._nearest for one in ones if one is not None}:
            for row in definitions.rows(*place):
                self._holders[row].add(place)
        self._near = lru_cache(maxsize=None)(self._near_in)

    def completed(self) -> list[list[Sighting]]:
        there = [{one.found.place for one in ones if one.found} for ones in zip(*self._seen)]
        return [
            [
                replace(one, alike=tuple(self._alike(*near, number, there[number]))) if near else one
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
        """Whether a revision has a function too: then it is another one."""
        return any(
            name == other
            for where, blob in self._definitions.sources(self._trees[number])
            if where == file
            for other, _ in _functions(self._definitions.module(blob))
        )

    def _near_in(self, blob: str) -> frozenset[_Place]:
        """The definitions that may have half their lines in a file."""
        common = Counter(place for row in self._definitions.rows(blob) for place in self._holders.get(row, ()))
        return frozenset(p for p, count in common.items() if count >= ALIKE * len(self._definitions.rows(*p)))

    def _one(self, place: _Place, other: _Place) -> bool:
        one, two = self._definitions.rows(*place), self._definitions.rows(*other)
        return len(one & two) >= ALIKE * max(len(one), len(two))


def _nearest(ones: Sequence[Sighting], number: int) -> tuple[int, Definition] | None:
    """The nearest revision that has a boundary, and its function there."""
    there = [(n, one.found) for n, one in enumerate(ones) if one.found and one.found.name.kind == "function"]
    return min(there, key=lambda item: abs(item[0] - number), default=None)


def _functions(names: Mapping[str, Name], owner: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    for key, name in names.items():
        if name.kind == "function":
            yield f"{owner}{key}", name.span
        elif name.kind == "class":
            yield from _functions(name.names, f"{key}.")


def absolute(written: str, module: str, file: str) -> str:
    """The dotted path that an import means, written in a module."""
    dots = len(written) - len(written.lstrip("."))
    if not dots:
        return written
    package = module.split(".") if file.endswith("/__init__.py") else module.split(".")[:-1]
    return ".".join((*package[: len(package) - dots + 1], *filter(None, written[dots:].split("."))))
