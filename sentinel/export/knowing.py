"""What is known of the names of a function, before it runs."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sentinel.export.scopes import Function, bound, is_name, pairs, straight
from sentinel.export.shapes import Shape, lies_here, shape_of

#: How something is written -> the names that it has, at each revision that was seen.
Held = Mapping[str, Collection[Collection[str]]]


@dataclass(frozen=True)
class Known:
    """Of names that have one meaning throughout.

    :ivar some: those that stand for tensors or other things made in the function: that are not None.
    :ivar shapes: those that stand for tensors of a known shape, and items of mappings that are such tensors.
    :ivar here: those that stand for tensors that lie where torch makes them when nobody says where.
    :ivar tuples: those that stand for constants.
    """

    some: frozenset[str] = frozenset()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    here: frozenset[str] = frozenset()
    tuples: Mapping[str, ast.Tuple] = field(default_factory=dict)
    held: Held = field(default_factory=dict)

    def displayed(self, node: ast.expr) -> ast.expr:
        """The display that a name stands for; what is no such name, as it is."""
        return self.tuples.get(node.id, node) if isinstance(node, ast.Name) else node


def known(function: Function, held: Held | None = None) -> Known:
    """What can be read off a function."""
    some, here, shapes, tuples = set[str](), set[str](), dict[str, Shape](), dict[str, ast.Tuple]()
    counts = bound(function)
    stores = [n for n in ast.walk(function) if isinstance(n, ast.Subscript) and not isinstance(n.ctx, ast.Load)]
    changed = {n.value.id for n in stores if isinstance(n.value, ast.Name)}
    for block in straight(function.body):
        for target, value in (pair for statement in block for pair in pairs(statement)):
            if not isinstance(target, ast.Name) or counts[target.id] != 1:
                continue
            if lies_here(value, here):
                here.add(target.id)
            if makes(value):
                some.add(target.id)
            if (shape := shape_of(value, shapes)) is not None:
                shapes[target.id] = shape
            if isinstance(value, ast.Dict) and target.id not in changed:
                items = {
                    key.value: item for key, item in zip(value.keys, value.values) if isinstance(key, ast.Constant)
                }
                found = {key: shape_of(item, shapes) for key, item in items.items()}
                shapes |= {f"{target.id}[{key!r}]": shape for key, shape in found.items() if shape is not None}
            if isinstance(value, ast.Tuple) and all(isinstance(item, ast.Constant) for item in value.elts):
                tuples[target.id] = value
    return Known(frozenset(some), shapes, frozenset(here), tuples, held or {})


def makes(value: ast.expr) -> bool:
    """Whether an expression gives a tensor or a display, whatever it is made of: torch's functions, and comparisons of
    what is no constant, which give a truth value else."""
    if isinstance(value, (ast.Compare, ast.BinOp, ast.Dict, ast.List, ast.Tuple, ast.ListComp, ast.DictComp)):
        return True
    while isinstance(value, (ast.Call, ast.Attribute)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return is_name(value, "torch")
