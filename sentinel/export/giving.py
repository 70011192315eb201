"""What calls give a function: parameters that are the same at every call, or of which a part is enough."""

from __future__ import annotations

import ast
import copy

from sentinel.export.expressions import Substituted, display, is_known, is_pure, is_simple
from sentinel.export.scopes import bound, every, is_name, read

#: No more calls, or parts of a mapping, are dealt with one by one.
FEW = 4


def given_by(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr] | None:
    """Parameter -> what a call gives it."""
    known = function.args
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return None
    positional = [item.arg for item in (*known.posonlyargs, *known.args)]
    found = dict(zip(positional, call.args))
    further: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        named = keyword.arg in positional or keyword.arg in [item.arg for item in known.kwonlyargs]
        (found if named else further)[str(keyword.arg)] = keyword.value
    defaults = dict(zip(reversed(positional), reversed(known.defaults)))
    for item, default in zip(known.kwonlyargs, known.kw_defaults):
        if default is not None:
            defaults[item.arg] = default
    found = {**{name: copy.deepcopy(value) for name, value in defaults.items() if name not in found}, **found}
    rest = call.args[len(positional) :]
    if known.vararg is not None:
        found[known.vararg.arg] = ast.Tuple(rest, ast.Load())
    if known.kwarg is not None:
        found[known.kwarg.arg] = display(further)
    complete = set(positional) <= set(found) and (known.vararg is not None or not rest)
    return found if complete and (known.kwarg is not None or not further) else None


def same_everywhere(function: ast.FunctionDef, calls: list[ast.Call]) -> bool:
    """Take a parameter away that nothing reads, or that is the same constant at every call."""
    found = [given_by(function, call) for call in calls]
    changed, counts = bound(ast.Module(function.body, [])), read(ast.Module(function.body, []))
    known = function.args
    if not calls or known.posonlyargs or known.vararg or known.kwarg or any(given is None for given in found):
        return False
    for item in (*known.args, *known.kwonlyargs):
        values = [given[item.arg] for given in found if given is not None]
        same = all(is_known(value) and ast.dump(value) == ast.dump(values[0]) for value in values)
        unread = not counts[item.arg] and all(map(is_pure, values))
        if changed[item.arg] or not (same or unread):
            continue
        for call, given in zip(calls, found):
            assert given is not None
            _without(function, call, item.arg)
        function.body = Substituted({item.arg: values[0]} if same else {}).visit(ast.Module(function.body, [])).body
        _forget(known, item)
        return True
    return False


def by_parts(function: ast.FunctionDef, calls: list[ast.Call]) -> bool:
    """Give a function the items that it reads of a mapping in the place of the mapping."""
    known, whole = function.args, ast.Module(function.body, [])
    if not calls or known.posonlyargs or known.vararg or known.kwarg or known.kwonlyargs or known.defaults:
        return False
    counts, changed = read(whole), bound(whole)
    for index, item in enumerate(known.args):
        reads = [n for n in ast.walk(whole) if isinstance(n, ast.Subscript) and _reads(n, item.arg)]
        keys = list(dict.fromkeys(str(node.slice.value) for node in reads if isinstance(node.slice, ast.Constant)))
        direct = all(not c.keywords and len(c.args) == len(known.args) and is_simple(c.args[index]) for c in calls)
        plain = all(key.isidentifier() and not changed[key] and key not in {*every(whole)} for key in keys)
        if not direct or not plain or changed[item.arg] or not 0 < len(keys) <= FEW or len(reads) != counts[item.arg]:
            continue
        for node in reads:
            assert isinstance(node.slice, ast.Constant)
            Placed(node, ast.Name(str(node.slice.value), ast.Load())).visit(whole)
        for call in calls:
            given = [ast.Subscript(copy.deepcopy(call.args[index]), ast.Constant(key), ast.Load()) for key in keys]
            call.args[index : index + 1] = given
        known.args[index : index + 1] = [ast.arg(key) for key in keys]
        return True
    return False


def _reads(node: ast.Subscript, name: str) -> bool:
    """Whether it is an item of a mapping, read by a key that is known."""
    key = node.slice
    string = isinstance(key, ast.Constant) and isinstance(key.value, str)
    return string and is_name(node.value, name) and isinstance(node.ctx, ast.Load)


def _without(function: ast.FunctionDef, call: ast.Call, name: str) -> None:
    names = [item.arg for item in function.args.args]
    index = names.index(name) if name in names else len(call.args)
    if index < len(call.args):
        del call.args[index]
    call.keywords = [keyword for keyword in call.keywords if keyword.arg != name]


def _forget(known: ast.arguments, item: ast.arg) -> None:
    if item in known.kwonlyargs:
        index = known.kwonlyargs.index(item)
        del known.kwonlyargs[index], known.kw_defaults[index]
        return
    index = known.args.index(item)
    back = index - (len(known.args) - len(known.defaults))
    if back >= 0:
        del known.defaults[back]
    del known.args[index]


class Placed(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)
