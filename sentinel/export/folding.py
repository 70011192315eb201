"""What is known before a program runs, written as what it is: comparisons of constants, items of displays, branches
that can only go one way."""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from sentinel.export.knowing import Known
from sentinel.export.layout import SCALARS
from sentinel.export.shapes import Shape, lies_here, shape_of

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
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {"bool": bool, "float": float, "int": int, "str": str}
_CHOICES: Mapping[str, Callable[..., Any]] = {"max": max, "min": min}
#: Comprehensions over no more than that are written out.
FEW_TURNS = 12
#: Longer strings are not made out of shorter ones.
_LONG = 60

#: Functions that give something and do nothing, and methods of which the same is true.
_GIVING = frozenset(
    {*_CONVERSIONS, "SimpleNamespace", "dict", "getattr", "hasattr", "len", "list", "max", "min", "range", "sorted"}
    | {"sum", "tuple", "vars", "zip"}
)
_GIVING_METHODS = frozenset(
    {"abs", "any", "arange", "bool", "clamp", "clone", "cpu", "detach", "dim", "expand", "float", "fromkeys", "full"}
    | {"get", "items", "keys", "logical_not", "long", "mean", "ones", "ones_like", "repeat", "reshape", "size"}
    | {"stack", "sum", "tensor", "to", "tolist", "type_as", "unsqueeze", "values", "view", "zeros", "zeros_like"}
)

_MAKING = frozenset({"object.__new__", "omegaconf.OmegaConf.create"})

#: How torch's functions begin that change a setting or a tensor.
_SETTING = ("set", "manual", "backward", "grad", "load", "save")


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


def _truth(node: ast.expr) -> bool | None:
    """Whether what is asked is so; None where that is not known."""
    if is_known(node):
        return bool(value_of(node))
    if isinstance(node, (ast.List, ast.Tuple)) and is_pure(node):
        return bool(node.elts)
    if isinstance(node, ast.BoolOp) and is_pure(node):
        found, deciding = [_truth(item) for item in node.values], isinstance(node.op, ast.Or)
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
            truth, last = _truth(operand), operand is node.values[-1]
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
        if (truth := _truth(node.test)) is not None:
            return node.body if truth else node.orelse
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        node.slice = _bracketed(node.slice)
        if isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice):
            whole = shape_of(node.value, self._known.shapes)
            return node.value if whole and _is_all(node.slice, whole[0]) else node
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
        node.keywords = [new for keyword in node.keywords for new in _keywords(keyword)]
        node.args = self._spliced(node.args)
        if _is_copy_of_new(node):
            return _detached(node.func.value.func.value)  # type: ignore[attr-defined]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cpu" and not node.args:
            there = lies_here(node.func.value, self._known.here)
            return node.func.value if there else node
        if _is_leaf(node):
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
            return _reached(node)
        if isinstance(node.func, ast.Name) and not node.keywords:
            return self._built_in(node, node.func.id)
        return node

    def _built_in(self, node: ast.Call, name: str) -> ast.AST:
        if len(node.args) == 1:
            (given,) = node.args
            if name in _CONVERSIONS and is_known(given):
                try:
                    value = _CONVERSIONS[name](value_of(given))
                except (TypeError, ValueError):
                    return node
                return ast.Constant(value) if name == "str" or math.isfinite(value) else node
            if name in _CONVERSIONS and isinstance(given, ast.Call) and ast.unparse(given.func) == name:
                return given
            if (name == "dict" and entries(given) is not None) or (name == "list" and isinstance(given, ast.List)):
                return given
            if name == "len" and (shape := shape_of(given, self._known.shapes)):
                return ast.Constant(shape[0])
            counted = name == "len" and isinstance(given, (ast.List, ast.Tuple)) and is_pure(given)
            return ast.Constant(len(given.elts)) if counted and not _starred(given.elts) else node  # type: ignore[attr-defined]
        told = node.args[1] if len(node.args) == 2 else None
        if name in _CHOICES and told is not None and all(_is_number(item) for item in node.args):
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
        return ast.Dict([key for key, _ in items], [value for _, value in items])

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
        if (truth := _truth(node.test)) is not None:
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
        return _parted(node)

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


def _is_copy_of_new(node: ast.Call) -> bool:
    """``torch.tensor(...).detach().clone()``, which nobody else has."""
    made = re.match(r"torch\.(tensor|full|zeros|ones)\(", ast.unparse(node))
    inner = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "clone" else None
    detached = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "detach"
    return made is not None and detached and isinstance(inner.func.value, ast.Call) and _is_torch(inner.func.value.func)  # type: ignore[union-attr]


def _reached(node: ast.Call) -> ast.expr:
    """``functools.reduce(getattr, ["a", "b"], owner)`` as ``owner.a.b``."""
    how, names, owner = node.args
    known = isinstance(names, ast.List) and all(map(is_known, names.elts))
    if not known or not isinstance(names, ast.List) or ast.unparse(how) != "getattr":
        return node
    for name in names.elts:
        owner = ast.Attribute(owner, str(value_of(name)), ast.Load())
    return owner


def _detached(made: ast.Call) -> ast.Call:
    """A new tensor, without a history to come."""
    made.keywords = [keyword for keyword in made.keywords if keyword.arg != "requires_grad"]
    return made


def _is_leaf(node: ast.Call) -> bool:
    """``torch.tensor(...).requires_grad_(True)``."""
    made = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_" else None
    new = isinstance(made, ast.Call) and re.match(r"torch\.(tensor|full|zeros|ones)$", ast.unparse(made.func))
    told = isinstance(made, ast.Call) and any(keyword.arg == "requires_grad" for keyword in made.keywords)
    return bool(new) and not told and [ast.unparse(item) for item in node.args] == ["True"] and not node.keywords


def _is_torch(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "torch"


def _slice(node: ast.expr) -> slice | None:
    """``slice(a, b)`` of two numbers."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "slice" or len(node.args) != 2:
        return None
    return slice(*map(value_of, node.args)) if all(map(_is_number, node.args)) else None


def _is_all(part: ast.Slice, length: int) -> bool:
    """Whether a slice leaves nothing of so many rows out."""
    first, end = part.lower or ast.Constant(0), part.upper or ast.Constant(length)
    known = part.step is None and _is_number(first) and _is_number(end)
    return known and value_of(first) == 0 and value_of(end) >= length


def _bracketed(node: ast.expr) -> ast.expr:
    """``slice(a, b)``, as people write it in brackets."""
    if isinstance(node, ast.Tuple):
        return ast.Tuple([_bracketed(item) for item in node.elts], ast.Load())
    part = _slice(node)
    return node if part is None else ast.Slice(ast.Constant(part.start), ast.Constant(part.stop))


def _parted(node: ast.Assign) -> ast.Assign:
    """``*a, b = [1, 2, 3]`` as ``a, b = [1, 2], 3``."""
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.List) or not all(map(is_known, value.elts)):
        return node
    stars = [place for place, item in enumerate(target.elts) if isinstance(item, ast.Starred)]
    if len(stars) != 1 or len(value.elts) < len(target.elts) - 1:
        return node
    (first,), items = stars, list(value.elts)
    behind = len(items) - (len(target.elts) - first - 1)
    names = [item.value if isinstance(item, ast.Starred) else item for item in target.elts]
    values = [*items[:first], ast.List(items[first:behind], ast.Load()), *items[behind:]]
    return ast.Assign([ast.Tuple(names, ast.Store())], ast.Tuple(values, ast.Load()))


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


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


def _keywords(keyword: ast.keyword) -> list[ast.keyword]:
    """``f(**{"a": b})`` as ``f(a=b)``."""
    inner = entries(keyword.value) if keyword.arg is None else None
    return [keyword] if inner is None else [ast.keyword(str(name), value) for name, value in inner.items()]


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
