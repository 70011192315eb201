"""Refactor one function of a file so that its results stay the same."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: A replacement of a source's bytes: start, end, text.
Edit = tuple[int, int, str]


def refactor(source: str, name: str, kind: str, chosen: random.Random) -> tuple[str, int] | None:
    """Apply a random refactoring of one kind to a function.

    :param name: the function's qualified name.
    :param kind: a key of :data:`KINDS`.
    :return: the new source, and the line of the first change; None if this kind is not possible in the function.
    """
    tree = ast.parse(source)
    where = Positions(source)
    function = find_function(tree, name)
    if function is None or any(isinstance(node, _OPAQUE) or _reads_locals(node) for node in ast.walk(function)):
        return None
    several = list(KINDS[kind](tree, function, where))
    if not several:
        return None
    edits = chosen.choice(several)
    content = source.encode()
    for start, end, text in sorted(edits, reverse=True):
        content = content[:start] + text.encode() + content[end:]
    line = source.encode()[: min(edit[0] for edit in edits)].count(b"\n") + 1
    changed = content.decode()
    try:
        ast.parse(changed)
    except SyntaxError:
        return None
    return changed, line


#: Syntax that would make a refactoring unsafe. A function that contains it is not refactored.
_OPAQUE = (ast.Nonlocal, ast.Global, ast.Yield, ast.YieldFrom)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PURE = (ast.Name, ast.Attribute, ast.Constant)


class Positions:
    """Converts positions of syntax nodes into byte offsets in the source."""

    def __init__(self, source: str) -> None:
        self.content = source.encode()
        self.starts = [0, *accumulate(map(len, self.content.splitlines(keepends=True)))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end_column

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.content[start:end].decode()


def find_function(tree: ast.AST, name: str) -> Function | None:
    found: ast.AST = tree
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        inside = [node for node in ast.walk(found) if isinstance(node, kinds) and node is not found]
        found = next((node for node in inside if node.name == part), ast.Pass())
    return found if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _reads_locals(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("locals", "eval", "exec", "vars", "super")


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those inside nested functions, comprehensions, classes and f-strings."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop(0)
        yield node
        if not isinstance(node, (*_SCOPES, ast.JoinedStr, ast.ClassDef)):
            queue += ast.iter_child_nodes(node)


def _locals(function: Function) -> list[str]:
    """Return the names that a function assigns, without its parameters."""
    arguments = function.args
    parameters = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    parameters |= {each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None}
    stored = [
        node.id for node in _own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return [name for name in dict.fromkeys(stored) if name not in parameters]


def _rename(tree: ast.Module, function: Function, where: Positions) -> Iterator[list[Edit]]:
    every = list(ast.walk(function))
    hidden = {
        node.id
        for text in every
        if isinstance(text, ast.JoinedStr)
        for node in ast.walk(text)
        if isinstance(node, ast.Name)
    }
    hidden |= {node.arg for node in every if isinstance(node, ast.arg)}
    hidden |= {
        node.name
        for node in every
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name
    }
    hidden |= {
        alias.asname or alias.name
        for node in every
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    for name in _locals(function):
        uses = [node for node in every if isinstance(node, ast.Name) and node.id == name]
        if name not in hidden and len(name) > 1:
            yield [(*where.span(node), f"{name}_renamed") for node in uses]


def _extract(tree: ast.Module, function: Function, where: Positions) -> Iterator[list[Edit]]:
    owner = next(node for node in tree.body if node.lineno <= function.lineno <= (node.end_lineno or 0))
    top = min([owner.lineno, *(each.lineno for each in getattr(owner, "decorator_list", []))])
    if not isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    arguments = function.args
    parameters = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    known = {
        *_locals(function),
        *parameters,
        *filter(None, (getattr(each, "arg", "") for each in (arguments.vararg, arguments.kwarg))),
    }
    inside = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    defined = {
        node.name
        for node in ast.walk(function)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node is not function
    }
    for node in _own_nodes(function):
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(value, (ast.BinOp, ast.Call, ast.Compare)):
            continue
        below = list(ast.walk(value))
        if any(isinstance(each, (*_SCOPES, ast.Await, ast.NamedExpr, ast.JoinedStr, ast.Starred)) for each in below):
            continue
        names = list(dict.fromkeys(each.id for each in below if isinstance(each, ast.Name)))
        if {*names} & (imported | defined) or any(name in inside and name not in known for name in names):
            continue
        private = any(isinstance(each, ast.Attribute) and each.attr.startswith("__") for each in below)
        given = ", ".join(name for name in names if name in known)
        if private or "\n" in where.text(value):
            continue
        helper = f"def _extracted_by_hand({given}):\n    return {where.text(value)}\n\n\n"
        yield [
            (where.starts[top - 1], where.starts[top - 1], helper),
            (*where.span(value), f"_extracted_by_hand({given})"),
        ]


def _reorder(tree: ast.Module, function: Function, where: Positions) -> Iterator[list[Edit]]:
    for node in _own_nodes(function):
        keywords = node.keywords if isinstance(node, ast.Call) else []
        if len(keywords) > 1 and all(each.arg and isinstance(each.value, _PURE) for each in keywords[:2]):
            spans = [
                (where.starts[each.lineno - 1] + each.col_offset, where.span(each.value)[1]) for each in keywords[:2]
            ]
            texts = [where.content[start:end].decode() for start, end in spans]
            yield [(*spans[0], texts[1]), (*spans[1], texts[0])]


def _comment(tree: ast.Module, function: Function, where: Positions) -> Iterator[list[Edit]]:
    for node in _statements(function.body):
        start = where.starts[node.lineno - 1]
        if not where.content[start : start + node.col_offset].strip():
            yield [(start, start, f"{' ' * node.col_offset}# A comment that changes nothing.\n")]


def _hint(tree: ast.Module, function: Function, where: Positions) -> Iterator[list[Edit]]:
    for node in _own_nodes(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            end = where.span(node.targets[0])[1]
            yield [(end, end, ': "object"')]


def _arithmetic(tree: ast.Module, function: Function, where: Positions) -> Iterator[list[Edit]]:
    """Swap the factors of a product or the sides of a comparison. In IEEE arithmetic, the result has the same bits."""
    turned = {ast.Lt: ">", ast.Gt: "<", ast.LtE: ">=", ast.GtE: "<="}
    for node in _own_nodes(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides, sign = (node.left, node.right), "*"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in turned:
            sides, sign = (node.left, node.comparators[0]), turned[type(node.ops[0])]
        else:
            continue
        if all(isinstance(side, (*_PURE, ast.BinOp, ast.Subscript)) for side in sides):
            left, right = (where.text(side) for side in sides)
            yield [(*where.span(node), f"(({right}) {sign} ({left}))")]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _statements(getattr(node, part, []))


KINDS: dict[str, Callable[[ast.Module, Function, Positions], Iterator[list[Edit]]]] = {
    "renamed local": _rename,
    "extracted helper": _extract,
    "reordered keywords": _reorder,
    "comment": _comment,
    "type hint": _hint,
    "equivalent arithmetic": _arithmetic,
}
