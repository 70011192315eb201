"""Compute digests of recipes, bindings, contracts and laws, to detect changes that make recorded verdicts stale.

Prose is left out: a change of docstrings, comments, titles, stories, reasons, links or messages does not make a verdict
stale. Digests do not depend on the Python version or on where Sentinel is installed.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.laws.law import Law
from sentinel.recipes.recipe import Recipe
from sentinel.targets import Target
from sentinel.values.literals import typed

_SENTINEL = Path(__file__).resolve().parent.parent
#: Fields of declarations that do not affect verdicts, because only people read them.
_PROSE = ("reason", "link", "meaning", "statement", "summary", "source", "file")
#: The variable that holds the message of a violation.
_MESSAGE = "detail"


def document_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a recipe's content. It is the same for a copy of the recipe in evidence."""
    return _sha256(json.dumps(typed(document), sort_keys=True))


def recipe_digest(recipe: Recipe) -> str:
    """Return the digest of the parts of a recipe that affect the verdict: boundary, scenario, expectations,
    requirements."""
    expected = {"unpatched": recipe.expected_unpatched, "fixed": recipe.expected_fixed}
    parts = {
        "boundary": [recipe.target, recipe.contract, recipe.boundary],
        "variants": typed(recipe.variants),
        "defaulted": sorted(recipe.defaulted),
        "expected": {
            side: {key: [typed(item.value), asdict(item.tolerance)] for key, item in values.items()}
            for side, values in expected.items()
        },
        "tolerance": asdict(recipe.tolerance),
        "invariant": recipe.invariant,
        "requires": list(recipe.requires),
    }
    return _sha256(json.dumps(parts, sort_keys=True))


def contract_digest(contract: Contract, law: Law | None = None) -> str:
    """Return the digest of a contract's declaration and code, and of a law's if a law is given."""
    return _sha256("\n".join(_Walk(Path(contract.file).parent).lines((contract, law))))


def binding_digest(target: Target, file: Path, boundary: str, contract: str) -> str:
    """Return the digest of one binding.

    The digest covers the declaration, and those functions, classes and constants of the adapter and of Sentinel that
    the declaration reaches by name. The digest of a registered function is that of the binding that it reuses.

    :param file: the adapter's file.
    """
    binding = target.binding(boundary, contract)
    declared: Any = binding or [(item, target.binding(item.like)) for item in target.registries]
    return _sha256("\n".join(_Walk(file.resolve().parent).lines((declared, target.arguments))))


def _sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class _Walk:
    """Writes a declaration and the code that it uses as text, from which a digest is computed.

    :param folder: a folder whose code is included, in addition to Sentinel's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folders = (str(_SENTINEL), str(folder))
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps all seen objects alive, because the id of a freed object can be reused

    def lines(self, value: Any) -> Iterator[str]:
        if value is None or isinstance(value, (str, int, float, bytes, bool)):
            yield repr(value)
            return
        if isinstance(value, (list, tuple)):
            yield f"{len(value)} items"
            for item in value:
                yield from self.lines(item)
            return
        if id(value) in self._seen:
            yield f"seen {self._seen[id(value)]}"
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield from self.lines(key)
                yield from self.lines(item)
        elif isinstance(value, (set, frozenset)):
            yield repr(sorted(map(repr, value)))
        elif isinstance(value, partial):
            yield from self.lines((value.func, value.args, value.keywords))
        elif isinstance(value, MethodType):
            yield from self.lines((value.__func__, value.__self__))
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif is_dataclass(value):
            yield type(value).__name__
            for field in fields(value):
                if field.name not in _PROSE:
                    yield field.name
                    yield from self.lines(getattr(value, field.name))
        else:
            yield type(value).__name__

    def _followed(self, file: str) -> bool:
        return file.startswith(self._folders)

    def _function(self, function: FunctionType) -> Iterator[str]:
        code = function.__code__
        yield code.co_name
        if not self._followed(code.co_filename):
            return
        yield from _source(code.co_filename, code.co_firstlineno, code.co_name)
        yield from self.lines((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            yield from self.lines(cell.cell_contents)
        # Names such as __name__ and __file__ are left out, because their values depend on where the code is installed.
        names = sorted(name for name in set(_names(code)) if not _is_dunder(name))
        for name in names:
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                if self._followed(getattr(value, "__file__", None) or ""):
                    for member in names:
                        yield from self.lines(vars(value).get(member))
            elif value is not None:
                yield name
                yield from self.lines(value)

    def _class(self, owner: type) -> Iterator[str]:
        yield owner.__qualname__
        for name, value in vars(owner).items():
            if _is_dunder(name) and not callable(getattr(value, "__func__", value)):
                continue  # which of these exist depends on Python's version: __module__, __doc__, __firstlineno__
            value = getattr(value, "__func__", getattr(value, "fget", value))
            # Methods that the dataclass decorator generates are left out, because they have no source.
            if isinstance(value, FunctionType) and self._followed(value.__code__.co_filename):
                yield from self.lines(value)
            elif isinstance(value, (str, int, float, bool)):
                yield repr(value)
        for base in owner.__bases__:
            yield from self.lines(base)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@cache
def _source(file: str, line: int, name: str) -> tuple[str, ...]:
    """Return a function's syntax tree as text. For a lambda, return the text of all lambdas on its line."""
    return tuple(" ".join(_written(node)) for node in _functions(file).get((line, name), ()))


@cache
def _functions(file: str) -> Mapping[tuple[int, str], list[ast.AST]]:
    found: dict[tuple[int, str], list[ast.AST]] = {}
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.Lambda):
            found.setdefault((node.lineno, "<lambda>"), []).append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((first, node.name), []).append(node)
    return found


def _written(node: Any, message: bool = False) -> Iterator[str]:
    """Yield a syntax tree as text that is the same for every Python version.

    Docstrings, annotations, positions and the texts of messages are left out.

    :param message: True inside a ``raise`` statement, and in the value of a message.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and message:
        yield "text"
    elif isinstance(node, ast.JoinedStr) and message:
        yield from _written([part for part in node.values if not isinstance(part, ast.Constant)], message)
    elif isinstance(node, ast.AST):
        message = message or isinstance(node, ast.Raise) or _is_message(node)
        yield type(node).__name__
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "type_comment", "kind", "ctx", "type_params") or value in (None, []):
                continue
            if field == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                value = value[1:] if ast.get_docstring(node, clean=False) is not None else value
            yield field
            # Strings in decorators are left out. The arguments of a law's decorator are also fields of the law, which
            # the digest covers, apart from prose such as the statement.
            yield from _written(value, message or field == "decorator_list")
    elif isinstance(node, list):
        for item in node:
            yield from _written(item, message)
        yield "end"
    else:
        yield repr(node)


def _is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _MESSAGE
