"""What code that is cut out of other code says in a way in which nobody would write it, as people do."""

from __future__ import annotations

import ast
import re

from sentinel.export.expressions import entries, is_known, is_number, value_of


def is_copy_of_new(node: ast.Call) -> bool:
    """``torch.tensor(...).detach().clone()``, which nobody else has."""
    made = re.match(r"torch\.(tensor|full|zeros|ones)\(", ast.unparse(node))
    inner = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "clone" else None
    detached = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "detach"
    return made is not None and detached and isinstance(inner.func.value, ast.Call) and _is_torch(inner.func.value.func)  # type: ignore[union-attr]


def reached(node: ast.Call) -> ast.expr:
    """``functools.reduce(getattr, ["a", "b"], owner)`` as ``owner.a.b``."""
    how, names, owner = node.args
    known = isinstance(names, ast.List) and all(map(is_known, names.elts))
    if not known or not isinstance(names, ast.List) or ast.unparse(how) != "getattr":
        return node
    for name in names.elts:
        owner = ast.Attribute(owner, str(value_of(name)), ast.Load())
    return owner


def detached(made: ast.Call) -> ast.Call:
    """A new tensor, without a history to come."""
    made.keywords = [keyword for keyword in made.keywords if keyword.arg != "requires_grad"]
    return made


def is_leaf(node: ast.Call) -> bool:
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
    return slice(*map(value_of, node.args)) if all(map(is_number, node.args)) else None


def is_all(part: ast.Slice, length: int) -> bool:
    """Whether a slice leaves nothing of so many rows out."""
    first, end = part.lower or ast.Constant(0), part.upper or ast.Constant(length)
    known = part.step is None and is_number(first) and is_number(end)
    return known and value_of(first) == 0 and value_of(end) >= length


def bracketed(node: ast.expr) -> ast.expr:
    """``slice(a, b)``, as people write it in brackets."""
    if isinstance(node, ast.Tuple):
        return ast.Tuple([bracketed(item) for item in node.elts], ast.Load())
    part = _slice(node)
    return node if part is None else ast.Slice(ast.Constant(part.start), ast.Constant(part.stop))


def parted(node: ast.Assign) -> ast.Assign:
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


def keywords(keyword: ast.keyword) -> list[ast.keyword]:
    """``f(**{"a": b})`` as ``f(a=b)``."""
    inner = entries(keyword.value) if keyword.arg is None else None
    return [keyword] if inner is None else [ast.keyword(str(name), value) for name, value in inner.items()]
