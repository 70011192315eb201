"""Find the options that a function's text decides by."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import defaultdict
from contextlib import suppress
from typing import Any


def options(source: str) -> dict[str, list[Any]]:
    """Find what code reads of anything by a name and decides by, with values of it that may decide otherwise: those
    of a flag, what it is compared with, and the next to that, and small numbers where the code counts as far."""
    values_of: dict[str, list[Any]] = defaultdict(list)
    tree = ast.Module([], [])
    with suppress(SyntaxError):  # a method with a text that begins further left
        tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        values: list[Any] = [True, False]
        sides = _conditions(node)
        if isinstance(node, ast.Compare):
            sides = [each for side in (node.left, *node.comparators) for each in getattr(side, "elts", [side])]
            values = [side.value for side in sides if isinstance(side, ast.Constant)]
            values += [value + 1 for value in values if type(value) in (int, float)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            sides, values = node.args, [2, 3, 1]
        for name in filter(None, map(_read, sides)):
            values_of[name] += [value for value in values if value not in values_of[name]]
    return values_of


def _read(node: ast.expr) -> str:
    """Give the name by which an expression is read of something; empty where it is not."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _text(node.args[:1] if _called(node) == "get" else node.args[1:2])
    return _text([node.slice]) if isinstance(node, ast.Subscript) else ""


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Give what is asked whether it is true."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return [node.test]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    return node.values if isinstance(node, ast.BoolOp) else []


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _text(nodes: list[ast.expr]) -> str:
    value = nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) else ""
    return value if isinstance(value, str) and re.fullmatch(r"[\w/.-]{1,60}", value) else ""
