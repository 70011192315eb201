"""Which definitions of a target a boundary may reach, followed by their names in the syntax; nothing of it is run.

Where all that a boundary reaches is the same in two trees, so is what it computes, and nobody has to ask. It is
followed too far rather than too short: every method of a class that is named, where anything of the method's name is
used; all that a registry registers. Comments, layout and where a definition stands make no difference.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import textwrap
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from sentinel.reports.store import file_name
from sentinel.search import bindings
from sentinel.search.bindings import Definitions, Name, Trees, absolute, names_of, span_of, syntax_of
from sentinel.search.inventory import signal_functions
from sentinel.sources.home import Home, replace_file
from sentinel.targets import Binding, Target
from sentinel.worker.codes import LARGEST_SOURCE

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: Imports that are followed from one name: two modules may import each other's.
_FAR = 8


@dataclass(frozen=True)
class Unit:
    """One definition: a function, a method, a class without its methods, a field of a dataclass, a value, or what else
    a module does.

    :ivar text: its source; :attr:`digest` is of its syntax.
    :ivar names: the names that it uses; :ivar attributes: what it uses of anything, by the attribute's name.
    :ivar chains: ``name.attribute`` of it.
    """

    name: str
    kind: str
    span: tuple[int, int]
    text: str
    names: frozenset[str]
    attributes: frozenset[str]
    chains: frozenset[tuple[str, str]]
    decorators: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return _digest(self.text)

    def like(self, other: Unit | None) -> bool:
        """Say whether both are the same code, whatever the comments."""
        return other is not None and (self.text == other.text or self.digest == other.digest)


@lru_cache(maxsize=4096)
def _digest(text: str) -> str:
    for source in (text, f"if 1:\n{text}"):  # a string of several lines may keep a method from being dedented
        try:
            text = ast.dump(Bare().visit(ast.parse(source)))
            break
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


class Bare(ast.NodeTransformer):
    """Takes away what says something to people alone: annotations and docstrings of functions, a field's metadata."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._bare(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._bare(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _last(node.func) == "field":
            node.keywords = [each for each in node.keywords if each.arg != "metadata"]
        return self.generic_visit(node)

    def _bare(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        node.body = [each for each in node.body if not _is_text(each)]
        return self.generic_visit(node)


@dataclass(frozen=True)
class Module:
    """What a file defines and imports; an import wherever in it counts."""

    units: Mapping[str, Unit] = field(default_factory=dict)
    names: Mapping[str, Name] = field(default_factory=dict)
    imports: Mapping[str, frozenset[str]] = field(default_factory=dict)
    stars: frozenset[str] = frozenset()

    @cached_property
    def inner(self) -> Mapping[str, Sequence[str]]:
        """What stands in each class: its methods and fields, and theirs."""
        members: dict[str, list[str]] = {}
        for name in self.units:
            for place, letter in enumerate(name):
                if letter == ".":
                    members.setdefault(name[:place], []).append(name)
        return members

    @cached_property
    def decorated(self) -> Sequence[Unit]:
        return [unit for unit in self.units.values() if unit.decorators]


#: Where a definition is: its file, and its name there.
Place = tuple[str, str]


def effects_of(content: bytes) -> list[tuple[str, int]]:
    """List the module-level statements that may change other code, each as its syntax and its line.

    These are calls, assignments to attributes, star imports, and what binds the name of a function again. Definitions,
    constants and plain imports are left out: the reach of a boundary follows them. A file that cannot be read as syntax
    is one statement: nothing is known of what it does.
    """
    try:
        if len(content) <= LARGEST_SOURCE:
            return [(ast.dump(node), node.lineno) for node in _effects(ast.parse(content).body, set())]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return [(hashlib.sha256(content).hexdigest(), 1)]


def _effects(body: list[ast.stmt], functions: set[str]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            functions.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            if names & {"*", *functions}:
                yield node
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in getattr(target, "elts", [target])]
            if any(not isinstance(part, ast.Name) or part.id in functions for part in parts):
                yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            inner = [effect for block in blocks for effect in _effects(block, functions)]
            if inner:
                yield node  # as a whole: its condition decides, too
        elif not (isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))):
            yield node


class Code:
    """The definitions in the trees of one mirror, or in a checkout. A file is parsed once, whichever trees have it."""

    def __init__(self, target: Target, trees: Trees, modules: dict[str, Module] | None = None) -> None:
        self._trees = trees
        self._modules = {} if modules is None else modules
        self.target = target
        self.definitions = Definitions(trees, target.roots, lambda blob: self.module(blob).names)
        self._walked: dict[tuple[str, str], deque[tuple[Mapping[str, str], Reached]]] = {}
        self.files = lru_cache(maxsize=8)(self._files)
        self.module_of = lru_cache(maxsize=None)(target.module_of)

    def module(self, blob: str) -> Module:
        if blob not in self._modules:
            if len(self._modules) >= _REMEMBERED:
                self._modules.clear()
            content = self._trees.blob(blob)
            self._modules[blob] = _module(content) if len(content) <= LARGEST_SOURCE else Module()
        return self._modules[blob]

    def effects(self, blob: str) -> list[tuple[str, int]]:
        """List the module-level statements of a file that may change other code: :func:`effects_of`."""
        return effects_of(self._trees.blob(blob))

    def signals(self, file: str, blob: str) -> list[str]:
        """Name the functions of a file that carry training signal, by the rule of the inventory."""
        content = self._trees.blob(blob)
        with suppress(SyntaxError, RecursionError, MemoryError):
            if len(content) <= LARGEST_SOURCE:
                return [each.name for each in signal_functions(syntax_of(content).body, self.module_of(file))]
        return []

    def names(self, blob: str, words: Collection[str]) -> bool:
        """Say whether a file has any of some words in it; it is not parsed for that."""
        content = self._trees.blob(blob)
        return any(word.encode() in content for word in words)

    def reached(self, tree: str, binding: Binding) -> Reached | None:
        """Give what a boundary reaches in a tree; None where it is not there. Trees that have the same files where
        the walk came by have the same answer."""
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
        reached = walk.done()
        walked.appendleft((walk.files, reached))
        return reached

    def _files(self, tree: str) -> dict[str, str]:
        return dict(self.definitions.sources(tree))


def changes_of(
    file: str, before: tuple[Code, str | None], after: tuple[Code, str | None], names: Collection[str] | None = None
) -> dict[Place, tuple[Unit | None, Unit | None]]:
    """Give the definitions of a file that are not the same in two blobs of it; None is a file that is not there.

    :param names: only these.
    """
    one, other = ({} if blob is None else code.module(blob).units for code, blob in (before, after))
    pairs = {
        (file, name): (one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys() if names is None else names)
    }
    return {place: both for place, both in pairs.items() if both[0] is None or not both[0].like(both[1])}


def changed_effect(before: tuple[Code, str | None], after: tuple[Code, str | None]) -> int | None:
    """Return the line of the first changed statement that :func:`effects_of` lists; None if they are the same.

    :param before: where the file was read, and its blob; ``after`` likewise.
    """
    old, new = (code.effects(blob) if blob is not None else [] for code, blob in (before, after))
    if [syntax for syntax, _ in old] == [syntax for syntax, _ in new]:
        return None
    known = {syntax for syntax, _ in old}
    return next((line for syntax, line in new if syntax not in known), new[0][1] if new else 1)


def signal_changes(
    file: str, before: tuple[Code, str | None], after: tuple[Code, str | None]
) -> dict[Place, tuple[Unit | None, Unit | None]]:
    """Give the functions of a file that carry training signal, by the inventory's rule, and are not the same in two
    blobs of it."""
    there = [(code, blob) for code, blob in (before, after) if blob is not None]
    return changes_of(file, before, after, {name for code, blob in there for name in code.signals(file, blob)})


#: Walks of one boundary that are kept.
_WALKS = 16

#: Modules that are kept, some 100 kB each.
_REMEMBERED = 3000


@dataclass(frozen=True)
class Reached:
    """:ivar units: by file and name."""

    units: Mapping[Place, Unit]

    def changed(self, other: Reached) -> list[tuple[Place, Unit | None, Unit | None]]:
        """Give the definitions that are not the same in another tree, with both."""
        both = ((place, self.units.get(place), other.units.get(place)) for place in {**self.units, **other.units})
        return sorted(((place, a, b) for place, a, b in both if a is None or not a.like(b)), key=lambda item: item[0])

    def apart_from(self, other: Reached, ran: Collection[str]) -> bool:
        """Say whether calls in which only functions of these names ran come by nothing that has changed: they do the
        same in both trees then, and so need not be made twice.

        What is not called cannot be seen to be used; so where a value or a class has changed, the answer is no. A field
        counts where what runs names it.
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
                if alone.decorators - _HARMLESS or (alone.kind == "rest" and alone.text.strip()):
                    return False
                if (file, owner) in whole:  # with its class
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


#: Decorators that register nothing.
_HARMLESS = frozenset(["staticmethod", "classmethod", "property", "dataclass", "abstractmethod", "no_grad", "override"])


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


class _Walk:
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
        """Include what a dotted path leads to; of a whole module its classes, and what is called of it."""
        module_and_rest = self._module_of(path)
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
        """Include what a caller uses of a module."""
        self._attributes |= names
        for name in names:
            self._use(place, name, _FAR)

    def done(self) -> Reached:
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
        return Reached({**self._decorating, **self._units})

    def _enter(self, place: tuple[str, str]) -> None:
        if self.files.setdefault(*place) == place[1] and (place[0], "") not in self._units:
            self._add(place, "")

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
        elif unit.kind == "registry":
            for other in units.values():
                if name in other.names:
                    self._add(place, other.name)
        for used in unit.names:
            self._use(place, used, _FAR)
        for decorator in unit.decorators:
            self._decorate(place, decorator)
        for first, attribute in unit.chains:
            for path in self._code.module(blob).imports.get(first, ()):
                self._lead(f"{absolute(path, self._code.module_of(file), file)}.{attribute}", _FAR)

    def _decorate(self, place: tuple[str, str], name: str) -> None:
        """Include a decorator alone: who is registered does not reach who else is."""
        here = self._code.module_of(place[0])
        paths = [f"{here}.{name}"]
        paths += [absolute(path, here, place[0]) for path in self._code.module(place[1]).imports.get(name, ())]
        for module_and_rest in filter(None, map(self._module_of, paths)):
            (file, blob), rest = module_and_rest
            unit = self._code.module(blob).units.get(".".join(rest))
            if unit is not None:
                self._decorating[file, unit.name] = unit

    def _use(self, place: tuple[str, str], name: str, far: int) -> None:
        file, blob = place
        module = self._code.module(blob)
        if name in module.units:
            self._add(place, name)
            return
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
        module_and_rest = self._module_of(path)
        if module_and_rest is not None:
            place, rest = module_and_rest
            self._enter(place)
            if rest:
                self._use(place, rest[0], far - 1)

    def _module_of(self, path: str) -> tuple[tuple[str, str], list[str]] | None:
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            place = self._code.definitions.file(self._tree, ".".join(parts[:end]))
            if place is not None:
                return place, parts[end:]
        return None


def names_in(function: Any) -> Iterator[str]:
    """Give the names that an adapter's function uses, in the functions that it makes too."""
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


def _module(content: bytes) -> Module:
    try:
        return _read(content)
    except (SyntaxError, RecursionError, MemoryError):  # what cannot be read is the same only where its text is
        text = repr(content)
        return Module({"": Unit("", "rest", (1, 1), text, frozenset(), frozenset(), frozenset())})


def _read(content: bytes) -> Module:
    body = syntax_of(content).body
    lines = content.decode(errors="replace").splitlines()
    units: dict[str, Unit] = {}
    imports: dict[str, set[str]] = {}
    stars: set[str] = set()
    rest: list[ast.AST] = []
    _collect(body, "", lines, units, rest)
    for node in _statements(body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for key, name in names_of([node]).items():
                (stars if key.startswith("*") else imports.setdefault(key, set())).update(name.leads)
    units[""] = _unit("", "rest", (1, 1), rest)
    return Module(units, names_of(body), {key: frozenset(paths) for key, paths in imports.items()}, frozenset(stars))


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Give every statement, and none of the expressions, of which there are ten times as many."""
    queue = list(body)
    while queue:
        node = queue.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            queue += getattr(node, part, ())


def _collect(
    body: Sequence[ast.stmt],
    owner: str,
    lines: Sequence[str],
    units: dict[str, Unit],
    rest: list[ast.AST],
    fields: bool = False,
) -> None:
    """Sort the statements of a module or class into units; what is none of its own goes to the rest."""
    for node in body:
        if isinstance(node, _DEFINITIONS):
            _put(units, _function(node, owner, lines))
        elif isinstance(node, ast.ClassDef):
            inner: list[ast.AST] = [*node.bases, *node.keywords, *node.decorator_list]
            _collect(node.body, f"{owner}{node.name}.", lines, units, inner, "dataclass" in _decorators(node))
            _put(units, _unit(f"{owner}{node.name}", "class", span_of(node), inner, None, _decorators(node)))
        elif isinstance(node, (ast.Import, ast.ImportFrom)) or _is_text(node):
            continue
        elif not owner and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [item.id for item in targets if isinstance(item, ast.Name)]
            if len(names) == len(targets):
                kind = "registry" if _is_empty(node.value) else "value"
                for name in names:
                    _put(units, _unit(name, kind, span_of(node), [node]))
            else:
                rest.append(node)
        elif fields and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _put(units, _unit(f"{owner}{node.target.id}", "field", span_of(node), [node]))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            rest += [getattr(node, "test", ast.Pass())]
            for part in ("body", "orelse", "finalbody"):
                _collect(getattr(node, part, ()), owner, lines, units, rest)
            for handler in getattr(node, "handlers", ()):
                _collect(handler.body, owner, lines, units, rest)
        else:
            rest.append(node)


def _is_text(node: ast.stmt) -> bool:
    """Say whether a statement is a docstring, or stands for nothing."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _is_empty(value: ast.expr) -> bool:
    called = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _REGISTRIES
    return called or (isinstance(value, ast.Dict) and not value.keys)


_REGISTRIES = ("dict", "defaultdict", "OrderedDict", "Registry")


_SETS = ("names", "attributes", "chains", "decorators")


def _put(units: dict[str, Unit], unit: Unit) -> None:
    """Add a definition; of two under one name each may be the one that holds."""
    before = units.get(unit.name)
    if before is not None:
        both = {name: getattr(before, name) | getattr(unit, name) for name in _SETS}
        unit = replace(unit, text=f"{before.text}\n{unit.text}", **both)
    units[unit.name] = unit


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, lines: Sequence[str]) -> Unit:
    first, last = span_of(node)
    text = textwrap.dedent("\n".join(lines[first - 1 : last]))
    parts = [node.args, *filter(None, [node.returns]), *node.body]
    return _unit(f"{owner}{node.name}", "function", (first, last), parts, text, _decorators(node))


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> frozenset[str]:
    names = (_last(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list)
    return frozenset(filter(None, names))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


#: What takes the name of an attribute as text.
_BY_TEXT = ("getattr", "hasattr", "setattr", "get")


def _unit(
    name: str,
    kind: str,
    span: tuple[int, int],
    nodes: Sequence[ast.AST],
    text: str | None = None,
    decorators: frozenset[str] = frozenset(),
) -> Unit:
    names, attributes, chains = set(), set(), set()
    for node in (each for one in nodes for each in ast.walk(one)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
            if isinstance(node.value, ast.Name):
                chains.add((node.value.id, node.attr))
        elif isinstance(node, ast.Call) and _last(node.func) in _BY_TEXT:
            attributes |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    if text is None:
        text = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in nodes)
    return Unit(name, kind, span, text, frozenset(names), frozenset(attributes), frozenset(chains), decorators)


# -- what was parsed, kept by blob for the next run --

#: Modules that a file keeps, some 20 kB each: the last ones.
_KEPT = 800


class Modules(dict[str, Module]):
    """Those that were seen of a target, below ``SENTINEL_HOME``; what reads them otherwise has a file of its own."""

    def __init__(self, target: str) -> None:
        super().__init__()
        sources = (Path(str(module.__file__)).read_bytes() for module in (sys.modules[__name__], bindings))
        digest = hashlib.sha256(b"".join([sys.version.encode(), *sources])).hexdigest()[:12]
        self._file = Home.default().path / "history" / file_name(target) / "modules" / f"{digest}.lines"
        self._read: dict[str, str] = {}
        with suppress(OSError, ValueError):  # a line is read where it is asked for
            self._read.update(line.partition(" ")[::2] for line in self._file.read_text("utf-8").split("\n"))
        self._on_disk = set(self._read)

    def __contains__(self, blob: object) -> bool:
        if not super().__contains__(blob) and blob in self._read:
            with suppress(
                LookupError, TypeError, ValueError, AttributeError, RecursionError
            ):  # it is not what we write
                self[str(blob)] = _module_of(json.loads(self._read.pop(str(blob))))
        return super().__contains__(blob)

    def save(self) -> None:
        """Write what is new; what cannot be written is parsed again."""
        if self.keys() <= self._on_disk:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            entries = {**self._read, **{blob: json.dumps(_listed_module(module)) for blob, module in self.items()}}
            replace_file(self._file, "\n".join(f"{blob} {plain}" for blob, plain in list(entries.items())[-_KEPT:]))
        self._on_disk |= self.keys()


def _listed_module(module: Module) -> list[Any]:
    units = [_listed(vars(unit).values()) for unit in module.units.values()]
    imports = {key: sorted(paths) for key, paths in module.imports.items()}
    return [units, _plain_names(module.names), imports, sorted(module.stars)]


def _plain_names(names: Mapping[str, Name]) -> dict[str, Any]:
    return {
        name: [each.kind, each.span, each.leads, _plain_names(each.names), sorted(each.parameters)]
        for name, each in names.items()
    }


def _listed(values: Iterable[Any]) -> list[Any]:
    return [sorted(value) if isinstance(value, frozenset) else value for value in values]


def _module_of(plain: Any) -> Module:
    units, names, imports, stars = plain
    units_ = {
        name: Unit(name, kind, tuple(span), text, frozenset(used), frozenset(attributes), _pairs(chains), frozenset(by))
        for name, kind, span, text, used, attributes, chains, by in units
    }
    return Module(units_, _names(names), {key: frozenset(paths) for key, paths in imports.items()}, frozenset(stars))


def _names(plain: Mapping[str, Any]) -> dict[str, Name]:
    return {
        name: Name(kind, tuple(span), tuple(leads), _names(names), frozenset(parameters))
        for name, (kind, span, leads, names, parameters) in plain.items()
    }


def _pairs(plain: Iterable[Any]) -> frozenset[tuple[str, str]]:
    return frozenset((first, attribute) for first, attribute in plain)
