"""What the names in a definition stand for, once it stands in a file of its own."""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from sentinel.export.layout import data, expression, reference
from sentinel.export.literals import scalar
from sentinel.export.locating import FUNCTIONS, function_of, is_ours, relative
from sentinel.export.program import ProgramError

if TYPE_CHECKING:
    from sentinel.export.slicing import Slicer


class Standing(ast.NodeTransformer):
    """Writes what a definition reads of its module and of the boundary as it is called in the slice."""

    def __init__(
        self, slicer: Slicer, names: Mapping[str, Any], module: ModuleType, tree: ast.AST, stand: str = "boundary"
    ) -> None:
        self._slicer = slicer
        self._names = dict(names)
        self._module = module
        #: What stands for the boundary: ``call`` in what a contract measures, ``boundary`` in an adapter.
        self._stand = stand
        self._bound = _bound_in(tree) - {self._stand}
        self._read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self._replaced: dict[str, ast.expr] = {}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._replaced:
            return self._replaced[node.id]
        if not isinstance(node.ctx, ast.Load) or node.id in self._bound:
            return node
        if node.id == self._stand and node.id not in self._names:
            raise ProgramError("its binding hands the boundary on, as an object of Sentinel's")
        if node.id in self._names:
            return self._slicer.resolve(node.id, self._names[node.id], self._module)
        if hasattr(builtins, node.id):
            return node
        raise ProgramError(f"its binding reads {node.id}, of which nothing is known")

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if _is_boundary(node.value):
            return reference(self._slicer.of_boundary(node.attr))
        inner = node.value
        if isinstance(inner, ast.Name) and inner.id not in self._bound:
            held = self._names.get(inner.id)
            if isinstance(held, ModuleType) and is_ours(held.__name__):
                return self._slicer.resolve(node.attr, getattr(held, node.attr), held)
        if isinstance(inner, ast.Attribute) and _is_boundary(inner.value) and inner.attr == "binding":
            return expression(data(dict(getattr(self._slicer.binding, node.attr))))
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if _is_imported(node.value):
            name = self._text(node.slice)
            if name is not None:
                return reference(self._slicer.imported(name))
            self._slicer.slice.standard.add("import importlib")
            return ast.Call(reference("importlib.import_module"), [self.visit(node.slice)], [])
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.comparators) == 1 and _is_parameters(node.comparators[0]) and self._slicer.special:
            found = {self._text(node.left) in there for there in self._slicer.seen.parameters}
            if len(found) == 1 and self._text(node.left) is not None:
                return ast.Constant(found.pop() == isinstance(node.ops[0], ast.In))
        if len(node.comparators) == 1 and _is_imported(node.comparators[0]):
            there = self._text(node.left) in self._slicer.binding.imports
            return ast.Constant(there == isinstance(node.ops[0], ast.In))
        return self.generic_visit(node)

    def _text(self, node: ast.expr) -> str | None:
        """The string that an expression is at any time."""
        found = self._names.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        local = isinstance(node, ast.Name) and node.id in self._bound
        return found if isinstance(found, str) and not local else None

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == self._stand == "call" and not node.args:
            return self._slicer.call(self.visit(_whole(node.keywords)))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "invoke" and _is_boundary(node.func.value):
            rest = [self.visit(item) for item in node.args[1:]]
            keywords = [ast.keyword(item.arg, self.visit(item.value)) for item in node.keywords]
            given = self._given(node.args[0])
            direct = self._slicer.invoked(given, rest, keywords) if given is not None else None
            if direct is not None:
                return direct
            return ast.Call(reference(self._slicer.of_boundary("invoke")), [self.visit(node.args[0]), *rest], keywords)
        asked = isinstance(node.func, ast.Name) and node.func.id == "getattr" and self._stands(node.args[0])
        if asked and (name := self._text(node.args[1])) is not None:
            return reference(self._slicer.of_boundary(name))
        node.args = [item for item in node.args if not self._stands(item)]
        node.keywords = [item for item in node.keywords if not self._stands(item.value)]
        return self.generic_visit(node)

    def _stands(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._stand

    def _given(self, node: ast.expr) -> list[tuple[str, ast.expr]] | None:
        """The canonical inputs that a mapping holds, where that can be read off."""
        if isinstance(node, ast.Name) and node.id == "inputs":
            return self._slicer.whole_scenario()
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            pairs = zip(node.keys, node.values)
            return [(str(key.value), self.visit(copy.deepcopy(v))) for key, v in pairs if isinstance(key, ast.Constant)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _picks(self._names.get(node.func.id)):
            mapping, *names = node.args
            if all(isinstance(name, ast.Constant) for name in names):
                told = [str(name.value) for name in names if isinstance(name, ast.Constant)]
                return [(name, expression(f"{ast.unparse(mapping)}[{scalar(name)}]")) for name in told]
        return None

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.args = [argument for argument in node.args if argument.arg != self._stand]
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if (alias.asname or alias.name) not in self._read:
                continue
            self._slicer.import_module(alias.name)
            if alias.asname:
                self._replaced[alias.asname] = reference(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if name not in self._read:
                continue  # for a branch that was not taken
            if node.level or is_ours(str(node.module)):
                module = relative(node, self._module) if node.level else importlib.import_module(str(node.module))
                self._replaced[name] = self._slicer.resolve(alias.name, getattr(module, alias.name), module)
            else:
                self._replaced[name] = self._slicer.of_import(str(node.module), alias.name)


def _picks(function: Any) -> bool:
    """Whether a function gives the named ones of a mapping's items."""
    if not isinstance(function, FunctionType):
        return False
    body = function_of(function).body
    return len(body) == 1 and ast.unparse(body[0]) == "return {name: inputs[name] for name in names}"


def _whole(keywords: list[ast.keyword]) -> ast.expr:
    """``**inputs`` of a call, or more, as one mapping."""
    if len(keywords) == 1 and keywords[0].arg is None:
        return keywords[0].value
    return ast.Dict([None if k.arg is None else ast.Constant(k.arg) for k in keywords], [k.value for k in keywords])


def _is_boundary(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "boundary"


def _is_imported(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "imported" and _is_boundary(node.value)


def _is_parameters(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "parameters" and _is_boundary(node.value)


def _bound_in(tree: ast.AST) -> set[str]:
    """The names that a definition gives a meaning to; its own does not count."""
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    found |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    found |= {n.name for n in ast.walk(tree) if isinstance(n, (*FUNCTIONS, ast.ClassDef)) and n is not tree}
    imports = (ast.Import, ast.ImportFrom)
    aliases = [alias for node in ast.walk(tree) if isinstance(node, imports) for alias in node.names]
    return (
        found
        | {(a.asname or a.name).partition(".")[0] for a in aliases}
        | {str(node.name) for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    )
