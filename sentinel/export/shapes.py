"""The shape of a tensor and whether it lies on the CPU, as far as that can be read off: of literals, and of what keeps
or tells it."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping

Shape = tuple[int, ...]

#: Methods that give a tensor of the shape of the one that they are called of.
_KEEPING = frozenset(
    {"bool", "clamp", "clone", "contiguous", "cpu", "detach", "double", "float", "int", "long", "requires_grad_", "to"}
)
#: Methods that give a tensor that lies where the one does that they are called of.
_STAYING = _KEEPING - {"to"} | {"any", "expand", "mean", "repeat", "reshape", "sum", "unsqueeze", "view"}
#: Functions of torch whose first argument gives the shape of what they make.
_LIKE = frozenset({"full_like", "ones_like", "rand_like", "zeros_like"})
#: Functions of torch that are told the shape.
_TOLD = frozenset({"full", "ones", "zeros"})


def shape_of(node: ast.expr, known: Mapping[str, Shape]) -> Shape | None:
    """The shape of what an expression gives; None where that cannot be read off."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Compare) and len(node.comparators) == 1:
        return shape_of(node.left, known) if isinstance(node.comparators[0], ast.Constant) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return known.get(ast.unparse(node))
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice).strip("()") == ":, None":
        whole = shape_of(node.value, known)
        return (whole[0], 1, *whole[1:]) if whole else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name, given = node.func.attr, node.args
    if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
        if name == "tensor" and len(given) == 1:
            return _nested(given[0])
        if name in _LIKE and given:
            return shape_of(given[0], known)
        if name == "arange" and len(given) == 1:
            return _sizes(given)
        sizes = given[0].elts if given and isinstance(given[0], (ast.List, ast.Tuple)) else given
        return _sizes(sizes) if name in _TOLD and (sizes is not given or name != "full") else None
    whole = shape_of(node.func.value, known)
    if whole is not None and name == "repeat" and (times := _sizes(given)) and len(times) == len(whole):
        return tuple(size * count for size, count in zip(whole, times))
    return whole if name in _KEEPING else None


def lies_here(node: ast.expr, known: Container[str]) -> bool:
    """Whether an expression gives a tensor that lies on the CPU.

    :param known: names of such tensors.
    """
    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, (ast.BinOp, ast.Compare)):
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.left, *node.comparators]
        tensors = [part for part in parts if not isinstance(part, ast.Constant)]
        return bool(tensors) and all(lies_here(part, known) for part in tensors)
    if isinstance(node, ast.Subscript):
        return lies_here(node.value, known)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = node.func.attr
    if any(keyword.arg == "device" for keyword in node.keywords):
        return False
    if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
        made = name in {*_TOLD, "arange", "tensor"}
        return made or (name in _LIKE and bool(node.args) and lies_here(node.args[0], known))
    if ast.unparse(node.func) == "torch.nn.functional.pad":
        return lies_here(node.args[0], known)
    # ``to`` may be told a device by its place, or by another tensor.
    return name in _STAYING and lies_here(node.func.value, known)


def _sizes(sizes: list[ast.expr]) -> Shape | None:
    told = [size.value for size in sizes if isinstance(size, ast.Constant) and type(size.value) is int]
    return tuple(told) if len(told) == len(sizes) else None


def _nested(node: ast.expr) -> Shape | None:
    """The shape of nested lists."""
    if isinstance(node, (ast.Constant, ast.UnaryOp)):
        return ()
    if isinstance(node, ast.List):
        inner = {_nested(item) for item in node.elts}
        (shape,) = inner if len(inner) == 1 else (None,)
        return None if shape is None else (len(node.elts), *shape)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _nested(node.left), _nested(node.right)
        return (left[0] + right[0], *left[1:]) if left and right and left[1:] == right[1:] else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        row, times = _nested(node.left), node.right.value
        return (row[0] * times, *row[1:]) if row and type(times) is int else None
    return None
