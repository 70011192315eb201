"""Find the definitions that a boundary's code may use, by following names in the source. No code runs.

If all definitions that a boundary reaches are equal in two trees, the boundary computes the same in both, and neither
revision needs to be called. Definitions that may be used are included. For example, a method of a used class is
included if any object's attribute of this name is used, and everything in a used registry is included. Comments, layout
and the order of definitions do not matter.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from sentinel.comparing.units import AtImport, Module, Unit, at_import, parse
from sentinel.search.bindings import Definition, Definitions, Name, Trees, absolute, syntax_of
from sentinel.search.inventory import doubtful_functions, signal_functions
from sentinel.targets import Binding, Target
from sentinel.worker.codes import LARGEST_SOURCE

#: The place of a definition: (file, qualified name).
Place = tuple[str, str]

#: Maximum number of imports that are followed from one name. Without a limit, circular imports would never end.
_FAR = 8


#: Cached results of :meth:`Code.reached`: (boundary, contract) -> pairs of the files that were read, with their blobs,
#: and the definitions that the boundary reaches.
Walked = dict[tuple[str, str], "deque[tuple[Mapping[str, str], Reached]]"]


class Code:
    """The definitions in a mirror's trees or in a checkout. Each file is parsed once.

    :param modules: the parsed files by blob, if several instances share them.
    :param walked: the results of :meth:`reached`, if several instances share them.
    """

    def __init__(
        self, target: Target, trees: Trees, modules: dict[str, Module] | None = None, walked: Walked | None = None
    ) -> None:
        self._trees = trees
        self._modules = {} if modules is None else modules
        self.target = target
        self.definitions = Definitions(trees, target.roots, lambda blob: self.module(blob).names)
        self._walked: Walked = {} if walked is None else walked
        self.module = lru_cache(maxsize=_REMEMBERED)(self._module)
        self.locate = lru_cache(maxsize=_PATHS)(self._locate)
        self.missing = lru_cache(maxsize=_REMEMBERED)(self._missing)
        self.files = lru_cache(maxsize=8)(self._files)
        self.module_of = lru_cache(maxsize=None)(target.module_of)
        #: blob -> what importing the file does; the key None stands for a missing file
        self.at_import = lru_cache(maxsize=_REMEMBERED)(self._at_import)

    def _module(self, blob: str) -> Module:
        if blob not in self._modules:
            if len(self._modules) >= _REMEMBERED:
                self._modules.clear()
            content = self._trees.blob(blob)
            self._modules[blob] = parse(content) if len(content) <= LARGEST_SOURCE else Module()
        return self._modules[blob]

    def _locate(self, tree: str, path: str) -> tuple[tuple[str, str], list[str]] | None:
        """Split a dotted path into a module and the names after it. Return ``((file, blob), names)``; None if the tree
        has no such module."""
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            place = self.definitions.file(tree, ".".join(parts[:end]))
            if place is not None:
                return place, parts[end:]
        return None

    def _missing(self, tree: str, place: tuple[str, str]) -> list[Unit]:
        """Return a module's imports of target code that does not exist. They may make the import of the module fail."""
        here, missing = self.module_of(place[0]), []
        for path in sorted({path for paths in self.module(place[1]).imports.values() for path in paths}):
            path = absolute(path, here, place[0])
            if path.partition(".")[0] not in self.target.packages:
                continue
            found = self.locate(tree, path)
            if found is not None and found[1]:
                module = self.module(found[0][1])
                computed = module.stars or "__getattr__" in module.units
                found = found if computed or found[1][0] in {**module.units, **module.imports} else None
            if found is None:
                name, nothing = f"import {path}", frozenset[str]()
                missing.append(Unit(name, "rest", (1, 1), name, nothing, nothing, frozenset()))
        return missing

    def parses(self, blob: str) -> bool:
        """Return True if a file can be parsed."""
        with suppress(SyntaxError, RecursionError, MemoryError):
            syntax_of(self._trees.blob(blob))
            return True
        return False

    def signals(self, file: str, blob: str) -> list[str]:
        """Return the functions of a file that carry training signal by the inventory's rule."""
        return [each.name for each in signal_functions(self._body(blob), self.module_of(file))]

    def doubtful(self, file: str, blob: str) -> set[str]:
        """Return the functions of a file that the inventory's rule excludes but that may still carry signal
        (:func:`doubtful_functions`)."""
        return doubtful_functions(self._body(blob), self.module_of(file))

    def _body(self, blob: str) -> list[ast.stmt]:
        content = self._trees.blob(blob)
        with suppress(SyntaxError, RecursionError, MemoryError):
            if len(content) <= LARGEST_SOURCE:
                return syntax_of(content).body
        return []

    def names(self, blob: str, words: Collection[str]) -> bool:
        """Return True if a file's source contains one of these words."""
        content = self._trees.blob(blob)
        return any(word.encode() in content for word in words)

    def reached(self, tree: str, binding: Binding) -> Reached | None:
        """Return the definitions that a boundary may use in a tree; None if the tree does not have the boundary.

        Results are cached. A result is reused for every tree that has the same versions of the files that were read for
        it.
        """
        definition = next(filter(None, (self.definitions.find(tree, path) for path in binding.paths)), None)
        if definition is None:
            return None
        files = self.files(tree)
        walked = self._walked.setdefault((binding.boundary, binding.contract), deque(maxlen=_WALKS))
        for passed, reached in walked:
            if definition.file in passed and all(files.get(file) == blob for file, blob in passed.items()):
                return reached
        walk = _Walk(self, tree)
        for path in binding.paths:
            walk.follow(path)
        called = frozenset(names_in(binding.call)) if binding.call is not None else frozenset()
        walk.use((definition.file, definition.blob), called)
        for name in binding.imports:
            for then in binding.names(name):
                walk.follow(then, called)
        reached = walk.finish()
        walked.appendleft((walk.files, reached))
        return reached

    def find_unit(self, tree: str, path: str) -> Place | None:
        """Return the place of the definition at a dotted path; None if the tree's code does not define it."""
        definition = self.definitions.find(tree, path)
        if definition is None:
            return None
        unit = self.unit_of(definition)
        return (definition.file, unit.name) if unit is not None and unit.name else None

    def unit_of(self, definition: Definition) -> Unit | None:
        """Return the code of a definition."""
        units = self.module(definition.blob).units.values()
        return next((unit for unit in units if unit.span == definition.name.span), None)

    def unit(self, tree: str, place: Place) -> Unit | None:
        """Return the definition at a place; None if the tree does not have it."""
        blob = self.files(tree).get(place[0])
        return None if blob is None else self.module(blob).units.get(place[1])

    def _at_import(self, blob: str | None) -> AtImport:
        return AtImport(()) if blob is None else at_import(self._trees.blob(blob))

    def _files(self, tree: str) -> dict[str, str]:
        return dict(self.definitions.sources(tree))


def changed_files(
    before: tuple[Code, str], after: tuple[Code, str]
) -> Iterator[tuple[str, tuple[Code, str | None], tuple[Code, str | None]]]:
    """Yield the files that differ between two trees.

    Each item is the file's path and, for each tree, a pair of the :class:`Code` that reads the file and the file's
    blob.

    :param before: the code that reads the first tree, and the tree.
    :param after: the same for the second tree.
    """
    one, other = (code.files(tree) for code, tree in (before, after))
    for file in sorted(one.keys() | other.keys()):
        if one.get(file) != other.get(file):
            yield file, (before[0], one.get(file)), (after[0], other.get(file))


def changes_of(
    file: str, before: tuple[Code, str | None], after: tuple[Code, str | None], names: Collection[str] | None = None
) -> dict[Place, tuple[Unit | None, Unit | None]]:
    """Return the definitions that differ between two versions of a file. A version is None if the file does not exist.

    :param names: if given, only definitions with these names.
    """
    one, other = ({} if blob is None else code.module(blob).units for code, blob in (before, after))
    pairs = {
        (file, name): (one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys() if names is None else names)
    }
    return {place: both for place, both in pairs.items() if both[0] is None or not both[0].like(both[1])}


def changed_effect(before: tuple[Code, str | None], after: tuple[Code, str | None]) -> int | None:
    """Return the line of the first changed module-level statement that may affect other code; None if there is none.

    :param before: the code that reads the file at the base, and its blob there.
    :param after: the same for the head.
    """
    old, new = (code.at_import(blob).effects for code, blob in (before, after))
    if [syntax for syntax, _ in old] == [syntax for syntax, _ in new]:
        return None
    known = {syntax for syntax, _ in old}
    return next((line for syntax, line in new if syntax not in known), new[0][1] if new else 1)


def signal_changes(
    file: str, before: tuple[Code, str | None], after: tuple[Code, str | None]
) -> dict[Place, tuple[Unit | None, Unit | None]]:
    """Return the signal functions that differ between two versions of a file."""
    there = [(code, blob) for code, blob in (before, after) if blob is not None]
    return changes_of(file, before, after, {name for code, blob in there for name in code.signals(file, blob)})


#: A placeholder for a name that a module does not define.
_NO_NAME = Name("")

#: Maximum number of cached results of :meth:`Code.reached` for one boundary.
_WALKS = 16

#: Maximum number of parsed modules in memory, about 100 kB each.
_REMEMBERED = 3000

#: Maximum number of dotted paths whose modules are cached.
_PATHS = 1 << 16


@dataclass(frozen=True)
class Reached:
    """The definitions that a boundary may use."""

    units: Mapping[Place, Unit]

    def changed(self, other: Reached) -> list[tuple[Place, Unit | None, Unit | None]]:
        """Return the definitions that differ between two trees, each as its place and both versions."""
        both = ((place, self.units.get(place), other.units.get(place)) for place in {**self.units, **other.units})
        return sorted(((place, a, b) for place, a, b in both if a is None or not a.like(b)), key=lambda item: item[0])

    def apart_from(self, other: Reached, ran: Collection[str]) -> bool:
        """Return True if calls that run only functions with these names cannot use any definition that differs in
        another tree.

        Such calls return the same in both trees, so they need not be repeated. The result is False if a value or class
        has changed, because its use cannot be observed. A changed field counts only if the code of a function that ran
        contains its name.

        :param ran: the names of the functions that ran, without class and module.
        """
        changed = self.changed(other)
        moved = {place for place, _, _ in changed}
        stayed = [unit for place, unit in self.units.items() if place not in moved]
        loaded: set[str] = set().union(*(each.decorators for each in stayed))
        used: set[str] = set()
        for unit in stayed:
            if unit.kind != "function":
                loaded |= (unit.names | unit.attributes) - {_last_part(unit.name)}
            elif _last_part(unit.name) in ran:
                used |= unit.names | unit.attributes
        whole = {place for place, one, two in changed if one is None or two is None}
        for (file, name), one, two in changed:
            owner, _, last = name.rpartition(".")
            if one is None or two is None:
                [alone] = filter(None, (one, two))
                if alone.decorators - _HARMLESS or (alone.kind in ("rest", "entry") and alone.text.strip()):
                    return False
                if (file, owner) in whole:  # a method of a new or removed class; the class is in `changed` too
                    continue
                if last in used or last.startswith("__"):
                    return False
            else:
                read = one.kind == two.kind == "field" and last not in used
                called = one.kind == two.kind == "function" and one.decorators == two.decorators
                if not read and not called:
                    return False
            if last in ran or last in loaded:
                return False
        return True


#: Decorators that do not register a function.
_HARMLESS = frozenset(["staticmethod", "classmethod", "property", "dataclass", "abstractmethod", "no_grad", "override"])


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


class _Walk:
    """Follows names in one tree to collect the definitions that a boundary may use."""

    def __init__(self, code: Code, tree: str) -> None:
        self._code, self._tree = code, tree
        self._units: dict[Place, Unit] = {}
        self.files: dict[str, str] = {}
        self._live: dict[Place, str] = {}
        self._attributes: set[str] = set()
        self._named: set[str] = set()
        self._followed: set[str] = set()
        self._decorating: dict[Place, Unit] = {}

    def follow(self, path: str, called: frozenset[str] = frozenset()) -> None:
        """Add the definition at a dotted path. If the path is a module, add its classes and the functions in
        ``called``."""
        module_and_rest = self._code.locate(self._tree, path)
        if module_and_rest is None:
            return
        place, rest = module_and_rest
        if rest:
            self._use(place, rest[0], _FAR)
            if len(rest) > 1:
                self._attributes |= set(rest[1:])
                self._add(place, ".".join(rest))
        else:
            self._enter(place)
            module = self._code.module(place[1])
            classes = {name for name, unit in module.units.items() if unit.kind == "class"}
            for name in classes | (called & module.units.keys()):
                self._add(place, name)
            self.use(place, called)

    def use(self, place: tuple[str, str], names: frozenset[str]) -> None:
        """Add the definitions with these names in a module."""
        self._attributes |= names
        for name in names:
            self._use(place, name, _FAR)

    def finish(self) -> Reached:
        size = -1
        while size != len(self._units):
            size = len(self._units)
            for (file, name), blob in list(self._live.items()):
                for method in self._code.module(blob).inner.get(name, ()):
                    last = method.rpartition(".")[2]
                    if last in self._attributes or last.startswith("__"):
                        self._add((file, blob), method)
            for file, blob in list(self.files.items()):
                for unit in self._code.module(blob).decorated:
                    if unit.decorators & self._named:
                        self._add((file, blob), unit.name)
        # Sorted, because the order determines which options are tried, and the order of a set differs between
        # processes.
        return Reached(dict(sorted({**self._decorating, **self._units}.items())))

    def _enter(self, place: tuple[str, str]) -> None:
        if self.files.setdefault(*place) != place[1] or (place[0], "") in self._units:
            return
        self._add(place, "")
        units = self._code.module(place[1]).units
        for unit in units.values():
            if unit.kind == "entry" and unit.name.partition("[")[0].partition(".")[0] not in units:
                self._add(place, unit.name)  # the entry changes a registry of another module
        self._units |= {(place[0], unit.name): unit for unit in self._code.missing(self._tree, place)}
        package = self._code.module_of(place[0]).rpartition(".")[0]
        above = self._code.definitions.file(self._tree, package) if package else None
        if above is not None:  # importing any module of a package runs the package's own statements
            self._enter(above)

    def _add(self, place: tuple[str, str], name: str) -> None:
        file, blob = place
        units = self._code.module(blob).units
        unit = units.get(name)
        if unit is None or (file, name) in self._units:
            return
        self._units[file, name] = unit
        self._enter(place)
        self._attributes |= unit.attributes
        if unit.kind == "class":
            self._live[file, name] = blob
        elif unit.kind == "function":
            self._named.add(name.rpartition(".")[2])
            owner = name.rpartition(".")[0]
            if owner in units and units[owner].kind == "class":
                self._add(place, owner)
        elif unit.kind in ("registry", "value"):
            for other in units.values():
                if name in other.names and (unit.kind == "registry" or other.kind == "entry"):
                    self._add(place, other.name)
        for used in unit.names:
            self._use(place, used, _FAR)
        for decorator in unit.decorators:
            self._decorate(place, decorator)
        for first, attribute in unit.chains:
            for path in self._code.module(blob).imports.get(first, ()):
                self._lead(f"{absolute(path, self._code.module_of(file), file)}.{attribute}", _FAR)

    def _decorate(self, place: tuple[str, str], name: str) -> None:
        """Add the code of a decorator, but not other functions that the same decorator registers."""
        here = self._code.module_of(place[0])
        paths = [f"{here}.{name}"]
        paths += [absolute(path, here, place[0]) for path in self._code.module(place[1]).imports.get(name, ())]
        for module_and_rest in filter(None, (self._code.locate(self._tree, path) for path in paths)):
            (file, blob), rest = module_and_rest
            unit = self._code.module(blob).units.get(".".join(rest))
            if unit is not None:
                self._decorating[file, unit.name] = unit

    def _use(self, place: tuple[str, str], name: str, far: int) -> None:
        file, blob = place
        module = self._code.module(blob)
        if name in module.units:
            self._add(place, name)
            if module.names.get(name, _NO_NAME).kind != "import":
                return  # otherwise an import after the definition binds the name again
        here = self._code.module_of(file)
        for path in module.imports.get(name, ()):
            self._lead(absolute(path, here, file), far)
        if name not in module.imports:
            for star in module.stars:
                self._lead(f"{absolute(star, here, file)}.{name}", far)

    def _lead(self, path: str, far: int) -> None:
        if far == 0 or path in self._followed:
            return
        self._followed.add(path)
        module_and_rest = self._code.locate(self._tree, path)
        if module_and_rest is not None:
            place, rest = module_and_rest
            self._enter(place)
            if rest:
                self._use(place, rest[0], far - 1)


def names_in(function: Any) -> Iterator[str]:
    """Yield the names that an adapter's function and its nested functions use."""
    codes: list[Any] = [getattr(function, "__code__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        codes.append(getattr(cell.cell_contents, "__code__", None))
    while codes:
        code = codes.pop()
        if isinstance(code, CodeType):
            yield from code.co_names
            for constant in code.co_consts:
                codes.append(constant)
                if isinstance(constant, str) and constant.isidentifier():
                    yield constant
