"""Parse a source file into its definitions: functions, methods, classes, fields, values and other statements."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from sentinel.reports.store import file_name
from sentinel.search import bindings
from sentinel.search.bindings import Name, names_of, span_of, syntax_of
from sentinel.sources.home import Home, write_atomically
from sentinel.worker.codes import LARGEST_SOURCE

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Unit:
    """A definition in a source file.

    :ivar name: its qualified name; empty for the rest of a module.
    :ivar kind: ``function`` (also a method), ``class`` (without its methods), ``field`` (of a dataclass), ``value`` (at
        module level), ``registry`` (an empty table), ``entry`` (of a registry), or ``rest`` (of a module).
    :ivar span: its first and last line in the file.
    :ivar text: its source, indented as in the file.
    :ivar names: the names that it uses.
    :ivar attributes: the names of the attributes that it uses, on any object.
    :ivar chains: the expressions of the form ``name.attribute`` that it uses, as pairs.
    :ivar decorators: for each decorator, the last part of its dotted name.
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
        """Return True if both definitions have the same syntax. Comments do not matter."""
        return other is not None and (self.text == other.text or self.digest == other.digest)


@lru_cache(maxsize=4096)
def _digest(text: str) -> str:
    for source in (textwrap.dedent(text), f"if 1:\n{text}"):  # with a multi-line string, dedenting a method may fail
        try:
            text = ast.dump(Bare().visit(syntax_of(source)))
            break
        except (SyntaxError, RecursionError):
            continue
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


class Bare(ast.NodeTransformer):
    """A transformer that removes syntax without effect on results: annotations, docstrings and metadata of fields.

    Functions that are decorated with ``register`` keep their annotations, because ``functools.singledispatch`` reads
    them.
    """

    _in_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._bare(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self._in_function = self._in_function, False
        self.generic_visit(node)
        self._in_function = outer
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if self._in_function and node.value is not None:  # Python does not evaluate annotations of local variables
            return ast.copy_location(ast.Assign([node.target], node.value), node)
        return node

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
        node.body = [each for each in node.body if not _is_docstring_or_pass(each)]
        read = node.args.args if any(_last(each) == "register" for each in node.decorator_list) else []
        annotations = [each.annotation for each in read]
        outer, self._in_function = self._in_function, True
        self.generic_visit(node)
        self._in_function = outer
        for each, annotation in zip(read, annotations):
            each.annotation = annotation
        return node


@dataclass(frozen=True)
class Module:
    """The definitions and imports of a file.

    :ivar units: the definitions by qualified name; the rest of the module has the name ``""``.
    :ivar names: the names that definitions and imports bind in the module.
    :ivar imports: name -> the dotted paths that it may stand for, including imports inside functions.
    :ivar stars: the modules of ``from module import *``.
    """

    units: Mapping[str, Unit] = field(default_factory=dict)
    names: Mapping[str, Name] = field(default_factory=dict)
    imports: Mapping[str, frozenset[str]] = field(default_factory=dict)
    stars: frozenset[str] = frozenset()

    @cached_property
    def inner(self) -> Mapping[str, Sequence[str]]:
        """Return the members of each class: class -> qualified names, including the members of nested classes."""
        members: dict[str, list[str]] = {}
        for name in self.units:
            for place, letter in enumerate(name):
                if letter == ".":
                    members.setdefault(name[:place], []).append(name)
        return members

    @cached_property
    def decorated(self) -> Sequence[Unit]:
        return [unit for unit in self.units.values() if unit.decorators]


@dataclass(frozen=True)
class Registration:
    """An entry of a registry, such as ``@register("grpo")``, ``TABLE["grpo"] = function`` or an item of a dictionary.

    :ivar registry: the expression that names the registry or its decorator, such as ``losses.register``.
    :ivar key: the key in lower case. For ``Loss.GRPO``, a member of an enumeration, it is ``grpo``.
    :ivar member: the registered expression, such as ``losses.clip``.
    :ivar code: if the entry is a decorator, the syntax of the decorated function or class, without its name and its
        decorators; otherwise empty.
    :ivar unit: the name of the definition that contains the entry.
    """

    registry: str
    key: str
    member: str
    code: str
    unit: str
    line: int

    def __str__(self) -> str:
        return f"{self.registry}[{self.key!r}]"


@dataclass(frozen=True)
class AtImport:
    """The effects of importing a file, apart from defining names.

    :ivar effects: the syntax of module-level statements that may affect other code, each with its line. These are
        calls, assignments to attributes, star imports, and statements that rebind the name of a function. Definitions,
        constants and plain imports are left out, because they are compared at the boundaries that use them. Entries of
        registries are in ``registrations``. A file that cannot be parsed counts as one such statement.
    :ivar registrations: the entries that the file adds to registries. Of two with the same key, the last counts.
    :ivar imports: the syntax of its imports at module level, in order.
    """

    effects: Sequence[tuple[str, int]]
    registrations: Sequence[Registration] = ()
    imports: Sequence[str] = ()


def at_import(content: bytes) -> AtImport:
    """Return the effects of importing a file, apart from defining names. The file is only parsed."""
    try:
        if len(content) <= LARGEST_SOURCE:
            body = syntax_of(content).body
            effects = [(ast.dump(node), node.lineno) for node in _effects(body, set())]
            imports = [ast.dump(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
            return AtImport(effects, [each for node in body for each in _registrations(node)], imports)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return AtImport([(hashlib.sha256(content).hexdigest(), 1)])


def _registrations(node: ast.stmt) -> Iterator[Registration]:
    """Yield the entries that a module-level statement adds to registries. The syntax tree is modified."""
    if isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
        calls = [each for each in node.decorator_list if isinstance(each, ast.Call) and _key(each.args[:1])]
        name, node.name, node.decorator_list = node.name, "", []
        code = ast.dump(Bare().visit(node)) if calls else ""
        for call in calls:
            yield Registration(ast.unparse(call.func), _key(call.args[:1]), name, code, name, node.lineno)
        return
    entry = _entry(node)
    items = [entry] if entry is not None else []
    unit = _name_of_entry(*entry[:2]) if entry is not None else ""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name):
            unit, pairs = target.id, zip(node.value.keys, node.value.values)
            items = [(target, key, value) for key, value in pairs if key is not None and _is_dotted_name(value)]
    for registry, at, value in items:
        if key := _key([at]):
            yield Registration(ast.unparse(registry), key, ast.unparse(value), "", unit, value.lineno)


def _entry(node: ast.stmt) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Return the registry, the key and the value that a statement adds to the registry; None for other statements.

    The statement has one of the forms ``TABLE["key"] = value``, ``TABLE.register("key", value)`` and
    ``register("key")(value)``.
    """
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
        found = target.value, target.slice, node.value
        return found if _is_dotted_name(target.value) and _key([target.slice]) and _is_dotted_name(node.value) else None
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or call.keywords:
        return None
    inner = call.func
    if isinstance(inner, ast.Call) and len(inner.args) == len(call.args) == 1 and not inner.keywords:
        found = inner.func, inner.args[0], call.args[0]
    elif len(call.args) == 2 and "register" in _last(inner):
        found = inner, call.args[0], call.args[1]
    else:
        return None
    return found if _is_dotted_name(found[0]) and _key([found[1]]) and _is_dotted_name(found[2]) else None


def _name_of_entry(registry: ast.expr, key: ast.expr) -> str:
    return f"{ast.unparse(registry)}[{ast.unparse(key)}]"


def _is_dotted_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _key(keys: Sequence[ast.expr]) -> str:
    """Return the first expression as a key of a registry, in lower case.

    The expression must be a string or an attribute, such as a member of an enumeration. Otherwise return an empty
    string.
    """
    first = keys[0] if keys else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value.lower()
    return first.attr.lower() if isinstance(first, ast.Attribute) else ""


def _effects(body: list[ast.stmt], functions: set[str]) -> Iterator[ast.stmt]:
    for node in body:
        if _entry(node) is not None:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            functions.add(node.name)
            if not isinstance(node, ast.ClassDef) and any(map(_patches, _calls_in_defaults(node))):
                yield node
            yield from _effects(node.body, set()) if isinstance(node, ast.ClassDef) else ()
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
            inner = any(effect for block in blocks for effect in _effects(block, functions))
            bound = [node.target] if isinstance(node, ast.For) else []
            bound += [item.optional_vars for item in getattr(node, "items", ()) if item.optional_vars]
            if inner or not all(isinstance(each, (ast.Name, ast.Tuple)) for each in bound):
                yield node  # yield the whole statement, because its condition matters too
        elif not (isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))):
            yield node


def _calls_in_defaults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
        yield from (each for each in ast.walk(default) if isinstance(each, ast.Call))


def _patches(call: ast.Call) -> bool:
    return _last(call.func) in ("setattr", "__setattr__", "exec", "eval")


def parse(content: bytes) -> Module:
    """Return the definitions and imports of a file. A file with a syntax error counts as one definition."""
    try:
        return _read(content)
    except (SyntaxError, RecursionError, MemoryError):
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
            if isinstance(node, ast.Import):  # `import a.b` binds the name a, and also runs the module a.b
                for alias in node.names:
                    imports.setdefault(alias.asname or alias.name.partition(".")[0], set()).add(alias.name)
            for key, name in names_of([node]).items():
                (stars if key.startswith("*") else imports.setdefault(key, set())).update(name.leads)
    units[""] = _unit("", "rest", (1, 1), rest)
    return Module(units, names_of(body), {key: frozenset(paths) for key, paths in imports.items()}, frozenset(stars))


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
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
    """Add the definitions in the body of a module or class to ``units``, and all other statements to ``rest``.

    :param owner: the qualified name of the class, followed by a dot; empty for a module.
    :param fields: True if annotated names are fields of a dataclass.
    """
    for node in body:
        if isinstance(node, _DEFINITIONS):
            _put(units, _function(node, owner, lines))
        elif isinstance(node, ast.ClassDef):
            inner: list[ast.AST] = [*node.bases, *node.keywords, *node.decorator_list]
            _collect(node.body, f"{owner}{node.name}.", lines, units, inner, "dataclass" in _decorators(node))
            _put(units, _unit(f"{owner}{node.name}", "class", span_of(node), inner, None, _decorators(node)))
        elif isinstance(node, (ast.Import, ast.ImportFrom)) or _is_docstring_or_pass(node):
            continue
        elif not owner and (entry := _entry(node)) is not None:
            _put(units, _unit(_name_of_entry(*entry[:2]), "entry", span_of(node), [node]))
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


def _is_docstring_or_pass(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _is_empty(value: ast.expr) -> bool:
    called = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _REGISTRIES
    return called or (isinstance(value, ast.Dict) and not value.keys)


_REGISTRIES = ("dict", "defaultdict", "OrderedDict", "Registry")


_SETS = ("names", "attributes", "chains", "decorators")


def _put(units: dict[str, Unit], unit: Unit) -> None:
    """Add a definition, merged with an earlier definition of the same name, because either may be used."""
    before = units.get(unit.name)
    if before is not None:
        both = {name: getattr(before, name) | getattr(unit, name) for name in _SETS}
        unit = replace(unit, text=f"{before.text}\n{unit.text}", **both)
    units[unit.name] = unit


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, lines: Sequence[str]) -> Unit:
    first, last = span_of(node)
    text = "\n".join(lines[first - 1 : last])
    parts = [node.args, *filter(None, [node.returns]), *node.body]
    return _unit(f"{owner}{node.name}", "function", (first, last), parts, text, _decorators(node))


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> frozenset[str]:
    names = (_last(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list)
    return frozenset(filter(None, names))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


#: Functions that take an attribute's name or a key as a string.
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


# -- a cache of parsed files on disk --

#: Maximum number of modules in the cache file, about 20 kB each. The most recently used ones are kept.
_KEPT = 800


class Modules(dict[str, Module]):
    """The parsed files of a target: blob -> module. They are cached below ``SENTINEL_HOME``.

    Each version of Python and of this parser has its own cache file.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        sources = (Path(str(module.__file__)).read_bytes() for module in (sys.modules[__name__], bindings))
        digest = hashlib.sha256(b"".join([sys.version.encode(), *sources])).hexdigest()[:12]
        self._file = Home.default().path / "history" / file_name(target) / "modules" / f"{digest}.lines"
        self._read: dict[str, str] = {}
        with suppress(OSError, ValueError):  # each line is parsed only when its module is needed
            self._read.update(line.partition(" ")[::2] for line in self._file.read_text("utf-8").split("\n"))
        self._on_disk = set(self._read)

    def __contains__(self, blob: object) -> bool:
        if not super().__contains__(blob) and blob in self._read:
            with suppress(LookupError, TypeError, ValueError, AttributeError, RecursionError):  # an invalid line
                self[str(blob)] = _module_of(json.loads(self._read.pop(str(blob))))
        return super().__contains__(blob)

    def save(self) -> None:
        """Write newly parsed files to the cache. Do nothing if the cache cannot be written."""
        if self.keys() <= self._on_disk:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            entries = {**self._read, **{blob: json.dumps(_listed_module(module)) for blob, module in self.items()}}
            write_atomically(self._file, "\n".join(f"{blob} {plain}" for blob, plain in list(entries.items())[-_KEPT:]))
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
