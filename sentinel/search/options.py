"""Find the options that a function's source tests."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import defaultdict
from contextlib import suppress
from typing import Any


def options(source: str) -> dict[str, list[Any]]:
    """Return the options that a source reads and branches on, each with values that may take another branch.

    For a flag these are True and False; for a comparison, the constants and each number plus 1, and 0.5 for an option
    that may be None; for ``range``, 2, 3 and 1.

    :param source: Python source of functions.
    """
    values_of: dict[str, list[Any]] = defaultdict(list)
    tree = ast.Module([], [])
    with suppress(SyntaxError):  # text that cannot be dedented has no options
        tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        values: list[Any] = [True, False]
        sides = _conditions(node)
        if isinstance(node, ast.Compare):
            sides = [each for side in (node.left, *node.comparators) for each in getattr(side, "elts", [side])]
            values = [side.value for side in sides if isinstance(side, ast.Constant)]
            values += [value + 1 for value in values if type(value) in (int, float)]
            values += [0.5] if None in values else []
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            sides, values = node.args, [2, 3, 1]
        for name in filter(None, map(_option_name, sides)):
            values_of[name] += [value for value in values if value not in values_of[name]]
    return values_of


def _option_name(node: ast.expr) -> str:
    """Return the option that an expression reads; empty if it reads none.

    It is an attribute, a key, or the name in a ``getattr``.
    """
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _text(node.args[:1] if _method_name(node) == "get" else node.args[1:2])
    return _text([node.slice]) if isinstance(node, ast.Subscript) else ""


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Return the conditions that a syntax node tests."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return [node.test]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    return node.values if isinstance(node, ast.BoolOp) else []


def _method_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _text(nodes: list[ast.expr]) -> str:
    value = nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) else ""
    return value if isinstance(value, str) and re.fullmatch(r"[\w/.-]{1,60}", value) else ""
