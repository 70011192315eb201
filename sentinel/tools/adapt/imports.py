"""List the packages that a project's modules import and that this environment lacks. Nothing is imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from sentinel.search.bindings import Definitions, absolute, syntax_of
from sentinel.tools.adapt.signatures import Signature
from sentinel.worker import interpreters
from sentinel.worker.stubs import ONLY_WHERE_NAMED

#: A program that prints which of the given packages are installed. The interpreter of the probes runs it.
_INSTALLED = """
import importlib.util, json, sys
def has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False
print(json.dumps([name for name in sys.argv[1:] if has(name)]))
"""


@dataclass(frozen=True)
class Packages:
    """The third-party packages that a project's functions need.

    :ivar install: missing package -> paths of the functions that need it. A function needs a package if its body uses
        the package, or if a base of its class comes from the package.
    :ivar stub: missing packages that are only imported. Stub modules replace them.
    :ivar preload: installed packages that functions use. The target must name them, or else stub modules replace them.
    :ivar versions: the packages of ``stub``, and the project's own, whose version a module reads.
    """

    install: Mapping[str, tuple[str, ...]]
    stub: tuple[str, ...]
    preload: tuple[str, ...]
    versions: tuple[str, ...] = ()


class Imports:
    """The import statements of a project's modules, as read from their source."""

    def __init__(self, definitions: Definitions, sources: Mapping[str, tuple[str, bytes]]) -> None:
        """Parse the project's files.

        :param sources: file -> (module, content).
        """
        self._own = {module.partition(".")[0] for module, _ in sources.values()}
        self._definitions = definitions
        self._trees: dict[str, tuple[str, ast.Module]] = {}
        for file, (module, content) in sources.items():
            with suppress(SyntaxError):
                self._trees[module] = file, syntax_of(content)

    def packages(self, signatures: Iterable[Signature], python: str | None) -> Packages:
        """Return the third-party packages that some functions need, directly or through modules of the project.

        :param python: the interpreter in which the packages must be installed.
        """
        named: dict[str, dict[str, None]] = {}
        chosen = list(signatures)
        for signature in chosen:
            for package in self._packages_used_by(signature):
                named.setdefault(package, {})[signature.path] = None
        reached = self._reached({each.module for each in chosen})
        every = {*named, *(package for module in reached for package in self._imported(module))}
        names = sorted(every - {"torch", "numpy"})
        installed = set(interpreters.ask(python, "-I", "-c", _INSTALLED, *names)) if names else set()
        missing = [name for name in names if name not in installed]
        return Packages(
            {name: tuple(named[name]) for name in missing if name in named},
            tuple(name for name in missing if name not in named),
            tuple(name for name in names if name in installed and name in ONLY_WHERE_NAMED and name in named),
            tuple(
                name
                for name in (*missing, *sorted(self._own))
                if name not in named and any(self._reads_version(each, name) for each in reached)
            ),
        )

    def _reads_version(self, module: str, package: str) -> bool:
        calls = (node for node in ast.walk(self._trees[module][1]) if isinstance(node, ast.Call))
        return any(
            ast.unparse(call.func).endswith("version")
            and any(_distribution(each, module) == package for each in call.args)
            for call in calls
        )

    def _packages_used_by(self, signature: Signature) -> Iterator[str]:
        _, tree = self._trees[signature.module]
        names = {*signature.names, *(base.partition(".")[0] for base in signature.bases)}
        for local, path in self._names(signature.module, tree):
            if local in names:
                yield path.partition(".")[0]
        yield from (path.partition(".")[0] for path in signature.imports if self._is_foreign(path))
        for base in signature.bases:  # a base class in the project may itself derive from a class of another package
            yield from self._foreign_bases(signature.module, base, 4)

    def _foreign_bases(self, module: str, base: str, far: int) -> Iterator[str]:
        if module not in self._trees or far == 0:
            return
        _, tree = self._trees[module]
        first = base.partition(".")[0]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == base:
                for each in node.bases:
                    yield from self._foreign_bases(module, ast.unparse(each), far - 1)
        for local, path in self._names(module, tree, own=True):
            if local == first:
                owner, _ = self._definitions.module_of("", path)
                if owner:
                    yield from self._foreign_bases(owner, path[len(owner) + 1 :] or base, far - 1)
                elif not path.startswith("."):
                    yield path.partition(".")[0]

    def _names(self, module: str, tree: ast.Module, own: bool = False) -> Iterator[tuple[str, str]]:
        """Yield (local name, dotted path) for each name that is imported from a third-party package (``own``: any)."""
        for node in ast.walk(tree):
            for local, path in self._bound(module, node):
                if own or self._is_foreign(path):
                    yield local, path

    def _bound(self, module: str, node: ast.AST) -> list[tuple[str, str]]:
        """Return (local name, dotted path) for each name that a node imports."""
        if isinstance(node, ast.Import):
            return [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            start = absolute("." * node.level + (node.module or ""), module, self._trees[module][0])
            return [(alias.asname or alias.name, f"{start}.{alias.name}") for alias in node.names]
        return []

    def _is_foreign(self, path: str) -> bool:
        top = path.partition(".")[0]
        return bool(top) and top not in sys.stdlib_module_names and top not in self._own

    def _imported(self, module: str) -> set[str]:
        return {path.partition(".")[0] for path in self._paths(module) if self._is_foreign(path)}

    def _paths(self, module: str) -> Iterator[str]:
        """Yield the dotted paths that are always imported when a module is imported.

        Imports in a function, in the body of a ``try`` or under ``TYPE_CHECKING`` are left out, because they may not
        run, or may fail without consequence.
        """
        nodes: list[ast.AST] = list(self._trees[module][1].body)
        while nodes:
            node = nodes.pop()
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(node, ast.Try):
                nodes.extend([*node.orelse, *node.finalbody])
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                nodes.extend(node.orelse)
                continue
            yield from (path for _, path in self._bound(module, node))
            nodes.extend(ast.iter_child_nodes(node))

    def _reached(self, modules: set[str]) -> set[str]:
        reached: set[str] = set()
        queue = list(modules)
        while queue:
            module = queue.pop()
            parents = [module[:end] for end, letter in enumerate(module) if letter == "."]
            for each in (module, *parents):
                if each not in reached and each in self._trees:
                    reached.add(each)
                    queue += self._paths(each)
        return reached


def _distribution(name: ast.expr, module: str) -> str:
    """Return the package that a call such as ``version("torch")`` names in its argument, or "".

    ``__name__`` stands for the module's own package.
    """
    if isinstance(name, ast.Name) and name.id in ("__name__", "__package__"):
        return module.partition(".")[0]
    return str(name.value).replace("-", "_") if isinstance(name, ast.Constant) else ""
