"""Find the functions that an adapter binds, in a git tree or a checkout, by parsing its files."""

from __future__ import annotations

import ast
import gc
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Protocol

from sentinel.sources.checkouts import files
from sentinel.sources.gitbinary import LargeObjectError
from sentinel.sources.gittrees import TREE, Folder
from sentinel.sources.trees import FILE
from sentinel.targets import Binding, PackageRoot
from sentinel.targets.checkout import Checkout
from sentinel.worker.codes import LARGEST_SOURCE, read_source


@dataclass(frozen=True)
class Name:
    """A name that a module or class defines.

    :ivar kind: ``function``, ``class``, ``import`` or ``value``.
    :ivar span: the first line, including decorators, and the last line.
    :ivar leads: the dotted paths to which it refers, as written: an imported or assigned name, or a class's bases.
    :ivar names: the names that a class defines in its body.
    """

    kind: str
    span: tuple[int, int] = (0, 0)
    leads: tuple[str, ...] = ()
    names: Mapping[str, Name] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()


def syntax_of(content: str | bytes) -> ast.Module:
    """Parse a source file.

    :raises SyntaxError: if it is not valid Python or is nested too deeply for the parser.
    """
    with _PARSING:
        collects = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(content)
        except (ValueError, MemoryError, RecursionError) as error:
            raise SyntaxError(f"{type(error).__name__} while parsing") from None
        finally:
            if collects:
                gc.enable()


#: Before Python 3.11.8, parsing raises SystemError if garbage collection runs code during parsing (gh-106905).
_PARSING = threading.Lock()


def names_of(body: Sequence[ast.stmt]) -> dict[str, Name]:
    """Return the names that a block of statements defines, including those under a condition.

    If a name is defined several times, the last definition counts. A definition in an ``except`` block counts only if
    no other part of the ``try`` statement defines the name.
    """
    names: dict[str, Name] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names[node.name] = Name("function", span_of(node), parameters=frozenset(parameters_of(node)))
        elif isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).partition("[")[0] for base in node.bases)
            names[node.name] = Name("class", span_of(node), bases, names_of(node.body))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                key = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0])
                if isinstance(node, ast.Import):
                    names[key] = Name("import", leads=(alias.name if alias.asname else key,))
                elif alias.name == "*":
                    names[f"*{len(names)}"] = Name("import", leads=("." * node.level + (node.module or ""),))
                else:
                    start = "." * node.level + (f"{node.module}." if node.module else "")
                    names[key] = Name("import", leads=(f"{start}{alias.name}",))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            plain = isinstance(node.value, (ast.Name, ast.Attribute))
            leads = (ast.unparse(node.value),) if plain and node.value else ()
            for item in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(item, ast.Name):
                    names[item.id] = Name("value", span_of(node), leads)
        else:
            blocks = (getattr(node, part, ()) for part in ("body", "orelse", "finalbody"))
            handlers = (handler.body for handler in getattr(node, "handlers", ()))
            for block in (*handlers, *blocks):
                names |= names_of(block)
    return names


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of a function's parameters, without ``*args`` and ``**kwargs``."""
    arguments = node.args
    return [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def span_of(node: ast.stmt) -> tuple[int, int]:
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(one.lineno for one in decorators)]), node.end_lineno or node.lineno


#: Minimum similarity (0 to 1) of the code of a removed function and a new one that may be the same function renamed.
ALIKE = 0.5
#: Maximum number of imports and base classes that are followed from one name. Imports can be circular.
_FAR = 8


@dataclass(frozen=True)
class Definition:
    """A definition that was found in a git tree or a checkout.

    :ivar path: the dotted path under which it was looked up.
    """

    path: str
    file: str
    blob: str
    name: Name

    @property
    def place(self) -> tuple[str, tuple[int, int]]:
        """Return the blob hash of the definition's file, and the definition's first and last line."""
        return self.blob, self.name.span


@dataclass(frozen=True)
class Sighting:
    """The result of looking up a binding's function at one commit.

    :ivar definition: the function's definition, found under one of the binding's names; None if there is none.
    :ivar lacks: the first entry of ``requires`` that this version does not have; empty if it has all.
    :ivar needs: the first module of ``imports`` that this version does not have; empty if it has all.
    """

    definition: Definition | None = None
    lacks: str = ""
    needs: str = ""

    @property
    def bound(self) -> bool:
        return self.definition is not None and not self.lacks and not self.needs


class Trees(Protocol):
    """The interface through which git trees are read, such as :class:`~sentinel.sources.gittrees.GitTrees`."""

    def at(self, tree: str, path: str) -> tuple[str, str] | None: ...
    def folder(self, tree: str) -> Folder: ...
    def blob(self, name: str) -> bytes: ...


class Definitions:
    """Looks up dotted paths in git trees. Each file is parsed once.

    :param module: returns the names that a blob defines, for callers that have parsed the files already.
    """

    def __init__(
        self, trees: Trees, roots: Sequence[PackageRoot], module: Callable[[str], Mapping[str, Name]] | None = None
    ) -> None:
        self._trees = trees
        self._roots: dict[str, list[str]] = defaultdict(list)
        for root in roots:
            self._roots[root.package].append(root.path)
        self.module = module or lru_cache(maxsize=None)(self._module)
        self._below = lru_cache(maxsize=None)(self._files_below)

    def has(self, tree: str, required: str) -> bool:
        """Return True if a tree has what a binding needs: a module, attribute, field or parameter."""
        path, _, parameter = required.removesuffix(")").partition("(")
        if self.file(tree, path) is not None:
            return True
        definition = self.find(tree, path)
        return definition is not None and (not parameter or parameter in definition.name.parameters)

    def find(self, tree: str, path: str, far: int = _FAR) -> Definition | None:
        """Return the definition at a dotted path, or None. Imports and base classes are followed."""
        module, place = self.module_of(tree, path)
        if place is None:
            return None
        rest = path[len(module) + 1 :].split(".")
        definition = self._in(tree, place, module, self.module(place[1]), rest, far)
        return definition and Definition(path, definition.file, definition.blob, definition.name)

    def module_of(self, tree: str, path: str) -> tuple[str, tuple[str, str] | None]:
        """Split off the longest prefix of a dotted path that is a module. Return it and its file as ``(path, blob)``,
        or ``("", None)`` if no prefix is a module."""
        parts = path.split(".")
        for end in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:end])
            place = self.file(tree, module)
            if place is not None:
                return module, place
        return "", None

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
                return None if rest else here  # from another package, so not the target's code
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
        """Return the path and blob hash of a module's source file, or None."""
        package, *rest = module.split(".")
        if package not in self._roots:
            return None
        bases = ["/".join((root, *rest)) for root in self._roots[package]]
        for file in (file for base in bases for file in (f"{base}.py", f"{base}/__init__.py")):
            entry = self._trees.at(tree, file)
            if entry is not None and entry[0] == FILE:
                return file, entry[1]
        return None

    def sources(self, tree: str) -> Iterator[tuple[str, str]]:
        """Yield the path and blob hash of every Python file in the packages."""
        for root in (root for several in self._roots.values() for root in several):
            entry = self._trees.at(tree, root)
            if entry is not None and entry[0] == TREE:
                yield from ((f"{root}/{path}", blob) for path, blob in self._below(entry[1]))

    def _module(self, blob: str) -> Mapping[str, Name]:
        try:
            return names_of(syntax_of(self._trees.blob(blob)).body)
        except (SyntaxError, LargeObjectError):
            return {}

    def _files_below(self, tree: str) -> frozenset[tuple[str, str]]:
        files: set[tuple[str, str]] = set()
        for name, (mode, child) in self._trees.folder(tree).items():
            if mode == TREE:
                files |= {(f"{name}/{path}", blob) for path, blob in self._below(child)}
            elif mode == FILE and name.endswith(".py"):
                files.add((name, child))
        return frozenset(files)


class CheckoutTrees:
    """The files of a checkout, with the interface of a git tree (:class:`Trees`).

    A checkout is a single tree, so :meth:`at` ignores ``tree``, and :meth:`folder` takes a path.
    """

    def __init__(self, checkout: Checkout) -> None:
        self._base = checkout.path
        self._folders: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        self._files: dict[str, str] = {}
        for file, blob in files(checkout).items():
            path, entry = PurePosixPath(file), (FILE, blob)
            self._files[blob] = file
            while path.name:
                above = path.parent.as_posix()
                self._folders["" if above == "." else above][path.name] = entry
                path = path.parent
                entry = (TREE, path.as_posix())

    def at(self, tree: str, path: str) -> tuple[str, str] | None:
        above, _, name = path.rpartition("/")
        return self.folder(above).get(name)

    def folder(self, tree: str) -> Folder:
        return self._folders.get(tree, {})

    def blob(self, name: str) -> bytes:
        return self.content(self._files[name])

    def content(self, file: str) -> bytes:
        # Read one byte more than the limit, so that the caller can detect a source that is too large.
        return read_source(str(self._base / file), LARGEST_SOURCE + 1)


def sighting(definitions: Definitions, tree: str, binding: Binding) -> Sighting:
    """Look up the function of a binding in a tree, under its current name and then under its former names."""
    definition = next(filter(None, (definitions.find(tree, path) for path in binding.paths)), None)
    return Sighting(definition, *_missing_names(definitions, tree, binding))


def _missing_names(definitions: Definitions, tree: str, binding: Binding) -> tuple[str, str]:
    """Return the first entry of ``requires``, and the first of ``imports``, that the tree lacks; empty strings if it
    has all."""
    own = binding.paths
    lacks = (item for item in binding.requires if not any(f"{path}.".startswith(f"{item}.") for path in own))
    needs = (name for name in binding.imports if not any(definitions.has(tree, then) for then in binding.names(name)))
    return next((item for item in lacks if not definitions.has(tree, item)), ""), next(needs, "")


def absolute(path: str, module: str, file: str) -> str:
    """Convert a dotted path in an import statement to an absolute path."""
    dots = len(path) - len(path.lstrip("."))
    if not dots:
        return path
    package = module.split(".") if file.endswith("/__init__.py") else module.split(".")[:-1]
    return ".".join((*package[: len(package) - dots + 1], *filter(None, path[dots:].split("."))))
