#!/usr/bin/env python3
"""NEMORL-HELPSTEER3-ANSWER-IN-PROMPT: the prompt of GRPO ends with the answer that its reward compares with

Calls nemo_rl.data.processors.helpsteer3_data_processor of a checkout of
https://github.com/NVIDIA-NeMo/RL, and prints what it answers.

    TARGET_REPO=/path/to/nemorl python run_validation.py

Needs Python 3.10 or newer, torch, numpy; no GPU. What else the checkout imports and
is not installed is stubbed, and refused if it is used.
Exit status: 0 the right values, 1 those of the bug, 2 neither, 3 nothing could be decided.

What is to be read are lines 1039 to 1186. What stands before is the same in every runner, whatever the bug.
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


# -- sentinel/contracts/call.py


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested containers and attribute holders with its dotted path."""
    from types import SimpleNamespace

    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}" if path else str(index))
    else:
        yield path, value


def _snapshot(arguments: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    return {
        path: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for path, leaf in _leaves(arguments)
    }


def _same(left: Any, right: Any) -> bool:
    import torch

    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and torch.equal(left.nan_to_num(), right.nan_to_num())
        )
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return False
    return left is right or (type(left) is type(right) and repr(left) == repr(right))


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call once; observe the answer, the gradients of the sum of all differentiable outputs, and what was mutated."""
    import torch

    given = {"self": inputs["self"], "positional": inputs["positional"], **inputs["arguments"]}
    before = _snapshot(given)
    raised = None
    returned = None
    try:
        returned = call(**inputs)["returned"]
    except Exception as error:
        if not inputs["catch"]:
            raise
        raised = {"type": type(error).__name__, "message": str(error)}
    outputs = [leaf for _, leaf in _leaves(returned) if isinstance(leaf, torch.Tensor)]
    live = [leaf for leaf in outputs if leaf.requires_grad and leaf.grad_fn is not None]
    if live:
        torch.autograd.backward(torch.stack([leaf.sum() for leaf in live]).sum())
    after = _snapshot(given)
    tensors = {path: leaf for path, leaf in _leaves(given) if isinstance(leaf, torch.Tensor)}
    return {
        "returned": returned,
        "raised": raised,
        "gradients": {path: leaf.grad for path, leaf in tensors.items() if leaf.requires_grad and leaf.is_leaf},
        "mutated": sorted(
            path
            for path in {*before, *after}
            if path not in before or path not in after or not _same(before[path], after[path])
        ),
        "arguments": {
            path: value for path, value in after.items() if isinstance(value, (torch.Tensor, int, float, str))
        },
        "dtypes": {
            path or "returned": leaf.dtype for path, leaf in _leaves(returned) if isinstance(leaf, torch.Tensor)
        },
    }


# -- adapters/nemorl.py


class _Words:
    """A tokenizer and its template: a word is a token, and a message its words."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **_: Any) -> str:
        return " ".join(message["content"] for message in messages)

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        import torch

        return {"input_ids": torch.tensor([[int(word) for word in text.split()]])}


def _prompted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens that generation goes on from."""
    found = boundary.function(inputs["arguments"], None, _Words(), 100, 0)
    return {"returned": [token for message in found["message_log"] for token in message["token_ids"].tolist()]}


# -- the case

CASE = {
    'bug_id': 'NEMORL-HELPSTEER3-ANSWER-IN-PROMPT',
    'evidence': {
        'base': 'reproduced at git:7ea279abfbeb698b092856d0dab61e7cf39bc909',
        'head': 'fixed at git:7ea279abfbeb698b092856d0dab61e7cf39bc909 with its fix',
    },
    'boundary': [
        'nemo_rl.data.processors.helpsteer3_data_processor',
        'nemo_reinforcer.data.processors.helpsteer3_data_processor',
    ],
    'imports': [],
    'binding': {'arguments': {}, 'constants': {}, 'outputs': [], 'like': ''},
    'given': ['arguments'],
    'requires': [],
    'packages': ['nemo_rl', 'nemo_reinforcer'],
    'import_roots': ['.'],
    'preload': ['torch._dynamo', 'pydantic', 'transformers', 'transformers.models.auto.processing_auto', 'requests'],
    'at_import': {'transformers.__version__': '5.11.0', 'typing.TypedDict': Alias('typing_extensions.TypedDict')},
    'stub_versions': {},
    'stands_for': [],
    'needs': {},
    'scenario': {
        'arguments': {
            'context': [{'role': 'user', 'content': '1 2'}],
            'response': [{'role': 'assistant', 'content': '3 4'}],
        },
        'positional': [],
        'self': None,
        'catch': False,
    },
    'variants': {'': {}},
    'expected': {'returned': {'of': [''], 'key': 'returned', 'bug': [1, 2, 3, 4], 'right': [1, 2]}},
}

#: What :func:`main` is asked.
QUESTION = (CASE, _measure, _prompted)

if __name__ == "__main__":
    main(*QUESTION)
