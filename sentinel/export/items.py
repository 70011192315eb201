"""Mappings of a function of which nothing but items are read: a variable for each of these."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Mapping

from sentinel.export.folding import Folded, display, is_known
from sentinel.export.scopes import SCOPES, STATEMENTS, Block, Function, bound, every, free, is_name, read


def completed(block: Block, index: int) -> bool:
    """``d = {...}`` with what the next statement adds: ``d["a"] = b``, ``d |= {...}`` or ``d.update({...})``."""
    statement, added = block[index], block[index + 1] if index + 1 < len(block) else None
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Dict) or added is None:
        return False
    (target, *others) = statement.targets
    if others or not isinstance(target, ast.Name) or target.id in read(statement.value):
        return False
    more: ast.expr | None = None
    if isinstance(added, ast.Assign) and isinstance(added.targets[0], ast.Subscript) and len(added.targets) == 1:
        place = added.targets[0]
        if is_name(place.value, target.id) and is_known(place.slice):
            more = ast.Dict([place.slice], [added.value])
    elif isinstance(added, ast.AugAssign) and is_name(added.target, target.id) and isinstance(added.op, ast.BitOr):
        more = added.value
    elif isinstance(added, ast.Expr) and isinstance(added.value, ast.Call):
        called = added.value.func
        if isinstance(called, ast.Attribute) and called.attr == "update" and is_name(called.value, target.id):
            more = added.value.args[0] if added.value.args and not added.value.keywords else None
    if not isinstance(more, ast.Dict) or target.id in read(more):
        return False
    statement.value = ast.Dict([*statement.value.keys, *more.keys], [*statement.value.values, *more.values])
    del block[index + 1]
    return True


class _Fields(ast.NodeTransformer):
    """Reads of a mapping's items as reads of variables, one for each; counts them.

    :param items: key -> how its item is written.
    :param whole: whether these are all that it holds.
    """

    def __init__(self, name: str, items: Mapping[str, ast.expr], whole: bool = True) -> None:
        self._name, self._items, self._whole = name, items, whole
        self.reached = 0

    def _item(self, key: ast.AST) -> ast.expr | None:
        if isinstance(key, ast.Constant) and key.value in self._items:
            self.reached += 1
            return copy.deepcopy(self._items[str(key.value)])
        return None

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if is_name(node.value, self._name) and isinstance(node.ctx, ast.Load):
            return self._item(node.slice) or node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "get" and is_name(called.value, self._name):
            known = bool(node.args) and (is_known(node.args[0]) or not self._items)
            if known and not node.keywords:
                found = self._item(node.args[0])
                if found is None and not self._whole:
                    return node
                if found is None:
                    self.reached += 1
                    found = self.visit(node.args[1]) if len(node.args) > 1 else ast.Constant(None)
                return found
        self.generic_visit(node)
        node.keywords = [new for keyword in node.keywords for new in self._keywords(keyword)]
        return node

    def _keywords(self, keyword: ast.keyword) -> list[ast.keyword]:
        if not self._whole or keyword.arg is not None or not is_name(keyword.value, self._name):
            return [keyword]
        self.reached += 1
        return [ast.keyword(name, copy.deepcopy(value)) for name, value in self._items.items()]

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        asked = len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)) and is_known(node.left)
        if asked and self._whole and is_name(node.comparators[0], self._name):
            self.reached += 1
            node.comparators = [ast.List([ast.Constant(key) for key in self._items], ast.Load())]
            return Folded().visit(node)  # type: ignore[no-any-return]
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        for index, (key, value) in enumerate(zip(node.keys, node.values)):
            if self._whole and key is None and is_name(value, self._name):
                self.reached += 1
                node.values[index] = display({name: copy.deepcopy(item) for name, item in self._items.items()})
        return self.generic_visit(node)


def by_fields(function: Function, block: Block, index: int, name: str, items: Mapping[str, ast.expr]) -> bool:
    """A mapping of which nothing but items are read, as a variable each."""
    if not all(isinstance(key, str) for key in items):
        return False
    counts, taken = bound(function), {*every(function), *dir(builtins)} - {name}
    written: dict[str, ast.expr] = {}
    made: Block = []
    for key, value in items.items():
        kept = is_known(value) or (isinstance(value, ast.Name) and counts[value.id] == 1)
        variable = free(key if key.isidentifier() else "value", taken)
        written[key] = value if kept else ast.Name(variable, ast.Load())
        if not kept:
            taken.add(variable)
            made.append(ast.Assign([ast.Name(variable, ast.Store())], value))
    trial = _Fields(name, written)
    tried = trial.visit(copy.deepcopy(function))
    if read(tried)[name] or trial.reached != read(function)[name]:
        return False
    block[index : index + 1] = made
    _Fields(name, written).visit(function)
    return True


def next_reads(block: Block, index: int, name: str, items: Mapping[str, ast.expr]) -> bool:
    """Constants of a mapping that the next statement that uses it reads of it."""
    later = next((item for item in block[index + 1 :] if name in every(item)), None)
    if later is None or not isinstance(later, STATEMENTS):
        return False
    handed = [item for node in ast.walk(later) if isinstance(node, ast.Call) for item in [*node.args, *node.keywords]]
    if any(name in read(item) for item in handed) or any(isinstance(node, SCOPES) for node in ast.walk(later)):
        return False
    known = _Fields(name, {key: value for key, value in items.items() if is_known(value)}, whole=False)
    known.visit(later)
    return known.reached > 0
