"""Find the exception that a configuration class raises for given settings in ``__post_init__`` or a validator.

The class's source is parsed and evaluated; nothing is imported or executed. The value of an expression is unknown if
any part of it is unknown. An exception is reported only if the class certainly raises it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sentinel.tools.audit.options import called, name_of

#: The value of an expression that cannot be evaluated.
UNKNOWN = object()

_DEEPEST, _MOST_STATEMENTS = 8, 2000

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_TYPES = {each.__name__: each for each in (bool, dict, float, int, list, set, str, tuple)}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (abs, bool, float, int, isinstance, len, max, min, str)
}
_METHODS = ("endswith", "get", "lower", "startswith", "strip", "upper")


@dataclass(frozen=True)
class Raised:
    """An exception that a configuration class certainly raises.

    :ivar kind: the exception's class.
    :ivar message: its text, with an ellipsis in place of unknown values.
    :ivar names: the options in the conditions that lead to the exception.
    """

    kind: str
    message: str
    names: tuple[str, ...] = ()


class _End(Exception):
    """Raised to end the evaluation because the checked code raises, or because its next statement is not known."""

    def __init__(self, raised: Raised | None = None) -> None:
        super().__init__()
        self.raised = raised


@dataclass
class _Returned(Exception):
    value: Any


def raised_by(
    methods: Sequence[Mapping[str, ast.FunctionDef]],
    values: Mapping[str, Any],
    constants: Mapping[str, ast.expr],
    starts: Sequence[str],
) -> Raised | None:
    """Return the exception that a configuration class certainly raises for given values, or None.

    :param methods: the methods of the class and of its base classes, by name; the class itself comes first.
    :param values: the value of each field; :data:`UNKNOWN` if it is not known.
    :param constants: the names at the top level of the class's module, with their values.
    :param starts: the names of the methods that run when an object is created.
    """
    run = _Run(methods, dict(values), constants)
    try:
        for start in starts:
            run.method(start, 0)
    except _End as end:
        return end.raised
    except (RecursionError, MemoryError):
        return None
    return None


def class_values(attributes: Sequence[tuple[str, ast.expr]]) -> dict[str, Any]:
    """Evaluate the attributes of a class. An expression may use those of a base class (``Base.FIELDS + […]``).

    :param attributes: names and expressions, starting with those of base classes.
    """
    run = _Run((), {}, {})
    for name, node in attributes:
        run.fields[name] = run.value(node)
    return run.fields


@dataclass
class _Run:
    methods: Sequence[Mapping[str, ast.FunctionDef]]
    fields: dict[str, Any]
    constants: Mapping[str, ast.expr]
    names: dict[str, Any] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    depth: int = 0
    left: int = _MOST_STATEMENTS

    def method(self, name: str, after: int) -> Any:
        """Evaluate a method and return its value, or :data:`UNKNOWN` if no class defines it.

        :param after: the index in the lineage from which on the method is looked up.
        """
        place = next((place for place in range(after, len(self.methods)) if name in self.methods[place]), None)
        if place is None:
            return UNKNOWN
        outer, self.names, self.depth = self.names, {"__class__": place}, self.depth + 1
        if self.depth > _DEEPEST:
            raise _End
        try:
            self.block(self.methods[place][name].body)
        except _Returned as returned:
            return returned.value
        finally:
            self.names, self.depth = outer, self.depth - 1
        return None

    def inherited(self, name: str, after: int) -> Any:
        """Evaluate a method of a base class. If that fails, treat the fields that it may assign as unknown."""
        try:
            return self.method(name, after)
        except _End as end:
            if end.raised is not None:
                raise
        for methods in self.methods[after:]:
            self.forget_fields(methods.get(name))
        return UNKNOWN

    def forget_fields(self, method: ast.FunctionDef | None) -> None:
        """Treat the fields that a method may assign as unknown."""
        for part in ast.walk(method) if method is not None else ():
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                self.assign(part, UNKNOWN)

    def block(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            self.left -= 1
            if self.left < 0:
                raise _End
            before = len(self.read)
            self.statement(node)
            # Forget what the statement has read. If it raises, this line is not reached, and the options in its
            # conditions are reported.
            del self.read[before:]

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            test = self.value(node.test)
            if test is UNKNOWN:
                self.forget(node)
            else:
                self.block(node.body if test else node.orelse)
        elif isinstance(node, ast.Assert):
            test = self.value(node.test)
            if test is not UNKNOWN and not test:
                raise _End(Raised("AssertionError", self.text(node.msg), tuple(dict.fromkeys(self.read))))
        elif isinstance(node, ast.Raise):
            call = node.exc if isinstance(node.exc, ast.Call) else None
            kind = name_of(call.func if call is not None else node.exc) if node.exc is not None else ""
            message = self.text(call.args[0] if call is not None and call.args else None)
            raise _End(Raised(kind, message, tuple(dict.fromkeys(self.read))))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            value = self.value(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assign(target, value)
        elif isinstance(node, ast.AugAssign):
            self.assign(node.target, self.apply(type(node.op), self.value(node.target), self.value(node.value)))
        elif isinstance(node, ast.For) and isinstance(several := self.value(node.iter), (list, tuple)):
            if any(isinstance(part, (ast.Break, ast.Continue)) for part in ast.walk(node)):
                self.forget(node)
            for each in several:
                self.assign(node.target, each)
                self.block(node.body)
        elif isinstance(node, ast.Return):
            raise _Returned(None if node.value is None else self.value(node.value))
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif not isinstance(node, (ast.Pass, ast.Import, ast.ImportFrom, ast.FunctionDef)):
            self.forget(node)

    def forget(self, node: ast.AST) -> None:
        """Treat everything that a statement may assign as unknown. End the evaluation if it may leave the method or a
        loop."""
        for part in ast.walk(node):
            if isinstance(part, (ast.Return, ast.Break, ast.Continue)):
                raise _End
            if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store):
                self.assign(part, UNKNOWN)
            elif isinstance(part, ast.Call):
                self.forget_method(part)

    def forget_method(self, call: ast.Call) -> object:
        """Treat the fields that a call may assign as unknown. Return :data:`UNKNOWN`, the value of the call."""
        if any(name_of(each) == "self" for each in call.args) and called(call) not in ("getattr", "hasattr"):
            name = self.value(call.args[1]) if called(call) == "setattr" and len(call.args) > 1 else UNKNOWN
            known = [name] if isinstance(name, str) else self.fields  # a function of another file may set any field
            self.fields |= dict.fromkeys(known, UNKNOWN)
        if isinstance(call.func, ast.Attribute) and name_of(call.func.value) == "self":
            self.forget_fields(next((each[call.func.attr] for each in self.methods if call.func.attr in each), None))
        return UNKNOWN

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Attribute) and name_of(target.value) == "self":
            self.fields[target.attr] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value if isinstance(value, (tuple, list)) and len(value) == len(target.elts) else ()
            for place, part in enumerate(target.elts):
                self.assign(part, parts[place] if parts else UNKNOWN)

    def value(self, node: ast.expr | None) -> Any:
        """Return the value of an expression, or :data:`UNKNOWN`."""
        try:
            return self.evaluated(node)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return UNKNOWN

    def evaluated(self, node: ast.expr | None) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            return (
                ast.literal_eval(self.constants[node.id]) if node.id in self.constants else _TYPES.get(node.id, UNKNOWN)
            )
        if isinstance(node, ast.Attribute):
            if name_of(node.value) != "self" and not (isinstance(node.value, ast.Name) and not self.methods):
                return UNKNOWN
            self.read.append(node.attr)
            return self.fields.get(node.attr, UNKNOWN)
        if isinstance(node, ast.BoolOp):
            return self.together(node)
        if isinstance(node, ast.UnaryOp):
            value = self.value(node.operand)
            if value is UNKNOWN:
                return UNKNOWN
            return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else UNKNOWN
        if isinstance(node, ast.BinOp):
            return self.apply(type(node.op), self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Compare):
            sides = [self.value(node.left), *map(self.value, node.comparators)]
            pairs = [self.apply(type(op), *pair) for op, pair in zip(node.ops, pairwise(sides))]
            return False if False in pairs else UNKNOWN if UNKNOWN in pairs else True
        if isinstance(node, ast.IfExp):
            test = self.value(node.test)
            return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts = [self.value(part) for part in node.elts]
            return UNKNOWN if UNKNOWN in parts else tuple(parts) if isinstance(node, ast.Tuple) else parts
        if isinstance(node, ast.Dict):
            pairs = [(self.value(key), self.value(value)) for key, value in zip(node.keys, node.values)]
            return UNKNOWN if any(UNKNOWN in pair for pair in pairs) else dict(pairs)
        if isinstance(node, ast.Call):
            return self.call(node)
        return UNKNOWN

    def together(self, node: ast.BoolOp) -> Any:
        """Evaluate ``and`` or ``or``. The result may be known although some operands are unknown."""
        ends, unknown, value = isinstance(node.op, ast.Or), False, None
        for part in node.values:
            value = self.value(part)
            if value is UNKNOWN:
                unknown = True
            elif bool(value) == ends and not unknown:
                return value
            elif bool(value) == ends:
                return ends if not ends or value is True else UNKNOWN
        return UNKNOWN if unknown else value

    def apply(self, kind: type[ast.AST], one: Any, other: Any) -> Any:
        if one is UNKNOWN or other is UNKNOWN or kind not in _OPERATORS:
            return UNKNOWN
        if kind is ast.Mult and not all(isinstance(side, (int, float)) for side in (one, other)):
            return UNKNOWN  # repeating a string might exhaust the memory
        return _OPERATORS[kind](one, other)

    def call(self, node: ast.Call) -> Any:
        name, owner = called(node), node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(owner, ast.Call) and called(owner) == "super":
            return self.inherited(name, self.names["__class__"] + 1)
        arguments = [self.value(each) for each in node.args]
        if owner is None and name in _FUNCTIONS and UNKNOWN not in arguments and not node.keywords:
            return _FUNCTIONS[name](*arguments)
        if owner is not None and name in _METHODS and not node.keywords:
            value = self.value(owner)
            if isinstance(value, (str, dict)) and UNKNOWN not in arguments:
                return getattr(value, name)(*arguments)
        if owner is None and name in ("getattr", "setattr") and name_of(node.args[0]) == "self" and len(arguments) > 1:
            if isinstance(arguments[1], str) and name == "setattr":
                self.fields[arguments[1]] = arguments[2]
                return None
            return self.fields.get(arguments[1], UNKNOWN) if isinstance(arguments[1], str) else self.forget_method(node)
        self.forget_method(node)
        return UNKNOWN

    def text(self, node: ast.expr | None) -> str:
        """Return the message of an exception, with an ellipsis in place of unknown values."""
        if isinstance(node, ast.JoinedStr):
            parts = (
                each.value if isinstance(each, ast.Constant) else self.value(getattr(each, "value", None))
                for each in node.values
            )
            return "".join("…" if part is UNKNOWN else str(part) for part in parts)
        value = self.value(node)
        return "" if value is UNKNOWN or value is None else str(value)
