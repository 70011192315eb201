"""Make mutants: copies of a file in which one expression is changed in a way that corrupts a training signal.

An operator takes an expression and yields replacements for it. The rest of the file is not changed, so functions stay
at their lines.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

#: Parameter -> its default in the function's signature, if the default is a literal. Operators are called as
#: ``operator(node, defaults)``.
Defaults = Mapping[str, ast.expr]
Edits = Iterator[ast.expr]
Operator = Callable[[ast.expr, Defaults], Edits]


def _expression(text: str, **parts: ast.expr) -> ast.expr:
    """Parse an expression, and replace each name that is a key of ``parts`` with its value."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return parts.get(node.id, node)

    filled: ast.expr = Fill().visit(ast.parse(text, mode="eval").body)
    return filled


def _with(node: Any, **fields: Any) -> Any:
    """Return a copy of a node in which these fields are replaced."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _called(node: ast.expr) -> str:
    """Return the last part of the called function's dotted name; "" if the node is not a call of a named function."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _renamed(node: ast.Call, name: str) -> ast.Call:
    function = node.func
    field = "attr" if isinstance(function, ast.Attribute) else "id"
    renamed: ast.Call = _with(node, func=_with(function, **{field: name}))
    return renamed


def _number(node: ast.AST | None) -> int | None:
    try:
        value = ast.literal_eval(node) if isinstance(node, ast.expr) else None
    except ValueError:
        return None
    return value if type(value) is int else None


def _numpy(node: ast.expr) -> bool:
    return getattr(node, "id", "") in ("np", "numpy")


def _dropped(node: ast.Call, place: int) -> ast.Call:
    """Return the call without one of its keywords."""
    call: ast.Call = _with(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])
    return call


def _is_mask(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and "mask" in ast.unparse(node).rpartition(".")[2].lower()


def _speaks_of_masks(node: ast.AST) -> bool:
    return any(_is_mask(part) for part in ast.walk(node))


def _drop_mask(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.BitAnd)):
        masks = [_speaks_of_masks(side) for side in (node.left, node.right)]
        if masks[0] != masks[1]:
            yield node.left if masks[1] else node.right
    if _called(node) == "where" and isinstance(node, ast.Call) and len(node.args) == 3:
        yield node.args[1]
    if isinstance(node, ast.Call):
        for place, argument in enumerate(node.args):
            if _is_mask(argument):
                ones = _expression("mask * 0 + 1", mask=argument)
                yield _with(node, args=[*node.args[:place], ones, *node.args[place + 1 :]])


def _invert_mask(node: ast.expr, defaults: Defaults) -> Edits:
    if _is_mask(node) and isinstance(getattr(node, "ctx", None), ast.Load):
        yield _expression("mask == 0", mask=node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield node.operand


_REDUCTIONS = {"sum": "mean", "mean": "sum", "masked_sum": "masked_mean", "masked_mean": "masked_sum"}
_EXTREMES = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}
_ALONG = {
    *("sum", "mean", "std", "var", "max", "min", "amax", "cumsum", "softmax", "log_softmax", "argmax", "all", "any"),
    *("cat", "stack", "flip", "prod", "sort", "argsort", "logsumexp", "gather", "masked_mean", "masked_sum"),
}


def _renaming(names: Mapping[str, str]) -> Operator:
    def renamed(node: ast.expr, defaults: Defaults) -> Edits:
        if (
            isinstance(node, ast.Call)
            and _called(node) in names
            and (node.args or isinstance(node.func, ast.Attribute))
        ):
            yield _renamed(node, names[_called(node)])

    return renamed


def _axis(node: ast.expr, defaults: Defaults) -> Edits:
    if not isinstance(node, ast.Call):
        return
    for place, keyword in enumerate(node.keywords):
        axis = _number(keyword.value) if keyword.arg in ("dim", "axis") else None
        if axis is not None:
            other = _with(keyword, value=ast.Constant(0 if axis else -1))
            yield _with(node, keywords=[*node.keywords[:place], other, *node.keywords[place + 1 :]])
    if _called(node) in _ALONG:
        for place, argument in enumerate(node.args):
            axis = _number(argument)
            if axis is not None:
                other = ast.Constant(0 if axis else -1)
                yield _with(node, args=[*node.args[:place], other, *node.args[place + 1 :]])


def _off_by_one(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) and _number(node.right) == 1:
        yield node.left
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for place, part in enumerate(parts):
            for bound in ("lower", "upper") if isinstance(part, ast.Slice) else ():
                if _number(getattr(part, bound)) not in (None, 0):
                    several = [*parts[:place], _with(part, **{bound: None}), *parts[place + 1 :]]
                    yield _with(node, slice=_with(node.slice, elts=several) if len(parts) > 1 else several[0])


def _sign(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield _with(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())


def _denominator(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield node.left


def _detach(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        if node.func.attr == "detach":
            yield node.func.value
        if node.func.attr == "no_grad":
            yield _renamed(node, "enable_grad")


def _unbiased(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.Call) and _called(node) in ("std", "var") and isinstance(node.func, ast.Attribute):
        numpy = _numpy(node.func.value)
        name, usual = ("ddof", 0) if numpy else ("correction", 1)
        stated = {keyword.arg: keyword.value for keyword in node.keywords}
        given = next((ast.literal_eval(stated[n]) for n in (name, "unbiased") if n in stated), usual)
        kept = [keyword for keyword in node.keywords if keyword.arg not in (name, "unbiased")]
        yield _with(node, keywords=[*kept, ast.keyword(name, ast.Constant(1 - int(given)))])


_STRICTNESS = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt}


def _strictness(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _STRICTNESS:
        yield _with(node, ops=[_STRICTNESS[type(node.ops[0])](), *node.ops[1:]])


def _unclipped(node: ast.expr, defaults: Defaults) -> Edits:
    if (
        isinstance(node, ast.Call)
        and _called(node) in ("clamp", "clip", "clamp_")
        and isinstance(node.func, ast.Attribute)
    ):
        function = getattr(node.func.value, "id", "") in ("torch", "np", "numpy")
        clipped = node.args[0] if function and node.args else node.func.value
        if not function or node.args:
            yield clipped
        for place in range(len(node.keywords)):
            if len(node.keywords) > 1:
                yield _with(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])


def _ignored(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in defaults:
        yield defaults[node.id]
    if isinstance(node, ast.Call):
        for place, keyword in enumerate(node.keywords):
            passed_on = keyword.arg and isinstance(keyword.value, (ast.Name, ast.Attribute))
            if passed_on and _called(node)[:1].islower():  # no constructor, because it would raise without the keyword
                yield _with(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])


def _stale(node: ast.expr, defaults: Defaults) -> Edits:
    """Drop an update: ``x = f(x)`` becomes ``x = x``, and ``x += y`` becomes ``x += 0``."""
    for name in getattr(node, "assigned", ()):
        if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node)):
            yield ast.Name(name, ast.Load())
    if hasattr(node, "augments"):
        yield ast.Constant(1 if isinstance(node.augments, (ast.Mult, ast.Div)) else 0)


#: The first half of the operators. Laws, domains and scenarios were tuned on mutants that these operators make.
FIRST: dict[str, Operator] = {
    "drop a mask": _drop_mask,
    "invert a mask": _invert_mask,
    "sum for mean": _renaming(_REDUCTIONS),
    "max for min": _renaming(_EXTREMES),
    "another axis": _axis,
    "off by one": _off_by_one,
    "another sign": _sign,
    "no denominator": _denominator,
    "no detach": _detach,
    "another ddof": _unbiased,
    "> for >=": _strictness,
    "no clip": _unclipped,
    "an ignored argument": _ignored,
    "a stale value": _stale,
}

# -- the second half of the operators, modelled on known bugs ----------------------------------------------------------


def _cast(node: ast.expr, defaults: Defaults) -> Edits:
    """Drop a cast. Bugs of this kind: a log-softmax in bfloat16; a bool mask that is used as row numbers."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if _called(node) in ("float", "double", "long", "int", "bool", "type_as") or (
            _called(node) in ("to", "astype") and "device" not in ast.unparse(node)
        ):
            yield node.func.value
        for place, keyword in enumerate(node.keywords):
            if keyword.arg == "dtype":
                yield _dropped(node, place)


def _broadcast(node: ast.expr, defaults: Defaults) -> Edits:
    """Drop an ``unsqueeze``, ``expand`` or ``keepdim``, so that numbers per row are broadcast along the wrong axis."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if _called(node) in ("unsqueeze", "expand_as", "expand"):
            yield node.func.value
        for place, keyword in enumerate(node.keywords):
            if keyword.arg in ("keepdim", "keepdims"):
                yield _dropped(node, place)


def _other_branch(node: ast.expr, defaults: Defaults) -> Edits:
    """Take the other branch of a conditional expression or of ``where``.

    Bugs of this kind: positive advantages are clipped at the bound for negative ones; a local value is used in place of
    the global one.
    """
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    if isinstance(node, ast.Call) and _called(node) == "where" and len(node.args) == 3:
        yield _with(node, args=[node.args[0], node.args[2], node.args[1]])


def _condition(node: ast.expr, defaults: Defaults) -> Edits:
    if isinstance(node, ast.BoolOp):
        yield node.values[0]
        yield node.values[-1]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        yield _with(node, ops=[ast.NotEq() if isinstance(node.ops[0], ast.Eq) else ast.Eq()])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def _swapped(node: ast.expr, defaults: Defaults) -> Edits:
    """Swap two operands or arguments, such as the log-probs of the actor and the reference."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div)):
        yield _with(node, left=node.right, right=node.left)
    if isinstance(node, ast.Call) and len(node.args) > 1 and all(isinstance(item, ast.Name) for item in node.args[:2]):
        yield _with(node, args=[node.args[1], node.args[0], *node.args[2:]])


def _precedence(node: ast.expr, defaults: Defaults) -> Edits:
    """Drop brackets: ``(r - mean) / std`` becomes ``r - mean / std``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        for side, other in (("left", node.right), ("right", node.left)):
            inner = getattr(node, side)
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Add, ast.Sub)) and side == "left":
                yield _with(inner, right=_with(node, left=inner.right))
            elif isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Add, ast.Sub)):
                yield _with(inner, left=_with(node, left=other, right=inner.left))


def _transform(node: ast.expr, defaults: Defaults) -> Edits:
    """Drop a transformation, such as the ``exp`` of a log-ratio or the ``sqrt`` of a variance."""
    if isinstance(node, ast.Call) and _called(node) in (
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "abs",
        "square",
        "log1p",
        "expm1",
    ):
        value = node.args[0] if node.args else getattr(node.func, "value", None)
        if value is not None:
            yield value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        yield node.left


def _shared(node: ast.expr, defaults: Defaults) -> Edits:
    """Drop a copy, so that a later change also modifies the original."""
    if isinstance(node, ast.Call) and _called(node) in ("clone", "copy", "deepcopy"):
        value = node.args[0] if node.args else getattr(node.func, "value", None)
        if value is not None:
            yield value


def _counted(node: ast.expr, defaults: Defaults) -> Edits:
    """Count the wrong things: masked tokens, rows for groups, tokens for rows."""
    if isinstance(node, ast.Call) and ast.unparse(node).endswith("mask.sum()"):
        yield _renamed(node, "numel")
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        place = _number(node.slice)
        if place is not None:
            yield _with(node, slice=ast.Constant(-1 if place == 0 else 0))
    if isinstance(node, ast.Call) and _called(node) == "set" and len(node.args) == 1:
        yield _renamed(node, "list")


def _twice(node: ast.expr, defaults: Defaults) -> Edits:
    """Apply a factor twice."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        yield _with(node, left=node)


def _constant(node: ast.expr, defaults: Defaults) -> Edits:
    """Change a constant: remove an epsilon, or change a factor."""
    if isinstance(node, ast.Constant) and type(node.value) is float:
        yield ast.Constant(0.0 if abs(node.value) < 1e-3 else node.value * 2 or 1.0)


def _first_for_each(node: ast.expr, defaults: Defaults) -> Edits:
    """Use the first row's value for all rows."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
        yield _with(node, slice=ast.Constant(0))


def _row_order(node: ast.expr, defaults: Defaults) -> Edits:
    """Reorder rows, or leave out the last."""
    if isinstance(node, ast.Call) and _called(node) == "zip" and len(node.args) > 1:
        yield _with(node, args=[node.args[0], _expression("list(other)[::-1]", other=node.args[1]), *node.args[2:]])
    if isinstance(node, ast.Call) and _called(node) == "sorted":
        yield _expression("list(items)", items=node.args[0])
    if isinstance(node, ast.Call) and _called(node) == "range" and len(node.args) == 1:
        yield _with(node, args=[_expression("count - 1", count=node.args[0])])
    if isinstance(node, ast.Call) and _called(node) in ("roll", "argsort", "sort") and node.args:
        yield _expression("call.flip(0)", call=node) if _called(node) == "argsort" else node.args[0]


#: The second half of the operators. No law, domain or scenario was tuned on mutants that these operators make.
SECOND: dict[str, Operator] = {
    "no cast": _cast,
    "another broadcast": _broadcast,
    "the other branch": _other_branch,
    "another condition": _condition,
    "swapped operands": _swapped,
    "another precedence": _precedence,
    "no transform": _transform,
    "shared for copied": _shared,
    "another count": _counted,
    "a factor twice": _twice,
    "another constant": _constant,
    "the first for each": _first_for_each,
    "order of rows": _row_order,
}

HALVES = {"first": FIRST, "second": SECOND}


def _bounds_swapped(node: ast.expr, defaults: Defaults) -> Edits:
    """Swap the bounds of a clip: 1 - low and 1 + high become 1 - high and 1 + low."""
    if not isinstance(node, ast.Call) or _called(node) not in ("clamp", "clip", "clamp_"):
        return
    function = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("torch", "np", "numpy")
    places = [*enumerate(node.args)][1 if function else 0 :]
    sides = [item for _, item in places] + [item.value for item in node.keywords if item.arg in ("min", "max")]
    if len(sides) == 2 and all(isinstance(side, ast.BinOp) for side in sides):
        swapped = [_with(side, right=other.right) for side, other in zip(sides, sides[::-1])]  # type: ignore[attr-defined]
        values = iter(swapped)
        arguments = [*node.args[: len(node.args) - len(places)], *(next(values) for _ in places)]
        keywords = [_with(item, value=next(values)) if item.arg in ("min", "max") else item for item in node.keywords]
        yield _with(node, args=arguments, keywords=keywords)


def _shifted_more(node: ast.expr, defaults: Defaults) -> Edits:
    """Shift by one more: ``labels[..., 1:]`` becomes ``labels[..., 2:]``."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for place, part in enumerate(parts):
            for bound in ("lower", "upper") if isinstance(part, ast.Slice) else ():
                step = _number(getattr(part, bound))
                if step in (1, -1):
                    several = [*parts[:place], _with(part, **{bound: ast.Constant(2 * step)}), *parts[place + 1 :]]
                    yield _with(node, slice=_with(node.slice, elts=several) if len(parts) > 1 else several[0])
    if isinstance(node, ast.Call) and _called(node) == "roll":
        for place, argument in enumerate(node.args):
            step = _number(argument)
            if step in (1, -1):
                more = ast.Constant(2 * step)
                yield _with(node, args=[*node.args[:place], more, *node.args[place + 1 :]])
                return


#: All operators. The last two make kinds of bugs that a maintainer made in a trial, and that no other operator makes.
EVERY: dict[str, Operator] = {
    **FIRST,
    **SECOND,
    "swapped bounds": _bounds_swapped,
    "shifted by one more": _shifted_more,
}

# -- mutants -----------------------------------------------------------------------------------------------------------

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Syntax that does not affect a training signal, and names of functions and modules that only log.
_NO_SIGNAL = (ast.Raise, ast.Assert, ast.JoinedStr, ast.ClassDef)
_LOGS = ("logger", "logging", "print", "warnings")


@dataclass(frozen=True)
class Mutant:
    """A changed function.

    :ivar file: path below the checkout.
    :ivar function: its qualified name.
    :ivar source: the whole file, changed.
    """

    file: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    source: str
    exploding_source: str

    @property
    def exploding(self) -> Mutant:
        """Return the mutant in which the same expression raises."""
        return replace(self, source=self.exploding_source)

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def lot(self) -> str:
        """Return a text that identifies the mutant. Samples are ordered by the hash of this text and a seed."""
        return f"{self.file} {self.function} {self.line} {self.operator} {self.before} {self.after}"


def mutants(
    source: str, file: str, function: str, operators: Mapping[str, Operator], line: int | None = None
) -> Iterator[Mutant]:
    """Yield every distinct mutant of a function.

    :param line: if given, only expressions that begin at this line are changed.
    """
    tree = ast.parse(source)
    node = _function(tree, function.split("."))
    if node is None:
        return
    positional = [*node.args.posonlyargs, *node.args.args]
    pairs = [*zip(positional[::-1], node.args.defaults[::-1]), *zip(node.args.kwonlyargs, node.args.kw_defaults)]
    defaults: dict[str, ast.expr] = {a.arg: d for a, d in pairs if isinstance(d, (ast.Constant, ast.UnaryOp))}
    whole = source.encode()
    starts = [0, *accumulate(map(len, whole.splitlines(keepends=True)))]
    seen = {ast.dump(tree)}
    for expression in _expressions(node.body):
        if line not in (None, expression.lineno):
            continue
        start = starts[expression.lineno - 1] + expression.col_offset
        end = starts[(expression.end_lineno or 0) - 1] + (expression.end_col_offset or 0)
        edits = [
            (name, ast.unparse(other))
            for name, operator in operators.items()
            for other in operator(expression, defaults)
        ]
        exploding, *made = (
            (whole[:start] + f"({text})".encode() + whole[end:]).decode()
            for text in ("1 / 0", *(text for _, text in edits))
        )
        for (name, after), changed in zip(edits, made):
            try:
                dumped = ast.dump(ast.parse(changed))
            except SyntaxError:
                continue
            if dumped not in seen:
                seen.add(dumped)
                before = ast.unparse(expression)
                yield Mutant(file, function, expression.lineno, name, before, after, changed, exploding)


def _function(node: ast.AST, path: Sequence[str]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for part in path:
        inside = [item for item in ast.walk(node) if isinstance(item, (*_FUNCTIONS, ast.ClassDef)) and item is not node]
        node = next((item for item in inside if item.name == part), ast.Pass())
    return node if isinstance(node, _FUNCTIONS) else None


def _expressions(nodes: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """Yield the expressions that compute something, except in log messages, ``assert`` and ``raise`` statements.

    The node of an assigned value gets an attribute with the assigned names, or with the operator of an augmented
    assignment.
    """
    for node in nodes:
        if isinstance(node, ast.Assign):
            vars(node.value)["assigned"] = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.AugAssign):
            vars(node.value)["augments"] = node.op
        logs = isinstance(node, ast.Call) and ast.unparse(node.func).partition(".")[0] in _LOGS
        if logs or isinstance(node, _NO_SIGNAL):
            continue
        if isinstance(node, ast.expr):
            yield node
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.AnnAssign):
            inner = [node.value] if node.value else []
        elif isinstance(node, _FUNCTIONS):
            inner = list(node.body)
        elif isinstance(node, ast.Call):  # the name of the called function is not changed
            inner = [*ast.iter_child_nodes(node.func), *node.args, *node.keywords]
        yield from _expressions(inner)
