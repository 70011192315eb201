"""Mappings and lists of a function of which nothing but items are read: a variable for each of these."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Mapping
from dataclasses import replace

from sentinel.export.expressions import Substituted, display, entries, is_known
from sentinel.export.folding import Folded, turns
from sentinel.export.knowing import Known, known, makes
from sentinel.export.scopes import SCOPES, STATEMENTS, Block, Function, bound, every, free, is_name, read


def completed(block: Block, index: int) -> bool:
    """``d = {...}`` with what the next statement adds: ``d["a"] = b``, ``d |= {...}`` or ``d.update({...})``."""
    statement = block[index]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Dict):
        return False
    (target, *others) = statement.targets
    if others or not isinstance(target, ast.Name) or target.id in read(statement.value):
        return False
    place = _adding(block, index, target.id)
    added = None if place is None else block[place]
    more: ast.expr | None = None
    if isinstance(added, ast.Assign) and isinstance(added.targets[0], ast.Subscript) and len(added.targets) == 1:
        item = added.targets[0]
        if is_name(item.value, target.id) and is_known(item.slice):
            more = ast.Dict([item.slice], [added.value])
    elif isinstance(added, ast.AugAssign) and is_name(added.target, target.id) and isinstance(added.op, ast.BitOr):
        more = added.value
    elif isinstance(added, ast.Expr) and isinstance(added.value, ast.Call) and not added.value.keywords:
        called, given = added.value.func, added.value.args
        if isinstance(called, ast.Attribute) and is_name(called.value, target.id) and given:
            more = given[0] if called.attr == "update" else None
            if called.attr == "setdefault" and len(given) == 2 and _is_new(given[0], statement.value):
                more = ast.Dict([given[0]], [given[1]])
    if place is None or not isinstance(more, ast.Dict) or target.id in read(more):
        return False
    statement.value = ast.Dict([*statement.value.keys, *more.keys], [*statement.value.values, *more.values])
    _moved(block, index, place)
    return True


def _is_new(key: ast.expr, mapping: ast.Dict) -> bool:
    """Whether a display has no item of this name."""
    items = entries(mapping)
    return isinstance(key, ast.Constant) and items is not None and key.value not in items


def _adding(block: Block, index: int, name: str) -> int | None:
    """The statement that may add to what one binds: the next one, or the next that names it where it is empty yet."""
    value = block[index].value  # type: ignore[attr-defined]
    later = range(index + 1, len(block))
    if ast.unparse(value) not in ("{}", "[]"):
        return next(iter(later), None)
    return next((place for place in later if name in every(block[place])), None)


def _moved(block: Block, index: int, place: int) -> None:
    """Put a statement in the place of a later one."""
    block[place] = block[index]
    del block[index]


class _Fields(ast.NodeTransformer):
    """Reads of a mapping's items as reads of variables, one for each; counts them.

    :param items: key -> how its item is written.
    :param whole: whether these are all that it holds.
    """

    def __init__(
        self, name: str, items: Mapping[str, ast.expr], whole: bool = True, known: Known | None = None
    ) -> None:
        self._name, self._items, self._whole, self._known = name, items, whole, known
        self.reached = 0

    def _is_whole(self, node: ast.AST) -> bool:
        return self._whole and is_name(node, self._name)

    def _item(self, key: ast.AST) -> ast.expr | None:
        if isinstance(key, ast.Constant) and key.value in self._items:
            self.reached += 1
            return copy.deepcopy(self._items[str(key.value)])
        return None

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if is_name(node.value, self._name) and (self._whole or isinstance(node.ctx, ast.Load)):
            item = self._item(node.slice)
            if isinstance(item, ast.Name):
                item.ctx = node.ctx
            return item or node
        return self.generic_visit(node)

    # A mapping that holds nothing is no truth, and which one this is, is known.
    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if not self._is_whole(node.test):
            return self.generic_visit(node)
        self.reached += 1
        return self.visit(node.body if self._items else node.orelse)  # type: ignore[no-any-return]

    def visit_If(self, node: ast.If) -> ast.AST:
        if self._is_whole(node.test):
            self.reached += 1
            node.test = ast.Constant(bool(self._items))
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        if self._is_whole(node.iter):
            self.reached += 1
            node.iter = ast.Tuple([ast.Constant(key) for key in self._items], ast.Load())
        return self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        called = node.iter.func if isinstance(node.iter, ast.Call) and not node.iter.args else None
        if isinstance(called, ast.Attribute) and called.attr == "items" and self._is_whole(called.value):
            self.reached += 1
            called.value = display({name: copy.deepcopy(item) for name, item in self._items.items()})
        return self.generic_visit(node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        """Which of the items it takes is known where its turns are."""
        known = self._whole and self._items and self._name in read(node)  # of nothing, every turn says the same
        found = turns(node.generators, self._known) if known else None
        if found is None:
            return self._taken(self.generic_visit(node))
        (source,) = node.generators
        pairs: list[tuple[ast.expr, ast.expr]] = []
        for turn in found:
            parts = (ast.List(list(source.ifs), ast.Load()), node.key, node.value)
            told, key, value = (self.visit(Substituted(turn).visit(copy.deepcopy(part))) for part in parts)
            conditions = [Folded(self._known).visit(condition) for condition in told.elts]
            if not all(map(is_known, conditions)):
                return node
            if all(condition.value for condition in conditions):
                pairs.append((key, value))
        return ast.Dict([key for key, _ in pairs], [value for _, value in pairs])

    def _taken(self, node: ast.AST) -> ast.AST:
        return Folded().visit(node) if self.reached else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "get" and is_name(called.value, self._name):
            asked = bool(node.args) and (is_known(node.args[0]) or not self._items)
            if asked and not node.keywords:
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
    stored = _stored(function, name)
    if stored is None:
        return False
    written: dict[str, ast.expr] = {}
    made: Block = []
    for key, value in items.items():
        kept = key not in stored and (is_known(value) or (isinstance(value, ast.Name) and counts[value.id] == 1))
        variable = free(key if key.isidentifier() else "value", taken)
        written[key] = value if kept else ast.Name(variable, ast.Load())
        if not kept:
            taken.add(variable)
            made.append(ast.Assign([ast.Name(variable, ast.Store())], value))
    told = known(function)
    things = {one.id for key, one in written.items() if isinstance(one, ast.Name) and makes(items[key])}
    told = replace(told, some=told.some | things)
    trial = _Fields(name, written, known=told)
    tried = trial.visit(copy.deepcopy(function))
    if read(tried)[name]:
        return False
    block[index : index + 1] = made
    _Fields(name, written, known=told).visit(function)
    return True


def _stored(function: Function, name: str) -> set[str] | None:
    """The keys of a mapping's items that are given another value; None where an inner scope does that."""
    inner = [
        node
        for scope in ast.walk(function)
        if isinstance(scope, SCOPES) and scope is not function
        for node in ast.walk(scope)
    ]
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and is_name(node.value, name) and not isinstance(node.ctx, ast.Load):
            if isinstance(node.ctx, ast.Del) or node in inner or not isinstance(node.slice, ast.Constant):
                return None
            found.add(str(node.slice.value))
    return found


def next_reads(block: Block, index: int, name: str, items: Mapping[str, ast.expr]) -> bool:
    """Constants of a mapping that the next statement that uses it reads of it."""
    later = next((item for item in block[index + 1 :] if name in every(item)), None)
    if later is None or not isinstance(later, STATEMENTS):
        return False
    handed = [item for node in ast.walk(later) if isinstance(node, ast.Call) for item in [*node.args, *node.keywords]]
    if any(name in read(item) for item in handed) or any(isinstance(node, SCOPES) for node in ast.walk(later)):
        return False
    told = _Fields(name, {key: value for key, value in items.items() if is_known(value)}, whole=False)
    told.visit(later)
    return told.reached > 0


# -- lists -------------------------------------------------------------------------------------------------------------


def filled(block: Block, index: int) -> bool:
    """``d = [...]`` with what the next statement adds: ``d.append(a)`` or ``d += [...]``."""
    statement = block[index]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.List):
        return False
    (target, *others) = statement.targets
    place = None if others or not isinstance(target, ast.Name) else _adding(block, index, target.id)
    if place is None or not isinstance(target, ast.Name):
        return False
    added, more = block[place], None
    if isinstance(added, ast.AugAssign) and is_name(added.target, target.id) and isinstance(added.op, ast.Add):
        more = added.value
    elif isinstance(added, ast.Expr) and isinstance(added.value, ast.Call) and len(added.value.args) == 1:
        called = added.value.func
        if isinstance(called, ast.Attribute) and called.attr == "append" and is_name(called.value, target.id):
            more = ast.List(added.value.args, ast.Load())
    if more is None or target.id in read(more):
        return False
    if isinstance(more, ast.List):
        statement.value = ast.List([*statement.value.elts, *more.elts], ast.Load())
    elif isinstance(more, ast.ListComp) and not statement.value.elts:
        statement.value = more
    else:
        return False
    _moved(block, index, place)
    return True


def by_places(function: Function, block: Block, index: int, name: str) -> bool:
    """A list of which nothing but items are read, as a variable each."""
    statement = block[index]
    assert isinstance(statement, ast.Assign)
    if not isinstance(statement.value, ast.List):
        return False
    nodes = list(ast.walk(function))
    plain = [node.value for node in nodes if isinstance(node, ast.Subscript) and _placed(node)]
    plain += [node.generators[0].iter for node in nodes if isinstance(node, ast.ListComp)]
    plain += [part for node in nodes if isinstance(node, (ast.If, ast.IfExp)) for part in _asked(node.test)]
    read_here = [node for node in nodes if isinstance(node, ast.Name) and is_name(node, name)]
    read_here = [node for node in read_here if isinstance(node.ctx, ast.Load)]
    if not read_here or any(not any(node is one for one in plain) for node in read_here):
        return False
    counts, made = bound(function), list[ast.stmt]()
    items: list[ast.expr] = []
    for item in statement.value.elts:
        if is_known(item) or (isinstance(item, ast.Name) and counts[item.id] == 1):
            items.append(item)
            continue
        variable = free(f"{name}_1", every(function) | {one.id for one in items if isinstance(one, ast.Name)})
        made.append(ast.Assign([ast.Name(variable, ast.Store())], item))
        items.append(ast.Name(variable, ast.Load()))
    block[index : index + 1] = made
    Substituted({name: ast.List(items, ast.Load())}).visit(function)
    return True


def _asked(test: ast.expr) -> list[ast.expr]:
    """What a branch asks the truth of."""
    return test.values if isinstance(test, ast.BoolOp) else [test]


def _placed(node: ast.Subscript) -> bool:
    """Whether it reads an item at a place that is known."""
    return isinstance(node.slice, ast.Constant) and type(node.slice.value) is int and isinstance(node.ctx, ast.Load)
