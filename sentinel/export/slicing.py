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
import copy
import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from sentinel.export.layout import SCALARS, data, expression, formatted, is_data, laid_out, reference, written
from sentinel.export.literals import scalar
from sentinel.export.locating import FUNCTIONS, bound_by, class_of, function_of, is_ours, other_name, relative
from sentinel.export.naming import Standing
from sentinel.export.program import ProgramError
from sentinel.export.pruning import Orphaned, Pruned, read_in
from sentinel.export.rendering import Imports
from sentinel.export.wrapping import wrapped
from sentinel.targets import Binding

#: Names that a runner has itself.
_TAKEN = frozenset(
    {"Stub", "Spec", "Path", "plain", "close", "minus", "observe", "call", "invoke", "answers", "observed", "result"}
)
#: Shorter constants are written where they are used.
_SHORT = 40


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
    :param special: whether what is so at every revision that was seen may be written as if it always were.
    """

    def __init__(
        self,
        seen: Followed,
        binding: Binding,
        given: Iterable[str],
        scenarios: Sequence[Mapping[str, Any]],
        packages: Iterable[str],
        told: bool,
        special: bool = False,
    ) -> None:
        self.slice = Slice(Imports())
        self.seen = seen
        self.binding = binding
        self.packages = frozenset(packages)
        self.told = told
        self.special = special
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
            nothing = {scenario.get(name) is None for scenario in self._scenarios} if is_input(value, name) else {False}
            if len(found) > 1 or (len(nothing) > 1 and name not in self._given):
                return None
            (parameter,) = found
            if parameter is not None and (name in self._given or nothing == {False}):
                named[parameter] = value
        further = {name: expression(data(value)) for name, value in self.binding.constants.items()}
        for keyword in keywords:
            if keyword.arg is None:
                return None
            further[keyword.arg] = keyword.value
        for option, value in further.items():
            there = {option in parameters for parameters in self.seen.parameters}
            if len(there) > 1:
                return None
            if there == {True}:
                named.setdefault(option, value)
        return ast.Call(
            reference(self.function), positional, [ast.keyword(name, value) for name, value in named.items()]
        )

    def whole_scenario(self) -> list[tuple[str, ast.expr]]:
        """Every canonical input."""
        return [(name, expression(f"inputs[{scalar(name)}]")) for name in self._scenarios[0]]

    def _define_invoke(self) -> None:
        """:meth:`sentinel.worker.boundaries.Boundary.invoke`, for this boundary."""
        if "invoke" in self.slice.definitions:
            return
        self.slice.standard.add("import inspect")
        names = {name: there for name, there in self.binding.arguments.items() if there != (name,)}
        constants = dict(self.binding.constants)
        # An input that the scenario gives is handed over, be it None; one that has its default is not.
        none = [name for name in self._given if any(scenario.get(name) is None for scenario in self._scenarios)]
        there = f"(value is not None or name in {data(none)})" if none else "value is not None"
        named = f"{data(names)}.get(name, [name])" if names else "[name]"
        options = f"{{**{data(constants)}, **options}}" if constants else "options"
        lines = [
            "def invoke(inputs, *positional, **options):",
            '    """Call it by the names that its parameters have in this checkout."""',
            f"    parameters, given = inspect.signature({self.function}).parameters, {{}}",
            "    for name, value in inputs.items():",
            *laid_out(f"        there = [other for other in {named} if other in parameters]"),
            f"        if there and {there}:",
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
        return ast.Call(reference("call"), [inputs], [])

    def _callee(self, function: Any) -> ast.expr:
        return reference(self.take(function, getattr(function, "__name__", "")))

    # -- taking definitions -------------------------------------------------------------------------------------------

    def take(self, value: Any, name: str) -> str:
        """Take a function or a class of ours; its name in the slice."""
        if id(value) in self._names:
            return self._names[id(value)]
        name = self._free("bound" if name == "<lambda>" else name)
        self._names[id(value)] = name
        self._kept.append(value)
        tree = class_of(value) if isinstance(value, type) else function_of(value)
        self.slice.definitions[name] = self.bare(tree, value, name)
        return name

    def bare(self, tree: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, value: Any, name: str) -> str:
        """A definition as text, once all that it uses is defined."""
        file = inspect.getfile(value if isinstance(value, type) else inspect.unwrap(value))
        module = sys.modules[value.__module__]
        pruned = Pruned(self.seen.lines.get(file, frozenset()), self.told).visit(copy.deepcopy(tree))
        tree = Orphaned(read_in(tree) - read_in(pruned)).visit(pruned)
        closure: dict[str, Any] = {}
        if isinstance(value, FunctionType) and value.__closure__:
            closure = dict(zip(value.__code__.co_freevars, (cell.cell_contents for cell in value.__closure__)))
        stand = "call" if name == "observe" else "boundary"
        tree = Standing(self, {**vars(module), **closure}, module, tree, stand).visit(tree)
        tree.name = name
        for node in ast.walk(tree):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.body:
                node.body = [ast.Pass()]
        return written(tree)

    def observe(
        self, measure: FunctionType, inputs: Mapping[str, str], varied: Sequence[str], named: bool = False
    ) -> list[str]:
        """The lines of ``observe``: what the contract measures, of these inputs.

        :param inputs: canonical input -> how its value is written; of these, what the code names is kept.
        :param varied: those that callers give, each time another value.
        :param named: whether each of these is a parameter; else they are what ``**changes`` holds.
        """
        tree = function_of(measure)
        name = tree.args.args[1].arg
        lines = self.bare(tree, measure, "observe").split("\n")
        said = "\n".join([*lines, *self.slice.definitions.values()])
        used = {key: text for key, text in inputs.items() if scalar(key) in said}
        entries = [f"{scalar(key)}: {text}" for key, text in used.items()]
        entries += [f"{scalar(key)}: {key}" for key in varied] if named else ["**changes"] if varied else []
        taken = ", ".join(varied) if named else "**changes" if varied else ""
        if "``call``" in lines[1]:  # it speaks to who writes an adapter
            del lines[1]
        start = 2 if lines[1].lstrip().startswith('"""') else 1
        made = [f"    {row}" for row in wrapped(f"{name} = {{{', '.join(entries)}}}", 4).split("\n")]
        return [f"def observe({taken}):", *lines[1:start], *made, *lines[start:]]

    def _free(self, name: str) -> str:
        taken = {*_TAKEN, *self._names.values(), *self.slice.definitions}
        free, count = name, 2
        while free in taken:
            free, count = f"{name}_{count}", count + 1
        return free

    # -- what a name stands for ---------------------------------------------------------------------------------------

    def resolve(self, name: str, value: Any, module: ModuleType) -> ast.expr:
        """How something of a module's namespace is written in the slice."""
        if isinstance(value, SCALARS):
            return ast.Constant(value)
        if isinstance(value, ModuleType):
            self.import_module(value.__name__)
            return reference(value.__name__)
        origin = str(getattr(value, "__module__", None) or "")
        if isinstance(value, type) and (origin, value.__name__) == ("sentinel.worker.drift", "StandInNamespace"):
            self.slice.standard.add("from types import SimpleNamespace")
            return reference("SimpleNamespace")
        if isinstance(value, (FunctionType, type)) and is_ours(origin):
            if isinstance(value, FunctionType) and (other := other_name(value)) is not None:
                return self.resolve(*other, module)
            if origin.startswith("sentinel.worker"):
                raise ProgramError(f"its binding uses {name} of Sentinel's")
            return reference(self.take(value, value.__name__))
        if is_data(value):
            return expression(data(value)) if len(data(value)) <= _SHORT else self._constant(name, value)
        found = bound_by(name, module)
        if isinstance(found, ast.ImportFrom) and not found.level and found.module:
            if is_ours(found.module):
                return self.resolve(name, value, importlib.import_module(found.module))
            original = next(alias.name for alias in found.names if (alias.asname or alias.name) == name)
            return self.of_import(found.module, original)
        if isinstance(found, ast.ImportFrom):
            return self.resolve(name, value, relative(found, module))
        if isinstance(found, ast.Assign):
            return self._assigned(name, found.value, value, module)
        raise ProgramError(f"its binding reads {name}, which is no code that could stand alone")

    def of_import(self, module: str, name: str) -> ast.expr:
        """``from module import name``."""
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names:
            self.slice.standard.add(f"from {module} import {name}")
            return reference(name)
        self.import_module(module)
        return reference(f"{module}.{name}")

    def import_module(self, module: str) -> None:
        """Have the slice import a module; one of ours cannot be."""
        top = module.partition(".")[0]
        if is_ours(module):
            raise ProgramError(f"its binding uses the module {module.rpartition('.')[2]} as a whole")
        if top in self.packages:
            self.slice.imports.of(module, "")
        elif top in sys.stdlib_module_names:
            self.slice.standard.add(f"import {module}")
        else:
            self.slice.third.add(module)

    def _constant(self, name: str, value: Any) -> ast.expr:
        if id(value) not in self._names:
            self._names[id(value)] = own = self._free(name)
            self._kept.append(value)
            self.slice.definitions[own] = "\n".join(laid_out(f"{own} = {data(value)}"))
        return reference(self._names[id(value)])

    def _assigned(self, name: str, expression: ast.expr, value: Any, module: ModuleType) -> ast.expr:
        """Something that a module makes of its functions and classes: a table of them, an object."""
        if id(value) not in self._names:
            if id(value) in self._open:
                raise ProgramError(f"{name} refers to itself")
            self._open.add(id(value))
            tree = Standing(self, vars(module), module, expression).visit(copy.deepcopy(expression))
            self._names[id(value)] = own = self._free(name)
            self._kept.append(value)
            self.slice.definitions[own] = formatted(f"{own} = {ast.unparse(ast.fix_missing_locations(tree))}")
        return reference(self._names[id(value)])


def is_input(node: ast.expr, name: str) -> bool:
    return ast.unparse(node) == f"inputs[{name!r}]"
