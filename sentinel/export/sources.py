"""The source of a small function or class of an adapter, as it can stand in a file of its own."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

#: Longer stand-ins are no longer something that a stranger reads in passing.
LONGEST = 25


class SourceError(Exception):
    """The source cannot stand alone; says why."""


def function_source(function: FunctionType, node: Callable[[Any], dict[str, Any]]) -> str:
    """A lambda, with its free variables and defaults written out where they are plain values.

    :param node: how values are written (see :class:`~sentinel.export.tracer.Tracer`); only scalars are filled in.
    """
    if function.__name__ != "<lambda>":
        raise SourceError(f"the target calls back {function.__qualname__}, a function of the adapter")
    tree = _lambda(function)
    values = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    for argument, default in zip(tree.args.kwonlyargs, tree.args.kw_defaults):
        if default is not None:
            values[argument.arg] = (function.__kwdefaults__ or {})[argument.arg]
    keep = [a for a, d in zip(tree.args.kwonlyargs, tree.args.kw_defaults) if d is None]
    tree.args.kwonlyargs, tree.args.kw_defaults = keep, [None] * len(keep)
    written = {name: _scalar(value) for name, value in values.items()}
    body = _Filled(written).visit(tree)
    _require_known(body, set())
    return ast.unparse(ast.fix_missing_locations(body))


def class_source(cls: type, node: Callable[[Any], dict[str, Any]]) -> str:
    """A class without annotations and docstrings."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        raise SourceError(f"the stand-in {cls.__qualname__} has no source") from None
    definition = _Bare().visit(tree).body[0]
    definition.name = cls.__name__.lstrip("_")
    if any(base is not object for base in cls.__bases__):
        raise SourceError(f"the stand-in {cls.__qualname__} has base classes")
    _require_known(definition, {definition.name, "torch"})
    text = ast.unparse(ast.fix_missing_locations(definition))
    if text.count("\n") >= LONGEST:
        raise SourceError(f"the stand-in {cls.__qualname__} is {text.count(chr(10)) + 1} lines long")
    return text


def _lambda(function: FunctionType) -> ast.Lambda:
    code = function.__code__
    try:
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError):
        raise SourceError("a function that the target calls back has no source") from None
    found = [
        item
        for item in ast.walk(tree)
        if isinstance(item, ast.Lambda)
        and item.lineno == code.co_firstlineno
        and [a.arg for a in (*item.args.args, *item.args.kwonlyargs)]
        == list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    ]
    distinct = {ast.dump(item): item for item in found}
    if len(distinct) != 1:
        raise SourceError("several functions that the target calls back stand on one line")
    return next(iter(distinct.values()))


def _scalar(value: Any) -> ast.expr:
    if isinstance(value, (bool, int, float, str, type(None))):
        return ast.parse(repr(value), mode="eval").body
    raise SourceError(f"a function that the target calls back reads a {type(value).__name__}")


class _Filled(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node)


class _Bare(ast.NodeTransformer):
    """Takes annotations and docstrings away."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        for argument in filter(None, (node.args.vararg, node.args.kwarg)):
            argument.annotation = None
        node.body = _without_docstring(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = _without_docstring(node.body)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:] or [ast.Pass()]
    return body


def _require_known(tree: ast.AST, known: set[str]) -> None:
    """Refuse names that would mean nothing in another file."""
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sentinel"):
            raise SourceError("a stand-in imports from Sentinel")
        read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Name) and read and node.id not in bound | known and not hasattr(builtins, node.id):
            raise SourceError(f"a stand-in reads {node.id} of the adapter's module")
