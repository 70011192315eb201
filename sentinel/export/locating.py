"""Where in its file a function, a class or a name is defined."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from sentinel.export.program import ProgramError

#: Nodes that define a function.
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def class_of(cls: type) -> ast.ClassDef:
    """Where a class of a module is defined.

    :raises ProgramError: where it is no module's own.
    """
    for node in _parsed(inspect.getfile(cls)).body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__qualname__:
            return node
    raise ProgramError(f"{cls.__qualname__} is made by a function")


def function_of(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Where a function is defined; a lambda as a function that returns what it does.

    :raises ProgramError: where that cannot be told.
    """
    function = inspect.unwrap(function)
    code = function.__code__
    found: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = []
    for node in ast.walk(_parsed(code.co_filename)):
        if isinstance(node, FUNCTIONS):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno and node.name == code.co_name:
                found.append(node)
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            found.append(node)
    if len(found) != 1:
        raise ProgramError(f"the source of {function.__qualname__} is not found")
    (one,) = found
    if not isinstance(one, ast.Lambda):
        return one
    (made,) = ast.parse("def bound(): pass").body
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = one.args, [ast.copy_location(ast.Return(one.body), one.body)]
    return ast.copy_location(made, one)


def other_name(function: FunctionType) -> tuple[str, Any] | None:
    """What a function makes of the keywords that it gets, where it does nothing else: a name and its value."""
    tree = function_of(function)
    *before, last = tree.body
    imported = {
        alias.name: getattr(importlib.import_module(str(node.module)), alias.name)
        for node in before
        if isinstance(node, ast.ImportFrom) and is_ours(str(node.module))
        for alias in node.names
    }
    called = last.value if isinstance(last, ast.Return) else None
    if len(imported) != len(before) or tree.args.kwarg is None or arguments(tree.args) != [tree.args.kwarg]:
        return None
    if not isinstance(called, ast.Call) or called.args or len(called.keywords) != 1 or called.keywords[0].arg:
        return None
    name = called.func.id if isinstance(called.func, ast.Name) else ""
    return (name, imported[name]) if name in imported else None


def bound_by(name: str, module: ModuleType) -> ast.stmt | None:
    """The statement of a module that gives a name its meaning."""
    for node in reversed(_parsed(str(module.__file__)).body):
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            return node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return ast.Assign([node.target], node.value) if node.value is not None else None
    return None


def relative(node: ast.ImportFrom, module: ModuleType) -> ModuleType:
    """The module that a module imports from relative to itself."""
    package = str(module.__package__ or module.__name__)
    return importlib.import_module("." * node.level + (node.module or ""), package)


def is_ours(module: str) -> bool:
    """Whether a module is Sentinel's or an adapter's, by its name."""
    return module.partition(".")[0] == "sentinel" or module.startswith("sentinel_file_")


def arguments(node: ast.arguments) -> list[ast.arg]:
    """All parameters."""
    rest = [item for item in (node.vararg, node.kwarg) if item is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *rest]
