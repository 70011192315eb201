"""Read the keyword arguments of configuration classes from a Python script. The script is parsed, never executed.

A value is read if it is a literal, simple arithmetic of literals, or a name that the script binds once and to such a
value; the same holds for ``**name`` and ``**dict(...)``. The fields of a subclass that the script defines are read too.
``config.beta = 0.1``, ``setattr(config, "beta", 0.1)`` and ``config = replace(config, beta=0.1)`` are read if the
statement runs unconditionally and no other statement sets the option. All other values are reported as not read.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.tools.audit.options import called, name_of
from sentinel.values.files import read_text

_DEEPEST = 20
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass
class Call:
    """One call of a configuration class.

    :ivar name: the class.
    :ivar settings: dotted name -> value, for the arguments that could be read.
    :ivar unread: the dotted names of the other arguments; ``**name`` and ``*name`` for those that are unpacked.
    :ivar later: the options that statements after the call set.
    """

    name: str
    line: int
    settings: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    later: set[str] = field(default_factory=set)


def read_script(file: Path, classes: Collection[str]) -> tuple[list[Call], dict[str, int]]:
    """Return the calls of configuration classes in a script, the call with the most arguments first; and the options
    that it assigns to any object (``args.beta = 0.1``), with the line.

    :param classes: the names of the classes; a script may import them under other names.
    :raises SentinelError: if the file cannot be read, or is not Python.
    """
    text = read_text(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        calls = list(_Script(tree, frozenset(classes)).calls())
        assigned = {option: node.lineno for node, _ in _statements(tree.body) for option, _ in _assigned(node, "*")}
    except SyntaxError as error:
        raise SentinelError(f"{file}:{error.lineno or 1}:{error.offset or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SentinelError(f"{file}: not Python that can be parsed: {error or type(error).__name__}") from None
    return sorted(calls, key=lambda call: -len(call.settings) - len(call.unread)), assigned


#: Methods that change a dictionary or a list.
_CHANGES = frozenset({"append", "clear", "extend", "pop", "popitem", "setdefault", "update"})


#: Stands for a value that cannot be read.
_UNREADABLE = object()


@dataclass
class _Script:
    """A parsed script.

    :ivar once: the names that it binds exactly once, with their values.
    :ivar aliases: the names under which it imports others.
    :ivar derived: its own subclasses of configuration classes, with their fields as settings.
    """

    tree: ast.Module
    classes: frozenset[str]

    def __post_init__(self) -> None:
        nodes = list(ast.walk(self.tree))
        bound = Counter(name for node in nodes for name in _bindings(node))
        bound.subtract(_replaced(node) for node in nodes)  # config = replace(config, …) changes it
        assigned = [node for node in nodes if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None]
        self.once: dict[str, ast.expr] = {}
        for node in assigned:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            only = targets[0] if len(targets) == 1 and not _replaced(node) else None
            if isinstance(only, ast.Name) and bound[only.id] == 1:
                self.once[only.id] = node.value  # type: ignore[assignment]
        self.nodes = nodes
        self.aliases = {
            alias.asname: alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }
        self.derived: dict[str, Call] = {}
        for own in sorted((node for node in nodes if isinstance(node, ast.ClassDef)), key=lambda node: node.lineno):
            bases = [name_of(base) for base in own.bases]
            roots = [self.derived[base].name if base in self.derived else self._class(base) for base in bases]
            if any(roots):
                call = Call(next(filter(None, roots)), own.lineno)
                for above in (self.derived[base] for base in reversed(bases) if base in self.derived):
                    call.settings |= above.settings
                    call.unread += above.unread
                self._declare(own, call)
                self.derived[own.name] = call

    def _class(self, name: str) -> str:
        name = self.aliases.get(name, name)
        return name if name in self.classes else ""

    def _declare(self, node: ast.ClassDef, call: Call) -> None:
        """Read the defaults of the fields that a class declares. Fields that its methods assign are not known."""
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Call) and called(value) in ("field", "Field"):
                value = next((item.value for item in value.keywords if item.arg == "default"), value)
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                    self._value(target.id, value, call)
        for child in ast.walk(node):
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and name_of(child.value) == "self":
                self._value(child.attr, None, call)

    def calls(self) -> Iterator[Call]:
        arguments = {
            id(child) for node in self.nodes if self._made(node) for child in ast.walk(node) if child is not node
        }
        named = {id(value): name for name, value in self.once.items()}
        for node in self.nodes:
            name = self._made(node)
            if name and id(node) not in arguments:  # a section of another configuration is read as part of it
                assert isinstance(node, ast.Call)
                declared = self.derived.get(called(node), Call(name, 0))
                call = Call(name, node.lineno, dict(declared.settings), [*declared.unread])
                self._read(node, call)
                if id(node) in named:
                    self._assigned_later(named[id(node)], call)
                yield call

    def _made(self, node: ast.AST) -> str:
        """Return the configuration class that a node calls; empty if it calls none."""
        if not isinstance(node, ast.Call):
            return ""
        name = called(node)
        return self.derived[name].name if name in self.derived else self._class(name)

    def _read(self, node: ast.Call, call: Call, prefix: str = "", depth: int = 0) -> None:
        for argument in node.args:
            text = ast.unparse(argument)[:40]
            starred = isinstance(argument, ast.Starred)
            call.unread.append(f"{prefix}{text}" if starred else f"{prefix}(argument without a name: {text})")
        for keyword in node.keywords:
            if keyword.arg is None:
                self._unpack(keyword.value, call, prefix)
            else:
                self._value(f"{prefix}{keyword.arg}", keyword.value, call, depth)

    def _value(self, name: str, node: ast.expr | None, call: Call, depth: int = 0) -> None:
        """Set an option, in place of an earlier value; ``None`` for a value that is not known."""
        call.settings.pop(name, None)
        if name in call.unread:
            call.unread.remove(name)
        value = self.once.get(node.id, node) if isinstance(node, ast.Name) else node
        if isinstance(value, ast.Call) and called(value)[:1].isupper() and depth < _DEEPEST:
            before = len(call.settings)
            if value.keywords and not value.args:  # a section: ActorConfig(lr=1e-6)
                self._read(value, call, f"{name}.", depth + 1)
            if len(call.settings) > before:
                return
        read = self._read_literal(node)
        if read is _UNREADABLE:
            call.unread.append(name)
        else:
            call.settings[name] = read

    def _unpack(self, node: ast.expr, call: Call, prefix: str) -> None:
        table = self._read_literal(node)
        if isinstance(table, dict):
            call.settings.update({f"{prefix}{name}": value for name, value in table.items()})
        else:
            call.unread.append(f"{prefix}**{ast.unparse(node)[:40]}")

    def _assigned_later(self, name: str, call: Call) -> None:
        """Apply ``config.beta = 0.1`` and similar statements. A value that is set under a condition, or twice, is not
        known."""
        found: dict[str, list[ast.expr | None]] = {}
        for node, certain in _statements(self.tree.body):
            for option, value in _assigned(node, name):
                found.setdefault(option, []).append(value if certain else None)
        call.later = set(found)
        for option, values in found.items():
            self._value(option, values[0] if len(values) == 1 else None, call)

    def _read_literal(self, node: ast.expr | None) -> Any:
        try:
            return self._literal(node)
        except (ArithmeticError, TypeError, ValueError, RecursionError):
            return _UNREADABLE

    def _literal(self, node: ast.expr | None, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise ValueError
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool, type(None))):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.once:
            return self._literal(self.once[node.id], depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._literal(node.operand, depth + 1)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self._literal(node.left, depth + 1), self._literal(node.right, depth + 1)
            if all(isinstance(side, (int, float)) for side in (left, right)):
                return _ARITHMETIC[type(node.op)](left, right)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._literal(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
            return dict(zip(keys, (self._literal(value, depth + 1) for value in node.values)))
        if isinstance(node, ast.Call) and called(node) == "dict" and not node.args:  # noqa: SIM102
            if all(keyword.arg for keyword in node.keywords):
                return {str(keyword.arg): self._literal(keyword.value, depth + 1) for keyword in node.keywords}
        raise ValueError


def _replaced(node: ast.AST) -> str:
    """Return the name of ``name = dataclasses.replace(name, …)``; empty for any other statement."""
    value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    name = name_of(node.targets[0]) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) else ""
    if not isinstance(value, ast.Call) or called(value) != "replace" or not value.args:
        return ""
    return name if name and getattr(value.args[0], "id", "") == name else ""


def _assigned(node: ast.stmt, name: str) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the options of the configuration `name` that a statement sets, with their values; None if not known.

    :param name: ``*`` for any object except ``self``.
    """

    def is_it(owner: ast.expr) -> bool:
        named = getattr(owner, "id", "")
        return named == name or (name == "*" and named not in ("self", "cls"))

    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        value = node.value if isinstance(node, ast.Assign) else None
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part in getattr(target, "elts", [target]):
                if isinstance(part, ast.Attribute) and is_it(part.value):
                    yield part.attr, value if part is target else None
    for call in ast.walk(node) if isinstance(node, (ast.Assign, ast.Expr, ast.Return)) else ():
        if not isinstance(call, ast.Call) or not call.args or not is_it(call.args[0]):
            continue
        if called(call) == "setattr" and len(call.args) == 3:
            option = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
            yield str(option or f"setattr({ast.unparse(call.args[1])[:40]})"), call.args[2] if option else None
        elif called(call) == "replace":
            known = _replaced(node) != ""
            for keyword in call.keywords:
                text = keyword.arg or f"**{ast.unparse(keyword.value)[:40]}"
                yield text, keyword.value if known and keyword.arg else None


def _bindings(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, or whose value it changes."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
        yield node.value.id  # kwargs["beta"] = 0.1
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):  # noqa: SIM102
        if node.func.attr in _CHANGES:
            yield node.func.value.id


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements of a body and of its blocks, and whether each runs unconditionally."""
    left = [(statement, True) for statement in body]
    while left:
        statement, sure = left.pop()
        yield statement, sure
        inside = sure and isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.With, ast.AsyncWith))
        main = isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)
        for blocks in ("body", "orelse", "finalbody"):
            left += [(child, inside or (sure and main)) for child in getattr(statement, blocks, [])]
        for handler in getattr(statement, "handlers", []):
            left += [(child, False) for child in handler.body]
