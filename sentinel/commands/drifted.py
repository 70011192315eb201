"""What ``sentinel doctor TARGET`` tells: for each boundary what was looked for, what is there, and what to write.

Read from the checkout's text; nothing of it is imported, so it works where the code itself does not.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sentinel.contracts.contract import Contract
from sentinel.targets import Binding, Target
from sentinel.targets.checkout import Checkout

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_NEAR = 0.75


@dataclass(frozen=True)
class Diagnosis:
    """:ivar state: ``there``, ``moved`` (one of that name is elsewhere), ``renamed`` (one of a similar name is),
        ``gone``, ``other parameters`` (it needs something that the adapter does not give), or ``another version``
        (it is not there, and the adapter says in ``requires`` that only some versions have it).
    :ivar looked_for: the dotted paths, in order.
    :ivar found: where it is, ``file:line``, and its parameters; empty where it is nowhere.
    :ivar proposed: the adapter's entry, changed; empty where nothing has to be.
    """

    boundary: str
    contract: str
    state: str
    looked_for: tuple[str, ...]
    found: str = ""
    proposed: str = ""


@dataclass(frozen=True)
class _Definition:
    path: str
    file: str
    node: _Function

    @property
    def parameters(self) -> dict[str, bool]:
        """Name -> whether a caller has to give it."""
        arguments = self.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        given = len(positional) - len(arguments.defaults)
        needed = {item.arg: number < given for number, item in enumerate(positional)}
        needed.update((item.arg, value is None) for item, value in zip(arguments.kwonlyargs, arguments.kw_defaults))
        return {name: value for name, value in needed.items() if name not in ("self", "cls")}

    @property
    def said(self) -> str:
        return f"{self.file}:{self.node.lineno} ({', '.join(self.parameters)})"


class _Definitions:
    """Every function and method below the package roots of a checkout, by dotted path."""

    def __init__(self, checkout: Checkout, target: Target) -> None:
        self._checkout = checkout
        self._roots = [root for root in target.roots if root.path in checkout.roots]

    @cached_property
    def by_path(self) -> Mapping[str, _Definition]:
        return {found.path: found for root in self._roots for found in self._of(root.path, root.import_root)}

    def _of(self, root: str, import_root: str) -> Iterator[_Definition]:
        base = self._checkout.path
        for file in sorted((base / root).rglob("*.py")):
            module = _module(file.relative_to(base / import_root if import_root else base))
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, MemoryError, RecursionError):
                continue
            yield from _walk(tree, module, file.relative_to(base).as_posix())

    def called(self, name: str) -> list[_Definition]:
        return [found for path, found in self.by_path.items() if path.rpartition(".")[2] == name]

    def like(self, name: str) -> list[_Definition]:
        names = {path.rpartition(".")[2] for path in self.by_path}
        near = difflib.get_close_matches(name, names, 1, _NEAR)
        return self.called(near[0]) if near else []


def diagnose(checkout: Checkout, target: Target, contracts: Mapping[str, Contract]) -> list[Diagnosis]:
    """Each binding of a target, at a checkout."""
    definitions = _Definitions(checkout, target)
    return [_diagnosis(binding, definitions, contracts[binding.contract]) for binding in target.bindings]


def _diagnosis(binding: Binding, definitions: _Definitions, contract: Contract) -> Diagnosis:
    def told(state: str, found: str = "", proposed: str = "") -> Diagnosis:
        return Diagnosis(binding.boundary, binding.contract, state, binding.paths, found, proposed)

    there = next((found for path in binding.paths if (found := definitions.by_path.get(path))), None)
    if there is None and binding.requires:
        return told("another version")
    if there is None:
        return _elsewhere(binding, definitions, told)
    unknown = _unknown(binding, contract, there)
    if not unknown:
        return told("there", there.said)
    bound = {name for names in binding.arguments.values() for name in names}
    free = [item.name for item in contract.inputs if item.name not in there.parameters and item.name not in bound]
    lines = []
    for parameter in unknown:
        near = difflib.get_close_matches(parameter, [*free, *binding.arguments], 1, 0.4)
        name = near[0] if near else "<canonical input>"
        names = (parameter, *binding.arguments.get(name, ()))
        lines.append(f"arguments={{{name!r}: {names!r}}}" if near else f"constants={{{parameter!r}: ...}}")
    return told("other parameters", there.said, ", ".join(lines))


def _elsewhere(binding: Binding, definitions: _Definitions, told: Callable[..., Diagnosis]) -> Diagnosis:
    last = binding.boundary.rpartition(".")[2]
    for state, found in (("moved", definitions.called(last)), ("renamed", definitions.like(last))):
        if found:
            best = max(found, key=lambda item: difflib.SequenceMatcher(None, item.path, binding.boundary).ratio())
            entry = f"Binding({best.path!r}, {binding.contract!r}, formerly={binding.paths!r})"
            return told(state, f"{best.path} in {best.said}", entry)
    return told("gone")


def _unknown(binding: Binding, contract: Contract, there: _Definition) -> list[str]:
    """Parameters without a default that nothing gives; a binding with a call of its own gives what it likes."""
    if binding.call is not None:
        return []
    names = {name for several in binding.arguments.values() for name in several}
    names |= {item.name for item in contract.inputs} | set(binding.constants)
    return [name for name, needed in there.parameters.items() if needed and name not in names]


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _walk(tree: ast.AST, prefix: str, file: str) -> Iterator[_Definition]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Function):
            yield _Definition(f"{prefix}.{node.name}", file, node)
        elif isinstance(node, ast.ClassDef):
            yield from _walk(node, f"{prefix}.{node.name}", file)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _walk(node, prefix, file)
