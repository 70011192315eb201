"""Read the keyword arguments of configuration classes from a Python script. The script is parsed, never executed.

A value is read if it is a literal, simple arithmetic of literals, or a name that the script binds once and to one of
these; ``**name`` and ``**dict(...)`` are read in the same way. Every other value is reported as not read.
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
    """

    name: str
    line: int
    settings: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def calls_of(file: Path, classes: Collection[str]) -> list[Call]:
    """Return the calls of configuration classes in a script, the one with the most arguments first.

    :param classes: the names of the classes; a script may import one under another name.
    :raises SentinelError: if the file cannot be read, or is not Python.
    """
    text = read_text(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        calls = list(_Script(tree, frozenset(classes)).calls())
    except SyntaxError as error:
        raise SentinelError(f"{file}:{error.lineno or 1}:{error.offset or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SentinelError(f"{file}: not Python that can be parsed: {error or type(error).__name__}") from None
    return sorted(calls, key=lambda call: -len(call.settings) - len(call.unread))


#: Methods that change a dictionary or a list.
_CHANGES = frozenset({"append", "clear", "extend", "pop", "popitem", "setdefault", "update"})


class _NotLiteralError(ValueError):
    pass


@dataclass
class _Script:
    tree: ast.Module
    classes: frozenset[str]

    def __post_init__(self) -> None:
        nodes = list(ast.walk(self.tree))
        bound = Counter(name for node in nodes for name in _bindings(node))
        assigned = [node for node in nodes if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None]
        self.once: dict[str, ast.expr] = {}
        for node in assigned:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and bound[targets[0].id] == 1:
                self.once[targets[0].id] = node.value  # type: ignore[assignment]
        self.nodes = nodes
        self.aliases = {
            alias.asname: alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }

    def calls(self) -> Iterator[Call]:
        arguments = {
            id(child) for node in self.nodes if self._made(node) for child in ast.walk(node) if child is not node
        }
        named = {id(value): name for name, value in self.once.items()}
        for node in self.nodes:
            name = self._made(node)
            if name and id(node) not in arguments:  # a section of another configuration is read with that one
                assert isinstance(node, ast.Call)
                call = Call(name, node.lineno)
                self._read(node, call)
                if id(node) in named:
                    self._assigned_later(named[id(node)], call)
                yield call

    def _made(self, node: ast.AST) -> str:
        """Return the configuration class that a node calls; empty if it calls none."""
        if not isinstance(node, ast.Call):
            return ""
        name = self.aliases.get(_called(node), _called(node))
        return name if name in self.classes else ""

    def _read(self, node: ast.Call, call: Call, prefix: str = "", depth: int = 0) -> None:
        for argument in node.args:
            call.unread.append(f"{prefix}{ast.unparse(argument)[:40]}" if isinstance(argument, ast.Starred) else
                               f"{prefix}(argument without a name: {ast.unparse(argument)[:40]})")  # fmt: skip
        for keyword in node.keywords:
            if keyword.arg is None:
                self._unpack(keyword.value, call, prefix)
            else:
                self._value(f"{prefix}{keyword.arg}", keyword.value, call, depth)

    def _value(self, name: str, node: ast.expr, call: Call, depth: int) -> None:
        value = self.once.get(node.id, node) if isinstance(node, ast.Name) else node
        if isinstance(value, ast.Call) and _called(value)[:1].isupper() and depth < _DEEPEST:
            before = len(call.settings)
            if value.keywords and not value.args:  # a section: ActorConfig(lr=1e-6)
                self._read(value, call, f"{name}.", depth + 1)
            if len(call.settings) > before:
                return
        try:
            call.settings[name] = self._literal(node)
        except (_NotLiteralError, ArithmeticError, TypeError, ValueError, RecursionError):
            call.unread.append(name)

    def _unpack(self, node: ast.expr, call: Call, prefix: str) -> None:
        try:
            table = self._literal(node)
        except (_NotLiteralError, ArithmeticError, TypeError, ValueError, RecursionError):
            table = None
        if isinstance(table, dict):
            call.settings.update({f"{prefix}{name}": value for name, value in table.items()})
        else:
            call.unread.append(f"{prefix}**{ast.unparse(node)[:40]}")

    def _assigned_later(self, name: str, call: Call) -> None:
        """Apply ``config.beta = 0.1``. Under a condition, or more than once, the value is not known."""
        found: dict[str, list[tuple[ast.expr, bool]]] = {}
        for node, certain in _statements(self.tree.body, True):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == name:
                        found.setdefault(target.attr, []).append((node.value, certain))
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):  # noqa: SIM102
                if getattr(node.target.value, "id", "") == name:
                    found.setdefault(node.target.attr, []).append((node.value, False))
        for option, values in found.items():
            call.settings.pop(option, None)
            if len(values) == 1 and values[0][1]:
                self._value(option, values[0][0], call, 0)
            else:
                call.unread.append(option)

    def _literal(self, node: ast.expr, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise _NotLiteralError
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
        if isinstance(node, ast.Call) and _called(node) == "dict" and not node.args:  # noqa: SIM102
            if all(keyword.arg for keyword in node.keywords):
                return {str(keyword.arg): self._literal(keyword.value, depth + 1) for keyword in node.keywords}
        raise _NotLiteralError


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _bindings(node: ast.AST) -> Iterator[str]:
    """Return the names that a node binds."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif (isinstance(node, ast.ExceptHandler) and node.name) or (
        isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
    ):
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
        yield node.value.id  # kwargs["beta"] = 0.1 makes another dictionary of it
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):  # noqa: SIM102
        if node.func.attr in _CHANGES:
            yield node.func.value.id


def _statements(body: list[ast.stmt], certain: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Return the statements of a body and of the blocks in it, and whether each of them certainly runs."""
    left = [(statement, certain) for statement in body]
    while left:
        statement, sure = left.pop()
        yield statement, sure
        inside = sure and isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.With, ast.AsyncWith))
        main = isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)
        for blocks in ("body", "orelse", "finalbody"):
            left += [(child, inside or (sure and main)) for child in getattr(statement, blocks, [])]
        for handler in getattr(statement, "handlers", []):
            left += [(child, False) for child in handler.body]
