"""Read the keyword arguments of configuration classes from a Python script. The script is parsed, never executed.

A value is read if it is a literal, simple arithmetic of literals, or a name that the script binds once and to one of
these; ``**name`` and ``**dict(...)`` are read in the same way. So are the fields of a subclass that the script defines,
and ``config.beta = 0.1``, ``setattr(config, "beta", 0.1)`` and ``config = replace(config, beta=0.1)`` if each certainly
runs and is the only one of its option. Every other value is reported as not read.
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
    :ivar later: the options that statements after the call set.
    """

    name: str
    line: int
    settings: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    later: set[str] = field(default_factory=set)


def calls_of(file: Path, classes: Collection[str]) -> list[Call]:
    """Return the calls of configuration classes in a script, the one with the most arguments first.

    :param classes: the names of the classes; a script may import one under another name.
    :raises SentinelError: if the file cannot be read, or is not Python.
    """
    tree = _parsed(file)
    try:
        calls = list(_Script(tree, frozenset(classes)).calls())
    except (ValueError, RecursionError, MemoryError) as error:
        raise SentinelError(f"{file}: not Python that can be parsed: {error or type(error).__name__}") from None
    return sorted(calls, key=lambda call: -len(call.settings) - len(call.unread))


def _parsed(file: Path) -> ast.Module:
    text = read_text(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise SentinelError(f"{file}:{error.lineno or 1}:{error.offset or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SentinelError(f"{file}: not Python that can be parsed: {error or type(error).__name__}") from None


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
        bound.subtract(_replaced(node) for node in nodes)  # config = replace(config, …) is a change of it
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
            bases = [_name(base) for base in own.bases]
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
        """Read the defaults of the fields that a class declares; what its methods assign is not read."""
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Call) and _called(value) in ("field", "Field"):
                value = next((item.value for item in value.keywords if item.arg == "default"), value)
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                    self._value(target.id, value, call)
        for child in ast.walk(node):
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and _name(child.value) == "self":
                self._value(child.attr, None, call)

    def calls(self) -> Iterator[Call]:
        arguments = {
            id(child) for node in self.nodes if self._made(node) for child in ast.walk(node) if child is not node
        }
        named = {id(value): name for name, value in self.once.items()}
        for node in self.nodes:
            name = self._made(node)
            if name and id(node) not in arguments:  # a section of another configuration is read with that one
                assert isinstance(node, ast.Call)
                declared = self.derived.get(_called(node), Call(name, 0))
                call = Call(name, node.lineno, dict(declared.settings), [*declared.unread])
                self._read(node, call)
                if id(node) in named:
                    self._assigned_later(named[id(node)], call)
                yield call

    def _made(self, node: ast.AST) -> str:
        """Return the configuration class that a node calls; empty if it calls none."""
        if not isinstance(node, ast.Call):
            return ""
        name = _called(node)
        return self.derived[name].name if name in self.derived else self._class(name)

    def _read(self, node: ast.Call, call: Call, prefix: str = "", depth: int = 0) -> None:
        for argument in node.args:
            call.unread.append(f"{prefix}{ast.unparse(argument)[:40]}" if isinstance(argument, ast.Starred) else
                               f"{prefix}(argument without a name: {ast.unparse(argument)[:40]})")  # fmt: skip
        for keyword in node.keywords:
            if keyword.arg is None:
                self._unpack(keyword.value, call, prefix)
            else:
                self._value(f"{prefix}{keyword.arg}", keyword.value, call, depth)

    def _value(self, name: str, node: ast.expr | None, call: Call, depth: int = 0) -> None:
        """Set one option, and forget what was known of it; None is a value that is not known."""
        call.settings.pop(name, None)
        if name in call.unread:
            call.unread.remove(name)
        if node is None:
            call.unread.append(name)
            return
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
        """Apply ``config.beta = 0.1`` and its like. Under a condition, or more than once, the value is not known."""
        found: dict[str, list[ast.expr | None]] = {}
        for node, certain in _statements(self.tree.body, True):
            for option, value in _assigned(node, name):
                found.setdefault(option, []).append(value if certain else None)
        call.later = set(found)
        for option, values in found.items():
            self._value(option, values[0] if len(values) == 1 else None, call)

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
    return _name(call.func)


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty if the node is not one."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _replaced(node: ast.AST) -> str:
    """Return the name of ``name = dataclasses.replace(name, …)``; empty for any other statement."""
    value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    name = _name(node.targets[0]) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) else ""
    if not isinstance(value, ast.Call) or _called(value) != "replace" or not value.args:
        return ""
    return name if name and getattr(value.args[0], "id", "") == name else ""


def _assigned(node: ast.stmt, name: str) -> Iterator[tuple[str, ast.expr | None]]:
    """Return the options of the configuration `name` that a statement sets, with their values; None is not known.

    :param name: ``*`` for any object but ``self``.
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
        if _called(call) == "setattr" and len(call.args) == 3:
            option = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
            yield str(option or f"setattr({ast.unparse(call.args[1])[:40]})"), call.args[2] if option else None
        elif _called(call) == "replace":
            known = _replaced(node) != ""
            for keyword in call.keywords:
                text = keyword.arg or f"**{ast.unparse(keyword.value)[:40]}"
                yield text, keyword.value if known and keyword.arg else None


def assigned_of(file: Path) -> dict[str, int]:
    """Map options that a script assigns to any object, whatever it is, to the line: ``args.beta = 0.1``.

    :raises SentinelError: if the file cannot be read, or is not Python.
    """
    tree = _parsed(file)
    return {option: node.lineno for node, _ in _statements(tree.body, True) for option, _ in _assigned(node, "*")}


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
