"""The part of an adapter and its contract that a measurement runs, as definitions that stand in a file of their own.

The second way to a standalone runner, for what :mod:`~sentinel.export.tracing` cannot write down as one line after the
other: coroutines, callbacks, Python that turns numbers into other numbers. It is the very code that the probe ran:

* a function is taken with all that it uses, as far as that is Python of the adapter or of a contract;
* what no line was seen to run of (see :mod:`~sentinel.export.lines`), at no revision and in no variant, is left out:
  branches for other versions and other scenarios;
* ``boundary.function``, ``boundary.module`` and so on become what they stand for at these revisions.

Nothing is believed: the runner that comes out is tried at both revisions like any other.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from sentinel.export.program import ProgramError
from sentinel.export.rendering import WIDTH, Imports, scalar, wrapped
from sentinel.targets import Binding

#: Names that a runner has itself.
_TAKEN = frozenset(
    {"Stub", "Spec", "Path", "plain", "close", "minus", "observe", "call", "invoke", "answers", "observed", "result"}
)
_LONG_SENTENCE = 105
#: Shorter constants are written where they are used.
_SHORT = 40
_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Followed:
    """What was seen of a measurement, at every revision and in every variant; see :mod:`~sentinel.export.lines`.

    :ivar path: the dotted path under which the boundary was found.
    :ivar module: its module.
    :ivar parameters: the boundary's, at each revision.
    :ivar lines: file -> the lines that ran.
    :ivar answer: how the binding gives its outputs: ``mapping``, ``tuple`` or ``single``.
    """

    path: str
    module: str
    parameters: tuple[frozenset[str], ...]
    lines: Mapping[str, frozenset[int]]
    answer: str
    stubs: tuple[str, ...] = ()


def followed(programs: Iterable[Mapping[str, Any]]) -> Followed:
    """The union of what was seen.

    :raises ProgramError: where the boundary has not one name at all revisions.
    """
    seen = list(programs)
    first = seen[0]
    if any((item["path"], item["answer"]) != (first["path"], first["answer"]) for item in seen):
        raise ProgramError("the boundary has another name, or another answer, at the two revisions")
    files = {file for item in seen for file in item["lines"]}
    lines = {file: frozenset(line for item in seen for line in item["lines"].get(file, ())) for file in files}
    stubs = tuple(sorted({stub for item in seen for stub in item["stubs"]}))
    parameters = tuple({frozenset(item["parameters"]): None for item in seen})
    return Followed(first["path"], first["module"], parameters, lines, first["answer"], stubs)


@dataclass
class Slice:
    """Definitions, in an order in which each knows what it uses.

    :ivar definitions: name -> text.
    :ivar standard: import lines of the standard library.
    :ivar third: modules of installed packages.
    """

    imports: Imports
    definitions: dict[str, str] = field(default_factory=dict)
    standard: set[str] = field(default_factory=set)
    third: set[str] = field(default_factory=set)


class Slicer:
    """Takes functions, with what they use, into a slice.

    :param given: the inputs that the boundary must be able to take.
    :param scenarios: canonical input -> literal, of each variant.
    :param packages: the target's top-level packages.
    :param told: whether the first sentence of each docstring is kept.
    """

    def __init__(
        self,
        seen: Followed,
        binding: Binding,
        given: Iterable[str],
        scenarios: Sequence[Mapping[str, Any]],
        packages: Iterable[str],
        told: bool,
    ) -> None:
        self.slice = Slice(Imports())
        self.seen = seen
        self.binding = binding
        self.packages = frozenset(packages)
        self.told = told
        self._given = sorted(given)
        self._scenarios = scenarios
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # an id is only good while its object lives
        self._open: set[int] = set()

    # -- what stands for the boundary ---------------------------------------------------------------------------------

    @property
    def function(self) -> str:
        """How the boundary is written."""
        return self.slice.imports.of(self.seen.module, self.seen.path[len(self.seen.module) + 1 :])

    def of_boundary(self, attribute: str) -> str:
        """How an attribute of the :class:`~sentinel.worker.boundaries.Boundary` is written."""
        if attribute == "function":
            return self.function
        if attribute == "owner":
            return self.function.rpartition(".")[0]
        if attribute == "module":
            return self.slice.imports.of(self.seen.module, "")
        if attribute == "parameters":
            self.slice.standard.add("import inspect")
            return f"inspect.signature({self.function}).parameters"
        if attribute == "path":
            return scalar(self.seen.path)
        if attribute == "device":
            return '"cpu"'
        if attribute == "invoke":
            self._define_invoke()
            return "invoke"
        raise ProgramError(f"its binding reads the boundary's {attribute}")

    def imported(self, name: str) -> str:
        return self.slice.imports.of(name, "")

    def invoked(
        self, inputs: list[tuple[str, ast.expr]], positional: list[ast.expr], keywords: list[ast.keyword]
    ) -> ast.expr | None:
        """A call of the boundary by the names of its parameters, where these are known; else None.

        :param inputs: the canonical inputs that it is given.
        :param positional: leading arguments; with ``keywords``, those under their upstream names.
        """
        named: dict[str, ast.expr] = {}
        for name, value in inputs:
            candidates = self.binding.arguments.get(name, (name,))
            found = {next((other for other in candidates if other in there), None) for there in self.seen.parameters}
            nothing = (
                {scenario.get(name) is None for scenario in self._scenarios} if _is_input(value, name) else {False}
            )
            if len(found) > 1 or (len(nothing) > 1 and name not in self._given):
                return None
            (parameter,) = found
            if parameter is not None and (name in self._given or nothing == {False}):
                named[parameter] = value
        options = {**{k: _expression(data(v)) for k, v in self.binding.constants.items()}}
        for keyword in keywords:
            if keyword.arg is None:
                return None
            options[keyword.arg] = keyword.value
        for option, value in options.items():
            there = {option in parameters for parameters in self.seen.parameters}
            if len(there) > 1:
                return None
            if there == {True}:
                named.setdefault(option, value)
        return ast.Call(_name(self.function), positional, [ast.keyword(name, value) for name, value in named.items()])

    def whole_scenario(self) -> list[tuple[str, ast.expr]]:
        """Every canonical input."""
        return [(name, _expression(f"inputs[{scalar(name)}]")) for name in self._scenarios[0]]

    def _define_invoke(self) -> None:
        """:meth:`sentinel.worker.boundaries.Boundary.invoke`, for this boundary."""
        if "invoke" in self.slice.definitions:
            return
        self.slice.standard.add("import inspect")
        names = {name: there for name, there in self.binding.arguments.items() if there != (name,)}
        constants = dict(self.binding.constants)
        named = f"{data(names)}.get(name, [name])" if names else "[name]"
        options = f"{{**{data(constants)}, **options}}" if constants else "options"
        lines = [
            "def invoke(inputs, *positional, **options):",
            '    """Call it by the names that its parameters have in this checkout."""',
            f"    parameters, given = inspect.signature({self.function}).parameters, {{}}",
            "    for name, value in inputs.items():",
            *_wrapped(f"        there = [other for other in {named} if other in parameters]"),
            f"        if there and (value is not None or name in {data(self._given)}):",
            "            given[there[0]] = value",
            f"    for name, value in {options}.items():",
            "        if name in parameters:",
            "            given.setdefault(name, value)",
            f"    return {self.function}(*positional, **given)",
        ]
        self.slice.definitions["invoke"] = "\n".join(lines)

    def call(self, inputs: ast.expr) -> ast.expr:
        """The boundary called as the contract does."""
        binding = self.binding
        if binding.call is not None and self.seen.answer == "mapping":
            return ast.Call(self._callee(binding.call), [inputs], [])
        if "call" not in self.slice.definitions:
            if binding.call is not None:
                answer = f"{ast.unparse(self._callee(binding.call))}(inputs)"
            elif (direct := self.invoked(self.whole_scenario(), [], [])) is not None:
                answer = ast.unparse(direct)
            else:
                answer = f"{self.of_boundary('invoke')}(inputs)"
            if self.seen.answer == "tuple" and len(binding.outputs) > 1:
                answer = f"dict(zip({data(list(binding.outputs))}, {answer}))"
            elif self.seen.answer != "mapping":
                first = "[0]" if self.seen.answer == "tuple" else ""
                answer = f"{{{scalar(binding.outputs[0])}: {answer}{first}}}"
            self.slice.definitions["call"] = formatted(f"def call(inputs):\n    return {answer}")
        return ast.Call(_name("call"), [inputs], [])

    def _callee(self, function: Any) -> ast.expr:
        return _name(self.take(function, getattr(function, "__name__", "")))

    # -- taking definitions -------------------------------------------------------------------------------------------

    def take(self, value: Any, name: str) -> str:
        """Take a function or a class of ours; its name in the slice."""
        if id(value) in self._names:
            return self._names[id(value)]
        name = self._free("bound" if name == "<lambda>" else name)
        self._names[id(value)] = name
        self._kept.append(value)
        tree = _class_of(value) if isinstance(value, type) else _function_of(value)
        self._define(name, self.bare(tree, value, name))
        return name

    def bare(self, tree: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, value: Any, name: str) -> str:
        """A definition as text, once all that it uses is defined."""
        file = inspect.getfile(value if isinstance(value, type) else inspect.unwrap(value))
        module = sys.modules[value.__module__]
        pruned = _Pruned(self.seen.lines.get(file, frozenset()), self.told).visit(copy.deepcopy(tree))
        tree = _Orphaned(_read_in(tree) - _read_in(pruned)).visit(pruned)
        closure: dict[str, Any] = {}
        if isinstance(value, FunctionType) and value.__closure__:
            closure = dict(zip(value.__code__.co_freevars, (cell.cell_contents for cell in value.__closure__)))
        tree = _Standing(self, {**vars(module), **closure}, module, tree).visit(tree)
        tree.name = name
        return written(tree)

    def observe(self, measure: FunctionType, inputs: Mapping[str, str], varied: bool) -> list[str]:
        """The lines of ``observe``: what the contract measures, of these inputs.

        :param inputs: canonical input -> how its value is written; of these, what the code names is kept.
        :param varied: whether callers give some inputs other values.
        """
        tree = _function_of(measure)
        name = tree.args.args[1].arg
        lines = self.bare(tree, measure, "observe").split("\n")
        said = "\n".join([*lines, *self.slice.definitions.values()])
        used = {key: text for key, text in inputs.items() if scalar(key) in said}
        entries = [f"{scalar(key)}: {text}" for key, text in used.items()] + (["**changes"] if varied else [])
        documented = lines[1].lstrip().startswith('"""')
        start = 2 if documented else 1
        made = [f"    {row}" for row in wrapped(f"{name} = {{{', '.join(entries)}}}", 4).split("\n")]
        return [f"def observe({'**changes' if varied else ''}):", *lines[1:start], *made, *lines[start:]]

    def _define(self, name: str, text: str) -> None:
        self.slice.definitions[name] = text

    def _free(self, name: str) -> str:
        taken = {*_TAKEN, *self._names.values(), *self.slice.definitions}
        free, count = name, 2
        while free in taken:
            free, count = f"{name}_{count}", count + 1
        return free

    # -- what a name stands for ---------------------------------------------------------------------------------------

    def resolve(self, name: str, value: Any, module: ModuleType) -> ast.expr:
        """How something of a module's namespace is written in the slice."""
        if isinstance(value, _SCALARS):
            return ast.Constant(value)
        if isinstance(value, ModuleType):
            self._import(value.__name__)
            return _name(value.__name__)
        origin = str(getattr(value, "__module__", None) or "")
        if isinstance(value, type) and (origin, value.__name__) == ("sentinel.worker.drift", "StandInNamespace"):
            self.slice.standard.add("from types import SimpleNamespace")
            return _name("SimpleNamespace")
        if isinstance(value, (FunctionType, type)) and _is_ours(origin):
            if isinstance(value, FunctionType) and (other := _other_name(value)) is not None:
                return self.resolve(*other, module)
            if origin.startswith("sentinel.worker"):
                raise ProgramError(f"its binding uses {name} of Sentinel's")
            return _name(self.take(value, value.__name__))
        if is_data(value):
            return _expression(data(value)) if len(data(value)) <= _SHORT else self._constant(name, value)
        found = _bound_by(name, module)
        if isinstance(found, ast.ImportFrom) and not found.level and found.module:
            if _is_ours(found.module):
                return self.resolve(name, value, importlib.import_module(found.module))
            original = next(alias.name for alias in found.names if (alias.asname or alias.name) == name)
            return self.of_import(found.module, original)
        if isinstance(found, ast.ImportFrom):
            return self.resolve(name, value, _relative(found, module))
        if isinstance(found, ast.Assign):
            return self._assigned(name, found.value, value, module)
        raise ProgramError(f"its binding reads {name}, which is no code that could stand alone")

    def of_import(self, module: str, name: str) -> ast.expr:
        """``from module import name``."""
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names:
            self.slice.standard.add(f"from {module} import {name}")
            return _name(name)
        self._import(module)
        return _name(f"{module}.{name}")

    def _import(self, module: str) -> None:
        top = module.partition(".")[0]
        if _is_ours(module):
            raise ProgramError(f"its binding uses the module {module.rpartition('.')[2]} as a whole")
        if top in self.packages:
            self.slice.imports.of(module, "")
        elif top in sys.stdlib_module_names:
            self.slice.standard.add(f"import {module}")
        else:
            self.slice.third.add(module)

    def _constant(self, name: str, value: Any) -> ast.expr:
        if id(value) not in self._names:
            self._names[id(value)] = self._free(name)
            self._kept.append(value)
            self._define(self._names[id(value)], "\n".join(_wrapped(f"{self._names[id(value)]} = {data(value)}")))
        return _name(self._names[id(value)])

    def _assigned(self, name: str, expression: ast.expr, value: Any, module: ModuleType) -> ast.expr:
        """Something that a module makes of its functions and classes: a table of them, an object."""
        if id(value) in self._open:
            raise ProgramError(f"{name} refers to itself")
        if id(value) not in self._names:
            self._open.add(id(value))
            tree = _Standing(self, vars(module), module, expression).visit(copy.deepcopy(expression))
            self._names[id(value)] = self._free(name)
            self._kept.append(value)
            text = f"{self._names[id(value)]} = {ast.unparse(ast.fix_missing_locations(tree))}"
            self._define(self._names[id(value)], formatted(text))
        return _name(self._names[id(value)])


# -- what ran ----------------------------------------------------------------------------------------------------------


class _Pruned(ast.NodeTransformer):
    """Takes away what did not run, and what only the reader of the adapter needs: annotations, docstrings."""

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

    def _function(self, node: Any) -> Any:
        for argument in _arguments(node.args):
            argument.annotation = None
        node.returns = None
        body = node.body
        documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        told = _sentence(ast.get_docstring(node) or "") if documented and self._told else ""
        body = body[1:] if documented else body
        if not self._ran(*body):
            node.body = [ast.Raise(_name("NotImplementedError"), None)]  # handed on, and never called
            return node
        first = [ast.Expr(ast.Constant(told))] if told and len(body) > 2 else []
        node.body = first + self._block(body) or [ast.Pass()]
        node.decorator_list = [self.visit(item) for item in node.decorator_list]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815 - as the class wants

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        documented = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
        told = ast.get_docstring(node) if documented else None
        first: list[ast.stmt] = (
            [ast.Expr(ast.Constant(_sentence(told)))] if self._told and told and _sentence(told) else []
        )
        kept = [
            item
            for item in node.body[1 if documented else 0 :]
            if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) or self._ran(*item.body)
        ]
        node.body = first + [
            self.visit(item) if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) else item for item in kept
        ]
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
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node

    def _loop(self, node: Any) -> Any:
        if not self._ran(*node.body):
            return None
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node

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


class _Orphaned(ast.NodeTransformer):
    """Takes away what was kept for a branch that is not there any more.

    :param names: what only such branches read.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        (first, *others) = node.targets
        return None if not others and isinstance(first, ast.Name) and first.id in self._names else node


def _read_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _sentence(text: str) -> str:
    """The first sentence of a docstring, where it fits on a line; else nothing."""
    words = " ".join(text.partition("\n\n")[0].split())
    first = words.partition(". ")[0].rstrip(".")
    return f"{first}." if 0 < len(first) < _LONG_SENTENCE else ""


# -- what the names mean -----------------------------------------------------------------------------------------------


class _Standing(ast.NodeTransformer):
    """Writes what a definition reads of its module and of the boundary as it is called in the slice."""

    def __init__(self, slicer: Slicer, names: Mapping[str, Any], module: ModuleType, tree: ast.AST) -> None:
        self._slicer = slicer
        self._names = dict(names)
        self._module = module
        #: What stands for the boundary: ``call`` in a contract, ``boundary`` in an adapter.
        self._stand = "call" if module.__name__.startswith("sentinel.contracts.") else "boundary"
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
            return _name(self._slicer.of_boundary(node.attr))
        inner = node.value
        if isinstance(inner, ast.Name) and inner.id not in self._bound:
            held = self._names.get(inner.id)
            if isinstance(held, ModuleType) and _is_ours(held.__name__):
                return self._slicer.resolve(node.attr, getattr(held, node.attr), held)
        if isinstance(inner, ast.Attribute) and _is_boundary(inner.value) and inner.attr == "binding":
            return _expression(data(dict(getattr(self._slicer.binding, node.attr))))
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if _is_imported(node.value):
            name = self._text(node.slice)
            if name is not None:
                return _name(self._slicer.imported(name))
            self._slicer.slice.standard.add("import importlib")
            return ast.Call(_name("importlib.import_module"), [self.visit(node.slice)], [])
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
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
            return ast.Call(_name(self._slicer.of_boundary("invoke")), [self.visit(node.args[0]), *rest], keywords)
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
                return [(name, _expression(f"{ast.unparse(mapping)}[{scalar(name)}]")) for name in told]
        return None

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.args = [argument for argument in node.args if argument.arg != self._stand]
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if (alias.asname or alias.name) not in self._read:
                continue
            self._slicer._import(alias.name)
            if alias.asname:
                self._replaced[alias.asname] = _name(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if name not in self._read:
                continue  # for a branch that was not taken
            if node.level or _is_ours(str(node.module)):
                module = _relative(node, self._module) if node.level else importlib.import_module(str(node.module))
                self._replaced[name] = self._slicer.resolve(alias.name, getattr(module, alias.name), module)
            else:
                self._replaced[name] = self._slicer.of_import(str(node.module), alias.name)


def _is_input(node: ast.expr, name: str) -> bool:
    return ast.unparse(node) == f"inputs[{name!r}]"


def _picks(function: Any) -> bool:
    """Whether a function gives the named ones of a mapping's items."""
    if not isinstance(function, FunctionType):
        return False
    body = _function_of(function).body
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


def _arguments(node: ast.arguments) -> list[ast.arg]:
    rest = [item for item in (node.vararg, node.kwarg) if item is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *rest]


def _bound_in(tree: ast.AST) -> set[str]:
    """The names that a definition gives a meaning to; its own does not count."""
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    found |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found |= {n.name for n in ast.walk(tree) if isinstance(n, defined) and n is not tree}
    imports = (ast.Import, ast.ImportFrom)
    aliases = [alias for node in ast.walk(tree) if isinstance(node, imports) for alias in node.names]
    return (
        found
        | {(a.asname or a.name).partition(".")[0] for a in aliases}
        | {str(node.name) for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    )


# -- finding source ----------------------------------------------------------------------------------------------------


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def _class_of(cls: type) -> ast.ClassDef:
    for node in _parsed(inspect.getfile(cls)).body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__qualname__:
            return node
    raise ProgramError(f"{cls.__qualname__} is made by a function")


def _function_of(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Where a function is defined; a lambda as a function that returns what it does."""
    function = inspect.unwrap(function)
    code = function.__code__
    found: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = []
    for node in ast.walk(_parsed(code.co_filename)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno and node.name == code.co_name:
                found.append(node)
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            found.append(node)
    if len(found) != 1:
        raise ProgramError(f"the source of {function.__qualname__} is not found")
    (one,) = found
    if not isinstance(one, ast.Lambda):
        return one
    returned = ast.copy_location(ast.Return(one.body), one.body)
    made = ast.FunctionDef("bound", one.args, [returned], [])
    return ast.copy_location(made, one)


def _other_name(function: FunctionType) -> tuple[str, Any] | None:
    """What a function makes of the keywords that it gets, where it does nothing else: a name and its value."""
    tree = _function_of(function)
    *before, last = tree.body
    imported = {
        alias.name: getattr(importlib.import_module(str(node.module)), alias.name)
        for node in before
        if isinstance(node, ast.ImportFrom) and _is_ours(str(node.module))
        for alias in node.names
    }
    called = last.value if isinstance(last, ast.Return) else None
    if len(imported) != len(before) or tree.args.kwarg is None or _arguments(tree.args) != [tree.args.kwarg]:
        return None
    if not isinstance(called, ast.Call) or called.args or len(called.keywords) != 1 or called.keywords[0].arg:
        return None
    name = called.func.id if isinstance(called.func, ast.Name) else ""
    return (name, imported[name]) if name in imported else None


def _bound_by(name: str, module: ModuleType) -> ast.stmt | None:
    """The statement of a module that gives a name its meaning."""
    for node in reversed(_parsed(str(module.__file__)).body):
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            return node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return ast.Assign([node.target], node.value) if node.value is not None else None
    return None


def _relative(node: ast.ImportFrom, module: ModuleType) -> ModuleType:
    package = str(module.__package__ or module.__name__)
    return importlib.import_module("." * node.level + (node.module or ""), package)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "sentinel" or module.startswith("sentinel_file_")


# -- writing -----------------------------------------------------------------------------------------------------------


def is_data(value: Any) -> bool:
    """Whether a value can be written as a literal."""
    if isinstance(value, Mapping):
        return all(map(is_data, value)) and all(map(is_data, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return all(map(is_data, value))
    return type(value) in _SCALARS


def data(value: Any) -> str:
    """A value that :func:`is_data` as Python."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{data(key)}: {data(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(map(data, sorted(value, key=repr))) + "}" if value else "set()"
    if isinstance(value, tuple):
        return f"({', '.join(map(data, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(data, value))}]"
    return scalar(value)


def _name(text: str) -> ast.expr:
    return _expression(text) if "." in text or "(" in text else ast.Name(text, ast.Load())


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def written(tree: ast.AST) -> str:
    """A definition as text of the usual width."""
    return formatted(ast.unparse(ast.fix_missing_locations(tree)))


def formatted(text: str) -> str:
    """Python as ``ast.unparse`` writes it, with double quotes and without long lines."""
    lines = [_without_brackets(line) for line in _double_quoted(_single_brackets(text)).split("\n") if line.strip()]
    rows: list[str] = []
    for before, line in zip(["", *lines], lines):
        # A method stands by itself; a function in a function need not.
        if re.match(r"    (async )?def |    @", line) and not before.startswith(("    @", "class", "def", "@")):
            rows += [""] if text.startswith(("class", "@dataclass")) else []
        rows += _wrapped(line)
    return "\n".join(rows)


def _single_brackets(text: str) -> str:
    """``any(x for x in y)``, where ``ast.unparse`` brackets the generator too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            (argument,) = node.args
            if isinstance(argument, ast.GeneratorExp) and (old := ast.unparse(node)) in text:
                text = text.replace(old, f"{ast.unparse(node.func)}{ast.unparse(argument)}")
    return text


_TUPLE = re.compile(r"(\s*(?:return|[\w., ]+ =) )\((.*,.*)\)")


def _without_brackets(line: str) -> str:
    """``return (a, b)`` as people write it."""
    found = _TUPLE.fullmatch(line)
    if found is None or len(line) > WIDTH:
        return line
    try:
        alone = ast.parse(found[2], mode="eval").body
    except SyntaxError:  # the brackets are not a pair
        return line
    return f"{found[1]}{found[2]}" if isinstance(alone, ast.Tuple) and len(alone.elts) > 1 else line


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    bare = line.lstrip()
    indent = len(line) - len(bare)
    if bare.startswith(("with ", "async with ")) and (items := _context_managers(bare)):
        inner = [row for item in items for row in _wrapped(f"{' ' * indent}    {item},")]
        return [f"{' ' * indent}{bare[: bare.index('with ')]}with (", *inner, f"{' ' * indent}):"]
    return [" " * indent + row for row in wrapped(bare, indent).split("\n")]


def _context_managers(line: str) -> list[str]:
    """The items of a ``with`` line, where there are several."""
    whole = f"async def f():\n {line} pass"
    (function,) = ast.parse(whole).body
    assert isinstance(function, ast.AsyncFunctionDef)
    (statement,) = function.body
    assert isinstance(statement, (ast.With, ast.AsyncWith))
    named = [(item.context_expr, item.optional_vars) for item in statement.items]
    texts = [(ast.get_source_segment(whole, what), name and ast.unparse(name)) for what, name in named]
    return [f"{what} as {name}" if name else f"{what}" for what, name in texts] if len(texts) > 1 else []


def _double_quoted(text: str) -> str:
    """Strings in double quotes, as these projects write them; one that has such quotes in it stays."""
    lines = text.split("\n")
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        (row, start), (last, end) = token.start, token.end
        string = token.string
        if token.type == tokenize.STRING and row == last and '"' not in string and not string.endswith("'''"):
            quote = string.index("'")
            new = f'{string[:quote]}"{string[quote + 1 : -1]}"'
            lines[row - 1] = lines[row - 1][:start] + new + lines[row - 1][end:]
    return "\n".join(lines)
