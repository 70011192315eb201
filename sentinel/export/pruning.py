"""What of a definition ran: the rest is taken away, with what only the reader of an adapter needs."""

from __future__ import annotations

import ast
from typing import Any

from sentinel.export.layout import reference
from sentinel.export.locating import FUNCTIONS, arguments

#: Docstrings of a longer first sentence are left out.
_LONG_SENTENCE = 105


class Pruned(ast.NodeTransformer):
    """Takes away what did not run, and what only the reader of the adapter needs: annotations, docstrings.

    :param lines: those of the file that ran.
    :param told: whether the first sentence of each docstring is kept.
    """

    def __init__(self, lines: frozenset[int], told: bool) -> None:
        self._lines = lines
        self._told = told

    def _ran(self, *nodes: ast.stmt | ast.excepthandler) -> bool:
        return any(
            line in self._lines for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        )

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            quiet = isinstance(statement, (ast.Pass, ast.Global, ast.Nonlocal))
            if quiet or self._ran(statement):
                new = self.visit(statement)
                found += new if isinstance(new, list) else [] if new is None else [new]
        return found

    def _without_docstring(self, node: Any) -> tuple[list[ast.stmt], str]:
        """The body of a definition, and what is kept of its docstring."""
        documented = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
        told = _sentence(ast.get_docstring(node) or "") if documented and self._told else ""
        return node.body[documented:], told

    def _function(self, node: Any) -> Any:
        for argument in arguments(node.args):
            argument.annotation = None
        node.returns = None
        body, told = self._without_docstring(node)
        if not body:  # a docstring alone: there is nothing that could be seen to run
            node.body = [ast.Pass()]
            return node
        if not self._ran(*body):
            node.body = [ast.Raise(reference("NotImplementedError"), None)]  # handed on, and never called
            return node
        first = [ast.Expr(ast.Constant(told))] if told and len(body) > 2 else []
        node.body = first + self._block(body) or [ast.Pass()]
        node.decorator_list = [self.visit(item) for item in node.decorator_list]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815 - as the class wants

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        body, told = self._without_docstring(node)
        first: list[ast.stmt] = [ast.Expr(ast.Constant(told))] if told else []
        read = {name for item in node.body if not isinstance(item, FUNCTIONS) for name in read_in(item)}
        kept = [item for item in body if not isinstance(item, FUNCTIONS) or self._ran(*item.body) or item.name in read]
        # What is no field of a record needs no type.
        visited = FUNCTIONS if node.decorator_list else (*FUNCTIONS, ast.AnnAssign)
        node.body = first + [new for i in kept if (new := self.visit(i) if isinstance(i, visited) else i) is not None]
        node.body = node.body or [ast.Pass()]
        node.bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if node.value is None else ast.Assign([node.target], node.value)

    def visit_Assert(self, node: ast.Assert) -> ast.AST | None:
        """One that tells a type checker something tells a reader nothing."""
        test = node.test
        return None if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) else node

    def visit_If(self, node: ast.If) -> Any:
        body, other = self._ran(*node.body), self._ran(*node.orelse)
        if node.orelse and body != other:
            return self._block(node.body if body else node.orelse)
        if not body and not other:
            return None
        node.body, node.orelse = self._block(node.body) or [ast.Pass()], self._block(node.orelse)
        return node

    def _loop(self, node: Any) -> Any:
        if not self._ran(*node.body):
            return None
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node if node.body else None

    visit_For = visit_AsyncFor = visit_While = _loop  # noqa: N815 - as the class wants

    def _with(self, node: Any) -> Any:
        node.body = self._block(node.body) or [ast.Pass()]
        return node

    visit_With = visit_AsyncWith = _with  # noqa: N815 - as the class wants

    def visit_Try(self, node: ast.Try) -> Any:
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        node.finalbody = self._block(node.finalbody)
        node.handlers = [handler for handler in node.handlers if self._ran(handler)]
        for handler in node.handlers:
            handler.body = self._block(handler.body) or [ast.Pass()]
        return node if node.handlers or node.finalbody else [*node.body, *node.orelse]


class Orphaned(ast.NodeTransformer):
    """Takes away what was kept for a branch that is not there any more.

    :param names: what only such branches read.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        (first, *others) = node.targets
        return None if not others and isinstance(first, ast.Name) and first.id in self._names else node


def read_in(tree: ast.AST) -> set[str]:
    """The names that it reads."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _sentence(text: str) -> str:
    """The first sentence of a docstring, where it fits on a line; else nothing."""
    words = " ".join(text.partition("\n\n")[0].split())
    first = words.partition(". ")[0].rstrip(".")
    return f"{first}." if 0 < len(first) < _LONG_SENTENCE else ""
