"""Find the imports of a revision's modules by reading their source, without running or compiling it.

The process that runs the checkout's code reports a probe's lookups, so this code could forge the report. Imports that
are read from the source do not depend on that process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sentinel.sources.gitbinary import MissingObjectError
from sentinel.sources.gittrees import TREE, GitTrees
from sentinel.sources.trees import FILE
from sentinel.targets import PackageRoot
from sentinel.worker.codes import LARGEST_SOURCE
from sentinel.worker.trace import EVERYTHING

#: Import statements at any indentation. A match in a string or comment does no harm, because it only adds lookups.
_STATEMENT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+(?P<origin>[.\w]+)[ \t]+import\b(?=(?P<names>[^\n;]*))"
    r"|import[ \t]+(?P<modules>[^\n;]*))",
    re.MULTILINE,
)
#: Limits: the length of a parenthesised list of names in characters, and the number of names in one file.
_LONGEST, _MOST = 8000, 20_000
_LITERAL = re.compile(r"\b(?:import_module|__import__)\(\s*['\"](?P<module>[\w.]+)['\"]\s*\)")
#: A call at module level that imports a computed name or runs other code.
_DYNAMIC = re.compile(
    r"^(?![ \t#]|def |class |async )[^\n#]*"
    r"\b(?:import_module|__import__|spec_from_file_location|run_path|run_module|exec)\((?!\s*['\"][\w.]+['\"]\s*\))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")
_NAME = re.compile(r"[\w.]+")


@dataclass(frozen=True)
class _Text:
    """The imports that the text of a source file contains.

    :ivar names: dotted names of modules, or of names in modules. Relative names keep their leading dots.
    :ivar is_dynamic: True if the file may import further modules, because it imports a computed name or is too long to
        be read.
    """

    names: tuple[str, ...]
    is_dynamic: bool


class Imports:
    """Finds the imports of source files in one mirror. Each file is read once."""

    def __init__(self, trees: GitTrees, roots: Sequence[PackageRoot]) -> None:
        self._trees = trees
        self._roots = roots
        self._texts: dict[str, _Text] = {}

    def questions(self, tree: str, modules: Iterable[str]) -> set[str]:
        """Return the file lookups (:mod:`sentinel.worker.trace`) of importing these modules of a revision.

        :returns: the lookups; only :data:`~sentinel.worker.trace.EVERYTHING` if a module imports a computed name.
        :raises MissingObjectError: if the mirror lacks a tree.
        """
        questions: set[str] = set()
        done: set[str] = set()
        left = list(modules)
        while left:
            name = left.pop()
            if name in done:
                continue
            done.add(name)
            for module, is_package, blob in self._walk(tree, name, questions):
                text = self._read(blob)
                if text.is_dynamic:
                    return {EVERYTHING}
                left += (_absolute(item, module, is_package) for item in text.names)
        return questions

    def _walk(self, tree: str, name: str, questions: set[str]) -> Iterator[tuple[str, bool, str]]:
        """Yield (name, is_package, git blob) for each package and module of a dotted name.

        Add to ``questions`` the lookups that importing the name makes.
        """
        first, *others = name.split(".")
        for root in self._roots:
            if root.package != first:
                continue
            path, module = root.path, first
            for part in (None, *others):
                if part is not None:
                    path, module = f"{path}/{part}", f"{module}.{part}"
                questions.add(f"m:{path}")
                entry = self._trees.at(tree, path)
                is_package = entry is not None and entry[0] == TREE
                found = self._trees.at(tree, f"{path}/__init__.py" if is_package else f"{path}.py")
                if found is not None and found[0] == FILE:
                    yield module, is_package, found[1]
                if not is_package:
                    break

    def _read(self, blob: str) -> _Text:
        if blob not in self._texts:
            try:
                content = self._trees.blob(blob)
            except MissingObjectError:  # checkouts are made from the same mirror, so they lack the file too
                content = b""
            is_long = len(content) > LARGEST_SOURCE
            text = "" if is_long else content.decode("utf-8", "replace")
            names = list(islice(_names(text), _MOST))
            is_dynamic = is_long or len(names) == _MOST or bool(_DYNAMIC.search(text))
            self._texts[blob] = _Text(tuple(dict.fromkeys(names)), is_dynamic)
        return self._texts[blob]


def _names(text: str) -> Iterator[str]:
    text = text.replace("\\\n", " ")
    for match in _STATEMENT.finditer(text):
        stem, listed = "", match["modules"]
        if listed is None:
            origin, listed = match["origin"], match["names"]
            yield origin
            stem = origin if origin.endswith(".") else f"{origin}."
            if listed.lstrip().startswith("("):
                start = match.end() + listed.index("(") + 1
                listed = _COMMENT.sub("", text[start : start + _LONGEST]).partition(")")[0]
        for part in _COMMENT.sub("", listed).split(","):
            yield from (stem + name[0] for name in [_NAME.match(part.strip())] if name)
    yield from (match["module"] for match in _LITERAL.finditer(text))


def _absolute(name: str, module: str, is_package: bool) -> str:
    """Resolve a relative import of a module. Return an empty string if it leaves the top-level package."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    above = module.split(".")
    package = above[: len(above) - level + is_package]
    return ".".join([*package, *filter(None, name[level:].split("."))]) if package else ""
