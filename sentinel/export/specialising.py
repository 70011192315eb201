"""A slice, for the scenarios of one recipe: what is known of them is written as what it is, and what then never
happens, or is never read, is gone.

A slice is an adapter's own code, which is written for many scenarios and revisions. Here its functions are written
where they are called, and constants where they are read, as long as anything gets simpler by that. Nothing is
believed of it: the runner that comes out is tried at both revisions like any other, and where it says another thing
than the evidence, the slice itself is the runner.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sentinel.export.expressions import Substituted, entries, is_pure
from sentinel.export.folding import Folded
from sentinel.export.inlining import inlined
from sentinel.export.knowing import Held, Known, known
from sentinel.export.layout import height, written
from sentinel.export.locating import FUNCTIONS
from sentinel.export.objects import bare, unboxed
from sentinel.export.propagating import emptied, propagated
from sentinel.export.scopes import bound, distinct, every, read, settled
from sentinel.export.unrolling import unrolled

#: So many steps are enough for what a file of some hundred lines holds.
_STEPS = 2000
#: A word for something that is read more often stays.
_TWICE = 2


def specialised(
    definitions: Mapping[str, str],
    observe: Sequence[str],
    wanted: Collection[str],
    modules: Collection[str] = (),
    held: Held | None = None,
    some: Collection[str] = (),
) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """A slice's definitions and ``observe``, simpler, and the modules that it knows under a name of one word.

    :param wanted: observation keys that are compared; others need not be computed.
    :param modules: those that are written by their whole names.
    :param held: how something is written -> the names that it has, at each revision that was seen.
    :param some: parameters of ``observe`` that are never None.
    """
    held = held or {}
    module = ast.parse("\n".join([*definitions.values(), *observe]))
    last = module.body[-1]
    assert isinstance(last, ast.FunctionDef)
    for inner in ast.walk(module):
        if isinstance(inner, FUNCTIONS) and ast.get_docstring(inner) is not None:
            del inner.body[0]
    for _ in range(_STEPS):
        if not _step(module, last, wanted, modules, held, some):
            break
    for inner in ast.walk(module):
        if isinstance(inner, FUNCTIONS):
            settled(inner)
    taken = {*every(module), *dir(builtins), *_named(module)}
    short = {name: name.rpartition(".")[2] for name in modules if "." in name}
    short = {name: word for name, word in short.items() if word not in taken and [*short.values()].count(word) == 1}
    _Shortened(short).visit(module)
    found: dict[str, str] = {}
    for node in module.body:
        name = node.name if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else ast.unparse(node).partition(" =")[0]
        found[name] = written(node)
    return found, found.pop("observe").split("\n"), short


def _named(module: ast.Module) -> set[str]:
    """The names of arguments: a module of that name beside them would confuse."""
    return {str(node.arg) for node in ast.walk(module) if isinstance(node, ast.keyword)}


class _Shortened(ast.NodeTransformer):
    """Writes modules by their last names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        text = ast.unparse(node)
        return ast.Name(self._names[text], ast.Load()) if text in self._names else self.generic_visit(node)


def _step(
    module: ast.Module,
    last: ast.FunctionDef,
    wanted: Collection[str],
    modules: Collection[str],
    held: Held,
    some: Collection[str],
) -> bool:
    before = ast.dump(module)
    for node in module.body:
        if isinstance(node, FUNCTIONS):
            distinct(node)
            told = known(node, held)
            Folded(replace(told, some=told.some.union(some)) if node is last else told).visit(node)
        else:
            Folded(Known(held=held)).visit(node)
    for inner in ast.walk(module):
        if isinstance(inner, FUNCTIONS):
            emptied(inner)
    giving = {node.name for node in module.body if isinstance(node, ast.FunctionDef) and _gives(node)}
    _only(last, wanted, giving)
    bare(module)
    _used(module)
    changed = ast.dump(module) != before
    for inner in list(ast.walk(module)):
        if isinstance(inner, FUNCTIONS):
            while propagated(inner, giving, {*modules, *held}) or unrolled(inner, held):
                changed = True
            emptied(inner)
    ast.fix_missing_locations(module)
    return changed or _constants(module) or inlined(module) or unboxed(module)


def _gives(function: ast.FunctionDef) -> bool:
    """Whether all that a function does is to give something."""
    last = function.body[-1]
    return len(function.body) == 1 and isinstance(last, ast.Return) and is_pure(last)


def _only(function: ast.FunctionDef, wanted: Collection[str], giving: Collection[str]) -> None:
    """Leave out of what is observed that which nothing is compared with."""
    answer = function.body[-1]
    told = answer.value if isinstance(answer, ast.Return) else None
    if not isinstance(told, ast.Dict):
        return
    pairs = [(key, value) for key, value in zip(told.keys, told.values) if _compared(key, value, wanted, giving)]
    if pairs:
        told.keys, told.values = [key for key, _ in pairs], [_attached(value) for _, value in pairs]


def _attached(value: ast.expr) -> ast.expr:
    """What is observed, as it is: whether it has a history does not matter to who reads it."""
    found = value.body if isinstance(value, ast.IfExp) else value
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute) and found.func.attr == "detach":
        bare, asked = found.func.value, f'hasattr({ast.unparse(found.func.value)}, "detach")'
        if found is value or (isinstance(value, ast.IfExp) and _same(value.test, asked) and _same(value.orelse, bare)):
            return bare
    return value


def _same(node: ast.expr, other: ast.expr | str) -> bool:
    text = other if isinstance(other, str) else ast.unparse(other)
    return ast.unparse(node).replace("'", '"') == text.replace("'", '"')


def _compared(key: ast.expr | None, value: ast.expr, wanted: Collection[str], giving: Collection[str]) -> bool:
    """Whether an item of a display, or one of those that it may put in, is among what is wanted."""
    if isinstance(key, ast.Constant):
        return any(name == key.value or name.startswith(f"{key.value!s}.") for name in wanted)
    inner = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    if key is not None or any(entries(item) is None for item in inner) or not is_pure(value, giving):
        return True
    names = [ast.Constant(name) for item in inner for name in entries(item) or ()]
    return any(_compared(name, value, wanted, giving) for name in names)


def _used(module: ast.Module) -> None:
    """Take away definitions that no other one reads."""
    reads = {id(node): {*read(node)} for node in module.body}
    for node in list(module.body[:-1]):
        names = _names(node)
        if not any(names & reads[id(other)] for other in module.body if other is not node):
            module.body.remove(node)


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return {node.name}
    return {*bound(node)}


def _constants(module: ast.Module) -> bool:
    """Write a module's constant, or its word for something, where it is read, if that is at one place."""
    reads = read(module)
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1:
            name = node.targets[0].id
            inside = any(name in bound(other) for other in module.body if isinstance(other, FUNCTIONS))
            told = reads[name] == 1 and _data(node.value)
            if not inside and (told or (isinstance(node.value, ast.Attribute) and _no_longer(module, node, name))):
                module.body.remove(node)
                Substituted({name: node.value}).visit(module)
                return True
    return False


def _no_longer(module: ast.Module, word: ast.Assign, name: str) -> bool:
    """Whether what a word stands for, in its place, takes no more lines."""
    if read(module)[name] > _TWICE:
        return False
    readers = [node for node in module.body if node is not word and read(node)[name]]
    after = [Substituted({name: word.value}).visit(copy.deepcopy(node)) for node in readers]
    return sum(map(height, after)) < sum(map(height, (word, *readers)))


def _data(node: ast.expr) -> bool:
    parts = (ast.Constant, ast.Dict, ast.Tuple, ast.List, ast.Set, ast.expr_context, ast.UnaryOp, ast.unaryop)
    return all(isinstance(part, parts) for part in ast.walk(node))
