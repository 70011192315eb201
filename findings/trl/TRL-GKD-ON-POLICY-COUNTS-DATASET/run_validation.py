#!/usr/bin/env python3
"""TRL-GKD-ON-POLICY-COUNTS-DATASET: the on-policy loss of GKD is divided by the number of tokens of the data set's completions

Calls trl.experimental.gkd.gkd_trainer.GKDTrainer.training_step of a checkout of
https://github.com/huggingface/trl, and prints what it answers.

    TARGET_REPO=/path/to/trl python run_validation.py

Needs Python 3.10 or newer, torch, numpy, accelerate, datasets, packaging, pandas, psutil, transformers; no GPU. What else the checkout imports and
is not installed is stubbed, and refused if it is used.
Exit status: 0 the right values, 1 those of the bug, 2 neither, 3 nothing could be decided.

What is to be read are lines 1039 to 1418. What stands before is the same in every runner, whatever the bug.
"""
from __future__ import annotations


# ====================================================================================================
# The head, the same in every runner; sha256 of its lines: b93f45ad8d658fc00fe068a13eb232ada666d7723d36fd63eb8fba2570e98767
# ====================================================================================================

import ast
import builtins
import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import json
import linecache
import math
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any


# -- sentinel/worker/drift.py


class DriftError(Exception):
    """The boundary is gone, has another signature, or returns something else; the message names what was looked for."""


class UnknownInputError(DriftError):
    """The boundary has no parameter for an input that the scenario gives.

    :ivar input: its canonical name.
    """

    def __init__(self, message: str, input: str) -> None:
        super().__init__(message)
        self.input = input


class StandInMissingError(AttributeError):
    """The target reads an attribute that a stand-in does not have.

    An ``AttributeError``, so that the target's own ``getattr(x, name, default)`` and ``hasattr`` work on stand-ins.
    """


class StandInNamespace(SimpleNamespace):
    """A stand-in object: a namespace that says by name what was missing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise StandInMissingError(f"the code reads an attribute {name!r} that the stand-in does not have")


class AbsentError(Exception):
    """The checkout lacks what a binding requires: another version, and no drift."""


# -- sentinel/targets/__init__.py


@dataclass(frozen=True)
class Alias:
    """What stands at a dotted path: a later Python's, by way of a package that gives it to earlier ones."""

    path: str


# -- sentinel/worker/calling.py


@dataclass(frozen=True)
class Boundary:
    """A real function or method, found.

    :ivar path: the dotted path under which it was found.
    :ivar function: the callable as the target's own code would reach it.
    :ivar owner: the class that holds it, for a method.
    :ivar given: canonical inputs that the scenario gives itself; one of these that the boundary cannot take is drift,
        while an input filled from a default may be left out.
    :ivar beside: what a member of a family takes beside what the family does, by its own names.
    """

    path: str
    module: ModuleType
    function: Callable[..., Any]
    owner: type | None
    binding: Binding
    given: frozenset[str] = frozenset()
    device: str = "cpu"
    imported: Mapping[str, ModuleType] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    def invoke(self, inputs: Mapping[str, Any], /, *positional: Any, **upstream: Any) -> Any:
        """Call the boundary with canonical inputs bound to its parameters by name.

        :param positional: leading arguments, such as ``self`` of a method found on its class.
        :param upstream: further arguments under their upstream names; one that the boundary does not have is left out.
        :raises DriftError: where an input that the scenario gives has no parameter, or a parameter without a default
            has no value.
        """
        parameters = self.parameters
        arguments = self._bind(inputs, parameters)
        for name, value in {**self.binding.constants, **upstream}.items():
            if name in parameters:
                arguments.setdefault(name, value)
        named = list(parameters)
        for name in named[len(positional) :]:
            parameter = parameters[name]
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            lacks = parameter.default in (parameter.empty, None) and name not in arguments
            if lacks and self.beside.get(name) is not None:
                arguments[name] = self.beside[name]
            elif parameter.default is parameter.empty and not variadic and name not in arguments:
                raise DriftError(f"{self.path}{inspect.signature(self.function)} now requires {name!r}")
        return self.function(*positional, **arguments)

    def _bind(self, inputs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name, value in inputs.items():
            candidates = self.binding.arguments.get(name, (name,))
            found = next((candidate for candidate in candidates if candidate in parameters), None)
            if found is not None:
                if value is not None or name in self.given:
                    arguments[found] = value
            elif name in self.given and value is not None:
                raise UnknownInputError(
                    f"{self.path}{inspect.signature(self.function)} has no parameter for {name!r} "
                    f"(looked for {', '.join(candidates)}; it has {', '.join(parameters)})",
                    name,
                )
        return arguments

    def __call__(self, /, **inputs: Any) -> Mapping[str, Any]:
        """Call the boundary as its contract does; the canonical outputs by name."""
        if self.binding.call is not None:
            boundary = replace(self, beside=inputs) if self.binding.like else self
            outputs = self.binding.call(boundary, inputs)
            return outputs if isinstance(outputs, Mapping) else self._outputs(outputs)
        return self._outputs(self.invoke(inputs))

    def _outputs(self, returned: Any) -> Mapping[str, Any]:
        names = self.binding.outputs
        if isinstance(returned, Mapping):
            missing = [name for name in names if name not in returned]
            if missing:
                raise DriftError(f"{self.path} returned no {missing[0]!r}; it returned {', '.join(map(str, returned))}")
            return {name: returned[name] for name in names} if names else dict(returned)
        if len(names) == 1:
            return {names[0]: returned[0] if isinstance(returned, tuple) else returned}
        if not isinstance(returned, tuple) or len(returned) < len(names):
            raise DriftError(
                f"{self.path} returned {type(returned).__name__}, not the {len(names)} values {', '.join(names)}"
            )
        return dict(zip(names, returned))  # a longer tuple has gained values at its end, as these frameworks do


def module_of(path: str, roots: tuple[str, ...]) -> str | None:
    """Give the longest prefix of a dotted path that is a module file below the import roots."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        relative = os.path.join(*parts[:end])
        for root in roots:
            base = os.path.join(root, relative)
            if os.path.isfile(f"{base}.py") or os.path.isfile(os.path.join(base, "__init__.py")):
                return ".".join(parts[:end])
    return None


def import_whole(name: str) -> ModuleType:
    """Import a module, or leave nothing of it. Python takes away a package whose import failed, and keeps those of its
    modules that were ready by then: the next import of one of them would fail for another reason, that it is an orphan.
    """
    try:
        return importlib.import_module(name)
    except BaseException:
        top = name.partition(".")[0]
        for other in sorted(item for item in sys.modules if item.startswith(f"{top}.")):
            if other.rpartition(".")[0] not in sys.modules:
                del sys.modules[other]
        raise


def answer_at_import(answers: Mapping[str, Any], roots: tuple[str, ...]) -> None:
    """Put in place what an adapter answers for what the target's modules call or read while they are imported."""
    for path, answer in answers.items():
        name, _, attribute = path.rpartition(".")
        if module_of(name, roots) == name:
            if name in sys.modules:
                continue
            import_quietly(name, roots)
        else:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        owner = sys.modules.get(name)
        if isinstance(answer, Alias):
            module, _, found = answer.path.rpartition(".")
            with contextlib.suppress(ImportError, AttributeError):  # an environment that has the one lacks the other
                setattr(owner, attribute, getattr(importlib.import_module(module), found))
        elif hasattr(owner, attribute):
            called = callable(getattr(owner, attribute))
            setattr(owner, attribute, (lambda *_, _answer=answer, **__: _answer) if called else answer)


def import_quietly(path: str, roots: tuple[str, ...]) -> None:
    """Import the module of a dotted path for all probes to come. A failure is not reported here: the probe that needs
    the module meets the same failure, and says so with its traceback."""
    name = module_of(path, roots)
    if name is not None:
        with contextlib.suppress(BaseException):
            import_whole(name)


# -- sentinel/worker/ghosts.py


_ONLY_WHERE_NAMED = """
    accelerate anyio beartype datasets dill huggingface_hub jaxtyping msgspec multiprocess pandas psutil pyarrow
    pydantic pydantic_core regex safetensors tokenizers tqdm transformers typer xxhash
"""


ONLY_WHERE_NAMED = frozenset(_ONLY_WHERE_NAMED.split())


_GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class GhostUsedError(RuntimeError):
    """A ghost was asked to decide something while a probe ran."""


class GhostState:
    """What the ghosts of this process have been through.

    :ivar probing: whether a probe is running, so that use is recorded and refused. Off while the target imports a
        module of its own inside a probe: what runs then is import time.
    :ivar used: the ghosts used while probing, by dotted name.
    :ivar answer: what a call of one answers while probing, in a tuple; None where it is refused.
    """

    def __init__(self) -> None:
        self.probing = False
        self.used: list[str] = []
        self.answer: Callable[[str], tuple[Any] | None] = lambda name: None

    def use(self, name: str) -> None:
        if self.probing:
            self.used.append(name)
            raise GhostUsedError(f"{name} is not installed and was used; a stand-in or the real package is needed")


_STATE = GhostState()


def state() -> GhostState:
    return _STATE


class Ghost:
    """Stands for a missing module, or for anything that was reached through one.

    Reading an attribute only names something, so it always gives another ghost. Anything that would let a ghost decide
    a
    value (a call, a truth test, arithmetic, iteration) is inert while the target is imported and refused while a probe
    runs. ``isinstance(x, ghost)`` is simply false: nothing is an instance of a class that is not there.
    """

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_ghost_name", name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__version__":
            return "0.0.0"
        if attribute == "__all__":
            return []
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        child = Ghost(f"{self._ghost_name}.{attribute}")
        object.__setattr__(self, attribute, child)
        return child

    def __repr__(self) -> str:
        return f"<ghost {self._ghost_name}>"

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """``class X(ghost.Base)``: beside real bases the missing one adds nothing; alone it is inert."""
        ghosts = [base for base in bases if isinstance(base, Ghost)]
        return (_inert_base(self._ghost_name),) if len(ghosts) == len(bases) and ghosts[0] is self else ()

    def __get_pydantic_core_schema__(self, *_: Any) -> Any:
        return _any_schema()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _STATE.probing and (answer := _STATE.answer(self._ghost_name)) is not None:
            return answer[0]
        _STATE.use(self._ghost_name)
        if len(args) == 1 and not kwargs and _decorable(args[0]):
            return args[0]  # a decorator: the target's own function or class must stay what it is
        if len(args) == 3 and isinstance(args[0], str) and isinstance(args[1], tuple) and isinstance(args[2], dict):
            return type(args[0], args[1], args[2])  # a metaclass
        return Ghost(f"{self._ghost_name}()")

    def __bool__(self) -> bool:
        _STATE.use(self._ghost_name)
        return False

    def __int__(self) -> int:
        _STATE.use(self._ghost_name)
        return 0

    __index__ = __int__

    def __float__(self) -> float:
        _STATE.use(self._ghost_name)
        return 0.0

    def __setitem__(self, key: Any, value: Any) -> None:
        _STATE.use(self._ghost_name)

    def __delitem__(self, key: Any) -> None:
        _STATE.use(self._ghost_name)

    def __iter__(self) -> Iterator[Any]:
        _STATE.use(self._ghost_name)
        return iter(())

    def __len__(self) -> int:
        _STATE.use(self._ghost_name)
        return 0

    def __enter__(self) -> Ghost:
        _STATE.use(self._ghost_name)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        _STATE.use(self._ghost_name)
        return False

    def __hash__(self) -> int:
        return id(self)


def _decorable(value: Any) -> bool:
    if isinstance(value, Ghost):
        return False
    return callable(value) or isinstance(value, (staticmethod, classmethod, property))


@cache
def _inert_base(name: str) -> type:
    """A base class that takes any arguments and does nothing, for import time; refused while a probe runs."""

    def initialise(self: object, *_: Any, **__: Any) -> None:
        _STATE.use(name)

    def attribute(self: object, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return Ghost(f"{name}.{attribute}")

    schema = classmethod(lambda *_: _any_schema())
    takes_all = classmethod(lambda cls, **_: None)  # of ``class X(ghost.Base, table=True)``
    members = {
        "__init_subclass__": takes_all,
        "__init__": initialise,
        "__getattr__": attribute,
        "__get_pydantic_core_schema__": schema,
    }
    return type(name.rpartition(".")[2], (), members)


def _any_schema() -> Any:
    """Say what pydantic asks of the type of a model's field: a ghost takes anything."""
    from pydantic_core import core_schema

    return core_schema.any_schema()


def _operator(name: str) -> Callable[..., Ghost]:
    def method(self: Ghost, *_: Any) -> Ghost:
        _STATE.use(self._ghost_name)
        return Ghost(f"{self._ghost_name}.{name}")

    return method


class _GhostModule(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        return getattr(Ghost(self.__name__), attribute)


class InertModules(MetaPathFinder, Loader):
    """Finds ghosts for modules of these names and all below them, whoever imports them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        inert = any(f"{name}.".startswith(f"{one}.") for one in self._names)
        return ModuleSpec(name, self, is_package=True) if inert else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _GhostModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


_OPERATORS = """
    or ror and rand xor getitem contains add radd sub rsub mul rmul matmul truediv rtruediv floordiv mod pow
    neg pos abs invert lshift rshift lt le gt ge
"""


for _name in _OPERATORS.split():
    setattr(Ghost, f"__{_name}__", _operator(_name))


class ImportRecorder:
    """Replaces ``builtins.__import__`` in a target process: gives ghosts, and records who imported what.

    :param roots: absolute directories of the target's packages; only statements in files below them are looked at.
    :param packages: the target's own top-level names, which never become ghosts.
    :param versions: the ``__version__`` of some ghosts, for a target that refuses to import beside another one.
    :param real: the packages that the target names in ``preload``.
    """

    def __init__(
        self,
        roots: tuple[str, ...],
        packages: tuple[str, ...],
        versions: Mapping[str, str] | None = None,
        real: Iterable[str] = (),
    ) -> None:
        self.roots = roots
        self.packages = frozenset(packages)
        self.hidden = ONLY_WHERE_NAMED - {name.partition(".")[0] for name in real}
        self.edges: dict[str, set[str]] = {}
        self.ghosts: dict[str, Ghost] = {}
        self.given: dict[str, set[str]] = {}
        self._versions = dict(versions or {})
        self._closures: dict[str, set[str]] = {}  # those asked for since the last edge
        self._import = builtins.__import__

    def install(self) -> None:
        builtins.__import__ = self

    def __call__(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:  # the signature that the import statement calls
        importer = globals.get("__name__") if isinstance(globals, dict) else None
        if importer is None or importer.partition(".")[0] not in self.packages:
            return self._import(name, globals, locals, fromlist, level)
        self._record(importer, name, globals, fromlist, level)
        probing = _STATE.probing
        try:
            if level or name.partition(".")[0] in self.packages:
                _STATE.probing = False
            elif name.partition(".")[0] in self.hidden:
                raise ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}", name=name.partition(".")[0])
            return self._import(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as error:
            top = name.partition(".")[0]
            missing = error.name or ""
            there = missing not in self.hidden and _installed(missing)
            if level or {top, missing.partition(".")[0]} & self.packages or not missing or there:
                raise
            # A package that is there may lack a module, or have one that wants another package: it is no ghost itself.
            if (missing != top and not fromlist) or self._guarded(sys._getframe(1)):
                raise
            self._link(sys._getframe(1))
            self.given.setdefault(importer, set()).add(missing)
            return self._ghost(name if fromlist else top)
        finally:
            _STATE.probing = probing

    def _ghost(self, name: str) -> Ghost:
        parts = name.split(".")
        ghost = self.ghosts.setdefault(parts[0], Ghost(parts[0]))
        if parts[0] in self._versions:
            object.__setattr__(ghost, "__version__", self._versions[parts[0]])
        for part in parts[1:]:
            ghost = getattr(ghost, part)
        return ghost

    def _record(self, importer: str, name: str, globals: Any, fromlist: Any, level: int) -> None:
        absolute = name
        if level:
            package = globals.get("__package__") or importer.rpartition(".")[0]
            base = package.rsplit(".", level - 1)[0] if level > 1 else package
            absolute = f"{base}.{name}" if name else base
        if absolute.partition(".")[0] in self.packages:
            edges = self.edges.setdefault(importer, set())
            known = len(edges)
            edges.add(absolute)
            edges.update(f"{absolute}.{item}" for item in fromlist or ())
            if len(edges) > known:
                self._closures.clear()

    def _link(self, frame: FrameType | None) -> None:
        """Record through which modules of the target a statement came to run: not all import by a statement."""
        inner = ""
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.roots):
                outer = frame.f_globals.get("__name__", "")
                if inner not in ("", outer):
                    self.edges.setdefault(outer, set()).add(inner)
                inner = outer
            frame = frame.f_back
        self._closures.clear()

    def _guarded(self, frame: FrameType | None) -> bool:
        """Whether this statement, or any statement of the target through which it came to run, stands in a guard.

        ``try: from pkg.extra import X / except ImportError`` must see the failure of what ``pkg.extra`` imports,
        exactly as on a machine without the package.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self.roots):
                line = linecache.getline(file, frame.f_lineno)
                # An import at the left margin cannot stand in a try; only the others are worth a parse.
                if not line.startswith(("import ", "from ")) and _in_guard(file, frame.f_lineno):
                    return True
            frame = frame.f_back
        return False

    def closure(self, module: str) -> set[str]:
        """Give the target's own modules that a module's import statements reach, packages on the way included."""
        if module not in self._closures:
            self._closures[module] = self._reached(module)
        return self._closures[module]

    def _reached(self, module: str) -> set[str]:
        found: set[str] = set()
        queue = [module]
        while queue:
            current = queue.pop()
            parts = current.split(".")
            for end in range(1, len(parts) + 1):
                name = ".".join(parts[:end])
                if name not in found and name in sys.modules:
                    found.add(name)
                    queue.extend(self.edges.get(name, ()))
        return found

    def ghosts_of(self, module: str) -> list[str]:
        """Give the ghosts that those modules were given."""
        return sorted({ghost for name in self.closure(module) for ghost in self.given.get(name, ())})


@cache
def _installed(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


@cache
def _guarded_lines(file: str) -> frozenset[int]:
    """The lines of a file that stand in the body of a ``try`` that goes on where an import fails."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return frozenset()
    lines: set[int] = set()
    for node in ast.walk(tree):
        guards = (isinstance(node, ast.Try) and _goes_on_without(node.handlers)) or (
            isinstance(node, ast.With) and any(_suppresses(item.context_expr) for item in node.items)
        )
        if guards:
            for statement in node.body:  # type: ignore[attr-defined]
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return frozenset(lines)


def _in_guard(file: str, line: int) -> bool:
    return line in _guarded_lines(file)


def _goes_on_without(handlers: list[ast.ExceptHandler]) -> bool:
    """Whether a failed import is caught and not raised again.

    Who raises something else instead needs the module like anybody: ``raise ImportError("install it")``, and the lazy
    modules of a library, through which everything in it is imported.
    """
    for handler in handlers:
        if _catches(handler.type):
            leaves = any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in ast.walk(handler))
            return leaves or not isinstance(handler.body[-1], ast.Raise)
    return False


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    if isinstance(kind, ast.Tuple):
        return any(_catches(item) for item in kind.elts)
    return (kind.id if isinstance(kind, ast.Name) else getattr(kind, "attr", "")) in _GUARDS


def _suppresses(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    return name == "suppress" and any(_catches(argument) for argument in call.args)


# -- sentinel/export/head.py

#: Exit statuses; a status that is not named here is 3: nothing was decided.
STATUSES = {"fixed": 0, "reproduced": 1, "changed": 2}


def _broke_down(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Whatever happens, 1 says that the bug is there: Python's own status of an error is another one here."""
    traceback.print_exception(kind, error, trace)
    print(json.dumps({"status": "could not run", "reason": f"{kind.__name__}: {error}", "needs": []}), flush=True)
    os._exit(3)


if __name__ == "__main__":
    sys.excepthook = _broke_down


class CouldNotRun(Exception):
    """Nothing can be decided in this environment; names the packages that it lacks, where it is that."""

    def __init__(self, reason: str, needs: list[str] | None = None, status: str = "could not run") -> None:
        super().__init__(reason)
        self.needs, self.status = needs or [], status


# -- values ------------------------------------------------------------------------------------------------------------


def decoded(value: Any, find: Callable[[str], Any]) -> Any:
    """The object that a value of the case describes: a tensor, an array, an object of the checkout's own, ..."""
    import numpy
    import torch

    if isinstance(value, list):
        return [decoded(item, find) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if kind == "$tensor":
        made = torch.tensor(value[kind], dtype=getattr(torch, value["dtype"]))
        made = made.reshape(value.get("shape", made.shape))
        if value.get("strided") and made.dim():  # every second element of a tensor whose others nobody may read
            whole = not made.is_floating_point() and made.dtype != torch.bool
            between = torch.full_like(made, torch.iinfo(made.dtype).max if whole else math.nan)
            made = torch.stack([made, between], dim=-1).flatten(-2)[..., ::2]
        return made.requires_grad_() if value.get("requires_grad") else made
    if kind == "$array":
        items = [decoded(item, find) for item in value[kind]]
        array = numpy.empty(len(items), dtype=value["dtype"])
        array[:] = items
        return array
    if kind == "$tuple":
        return tuple(decoded(value[kind], find))
    if kind == "$namespace":
        return StandInNamespace(**decoded(value[kind], find))
    if kind == "$new":
        return find(value[kind])(**decoded(value["arguments"], find))
    if kind == "$attribute":
        return find(value[kind])
    if kind == "$device":
        return torch.device(value[kind])
    return {key: decoded(item, find) for key, item in value.items()}


def observed(value: Any) -> Any:
    """What the boundary answered, as tensors on the CPU, numbers, strings, lists and dictionaries."""
    import numpy
    import torch

    if isinstance(value, Ghost):
        bool(value)  # refused, and recorded
    if isinstance(value, (torch.dtype, torch.device, enum.Enum)):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, numpy.generic):
        return observed(value.item())
    if isinstance(value, numpy.ndarray):
        return [observed(v) for v in value.tolist()] if value.dtype == object else torch.from_numpy(value.copy())
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        return {str(key): observed(value[key]) for key in list(value.keys())}
    if isinstance(value, (set, frozenset)):
        return [observed(item) for item in sorted(value, key=repr)]
    if isinstance(value, (list, tuple)):
        return [observed(item) for item in value]
    if isinstance(value, SimpleNamespace):
        return observed(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: observed(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}


#: dtype -> (relative, absolute) bound of a difference that is rounding; a bare number is taken for a float32.
BOUNDS = {
    "float64": (1e-9, 1e-12), "float32": (1e-5, 1e-6), "float16": (2.0**-8, 2.0**-10), "bfloat16": (2.0**-5, 2.0**-7),
}  # fmt: skip


def variants_of(case: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Variant -> canonical input -> value; without variants there is one, without a name."""
    return {name: {**case["scenario"], **own} for name, own in case["variants"].items()}


def is_right(found: Any, wanted: Any, tolerance: Mapping[str, Any]) -> bool:
    """Whether an observed value is the expected one: floats up to rounding, all else exactly; NaN is NaN alone."""
    import torch

    if isinstance(wanted, dict) and "$tensor" in wanted:
        if not isinstance(found, torch.Tensor) or str(found.dtype) != f"torch.{wanted['dtype']}":
            return False
        wanted = decoded(wanted, str).tolist()
    if isinstance(found, torch.Tensor):
        if found.dim() == 0 and found.dtype == torch.bool and isinstance(wanted, bool):
            return bool(found) is wanted
        if isinstance(wanted, bool):
            return False
        try:
            right = torch.tensor(wanted, dtype=torch.float64 if found.is_floating_point() else None)
        except (ValueError, TypeError, RuntimeError):  # no number, or rows of unequal length
            return False
        right = right.reshape(found.shape) if found.numel() == right.numel() == 0 else right
        if found.shape != right.shape or not found.is_floating_point():
            return bool(found.shape == right.shape and (found == right).all())
        relative, absolute = tolerated(str(found.dtype).removeprefix("torch."), tolerance)
        return bool(torch.isclose(found.double(), right, rtol=relative, atol=absolute, equal_nan=True).all())
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(is_right(found[key], wanted[key], tolerance) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(is_right(a, b, tolerance) for a, b in zip(found, wanted))
    if type(found) is float and type(wanted) in (int, float):
        relative, absolute = tolerated("float32", tolerance)
        if math.isfinite(found) and math.isfinite(wanted):
            return bool(abs(found - wanted) <= absolute + relative * abs(wanted))
        return bool(found == wanted or (math.isnan(found) and math.isnan(wanted)))
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def tolerated(dtype: str, tolerance: Mapping[str, Any]) -> tuple[float, float]:
    """(relative, absolute) for an observation of this dtype; zeros where it must agree exactly."""
    if tolerance.get("exact") or dtype not in BOUNDS:
        return 0.0, 0.0
    relative, absolute = BOUNDS[dtype]
    return tolerance.get("relative", relative), tolerance.get("absolute", absolute)


def minus(left: Any, right: Any) -> Any:
    """The difference of two observed values: tensors of one shape, numbers, lists of these."""
    import torch

    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.shape == right.shape:
        return left - right if left.is_floating_point() else left.long() - right.long()
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [minus(a, b) for a, b in zip(left, right)]
    if type(left) in (int, float) and type(right) in (int, float):
        return left - right
    raise CouldNotRun(f"{left!r} and {right!r} cannot be subtracted")


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a key, which may reach into what was observed: ``returned.advantages``, ``returned.0``."""
    if key in values:
        return values[key]
    parts = key.split(".")
    for end in range(len(parts) - 1, 0, -1):
        found = values.get(".".join(parts[:end]))
        try:
            for part in parts[end:]:
                found = found[int(part)] if isinstance(found, list) else found[part]  # type: ignore[index]
            return found
        except (KeyError, IndexError, ValueError, TypeError):
            continue
    raise CouldNotRun(f"the boundary gave no {key!r}, but {', '.join(values) or 'nothing'}")


# -- one run -----------------------------------------------------------------------------------------------------------


def settle() -> None:
    """Make a run repeatable: one thread, fixed seeds, deterministic algorithms, no compiler."""
    import numpy
    import torch

    random.seed(20260821)
    numpy.random.seed(20260821)
    torch.manual_seed(20260821)
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("warn")


def find(path: str, roots: tuple[str, ...]) -> tuple[Any, Any, type | None]:
    """(module, object, class that holds it) of a dotted path.

    :raises DriftError: where the checkout has nothing there.
    """
    name = module_of(path, roots)
    if name is None:
        raise DriftError(f"{path} is not in this checkout")
    module = found = import_whole(name)
    owner = None
    for attribute in path.split(".")[len(name.split(".")) :]:
        owner = found if isinstance(found, type) else None
        if not hasattr(found, attribute):
            raise DriftError(f"{path} is not in this checkout")
        found = getattr(found, attribute)
    return module, found, owner


def has(path: str, roots: tuple[str, ...]) -> bool:
    """Whether a checkout has a module, an attribute, a field of a class, or a parameter: ``pkg.mod.function(name)``."""
    path, _, parameter = path.rstrip(")").partition("(")
    holder, _, last = path.rpartition(".")
    if module_of(path, roots) == path:
        return True
    try:
        if parameter:
            return parameter in inspect.signature(find(path, roots)[1]).parameters
        owner = find(holder, roots)[1]
    except DriftError:
        return False
    tables = (getattr(owner, name, {}) for name in ("__dataclass_fields__", "__annotations__"))
    return hasattr(owner, last) or any(last in table for table in tables)


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def packages(names: Iterable[str]) -> list[str]:
    return sorted({name.partition(".")[0] for name in names})


def boundary_of(case: Mapping[str, Any], roots: tuple[str, ...], call: Callable[..., Any] | None) -> Boundary:
    """The real function, found in the checkout under the first of its paths that is there."""
    paths = case["boundary"]
    for path in paths:
        try:
            module, function, owner = find(path, roots)
        except DriftError:
            continue
        imported = {name: import_whole(name) for name in case["imports"]}
        binding: Any = SimpleNamespace(**case["binding"], call=call)
        return Boundary(path, module, function, owner, binding, frozenset(case["given"]), imported=imported)
    raise DriftError(f"{' or '.join(paths)} is not in this checkout")


def measured(
    case: Mapping[str, Any], measure: Callable[..., Any], call: Callable[..., Any] | None
) -> tuple[Boundary, dict[str, Any], list[str]]:
    """The boundary, what it answers to each variant of the scenario, and the packages that were missing all the same.

    :raises CouldNotRun: where that cannot be said here.
    """
    lacking = [name for name in ("torch", "numpy", *case["needs"]) if not is_installed(name)]
    if lacking:
        raise CouldNotRun("not everything that it needs is installed", lacking)
    checkout = Path(os.environ.get("TARGET_REPO", ".")).resolve()
    roots = tuple(str(checkout / folder) for folder in case["import_roots"] if (checkout / folder).is_dir())
    sys.path[:0] = roots
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    for name in case["stands_for"]:  # modules of Sentinel's that the functions below import from are this file
        sys.modules[name] = sys.modules[__name__]
    settle()
    for name in filter(is_installed, case["preload"]):
        importlib.import_module(name)
    stubs = ImportRecorder(roots, tuple(case["packages"]), case["stub_versions"], case["preload"])
    stubs.install()
    try:
        for path in (*case["imports"], *case["boundary"]):
            answer_at_import(case["at_import"], roots)  # again: an import may undo the last
            import_quietly(path, roots)
        for path in case["requires"]:
            if not has(path, roots):
                raise CouldNotRun(f"not in this version: the checkout has no {path}", status="unavailable")
        boundary = boundary_of(case, roots, call)
        settle()
        state().probing = True
        found = {}
        for name, inputs in variants_of(case).items():
            live = {key: decoded(item, lambda path: find(path, roots)[1]) for key, item in inputs.items()}
            found[name] = {key: observed(item) for key, item in measure(boundary, live).items()}
        if state().used:  # the checkout may have caught the refusal: what it computed then is not its answer
            raise CouldNotRun(f"{', '.join(state().used)}: used, and not installed", packages(state().used))
        return boundary, found, sorted({name for given in stubs.given.values() for name in given})
    except CouldNotRun:
        raise
    except AbsentError as error:
        raise CouldNotRun(str(error), status="unavailable") from error
    except (DriftError, StandInMissingError) as error:
        raise CouldNotRun(f"the code has moved away from what this file knows: {error}") from error
    except ModuleNotFoundError as error:
        raise CouldNotRun(str(error), [(error.name or "").partition(".")[0]]) from error
    except SyntaxError as error:
        raise CouldNotRun(f"it is not for Python {sys.version.split()[0]}: {error}") from error
    except (Exception, SystemExit) as error:
        # A stub that was asked something while modules were imported said no: what follows from that may show here.
        stubbed = state().used or [name for given in stubs.given.values() for name in given]
        reason = f"{type(error).__name__}: {error}" + ", perhaps for want of a package" * bool(stubbed)
        raise CouldNotRun(reason, packages(stubbed)) from error
    finally:
        state().probing = False
        builtins.__import__ = stubs._import


def judged(case: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(status, value of each address): all right is ``fixed``, all those of the bug ``reproduced``."""
    values, matches = {}, {"bug": [], "right": []}  # type: dict[str, Any], dict[str, list[bool]]
    for address, row in case["expected"].items():
        parts = [value_at(found[name], row["key"]) for name in row["of"]]
        values[address] = parts[0] if len(parts) == 1 else minus(*parts)
        for which, told in matches.items():
            if which in row:
                told.append(is_right(values[address], row[which], row.get(f"{which}_tolerance", {})))
    bug, right = (bool(matches[which]) and all(matches[which]) for which in ("bug", "right"))
    return "ambiguous" if bug and right else "reproduced" if bug else "fixed" if right else "changed", values


def validated(
    case: Mapping[str, Any],
    measure: Callable[..., Any],
    call: Callable[..., Any] | None,
    judge: Callable[..., Any] = judged,
) -> dict[str, Any]:
    """The answer as it is printed: which code was measured, what it answered, and which values these are."""
    answer: dict[str, Any] = {"bug_id": case["bug_id"]}
    try:
        boundary, found, stubbed = measured(case, measure, call)
        status, values = judge(case, found)
    except CouldNotRun as error:
        reason = str(error)
        if error.needs:
            reason += f"; install {', '.join(case['needs'].get(name, name) for name in error.needs)}"
        return {**answer, "status": error.status, "reason": reason, "needs": error.needs, "cause": error}
    checkout = Path(os.environ.get("TARGET_REPO", ".")).resolve()
    commit = None
    with contextlib.suppress(OSError):
        git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
    file = Path(str(boundary.module.__file__)).resolve()
    if checkout not in file.parents:
        return {**answer, "status": "could not run", "reason": f"{file} is not in {checkout}", "needs": []}
    answer |= {"boundary": boundary.path, "file": str(file.relative_to(checkout)), "commit": commit}
    return {**answer, "not_installed_and_not_used": stubbed, "observed": values, "status": status}


def printable(value: Any) -> Any:
    """What JSON has no word for: tensors as nested lists, NaN and infinities as words."""
    if isinstance(value, dict):
        return {key: printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return printable(value.tolist()) if hasattr(value, "tolist") else value


def laid_out(value: Any, indent: str = "") -> str:
    """JSON with an entry of a table on each line, and lists on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    rows = [f"{indent} {json.dumps(key)}: {laid_out(item, indent + ' ')}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def main(*questions: Any) -> None:
    """Print the answer and end with its status; what led to a failure goes to standard error."""
    answer = validated(*questions)
    cause = answer.pop("cause", None)
    if cause is not None and answer["status"] != "unavailable":
        traceback.print_exception(type(cause), cause, cause.__traceback__)
    print(laid_out(printable(answer)))
    sys.exit(STATUSES.get(answer["status"], 3))


# ====================================================================================================
# End of the head
# ====================================================================================================



# ====================================================================================================
# the functions through which the boundary is called and looked at, and the case: to be read
# ====================================================================================================

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from unittest import mock


# -- sentinel/contracts/aggregation.py


def leaf(value: Any) -> Any:
    """A copy to differentiate with respect to, laid out in memory as the original."""
    import torch

    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    try:
        copy.copy_(value.detach())
    except RuntimeError:  # an expanded tensor: several elements share one place
        copy = value.detach().clone()
    return copy.requires_grad_(True)


def gradient(loss: Any, of: Any) -> Any:
    """``d loss / d of``; zeros where the loss does not depend on it."""
    import torch

    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        return torch.zeros_like(of)
    (found,) = torch.autograd.grad(loss, of, allow_unused=True)
    return torch.zeros_like(of) if found is None else found


def detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


# -- sentinel/contracts/distillation.py


def _measure_distillation_loss(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    logits = leaf(inputs["logits"])
    loss = call(**{**inputs, "logits": logits})["loss"]
    return {"loss": detached(loss), "logits_gradient": gradient(loss, logits)}


# -- sentinel/worker/kit.py


def stand_in(**attributes: Any) -> Any:
    """Make a namespace in the place of an object; it says what the boundary reads and it lacks."""
    return StandInNamespace(**attributes)


def accepted(kind: Any, options: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Keep the options that a class has in this version.

    :param usual: what it did before it had an option.
    :raises AbsentError: for an option that it does not have, where another value than the usual is asked for.
    """
    known = {*inspect.signature(kind).parameters}
    known.update(name for base in kind.__mro__ for name in getattr(base, "__annotations__", {}))
    for name, value in options.items():
        if name not in known and (usual is None or value != usual.get(name)):
            raise AbsentError(f"not in this version: {kind.__name__} has no option {name!r}")
    return {name: value for name, value in options.items() if name in known}


def itself(value: Any, *_: Any, **__: Any) -> Any:
    return value


def swapped(owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    """Give another attribute for the length of a block, where there is one to swap."""
    return mock.patch.object(owner, name, value) if hasattr(owner, name) else nullcontext()


_PADDING, _END, _ELSE, _FIRST = range(4)


def token_table(table: Any, after: Any = None, trains: bool = True, scores: bool = False) -> Any:
    """Make a causal language model of transformers whose outputs stand in a table, its one parameter.

    A row of it is a sequence of a first token, of ``table``'s tokens and of whatever comes after them. Every token of
    every row has an id of its own (:func:`token_ids`), by which the model finds what it says of it, one position before
    it: however a trainer cuts, pads, packs and orders the sequences. The end of a text stands for the token that comes
    next in the row.

    :param table: [rows, tokens]: the log-prob of each; or [rows, tokens, choices]: the logits of each.
    :param after: [rows]: the log-prob of what comes after the last token; left out, it is certain.
    :param trains: whether the table is a parameter of its own; else gradients reach the one that is given.
    :param scores: whether it is a model of rewards: it answers the sum of what the table says of a row's tokens.
    """
    import torch

    transformers: Any = importlib.import_module("transformers")
    outputs: Any = importlib.import_module("transformers.modeling_outputs")

    certain = torch.zeros_like(table[:, :1])
    whole = torch.cat([certain, table, certain if after is None else after[:, None]], dim=1)
    rows, width = table.shape[0], table.shape[1] + 2
    size = _FIRST + rows * width

    class Body(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(whole.detach()) if trains else whole

        def forward(self, input_ids: Any, *_: Any, **__: Any) -> Any:
            following = torch.nn.functional.pad(input_ids[:, 1:], (0, 1), value=_PADDING)
            beside = (input_ids - _FIRST + 1).clamp(min=0)
            said = self.table.flatten(0, 1)[torch.where(following < _FIRST, beside, following - _FIRST)]
            if scores:
                return said
            if self.table.ndim == 3:
                logits = torch.nn.functional.pad(said, (0, size - said.shape[-1]), value=-1000.0)
            else:
                other = torch.where(said < 0, torch.log(-torch.expm1(torch.where(said < 0, said, -1.0))), -1000.0)
                logits = said.new_full((*said.shape, size), -1000.0)
                logits = logits.scatter(-1, torch.full_like(following, _ELSE)[..., None], other[..., None])
                logits = logits.scatter(-1, following[..., None], said[..., None])
            return outputs.BaseModelOutputWithPast(last_hidden_state=logits)

    class TokenTable(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
        config_class = transformers.PretrainedConfig
        base_model_prefix = "model"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = Body()
            self.lm_head = torch.nn.Linear(size, size, bias=False, dtype=table.dtype)  # what a fused loss multiplies by
            self.lm_head.weight = torch.nn.Parameter(torch.eye(size, dtype=table.dtype), requires_grad=False)

        def get_output_embeddings(self) -> Any:
            return self.lm_head

        def resize_token_embeddings(self, *_: Any, **__: Any) -> None:
            """It has what its tokenizer has."""

        def forward(
            self,
            input_ids: Any,
            attention_mask: Any = None,
            labels: Any = None,
            logits_to_keep: int = 0,
            **options: Any,
        ) -> Any:
            if scores:
                counted = self.model(input_ids)[:, :-1] * attention_mask[:, 1:]
                return outputs.SequenceClassifierOutput(logits=counted.sum(-1, keepdim=True))
            hidden = self.model(input_ids).last_hidden_state
            logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
            loss = None
            if labels is not None:
                count = {name: options[name] for name in ("num_items_in_batch",) if name in options}
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **count)
            return outputs.CausalLMOutputWithPast(loss=loss, logits=logits)

    sizes = {"vocab_size": size, "hidden_size": size, "num_hidden_layers": 1, "num_attention_heads": 1,
             "num_labels": 2 - scores}  # fmt: skip
    with own_randomness():  # layers draw what they are replaced with
        made = TokenTable(transformers.PretrainedConfig(pad_token_id=_PADDING, eos_token_id=_END, **sizes))
    made.loss_type, made.warnings_issued = "ForCausalLM", {}  # the latter was a model's until transformers 5
    return made


def token_ids(mask: Any, ended: bool = False) -> list[list[int]]:
    """Number the tokens of :func:`token_table`'s rows: the first of each, and those of a row that the mask counts.

    :param ended: whether the end of the text stands for the last of them.
    """
    width = mask.shape[1] + 2
    found = []
    for row, counts in enumerate(mask.tolist()):
        places = [0, *(place + 1 for place, kept in enumerate(counts) if kept)]
        ids = [_FIRST + row * width + place for place in places]
        found.append([*ids[:-1], _END] if ended and len(ids) > 1 else ids)
    return found


def table_tokenizer(model: Any) -> Any:
    """Make the tokenizer of a :func:`token_table`: a word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")

    words = {"<pad>": _PADDING, "<end>": _END, "<else>": _ELSE}
    words.update({f"w{token}": token for token in range(_FIRST, model.config.vocab_size)})
    made = Tokenizer(models.WordLevel(words, unk_token="<else>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<else>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def one_step(rows: int, micro_batch_size: int | None) -> dict[str, Any]:
    """Choose training arguments: one step of the optimiser on so many rows, which changes nothing."""
    size = micro_batch_size or rows
    return {
        "output_dir": "unused", "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no",
        "disable_tqdm": True, "logging_nan_inf_filter": False, "gradient_checkpointing": False, "max_steps": 1,
        "learning_rate": 0.0, "max_grad_norm": 0.0, "per_device_train_batch_size": size,
        "gradient_accumulation_steps": rows // size,
    }  # fmt: skip


def trained(trainer: Any, model: Any) -> tuple[float, Any]:
    """Let a trainer of transformers train a :func:`token_table`: the loss that it reports, and all the gradient that
    has arrived at the table, that of first tokens and of what comes after the last ones among it."""
    import torch

    table = model.model.table
    arrived = torch.zeros_like(table)

    def add(gradient: Any) -> None:
        arrived.add_(gradient)

    table.register_hook(add)
    with own_randomness():
        return trainer.train().training_loss, arrived


def configured_by(boundary: Any) -> Any:
    """Give the class of the configuration of a trainer of transformers, which is named after it."""
    return getattr(boundary.module, boundary.owner.__name__.replace("Trainer", "Config"))


def built(
    boundary: Any,
    table: Any,
    micro: int | None,
    rows: list[dict[str, Any]],
    options: Mapping[str, Any],
    after: Any = None,
    scores: bool = False,
    **parts: Any,
) -> tuple[Any, Any]:
    """Make a trainer of transformers, of these rows, and the :func:`token_table` that it trains."""
    datasets: Any = importlib.import_module("datasets")

    datasets.disable_progress_bars()
    made = configured_by(boundary)
    args = made(**{**one_step(len(rows), micro), **accepted(made, options)})
    model = token_table(table, after, scores=scores)
    tokenizer = table_tokenizer(model)
    by_name = stand_in(from_pretrained=partial(itself, tokenizer))
    silent = swapped(boundary.owner, "_send_telemetry", lambda *_: None)
    with silent, swapped(boundary.module, "AutoTokenizer", by_name), own_randomness():
        trainer = boundary.owner(
            model=model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer, **parts
        )
    return trainer, model


@contextmanager
def own_randomness() -> Iterator[None]:
    """Give the global generators back what they had: trainers seed them."""
    import random

    import numpy
    import torch

    kept = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        numpy.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


def with_gradient(loss: float, table: Any, gradient: Any) -> Any:
    """Give a number the gradient that was seen, so that a contract can take it."""
    return loss + (gradient * (table - table.detach())).sum()


def answered(known: Mapping[int, Any], input_ids: Any, *_: Any, **options: Any) -> Any:
    """What a model generates: to a prompt that is given for the first time its first answer, then its second."""
    import torch

    left = {prompt: list(answers) for prompt, answers in known.items()}
    answers = [left[prompt].pop(0) for prompt in input_ids[:, -1].tolist()]
    width = max(map(len, answers))
    padded = torch.tensor([answer + [0] * (width - len(answer)) for answer in answers])
    whole = torch.cat([input_ids, padded.to(input_ids)], dim=1)
    return stand_in(sequences=whole) if options.get("return_dict_in_generate") else whole


def prompted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of prompts of one token, each with a completion."""
    import torch

    prompts = torch.tensor([[row["first"]] for row in rows])
    completions = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["rest"]) for row in rows], batch_first=True)
    counts, ones = (completions != 0).long(), torch.ones_like(prompts)
    labels = torch.cat([ones * -100, completions.masked_fill(counts == 0, -100)], dim=1)
    return {"input_ids": torch.cat([prompts, completions], dim=1), "attention_mask": torch.cat([ones, counts], dim=1),
            "labels": labels, "prompts": prompts, "prompt_attention_mask": ones}  # fmt: skip


# -- adapters/trl.py


def _taught(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Prompts whose completions are the student's own, of the scenario, while those in the data set have one token; or
    the other way round."""
    mask, generated = inputs["response_mask"], inputs["generated"]
    ids = token_ids(mask, ended=True)
    if min(map(len, ids)) < 2:
        raise AbsentError("a completion has a token")
    known = {"beta": inputs["beta"], "temperature": inputs["temperature"], "lmbda": float(generated),
             "max_new_tokens": mask.shape[1], "max_completion_length": mask.shape[1],
             "dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False,
             "distillation_objective": "jsd", "loss_top_k": 0}  # fmt: skip
    rows = [{"first": row[0], "rest": row[1 : 2 if generated else None]} for row in ids]
    trainer, model = built(
        boundary, inputs["logits"], inputs["micro_batch_size"], rows,
        accepted(configured_by(boundary), known, known),
        teacher_model=token_table(inputs["teacher_logits"]), data_collator=prompted,
    )  # fmt: skip
    model.generate = partial(answered, {row[0]: (row[1:],) for row in ids})
    loss, arrived = trained(trainer, model)
    return {"loss": with_gradient(loss, inputs["logits"], arrived[:, 1:-1])}


# -- the case

CASE = {
    'bug_id': 'TRL-GKD-ON-POLICY-COUNTS-DATASET',
    'evidence': {
        'base': 'reproduced at git:f2cd57710ae345ea6428ae95363267fcf38a3dc8',
        'head': 'fixed at git:f2cd57710ae345ea6428ae95363267fcf38a3dc8 with its fix',
    },
    'boundary': [
        'trl.experimental.gkd.gkd_trainer.GKDTrainer.training_step', 'trl.trainer.gkd_trainer.GKDTrainer.training_step',
    ],
    'imports': [],
    'binding': {'arguments': {}, 'constants': {}, 'outputs': [], 'like': ''},
    'given': ['beta', 'logits', 'response_mask', 'teacher_logits'],
    'requires': [],
    'packages': ['trl'],
    'import_roots': ['.'],
    'preload': [
        'transformers', 'transformers.trainer', 'transformers.models.auto.processing_auto', 'torch.distributed.fsdp',
        'accelerate', 'datasets', 'huggingface_hub', 'pyarrow', 'requests',
    ],
    'at_import': {
        'transformers.top_k_top_p_filtering': Alias('transformers.TopKLogitsWarper'),
        'transformers.models.auto.modeling_auto.MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES': Alias('transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES'),
    },
    'stub_versions': {},
    'stands_for': [],
    'needs': {
        'accelerate': 'accelerate',
        'datasets': 'datasets',
        'packaging': 'packaging',
        'pandas': 'pandas',
        'psutil': 'psutil',
        'transformers': 'transformers',
    },
    'scenario': {
        'logits': {'$tensor': [[[0.0, 2.0], [0.0, 2.0]], [[0.0, 2.0], [0.0, 0.0]]], 'dtype': 'float32'},
        'teacher_logits': {'$tensor': [[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]], 'dtype': 'float32'},
        'response_mask': {'$tensor': [[1, 1], [1, 0]], 'dtype': 'int64'},
        'beta': 0.0,
        'temperature': 1.0,
        'generated': True,
        'micro_batch_size': None,
    },
    'variants': {'': {}},
    'expected': {'loss': {'of': [''], 'key': 'loss', 'bug': 0.6506712298193246, 'right': 0.4337808198795497}},
}

#: What :func:`main` is asked.
QUESTION = (CASE, _measure_distillation_loss, _taught)

if __name__ == "__main__":
    main(*QUESTION)
