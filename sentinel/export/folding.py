"""What is known before a program runs, written as what it is: comparisons of constants, items of displays, branches
that can only go one way."""

from __future__ import annotations

import ast
import copy
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sentinel.export.expressions import (
    CONVERSIONS,
    Substituted,
    entries,
    is_known,
    is_number,
    is_pure,
    truth_of,
    value_of,
)
from sentinel.export.knowing import Known
from sentinel.export.layout import SCALARS, height
from sentinel.export.shapes import Shape, lies_here, shape_of
from sentinel.export.spelling import bracketed, detached, is_all, is_copy_of_new, is_leaf, keywords, parted, reached

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_CHOICES: Mapping[str, Callable[..., Any]] = {"max": max, "min": min}
#: Comprehensions over no more than that are written out.
FEW_TURNS = 12
#: Longer strings are not made out of shorter ones.
_LONG = 60


class Folded(ast.NodeTransformer):
    """Writes what is known as a constant, and takes away what then never happens.

    :param known: what is known of names.
    """

    def __init__(self, known: Known | None = None) -> None:
        self._known = known or Known()

    # -- expressions --------------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            there = self._has(node.left, node.comparators[0])
            return node if there is None else ast.Constant(there == isinstance(node.ops[0], ast.In))
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)) and _is_none(node.comparators[0]):
            nothing = self._nothing(node.left)
            return node if nothing is None else ast.Constant(nothing == isinstance(node.ops[0], ast.Is))
        if not all(map(is_known, operands)) or not all(type(op) in _COMPARISONS for op in node.ops):
            return node
        try:
            pairs = zip(node.ops, map(value_of, operands), map(value_of, operands[1:]))
            return ast.Constant(all(_COMPARISONS[type(op)](left, right) for op, left, right in pairs))
        except TypeError:
            return node

    def _has(self, item: ast.expr, holder: ast.expr) -> bool | None:
        """Whether something has an item of this name; None where that is not known, or not so at every revision."""
        if not self._known.held or not isinstance(item, ast.Constant) or ast.unparse(holder) not in self._known.held:
            return _holds(item, self._known.displayed(holder))
        found = {item.value in names for names in self._known.held[ast.unparse(holder)]}
        return found.pop() if len(found) == 1 else None

    def _nothing(self, node: ast.expr) -> bool | None:
        """Whether it is None; None where that is not known."""
        if is_known(node):
            return value_of(node) is None
        made = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.JoinedStr, ast.Lambda, ast.ListComp, ast.DictComp)
        known = isinstance(node, made) or (isinstance(node, ast.Name) and node.id in self._known.some)
        return False if known else None

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        kept: list[ast.expr] = []
        for operand in node.values:
            truth, last = truth_of(operand), operand is node.values[-1]
            decides = truth is not None and truth == isinstance(node.op, ast.Or)
            if decides or truth is None or last:
                kept.append(operand)
            if decides:
                break
        return kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        known = isinstance(node.op, ast.Not) and is_known(node.operand)
        return ast.Constant(not value_of(node.operand)) if known else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if is_known(node.left) and is_known(node.right) and type(node.op) in _ARITHMETIC:
            try:
                value = _ARITHMETIC[type(node.op)](value_of(node.left), value_of(node.right))
            except (TypeError, ZeroDivisionError):
                return node
            positive = not isinstance(value, (int, float)) or value >= 0
            if isinstance(value, SCALARS) and positive and len(str(value)) <= _LONG:
                return ast.Constant(value)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if (truth := truth_of(node.test)) is not None:
            return node.body if truth else node.orelse
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        node.slice = bracketed(node.slice)
        if isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice):
            whole = shape_of(node.value, self._known.shapes)
            return node.value if whole and is_all(node.slice, whole[0]) else node
        if not isinstance(node.ctx, ast.Load) or not is_known(node.slice) or not is_pure(node.value):
            return node
        key, items = value_of(node.slice), entries(node.value)
        shape = self._shape(node.value)
        if shape is not None and type(key) is int and key < len(shape):
            return ast.Constant(shape[key])
        if items is not None:
            return items.get(key, node)
        if isinstance(node.value, (ast.Tuple, ast.List)) and type(key) is int and not _starred(node.value.elts):
            return node.value.elts[key] if -len(node.value.elts) <= key < len(node.value.elts) else node
        return node

    def _spliced(self, items: list[ast.expr]) -> list[ast.expr]:
        """``[*(a, b)]`` as ``[a, b]``."""
        found: list[ast.expr] = []
        for item in items:
            inner = self._known.displayed(item.value) if isinstance(item, ast.Starred) else None
            found += copy.deepcopy(inner.elts) if isinstance(inner, (ast.Tuple, ast.List)) else [item]
        return found

    def _shape(self, node: ast.expr) -> Shape | None:
        """What ``x.shape`` is, where it is known."""
        asked = isinstance(node, ast.Attribute) and node.attr == "shape"
        return shape_of(node.value, self._known.shapes) if asked else None  # type: ignore[attr-defined]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [new for keyword in node.keywords for new in keywords(keyword)]
        node.args = self._spliced(node.args)
        if is_copy_of_new(node):
            return detached(node.func.value.func.value)  # type: ignore[attr-defined]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cpu" and not node.args:
            there = lies_here(node.func.value, self._known.here)
            return node.func.value if there else node
        if is_leaf(node):
            made = node.func.value  # type: ignore[attr-defined]
            return ast.Call(made.func, made.args, [*made.keywords, ast.keyword("requires_grad", ast.Constant(True))])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and not node.keywords:
            items = entries(node.func.value)
            if items is not None and is_pure(node.func.value) and (not items or is_known(node.args[0])):
                default = node.args[1] if len(node.args) > 1 else ast.Constant(None)
                return items.get(value_of(node.args[0]), default) if items else default
        if isinstance(node.func, ast.Attribute) and node.func.attr == "split" and len(node.args) == 1:
            string, mark = node.func.value, node.args[0]
            if is_known(string) and is_known(mark):
                return ast.List([ast.Constant(part) for part in value_of(string).split(value_of(mark))], ast.Load())
        if ast.unparse(node.func) == "functools.reduce" and len(node.args) == 3:
            return reached(node)
        if isinstance(node.func, ast.Name) and not node.keywords:
            return self._built_in(node, node.func.id)
        return node

    def _built_in(self, node: ast.Call, name: str) -> ast.AST:
        if len(node.args) == 1:
            (given,) = node.args
            if name in CONVERSIONS and is_known(given):
                try:
                    value = CONVERSIONS[name](value_of(given))
                except (TypeError, ValueError):
                    return node
                return ast.Constant(value) if name == "str" or math.isfinite(value) else node
            if name in CONVERSIONS and isinstance(given, ast.Call) and ast.unparse(given.func) == name:
                return given
            if (name == "dict" and entries(given) is not None) or (name == "list" and isinstance(given, ast.List)):
                return given
            if name == "len" and (shape := shape_of(given, self._known.shapes)):
                return ast.Constant(shape[0])
            counted = name == "len" and isinstance(given, (ast.List, ast.Tuple)) and is_pure(given)
            return ast.Constant(len(given.elts)) if counted and not _starred(given.elts) else node  # type: ignore[attr-defined]
        told = node.args[1] if len(node.args) == 2 else None
        if name in _CHOICES and told is not None and all(is_number(item) for item in node.args):
            return ast.Constant(_CHOICES[name](*map(value_of, node.args)))
        if name == "getattr" and isinstance(told, ast.Constant) and str(told.value).isidentifier():
            return ast.Attribute(node.args[0], str(told.value), ast.Load())
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        keys: list[ast.expr | None] = []
        values: list[ast.expr] = []
        for key, value in zip(node.keys, node.values):
            inner = entries(value) if key is None else None
            for new, item in [(key, value)] if inner is None else zip(map(ast.Constant, inner), inner.values()):
                before = [n for n, old in enumerate(keys) if is_known(old) and is_known(new) and _same(old, new)]
                if before and None not in keys[before[0] :] and is_pure(values[before[0]]):
                    values[before[0]] = item
                else:
                    keys.append(new)
                    values.append(item)
        return ast.Dict(keys, values)

    def visit_List(self, node: ast.List) -> ast.AST:
        self.generic_visit(node)
        node.elts = self._spliced(node.elts) if isinstance(node.ctx, ast.Load) else node.elts
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        parts: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and is_known(part.value) and part.format_spec is None:
                part = ast.Constant(str(value_of(part.value))) if part.conversion == -1 else part
            if parts and isinstance(part, ast.Constant) and is_known(parts[-1]):
                part = ast.Constant(value_of(parts.pop()) + part.value)
            parts.append(part)
        return parts[0] if len(parts) == 1 and is_known(parts[0]) else ast.JoinedStr(parts)

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        self.generic_visit(node)
        taken = self._taken(node.generators)
        if taken is None:
            return node
        items = [(self._at(turn, node.key), self._at(turn, node.value)) for turn in taken]
        found = ast.Dict([key for key, _ in items], [value for _, value in items])
        return found if height(found) <= height(node) + 1 else node

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        self.generic_visit(node)
        taken = self._taken(node.generators)
        if taken is None:
            return node
        found = ast.List([self._at(turn, node.elt) for turn in taken], ast.Load())
        return found if len(ast.unparse(found)) <= len(ast.unparse(node)) else node

    def _taken(self, generators: list[ast.comprehension]) -> list[dict[str, ast.expr]] | None:
        """The turns of a comprehension that its conditions let through, where all of that is known."""
        found = turns(generators, self._known)
        if found is None:
            return None
        told = [[self._at(turn, condition) for condition in generators[0].ifs] for turn in found]
        if not all(is_known(condition) for conditions in told for condition in conditions):
            return None
        return [turn for turn, conditions in zip(found, told) if all(map(value_of, conditions))]

    def _at(self, turn: Mapping[str, ast.expr], node: ast.expr) -> ast.expr:
        """An expression of a comprehension, at one turn."""
        new = Substituted(turn).visit(copy.deepcopy(node))
        return Folded(self._known).visit(new)  # type: ignore[no-any-return]

    # -- statements ---------------------------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if (truth := truth_of(node.test)) is not None:
            return node.body if truth else node.orelse
        if not node.body and not node.orelse:
            return None if is_pure(node.test) else ast.Expr(node.test)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        source = node.iter
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "items":
            source = source.func.value
        nothing = entries(source) == {} or (isinstance(source, (ast.Tuple, ast.List)) and not source.elts)
        return node.orelse if nothing else node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        shape = self._shape(node.value) if isinstance(node.targets[0], ast.Tuple) else None
        if shape is not None:
            node.value = ast.Tuple([ast.Constant(size) for size in shape], ast.Load())
        return parted(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node)
        called = node.value
        if is_pure(called):
            return None
        if isinstance(called, ast.Call) and isinstance(called.func, ast.Name) and called.func.id == "setattr":
            owner, name, value = called.args
            if isinstance(name, ast.Constant):
                return ast.Assign([ast.Attribute(owner, str(name.value), ast.Store())], value)
        if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr == "update":
            nothing = len(called.args) == 1 and entries(called.args[0]) == {} and not called.keywords
            return None if nothing and is_pure(called.func) else node
        return node


def _is_none(node: ast.AST) -> bool:
    return is_known(node) and value_of(node) is None


def _same(one: Any, other: Any) -> bool:
    return bool(one.value == other.value)


def _starred(items: Iterable[ast.expr]) -> bool:
    return any(isinstance(item, ast.Starred) for item in items)


def _holds(item: ast.expr, holder: ast.expr) -> bool | None:
    """Whether a display holds a constant; None where that is not known."""
    if not is_known(item) or not is_pure(holder):
        return None
    found = entries(holder)
    if found is not None:
        return value_of(item) in found
    if isinstance(holder, ast.Constant) and isinstance(holder.value, str):
        return str(value_of(item)) in holder.value
    if isinstance(holder, (ast.Tuple, ast.List, ast.Set)) and all(map(is_known, holder.elts)):
        return value_of(item) in [value_of(element) for element in holder.elts]
    return None


def turns(generators: list[ast.comprehension], known: Known | None = None) -> list[dict[str, ast.expr]] | None:
    """What a comprehension's names stand for at each turn, where that is known and written in few words."""
    if len(generators) != 1 or generators[0].is_async:
        return None
    target, source = generators[0].target, (known or Known()).displayed(generators[0].iter)
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    rows: list[list[ast.expr]]
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "items":
        inner = entries(source.func.value)
        if inner is None:
            return None
        rows = [[ast.Constant(key), value] for key, value in inner.items()]
    elif (inner := entries(source)) is not None and len(names) == 1:
        rows = [[ast.Constant(key)] for key in inner]
    elif isinstance(source, (ast.Tuple, ast.List)):
        rows = [list(i.elts) if len(names) > 1 and isinstance(i, ast.Tuple) else [i] for i in source.elts]
    else:
        return None
    told = [name.id for name in names if isinstance(name, ast.Name)]
    if len(rows) > FEW_TURNS or len(told) != len(names) or any(len(row) != len(told) for row in rows):
        return None
    return [dict(zip(told, row)) for row in rows] if all(is_pure(item) for row in rows for item in row) else None
