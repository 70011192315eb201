"""Objects that one function has to itself, as its own variables; and classes that say nothing."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from sentinel.export.expressions import Substituted
from sentinel.export.giving import given_by
from sentinel.export.inlining import written_in
from sentinel.export.locating import FUNCTIONS
from sentinel.export.scopes import SCOPES, Block, Function, bound, every, free, is_name, read, straight


def unboxed(module: ast.Module) -> bool:
    """Write one object's attributes as variables of the function that makes it, and its methods where they are called.

    :returns: whether there was one of which nothing else is asked.
    """
    for made in [node for node in module.body if isinstance(node, ast.ClassDef)]:
        for function in [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]:
            if _unboxed(module, made, function):
                module.body.remove(made)
                return True
    return False


def bare(module: ast.Module) -> None:
    """Take the bases away that are classes of nothing, and the classes that add nothing to a mapping or list."""
    empty = {node.name for node in module.body if isinstance(node, ast.ClassDef) and _is_empty(node)}
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            node.bases = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id in empty)]
    for made in [node for node in module.body if isinstance(node, ast.ClassDef)]:
        base = made.bases[0] if len(made.bases) == 1 else None
        if isinstance(base, ast.Name) and base.id in ("dict", "list") and _says_nothing(made):
            module.body.remove(made)
            Substituted({made.name: base}).visit(module)


def _is_empty(made: ast.ClassDef) -> bool:
    return not made.bases and _says_nothing(made)


def _says_nothing(made: ast.ClassDef) -> bool:
    return not (made.keywords or made.decorator_list) and all(isinstance(n, ast.Pass) for n in made.body)


def _unboxed(module: ast.Module, made: ast.ClassDef, function: ast.FunctionDef) -> bool:
    methods = {node.name: node for node in made.body if isinstance(node, ast.FunctionDef) and _is_plain(node)}
    if made.bases or made.decorator_list or len(methods) != len(made.body) or read(module)[made.name] != 1:
        return False
    place = _making(function, made.name)
    if place is None:
        return False
    block, index = place
    statement = block[index]
    assert isinstance(statement, ast.Assign)
    name = statement.targets[0].id  # type: ignore[attr-defined]
    calls = [found for found in _calls(function, name) if found is not None]
    asked = [node for node in ast.walk(function) if isinstance(node, ast.Attribute) and is_name(node.value, name)]
    called = [node.attr for node in asked if node.attr in methods]
    stored = [node for node in asked if not isinstance(node.ctx, ast.Load)]
    if bound(function)[name] != 1 or len(asked) != read(function)[name] or len(called) != len(calls) or stored:
        return False
    if len({*called}) != len(called) or "self" in every(function):
        return False
    attributes = {n.attr for m in methods.values() for n in ast.walk(m) if isinstance(n, ast.Attribute) and _is_own(n)}
    if attributes & methods.keys():
        return False
    taken = every(function) | {other for method in methods.values() for other in every(method)}
    names: dict[str, str] = {}
    for attribute in sorted(attributes):
        names[attribute] = free(attribute.lstrip("_"), {*taken, *names.values()})
    making = methods.get("__init__")
    replaced: list[tuple[Block, ast.stmt, Block]] = []
    for where, item, method in [
        (block, statement, making),
        *((where, item, methods[item.value.func.attr]) for where, item in calls),  # type: ignore[attr-defined]
    ]:
        new, own = ([], set()) if method is None else _body(method, item.value, function)  # type: ignore[attr-defined]
        if new is None or own & {*names.values()}:
            return False
        replaced.append((where, item, [_Variables(names).visit(one) for one in new]))
    for where, item, new in replaced:
        at = next(place for place, one in enumerate(where) if one is item)
        where[at : at + 1] = new or [ast.Pass()]
    _Variables(names, name).visit(function)
    return True


def _body(method: ast.FunctionDef, call: ast.Call, caller: Function) -> tuple[Block | None, set[str]]:
    """What a method does when it is so called, and the names that it uses for that."""
    function = copy.deepcopy(method)
    function.args.args = function.args.args[1:]
    given = given_by(function, call)
    if given is None or _globals(method) & {*bound(caller)}:
        return None, set()
    return written_in(function, given, caller)


def _globals(method: ast.FunctionDef) -> set[str]:
    return {*read(method)} - {*bound(method)}


def _is_plain(method: ast.FunctionDef) -> bool:
    """Whether a method does something to its object, and gives nothing."""
    inside = [node for item in method.body for node in ast.walk(item)]
    own = [node for node in inside if is_name(node, "self")]
    through = [node for node in inside if isinstance(node, ast.Attribute) and _is_own(node)]
    jumps = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, *SCOPES)
    plain = bool(method.args.args) and method.args.args[0].arg == "self" and not method.decorator_list
    return plain and len(own) == len(through) and not any(isinstance(node, jumps) for node in inside)


def _is_own(node: ast.Attribute) -> bool:
    return is_name(node.value, "self")


def _making(function: Function, name: str) -> tuple[Block, int] | None:
    """Where a function makes an object that it gives a name."""
    for block in straight(function.body):
        for index, statement in enumerate(block):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                called = statement.value.func if isinstance(statement.value, ast.Call) else None
                if called is not None and is_name(called, name) and len(statement.targets) == 1:
                    return block, index
    return None


def _calls(node: ast.AST, name: str) -> Iterator[tuple[Block, ast.Expr]]:
    """The statements that call a method of an object, and where they stand; none of inner functions."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        for item in block if isinstance(block, list) else []:
            called = item.value.func if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call) else None
            if isinstance(called, ast.Attribute) and is_name(called.value, name):
                yield block, item  # type: ignore[misc]
            if not isinstance(item, (*FUNCTIONS, ast.ClassDef)):
                yield from _calls(item, name)


class _Variables(ast.NodeTransformer):
    """Writes the attributes of an object as variables."""

    def __init__(self, names: dict[str, str], name: str = "self") -> None:
        self._names, self._name = names, name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if is_name(node.value, self._name) and node.attr in self._names:
            return ast.Name(self._names[node.attr], node.ctx)
        return self.generic_visit(node)
