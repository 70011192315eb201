"""The names of a function: which it gives a meaning to, how often, and who reads them."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from sentinel.export.locating import FUNCTIONS, arguments

Block = list[ast.stmt]
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Statements that hold no others.
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)
#: Nodes that are a scope of their own.
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.ClassDef)


def bound(tree: ast.AST) -> Counter[str]:
    """How often a definition gives each name a meaning, inner scopes included; its own name does not count."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            found[node.arg] += 1
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler)) and node is not tree:
            found[node.name or ""] += 1
        elif isinstance(node, ast.alias):
            found[(node.asname or node.name).partition(".")[0]] += 1
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names * 2)
    return found


def read(tree: ast.AST | Iterable[ast.AST]) -> Counter[str]:
    """How often each name is read."""
    trees = [tree] if isinstance(tree, ast.AST) else list(tree)
    nodes = [node for item in trees for node in ast.walk(item)]
    return Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def own(tree: ast.AST) -> set[str]:
    """The names that belong to the scope of a function, and not to one inside it."""
    names: set[str] = set()
    queue = list(ast.iter_child_nodes(tree))
    while queue:
        node = queue.pop()
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler)):
            names.add(node.name or "")
        if not isinstance(node, SCOPES):
            queue += list(ast.iter_child_nodes(node))
    return names


def is_name(node: ast.AST, name: str) -> bool:
    """Whether an expression is a certain name."""
    return isinstance(node, ast.Name) and node.id == name


def every(tree: ast.AST) -> set[str]:
    """All names that a definition reads or gives a meaning to."""
    return {*bound(tree), *read(tree)}


def free(name: str, taken: Iterable[str]) -> str:
    """A name that is not taken yet: this one, or one like it."""
    names, found, count = set(taken), name, 2
    while found in names:
        found, count = f"{name}_{count}", count + 1
    return found


def straight(body: Block) -> Iterator[Block]:
    """The blocks whose statements run once whenever the whole runs: the body, and those of its ``with`` and ``try``."""
    yield body
    for statement in body:
        if isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
            yield from straight(statement.body)


def pairs(statement: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment binds, and to what."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    (target,), value = statement.targets, statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts))
    return [(target, value)]


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters."""
    return [item.arg for item in arguments(function.args)]


def at_once(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression or a simple statement always evaluates: nothing of branches and inner scopes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            if isinstance(child, (ast.ListComp, ast.SetComp, ast.DictComp)):
                yield from at_once(child.generators[0].iter)
            continue
        if isinstance(node, ast.IfExp) and child is not node.test:
            continue
        if isinstance(node, ast.BoolOp) and child is not node.values[0]:
            continue
        yield from at_once(child)


def earlier(head: ast.AST, node: ast.AST) -> list[ast.AST]:
    """What an expression or a simple statement evaluates before one of its parts, each behind its own parts."""
    found: list[ast.AST] = []

    def met(part: ast.AST) -> bool:
        there = part is node or any(met(child) for child in ast.iter_child_nodes(part))
        if not there:
            found.append(part)
        return there

    met(head)
    return found


def distinct(function: Function) -> None:
    """Names of comprehensions that are none of the function's own."""
    names = own(function)
    for node in ast.walk(function):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            inside = {name for source in node.generators for name in bound(source.target)}
            if len(node.generators) > 1 or not inside & names:
                continue
            (source,) = node.generators
            new = {name: free(name, every(function)) for name in inside & names}
            outer, source.iter = source.iter, ast.Constant(None)  # it is read outside of the comprehension
            Renamed(new).visit(node)
            source.iter = outer


def settled(function: Function) -> None:
    """Names without the numbers that kept them apart from others, where these are gone."""
    inner = {name for node in ast.walk(function) if isinstance(node, ast.comprehension) for name in bound(node.target)}
    for name in sorted(own(function) | inner):
        base = re.sub(r"(_\d+)+$", "", name)
        if base != name and (new := free(base, {*every(function), *dir(builtins)} - {name})) != name:
            Renamed({name: new}).visit(function)


class Renamed(ast.NodeTransformer):
    """Gives names other ones."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)
