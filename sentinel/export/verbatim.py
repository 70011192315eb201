"""Gather functions with everything that they name, as the text of their own source files.

A function can be written into a file of its own where it is self-contained: it stands at the top of its module under
its own name, and what it names is a definition of a module of Sentinel's or an adapter's, or an import of any other.
"""

from __future__ import annotations

import ast
import importlib.util
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import sentinel

#: What stands in every runner as a whole.
HEAD = "sentinel.export.head"


class NotSelfContained(Exception):
    """A function that cannot be written into a file of its own; says why."""


@dataclass
class Verbatim:
    """Definitions of our modules, as they stand there.

    :ivar modules: module name -> name -> statement.
    :ivar imports: the import statements of other packages that they need.
    :ivar renamed: what a module imports under another name: name -> (module, the name there).
    :ivar stands_for: our modules that functions import from while they run.
    """

    modules: dict[str, dict[str, ast.stmt]] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    renamed: dict[str, tuple[str, str]] = field(default_factory=dict)
    stands_for: set[str] = field(default_factory=set)
    _names: set[tuple[str, str]] = field(default_factory=set)
    _homes: dict[str, str] = field(default_factory=dict)

    def add(self, function: Callable[..., Any]) -> str:
        """Gather a function, or a ``partial`` of one with plain values; the expression that names it then."""
        if isinstance(function, partial):
            arguments = [self._value(item) for item in function.args]
            arguments += [f"{name}={self._value(item)}" for name, item in function.keywords.items()]
            self.imports.add("import functools")
            return f"functools.partial({', '.join([self.add(function.func), *arguments])})"
        if not isinstance(function, FunctionType) or function.__qualname__ not in _bindings(function.__module__):
            name = getattr(function, "__qualname__", repr(function))
            raise NotSelfContained(f"{name} is made while the adapter is loaded; it must be a function of its own")
        return self.name(function.__module__, function.__name__)

    def _value(self, value: Any) -> str:
        if callable(value):
            return self.add(value)
        if ast.literal_eval(repr(value)) != value:
            raise NotSelfContained(f"{value!r} is no plain value")
        return repr(value)

    def name(self, module: str, name: str) -> str:
        """Gather what a name of a module of ours means, and whatever that names; the name."""
        if module == "sentinel":
            module = sentinel.home_of(name)
        if (module, name) in self._names or module == HEAD:
            return name
        self._names.add((module, name))
        bindings = _bindings(module)
        if _is_run(module):
            for other in bindings:
                self.name(module, other)
        statement = bindings[name]
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._import(module, statement, name)
            return name
        for other in sorted(_named(statement) & bindings.keys()):
            self.name(module, other)
        for other in sorted(_annotations(statement) & bindings.keys()):
            if _is_foreign(bindings[other]):
                self.name(module, other)
        for inside in ast.walk(statement):
            if isinstance(inside, ast.ImportFrom) and not _is_foreign(inside):
                if inside.level or any(item.asname for item in inside.names):
                    raise NotSelfContained(f"`{ast.unparse(inside)}` inside a function; import it at the top")
                self.stands_for.add(str(inside.module))
                for item in inside.names:
                    self.name(str(inside.module), item.name)
        self._claim(module, name)
        self.modules.setdefault(module, {})[name] = statement
        return name

    def _import(self, module: str, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        alias = next(item for item in statement.names if (item.asname or item.name.partition(".")[0]) == name)
        if _is_foreign(statement):
            of = statement.module if isinstance(statement, ast.ImportFrom) else None
            self.imports.add(ast.unparse(ast.ImportFrom(of, [alias], 0) if of else ast.Import([alias])))
            return
        origin = _origin(module, statement)
        if origin == "sentinel" and hasattr(sentinel, alias.name) and isinstance(statement, ast.ImportFrom):
            origin = sentinel.home_of(alias.name)
        if isinstance(statement, ast.Import) or origin == module or alias.name not in _bindings(origin):
            raise NotSelfContained(f"{_label(module)} uses the module {name} as a namespace; import its names")
        self.name(origin, alias.name)
        if name != alias.name:
            self._claim(module, name)
            self.renamed[name] = (module, alias.name)

    def _claim(self, module: str, name: str) -> None:
        """:raises NotSelfContained: where a module means something else by a name than another one of the same file."""
        other = self._homes.setdefault(name, module)
        if ast.dump(_bindings(module)[name]) != ast.dump(_bindings(other)[name]):
            raise NotSelfContained(f"{name} is in {_label(module)} and in {_label(other)}; rename one")

    def without(self, other: Verbatim) -> Verbatim:
        """Leave out what another one has."""
        for name, home in self._homes.items():
            if ast.dump(_bindings(home)[name]) != ast.dump(_bindings(other._homes.get(name, home))[name]):
                raise NotSelfContained(f"{name} is in {_label(home)} and in {_label(other._homes[name])}; rename one")
        left = {
            module: {name: node for name, node in names.items() if name not in other.modules.get(module, ())}
            for module, names in self.modules.items()
        }
        renamed = {name: meant for name, meant in self.renamed.items() if name not in other.renamed}
        kept = {module: names for module, names in left.items() if names}
        return Verbatim(kept, self.imports - other.imports, renamed, self.stands_for)

    def sections(self) -> Iterator[tuple[str, str]]:
        """Give (where it is from, text) of each module's definitions, in the order in which they stand there."""
        for module in self._in_order(self.modules, set()):
            statements = self.modules[module]
            lines = _file(module).read_text(encoding="utf-8").split("\n")
            if _is_run(module):  # statements at its top may change what is defined there
                statements = {str(node.lineno): node for node in _tree(module).body if not _says_nothing(node)}
            texts = {_first(node): "\n".join(lines[_first(node) - 1 : node.end_lineno]) for node in statements.values()}
            renamed = [f"{name} = {meant}" for name, (home, meant) in sorted(self.renamed.items()) if home == module]
            yield _label(module), "\n\n\n".join([*renamed, *(text for _, text in sorted(texts.items()))])

    def _in_order(self, modules: Iterable[str], before: set[str]) -> Iterator[str]:
        """Give these modules, each behind those that it imports from."""
        for module in modules:
            if module in self.modules and module not in before:
                before.add(module)
                own = [node for node in _bindings(module).values() if isinstance(node, ast.ImportFrom)]
                yield from self._in_order([_origin(module, node) for node in own if not _is_foreign(node)], before)
                yield module


def _origin(module: str, statement: ast.Import | ast.ImportFrom) -> str:
    """Give the module of ours that a statement of another one imports from."""
    if isinstance(statement, ast.Import):
        return "sentinel"
    package = module if _file(module).name == "__init__.py" else module.rpartition(".")[0]
    return importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)


def _first(statement: ast.stmt) -> int:
    first: int = min(item.lineno for item in (statement, *getattr(statement, "decorator_list", ())))
    return first


@cache
def _file(module: str) -> Path:
    """Give a module's file; what is not loaded is not loaded for that, as some of it needs torch."""
    if module in sys.modules:
        return Path(str(sys.modules[module].__file__))
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise NotSelfContained(f"there is no module {module}")
    return Path(spec.origin)


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _is_run(module: str) -> bool:
    """Say whether a module has statements that do something beside definitions; then it is taken as a whole."""
    return any(isinstance(node, (ast.For, ast.While, ast.With, ast.Try)) for node in _tree(module).body)


def _says_nothing(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


@cache
def _bindings(module: str) -> dict[str, ast.stmt]:
    """Name -> the last statement at the top of a module that gives it a meaning."""
    bindings: dict[str, ast.stmt] = {}
    for node in _tree(module).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bindings[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bindings |= {item.asname or item.name.partition(".")[0]: node for item in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bindings |= {name.id: node for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name: node for name, node in bindings.items() if getattr(node, "module", None) != "__future__"}


class _Bare(ast.NodeTransformer):
    """Takes annotations away: nothing evaluates them."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return ast.Assign([node.target], self.visit(node.value), lineno=0) if node.value else ast.Pass()

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def _named(statement: ast.stmt) -> set[str]:
    """Give the names outside of it that a statement means, local variables left out."""
    bare = ast.unparse(_Bare().visit(ast.parse(ast.unparse(statement))))
    tables, names = [symtable.symtable(bare, "statement", "exec")], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        names |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return names


def _annotations(statement: ast.stmt) -> set[str]:
    """Give the names in annotations alone, for readers and type checkers."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - _named(statement)


def _is_foreign(statement: ast.stmt) -> bool:
    """Say whether it imports, and nothing of ours."""
    if isinstance(statement, ast.ImportFrom):
        return not statement.level and str(statement.module).partition(".")[0] != "sentinel"
    return isinstance(statement, ast.Import) and statement.names[0].name.partition(".")[0] != "sentinel"


def _label(module: str) -> str:
    """Say where a module's file lies, as it is called in the repository."""
    parts = _file(module).parts
    starts = [place for place, part in enumerate(parts[:-1]) if part in ("sentinel", "adapters")]
    return "/".join(parts[starts[-1] :] if starts else parts[-1:])
