"""Expressions as they stand: whether they are constants, may be written twice, or be left out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Container, Mapping
from typing import Any

#: Functions that make a value of another kind.
CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {"bool": bool, "float": float, "int": int, "str": str}

#: Functions that give something and do nothing, and methods of which the same is true.
_GIVING = frozenset(
    {*CONVERSIONS, "SimpleNamespace", "dict", "getattr", "hasattr", "len", "list", "max", "min", "range", "sorted"}
    | {"sum", "tuple", "vars", "zip"}
)
_GIVING_METHODS = frozenset(
    {"abs", "any", "arange", "bool", "clamp", "clone", "cpu", "detach", "dim", "expand", "float", "fromkeys", "full"}
    | {"get", "items", "keys", "logical_not", "long", "mean", "ones", "ones_like", "repeat", "reshape", "size"}
    | {"stack", "sum", "tensor", "to", "tolist", "type_as", "unsqueeze", "values", "view", "zeros", "zeros_like"}
)

_MAKING = frozenset({"object.__new__", "omegaconf.OmegaConf.create"})

#: How torch's functions begin that change a setting or a tensor.
_SETTING = ("set", "manual", "backward", "grad", "init", "load", "save")


def is_known(node: ast.AST | None) -> bool:
    """Whether it is a constant."""
    return isinstance(node, ast.Constant)


def value_of(node: ast.AST) -> Any:
    """The value of a constant."""
    assert isinstance(node, ast.Constant)
    return node.value


def is_simple(node: ast.AST) -> bool:
    """Whether it may be written several times: a constant, a name, or an attribute of one."""
    if isinstance(node, ast.UnaryOp):
        return is_known(node.operand)
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, (ast.Constant, ast.Name))


def is_pure(node: ast.AST, giving: Container[str] = ()) -> bool:
    """Whether leaving it out changes nothing, as far as that can be seen.

    :param giving: functions that give something and do nothing else.
    """
    if isinstance(node, ast.Lambda):  # it is made, and not called
        return all(is_pure(default, giving) for default in ast.iter_child_nodes(node.args))
    if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
        return False
    known = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in giving
    if isinstance(node, ast.Call) and not known and not _gives(node.func):
        return False
    return all(is_pure(child, giving) for child in ast.iter_child_nodes(node))


def _gives(called: ast.expr) -> bool:
    """Whether a function gives something and does nothing else; torch marks its other ones by an underscore."""
    if isinstance(called, ast.Name):
        return called.id in _GIVING
    if isinstance(called, ast.Attribute) and ast.unparse(called).startswith(("numpy.", "torch.")):
        return not called.attr.endswith("_") and not called.attr.startswith(_SETTING)
    making = isinstance(called, ast.Attribute) and ast.unparse(called) in _MAKING
    return making or (isinstance(called, ast.Attribute) and called.attr in _GIVING_METHODS)


def truth_of(node: ast.expr) -> bool | None:
    """Whether what is asked is so; None where that is not known."""
    if is_known(node):
        return bool(value_of(node))
    if isinstance(node, (ast.List, ast.Tuple)) and is_pure(node):
        return bool(node.elts)
    if isinstance(node, ast.BoolOp) and is_pure(node):
        found, deciding = [truth_of(item) for item in node.values], isinstance(node.op, ast.Or)
        return deciding if deciding in found else None if None in found else not deciding
    return None


def entries(node: ast.AST) -> dict[Any, ast.expr] | None:
    """The items of a display of a mapping, where each key is a constant."""
    if not isinstance(node, ast.Dict):
        return None
    found = {key.value: value for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)}
    return found if len(found) == len(node.keys) else None


def display(items: Mapping[Any, ast.expr]) -> ast.Dict:
    """A mapping as a display."""
    return ast.Dict([ast.Constant(key) for key in items], list(items.values()))


class Substituted(ast.NodeTransformer):
    """Writes expressions in the place of names."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self._values:
            return copy.deepcopy(self._values[node.id])
        return node


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
