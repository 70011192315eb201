"""Compare revisions by the files that a probe looked up (its closure). The files are read from git, without a checkout.

:mod:`sentinel.worker.trace` defines the lookups, which the code calls questions. If all lookups of a probe have the
same results in two revisions, the probe has the same result in both. Proof by induction: the first lookup does not
depend on the tree, and each further lookup depends only on the results of earlier lookups.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import all_suffixes

from sentinel.records.basis import Surroundings, third_party
from sentinel.sources.gittrees import TREE, GitTrees
from sentinel.sources.trees import LINK
from sentinel.targets import PackageRoot
from sentinel.worker.trace import EVERYTHING

#: The maximum number of cached results, of about 400 bytes each.
_CACHED = 100_000


@dataclass(frozen=True)
class Closure:
    """The file lookups of a probe. If all of them have the same results in two revisions, so has the probe.

    :ivar questions: the lookups, sorted, such as ``m:trl/trainer`` (a module), ``d:trl`` (a listed folder) and
        ``p:ray`` (a third-party module). See :mod:`sentinel.worker.trace`.
    """

    questions: tuple[str, ...]

    @cached_property
    def id(self) -> str:
        return hashlib.sha256("\n".join(self.questions).encode("utf-8", "surrogateescape")).hexdigest()[:24]

    @property
    def opaque(self) -> bool:
        """Return True if the verdict may depend on any file, so that it applies only to an identical tree."""
        return EVERYTHING in self.questions

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """Return the third-party modules that the probe looked up."""
        return tuple(question[2:] for question in self.questions if question[0] == "p")

    @cached_property
    def places(self) -> tuple[tuple[str, frozenset[str] | None], ...]:
        """Return folder -> names that were looked up in it, or None if the whole folder was listed."""
        names: dict[str, set[str] | None] = {}
        for question in self.questions:
            kind, path = question[0], question[2:]
            if kind == "p":
                continue
            if kind == "d":
                names[path] = None
                continue
            parent, _, name = path.rpartition("/")
            places = [(parent, name)]
            if kind == "m":
                places += [(parent, name + suffix) for suffix in all_suffixes()]
                places += [(path, f"__init__{suffix}") for suffix in all_suffixes()]
            for folder, item in places:
                names_here = names.setdefault(folder, set())
                if names_here is not None:
                    names_here.add(item)
        return tuple(
            (folder, None if names_here is None else frozenset(names_here))
            for folder, names_here in sorted(names.items())
        )


def closure_of(questions: Iterable[str] | None, roots: Sequence[PackageRoot]) -> Closure:
    """Return the lookups of a probe whose results can differ between revisions.

    A checkout contains only the package roots, so a top-level module that was looked up outside them is third-party.
    Its lookup becomes a lookup in the environment, for example ``p:ray``.

    :param questions: the lookups that the worker recorded; None if it could not record them.
    """
    if questions is None:
        return Closure((EVERYTHING,))
    places = [root.path for root in roots]
    relevant = {
        question
        for question in questions
        if question == EVERYTHING or any(f"{question[2:]}/".startswith(f"{place}/") for place in places)
    }
    import_roots = {root.import_root for root in roots}
    for question in questions:
        parent, _, name = question[2:].rpartition("/")
        if question[0] == "m" and question not in relevant and parent in import_roots and third_party(name):
            relevant.add(f"p:{name}")
    return Closure((EVERYTHING,) if EVERYTHING in relevant else tuple(sorted(relevant)))


class Revision:
    """The git trees of one revision, in which the lookups of a closure can be repeated."""

    def __init__(
        self,
        trees: GitTrees,
        tree: str,
        roots: Sequence[PackageRoot],
        memo: dict[tuple[str, str, str], str | None],
        surroundings: Surroundings,
    ) -> None:
        self._surroundings = surroundings
        self._trees = trees
        self._memo = memo
        self._tree = tree
        self._folders: dict[str, str | None] = {"": tree}
        self._answers: dict[str, str] = {}
        entries = [(root.path, trees.at(tree, root.path)) for root in roots]
        self.roots = tuple((path, entry[1]) for path, entry in entries if entry is not None and entry[0] == TREE)

    def answers(self, closure: Closure) -> str:
        """Repeat a closure's lookups in this revision, and return a digest of their results.

        :raises MissingObjectError: if the mirror lacks a tree.
        """
        digest = self._answers.get(closure.id)
        if digest is None:
            lines = self._lines(closure)
            if lines is None:
                lines = [f"{path} {tree}" for path, tree in self.roots]
            packages = [f"{name} {self._surroundings(name)}" for name in closure.packages]
            text = json.dumps([[path for path, _ in self.roots], lines, packages])
            digest = self._answers[closure.id] = hashlib.sha256(text.encode()).hexdigest()[:40]
        return digest

    def _lines(self, closure: Closure) -> list[str] | None:
        """Return the results of the lookups. Return None if a symbolic link makes them depend on the whole tree."""
        if closure.opaque:
            return None
        lines: list[str] = []
        for path, names in closure.places:
            tree = self._folder(path)
            if tree is None:
                continue
            if tree == LINK:
                return None
            key = (closure.id, path, tree)
            if key not in self._memo:
                if len(self._memo) >= _CACHED:
                    self._memo.clear()  # otherwise the cache would grow with commits times closures
                self._memo[key] = self._entries_of(path, names, tree)
            line = self._memo[key]
            if line is None:
                return None
            lines.append(line)
        return lines

    def _entries_of(self, path: str, names: frozenset[str] | None, tree: str) -> str | None:
        folder = self._trees.folder(tree)
        entries = [
            (name, TREE if folder[name][0] == TREE else " ".join(folder[name]))
            for name in sorted(folder if names is None else names & folder.keys())
        ]
        return None if any(entry.startswith(LINK) for _, entry in entries) else json.dumps([path, entries])

    def _folder(self, path: str) -> str | None:
        """Return the git tree of a folder. Return None if there is none, and ``LINK`` if its path contains a symbolic
        link."""
        if path not in self._folders:
            parent, _, name = path.rpartition("/")
            above = self._folder(parent)
            entry = self._trees.folder(above).get(name) if above not in (None, LINK) else None
            if above == LINK or (entry is not None and entry[0] == LINK):
                self._folders[path] = LINK
            else:
                self._folders[path] = entry[1] if entry is not None and entry[0] == TREE else None
        return self._folders[path]
