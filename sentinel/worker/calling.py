"""Find a framework's function in a checkout, and call it with the parameter names that this revision uses."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any

from sentinel.binding.drift import DriftError, UnknownInputError
from sentinel.targets import Alias, Binding
from sentinel.worker import trace


@dataclass(frozen=True)
class Boundary:
    """A function or method of the framework, and how to call it.

    :ivar function: the callable that the framework's own code would get from ``path``.
    :ivar scenario_inputs: the inputs that the scenario sets. If the boundary has no parameter for one of them and its
        value is not None, the call raises :class:`UnknownInputError`. Other inputs without a parameter are omitted.
    :ivar own_inputs: for a registered function (:class:`~sentinel.targets.Registry`), all inputs by name. They supply
        parameters that only this function has.
    :ivar member: for a registered function, the function of the same registry whose binding it uses.
    """

    path: str
    module: ModuleType
    function: Callable[..., Any]
    owner: type | None
    binding: Binding
    scenario_inputs: frozenset[str] = frozenset()
    device: str = "cpu"
    imported: Mapping[str, ModuleType] = field(default_factory=dict)
    own_inputs: Mapping[str, Any] = field(default_factory=dict)
    member: Callable[..., Any] | None = None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Return the function's parameters by name. For a registered function with ``**kwargs``, include the parameters
        of ``member``."""
        own = inspect.signature(self.function).parameters
        if self.member is None or all(each.kind is not each.VAR_KEYWORD for each in own.values()):
            return own
        others = {
            name: each.replace(kind=each.KEYWORD_ONLY, default=None)
            for name, each in inspect.signature(self.member).parameters.items()
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        }
        return {**own, **{name: each for name, each in others.items() if name not in own}}

    def invoke(self, inputs: Mapping[str, Any], /, *positional: Any, **upstream: Any) -> Any:
        """Call the framework's function with these inputs, matched to its parameters by name.

        :param positional: leading arguments, such as ``self`` of a method that was looked up on its class.
        :param upstream: further arguments under the framework's names. Names that the function lacks are omitted.
        :raises DriftError: if an input that the scenario sets has no parameter, or a parameter without a default has no
            value.
        """
        parameters = self.parameters
        arguments = self._bind(inputs, parameters)
        for name, value in {**self.binding.constants, **upstream}.items():
            if name in parameters:
                arguments.setdefault(name, value)
        names = list(parameters)
        for name in names[len(positional) :]:
            parameter = parameters[name]
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            lacks = parameter.default in (parameter.empty, None) and name not in arguments
            if lacks and self.own_inputs.get(name) is not None:
                arguments[name] = self.own_inputs[name]
            elif parameter.default is parameter.empty and not variadic and name not in arguments:
                raise DriftError(f"{self.path}{inspect.signature(self.function)} now requires {name!r}")
        return self.function(*positional, **arguments)

    def _bind(self, inputs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name, value in inputs.items():
            candidates = self.binding.arguments.get(name, (name,))
            parameter = next((candidate for candidate in candidates if candidate in parameters), None)
            if parameter is not None:
                if value is not None or name in self.scenario_inputs:
                    arguments[parameter] = value
            elif name in self.scenario_inputs and value is not None:
                raise UnknownInputError(
                    f"{self.path}{inspect.signature(self.function)} has no parameter for {name!r} "
                    f"(looked for {', '.join(candidates)}; it has {', '.join(parameters)})",
                    name,
                )
        return arguments

    def __call__(self, /, **inputs: Any) -> Mapping[str, Any]:
        """Call the boundary with inputs, and return outputs, under the contract's names."""
        if self.binding.call is not None:
            boundary = replace(self, own_inputs=inputs) if self.binding.like else self
            outputs = self.binding.call(boundary, inputs)
            return outputs if isinstance(outputs, Mapping) else self._outputs(outputs)
        return self._outputs(self.invoke(inputs))

    def _outputs(self, returned: Any) -> Mapping[str, Any]:
        names = self.binding.outputs
        if isinstance(returned, Mapping):
            missing = [name for name in names if name not in returned]
            if missing:
                raise DriftError(
                    f"{self.path} did not return {missing[0]!r}; it returned {', '.join(map(str, returned))}"
                )
            return {name: returned[name] for name in names} if names else dict(returned)
        if len(names) == 1:
            return {names[0]: returned[0] if isinstance(returned, tuple) else returned}
        if not isinstance(returned, tuple) or len(returned) < len(names):
            raise DriftError(
                f"{self.path} returned {type(returned).__name__}, not the {len(names)} values {', '.join(names)}"
            )
        return dict(zip(names, returned))  # later versions may append values to the tuple


def module_of(path: str, roots: tuple[str, ...]) -> str | None:
    """Return the longest prefix of a dotted path that is a module in one of the import roots."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        relative = os.path.join(*parts[:end])
        for root in roots:
            base = os.path.join(root, relative)
            if os.path.isfile(f"{base}.py") or os.path.isfile(os.path.join(base, "__init__.py")):
                return ".".join(parts[:end])
    return None


def import_whole(name: str) -> ModuleType:
    """Import a module; if that fails, remove the submodules that are left in ``sys.modules`` without their package.

    Otherwise the next import of such a submodule would fail because of the missing package, and hide the real cause."""
    try:
        return importlib.import_module(name)
    except BaseException:
        top = name.partition(".")[0]
        for other in sorted(item for item in sys.modules if item.startswith(f"{top}.")):
            if other.rpartition(".")[0] not in sys.modules:
                del sys.modules[other]
        raise


def resolve(path: str, roots: tuple[str, ...], near: bool = True) -> tuple[ModuleType, Any, type | None]:
    """Import the module in a dotted path and look up the remaining names. Return the module, the object, and the class
    that has the object (None if it is not in a class).

    :param near: whether the error suggests a similar definition, for which the whole checkout is searched.
    :raises DriftError: if the module or the attribute is not in this checkout.
    """
    name = module_of(path, roots)
    attributes = path.split(".")
    if name is None or len(name.split(".")) == len(attributes):
        raise DriftError(f"{path} is not in this checkout{_nearest_definition(attributes[-1], roots) if near else ''}")
    module = import_whole(name)
    value: Any = module
    owner: type | None = None
    prefix = name
    for attribute in attributes[len(name.split(".")) :]:
        owner = value if isinstance(value, type) else None
        if not hasattr(value, attribute):
            nearest = _hint_of_similar_name(path, value, attribute, roots) if near else ""
            raise DriftError(f"{prefix} has no {attribute!r} in this checkout{nearest}")
        value = getattr(value, attribute)
        prefix = f"{prefix}.{attribute}"
    return module, value, owner


def is_registered(path: str, roots: tuple[str, ...]) -> bool:
    """Return True if a registry of the framework contains the function at a dotted path, or the function's class.

    A registry is a mapping in a module, or an attribute of a module's classes and objects that is a mapping.
    """
    try:
        _, function, owner = resolve(path, roots, near=False)
    except DriftError:
        return False
    sought = inspect.unwrap(owner or function)
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None) or "").startswith(roots):
            for value in list(vars(module).values()):
                for table in (value, *getattr(value, "__dict__", {}).values()):
                    if isinstance(table, Mapping) and any(_leads_to(each, sought) for each in list(table.values())):
                        return True
    return False


def _leads_to(value: Any, sought: Any) -> bool:
    """Return True if a registry's value is ``sought``, a wrapper of it, or a tuple or list that contains either."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(callable(part) and inspect.unwrap(part) is sought for part in parts)


def _hint_of_similar_name(path: str, owner: Any, attribute: str, roots: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(attribute, dir(owner), 1)
    there = f"; the nearest there is {near[0]!r}" if near else ""
    last = path.rpartition(".")[2]
    if attribute == last:
        return there or _nearest_definition(last, roots)
    return f"; looked for {path}{_nearest_definition(last, roots) or there}"


@trace.paused()  # the files are read only for a message, which does not affect the verdict
def _nearest_definition(name: str, roots: tuple[str, ...]) -> str:
    """Return a hint for an error message: another place that defines this name. Files are read as text, never
    imported."""
    pattern = re.compile(rf"^\s*(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", re.MULTILINE)
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for file in sorted(files):
                if file.endswith(".py"):
                    full = os.path.join(folder, file)
                    with open(full, encoding="utf-8", errors="replace") as handle:
                        match = pattern.search(text := handle.read())
                    if match:
                        line = text.count("\n", 0, match.start() + len(match.group()) - len(match.group().lstrip())) + 1
                        return f"; {name!r} is defined in {os.path.relpath(full, root)}:{line}"
    return ""


def has(path: str, roots: tuple[str, ...]) -> bool:
    """Return True if the checkout has this module, attribute, class field, or parameter (``path(parameter)``)."""
    parameter = ""
    if path.endswith(")"):
        path, _, parameter = path[:-1].partition("(")
    owner_path, _, last = path.rpartition(".")
    if module_of(path, roots) == path:
        return True
    try:
        if parameter:
            return parameter in inspect.signature(resolve(path, roots, near=False)[1]).parameters
        if module_of(owner_path, roots) == owner_path:
            return hasattr(import_whole(owner_path), last)
        owner = resolve(owner_path, roots, near=False)[1]
    except DriftError:
        return False
    tables = (getattr(owner, name, {}) for name in ("__dataclass_fields__", "__annotations__"))
    return hasattr(owner, last) or any(last in table for table in tables)


def source_of(function: Any) -> tuple[str, int, str]:
    """Return the file, line and signature of the function behind a callable. Wrappers with ``__wrapped__`` are
    unwrapped."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    code = getattr(inner, "__code__", None)
    if code is None:
        module = sys.modules.get(getattr(inner, "__module__", ""), None)
        return str(getattr(module, "__file__", "")), 0, ""
    try:
        signature = str(inspect.signature(function))
    except (TypeError, ValueError):
        signature = ""
    # Signatures in evidence must be the same in every run, but the repr of a default may contain a memory address.
    return code.co_filename, code.co_firstlineno, re.sub(r" at 0x[0-9a-f]+", "", signature)


def answer_at_import(answers: Mapping[str, Any], roots: tuple[str, ...]) -> None:
    """Replace attributes that the framework reads or calls during import by the adapter's values
    (``Target.at_import``)."""
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
            module, _, member = answer.path.rpartition(".")
            with contextlib.suppress(ImportError, AttributeError):  # this environment may lack either module
                setattr(owner, attribute, getattr(importlib.import_module(module), member))
        elif hasattr(owner, attribute):
            is_call = callable(getattr(owner, attribute))
            setattr(owner, attribute, (lambda *_, _answer=answer, **__: _answer) if is_call else answer)


def import_quietly(path: str, roots: tuple[str, ...]) -> None:
    """Import a module in advance, and ignore failures, because the probe that needs the module reports them."""
    name = module_of(path, roots)
    if name is not None:
        with contextlib.suppress(BaseException):
            import_whole(name)
