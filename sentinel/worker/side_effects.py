"""Record the side effects of a call: changed inputs, changed global state, and values passed to other objects."""

from __future__ import annotations

import enum
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import CodeType
from typing import Any

import numpy as np
import torch

from sentinel.worker import tensors
from sentinel.worker.altering import alter
from sentinel.worker.answers import ANOTHER, GRADIENT, NUMBERS, TEXTS
from sentinel.worker.stubs import StubModule

#: The depth to which the parts of a nested value are compared.
_DEPTH = 4

#: Recording limits: values per expression and call, and parts per value (see :func:`parts`).
_TIMES, _PARTS = 20, 20

#: A pattern for memory addresses and line numbers in texts, which differ between equal runs or revisions.
_PLACES = re.compile(r"\b0x[0-9a-f]+|(?<=\.py:)\d+|(?<=line )\d+")


class Watch:
    """Calls the boundary, and records which inputs and which global state the call changes."""

    def __init__(self, call: Callable[..., Mapping[str, Any]]) -> None:
        self._call = call
        self.mutated: list[str] = []
        self.changed: list[str] = []

    def __call__(self, /, **inputs: Any) -> Mapping[str, Any]:
        values, state = _values(inputs), global_state()
        outputs = self._call(**inputs)
        after = _values(inputs)
        self.mutated += [name for name in inputs if values[name] != after[name] and name not in self.mutated]
        now = global_state()
        self.changed += [name for name in state if state[name] != now[name] and name not in self.changed]
        return outputs

    def effects(self) -> dict[str, Any]:
        return {"mutated": sorted(self.mutated), "globals": sorted(self.changed)}


class Recorder:
    """Records the values of expressions while a call runs.

    :param roots: the folders of the framework's code.
    """

    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = roots
        self.begin()

    def begin(self) -> None:
        """Prepare for the next call."""
        self._whole: dict[str, Any] = {}
        self._inside: dict[tuple[str, str], dict[str, Any]] = {}
        self._times: Counter[tuple[str, str]] = Counter()

    def recorded(self) -> dict[str, Any]:
        """Return the recorded values of the call, by path."""
        return {**self._whole, **{key: each for found in self._inside.values() for key, each in found.items()}}

    def record(self, value: Any, function: str, name: str, part: str) -> Any:
        """Record the parts of a value, because the value itself may change later.

        :param name: the name of the expression.
        :param part: the text of a subexpression if ``value`` is the value of that subexpression; empty if it is the
            value of the whole expression. Values of subexpressions are kept only if the call ends before the whole
            expression has a value.
        """
        outer = function, name
        self._times[outer] += not part
        if self._times[outer] > _TIMES:
            return value
        trace = sys.gettrace()
        sys.settrace(None)  # reading the parts may run the framework's code
        try:
            with suppress(Exception):  # reading an attribute of the framework's own object may raise
                now = list(value[:_PARTS]) if isinstance(value, range) else value
                path, times = f"local.{part or name}", self._times[outer] + bool(part)
                found = {
                    f"{function}({times}): {key}": each for key, each in islice(parts(now, path, self._roots), _PARTS)
                }
                if part:
                    self._inside.setdefault(outer, {}).update(found)
                else:
                    self._whole.update(found)
                    self._inside.pop(outer, None)
        finally:
            sys.settrace(trace)
        return value


def _values(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensors.observe(value) for name, value in inputs.items()}


def global_state() -> dict[str, Any]:
    """Return the global state that a call may change, such as random generators and default dtypes."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "random": random.getstate(),
        "numpy.random": (kind, keys.tobytes(), *rest),  # type: ignore[union-attr]
        "torch.random": torch.default_generator.get_state().numpy().tobytes(),
        "torch.default_dtype": torch.get_default_dtype(),
        "torch.grad_enabled": torch.is_grad_enabled(),
        "torch.inference_mode": torch.is_inference_mode_enabled(),
        "torch.deterministic": torch.get_deterministic_debug_mode(),
        "torch.num_threads": torch.get_num_threads(),
        "os.environ": dict(os.environ),
    }


def turned(value: Any, settings: Mapping[str, Any], depth: int = _DEPTH) -> Iterator[Callable[[], None]]:
    """Set options in every configuration that a value is or contains, and yield functions that restore the old
    values."""
    kind = type(value)
    if not depth or issubclass(kind, (str, StubModule, *_PLAIN)) or kind.__module__ == "unittest.mock":
        return
    if issubclass(kind, (list, tuple)):
        for item in value:
            yield from turned(item, settings, depth - 1)
        return
    keys = hasattr(kind, "keys") and hasattr(kind, "__setitem__")
    own = value if keys else getattr(value, "__dict__", {})
    write = partial(kind.__setitem__ if keys else object.__setattr__, value)
    for name in [name for name in own if isinstance(name, str)]:
        with suppress(Exception):  # an attribute cannot be read or set
            part = own[name]
            if name not in settings:
                yield from turned(part, settings, depth - 1)
            elif (new := _replacement(name, part, settings[name], own)) is not _SAME:
                write(name, new)
                yield partial(write, name, part)


_SAME = object()


def _replacement(name: str, part: Any, value: Any, others: Mapping[str, Any]) -> Any:
    """Return the value that an option takes instead of ``part``, or :data:`_SAME` if the setting does not fit.

    A setting may be a plain value, which also replaces all items of a list of such values, or one of these:

    * ``{"some": True}`` replaces None by the value of the argument with the most similar name. If that value is a mask
      and the option is not, numbers of the mask's shape are used instead.
    * ``{"member": NAME}`` replaces an enum member by the member NAME.
    * ``{"dims": n}`` gives a tensor n dimensions.
    * ``{"nested": True}`` replaces each item of a list by a list.
    * ``{"listed": True}`` replaces a value that is not a list by a list.
    * ``{"another": True}`` replaces a value by another one of its type. None is replaced as by ``{"some": True}``, or
      by True.
    """
    if value == ANOTHER:
        if part is None:
            other = _replacement(name, part, {"some": True}, others)
            return True if other is _SAME else other
        other = alter(part, 0)
        return other if isinstance(other, type(part)) else _SAME  # an object of the framework has no other value
    if isinstance(value, dict):
        if isinstance(part, enum.Enum) and value.get("member") in type(part).__members__:
            return type(part)[value["member"]]
        if "dims" in value and isinstance(part, torch.Tensor):
            return _with_dimensions(part, value["dims"])
        if "nested" in value and isinstance(part, (list, np.ndarray)) and len(part):
            return [[item, item] for item in part]
        if "listed" in value and part is not None and not isinstance(part, list):
            return list(part) if isinstance(part, (torch.Tensor, tuple)) and len(part) else [part]
        if part is not None or "some" not in value:
            return _SAME
        words = name.split("_")
        alike = {
            other: len({*words} & {*other.split("_")}) + 2 * (other.split("_")[-1] == words[-1])
            for other in others
            if isinstance(other, str) and others[other] is not None and not isinstance(others[other], (str, bool))
        }
        best = max(alike, key=lambda other: alike[other], default="")
        return _spread(name, others[best]) if alike.get(best) else _SAME
    if value is None or part is None or type(part) is type(value):
        return value if part is not value else _SAME
    if isinstance(part, enum.Enum) and isinstance(value, str):
        return next((each for each in type(part) if value in (each.value, each.name)), _SAME)
    if type(part) is float and type(value) is int:
        return float(value)
    if type(part) in (list, tuple) and part and type(part[0]) is type(value):  # loss_type = ["sigmoid"]
        return type(part)([value])
    return _SAME


def _with_dimensions(value: torch.Tensor, dims: int) -> Any:
    """Return a tensor with this number of dimensions. If dimensions are added, the values differ along each of them; if
    dimensions are removed, the first part is kept."""
    if value.dim() == dims:
        return _SAME
    while value.dim() > dims:
        value = value[0]
    while value.dim() < dims:  # positions have three axes: time, height and width
        steps = torch.arange(3, device=value.device).to(value.dtype)
        value = value.unsqueeze(0) + steps.reshape(3, *[1] * value.dim())
    return value


def _other_text(value: Any, way: str | int) -> Any:
    """Return the text changed in one way: with blanks around it, with swapped case, empty, or with more words after it.

    Return :data:`_SAME` if the value is neither a string nor a list of strings."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return [_other_text(item, way) for item in value]
    if not isinstance(value, str):
        return _SAME
    if isinstance(way, int):
        return value + (" so" * way)[:way]
    return {"blanks": f" \t{value}\u00a0\n", "case": value.swapcase(), "empty": ""}[way]


def _other_number(value: Any, way: str) -> Any:
    """Return a number, or a list of numbers, as a tensor or array. In a dictionary, convert the values."""
    if isinstance(value, dict) and value:
        new = {key: _other_number(item, way) for key, item in value.items()}
        return {key: value[key] if item is _SAME else item for key, item in new.items()}
    items = value if isinstance(value, list) and value else [value]
    if not all(type(item) in (int, float) for item in items):
        return _SAME
    return torch.tensor(value) if way == "tensor" else np.array(value)[()]


def _spread(name: str, value: Any) -> Any:
    """Return a value for the option ``name``: usually ``value``; but if ``value`` is a mask and the option is not,
    numbers below, at and above 1."""
    if "mask" in name or not isinstance(value, torch.Tensor) or value.dtype.is_complex:
        return value
    if value.dtype.is_floating_point and not ((value == 0) | (value == 1)).all():
        return value
    return (torch.arange(value.numel(), dtype=torch.float32).reshape(value.shape) + 1) / 2


def argument_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of a function's arguments."""
    many = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:many]


def replaced_arguments(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that a call's settings replace, each with its new value."""
    changes: tuple[tuple[Callable[[Any, Any], Any], Any], ...]
    changes = (_other_text, settings.get(TEXTS)), (_other_number, settings.get(NUMBERS))
    longest = max(
        (name for name, each in arguments.items() if type(each) is str),
        key=lambda each: len(arguments[each]),
        default="",
    )
    for change, way in changes:
        names = [longest] if type(way) is int and longest else [name for name in arguments if name != "self"]
        for name in names if way is not None else ():
            new = change(arguments[name], way)
            if new is not _SAME:
                yield name, new
    for name, value in settings.items():
        if name in arguments and name != "self":
            new = _replacement(name, arguments[name], value, arguments)
            if new is not _SAME:
                yield name, new


def hidden_state(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the private attributes of ``self``, in which classes keep metrics and counters."""
    own = getattr(arguments.get("self"), "__dict__", {})
    module = "_parameters" in own  # the private attributes of a torch.nn.Module belong to torch
    names = [name for name in own if isinstance(name, str) and name.startswith("_") and not name.startswith("__")]
    return {f"given.self.{name}": own[name] for name in ([] if module else names)}


def shared_parts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tensors in a value that share memory, so that writing to one changes the other."""
    owners: dict[int, str] = {}
    for place, tensor in _tensors(value, path):
        storage = tensor.untyped_storage().data_ptr() if tensor.numel() else 0
        first = owners.setdefault(storage, place) if storage else place
        if first != place:
            yield f"{place} shares memory with {first}", ""


def gradients(value: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients of all leaves on which the differentiable tensors in a value depend.

    The upstream gradients differ from tensor to tensor, so that swapped tensors give different gradients.

    :param arguments: the arguments of the call. A leaf among them is identified by its path, any other by its number.
    """
    outputs = [each for _, each in _tensors(value, "") if each.grad_fn is not None and each.is_floating_point()]
    leaves: dict[int, torch.Tensor] = {}
    nodes: list[Any] = [each.grad_fn for each in outputs]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop(0)
        if node is not None and node not in seen:
            seen.add(node)
            leaf = getattr(node, "variable", None)
            leaves |= {} if leaf is None else {id(leaf): leaf}
            nodes += [each for each, _ in node.next_functions]
    if not leaves:
        return {}
    upstream = [
        ((torch.arange(each.numel(), device=each.device) % 7 + 1 + 3 * place) / 4).to(each.dtype).reshape(each.shape)
        for place, each in enumerate(outputs)
    ]
    found = torch.autograd.grad(outputs, [*leaves.values()], upstream, retain_graph=True, allow_unused=True)
    paths = {id(each): path for name, one in arguments.items() for path, each in _tensors(one, name)}
    names = [paths.get(number, str(place)) for place, number in enumerate(leaves)]
    return {f"{GRADIENT}{name}": each for name, each in zip(names, found)}


def require_gradients(arguments: Mapping[str, Any]) -> None:
    """Make all floating-point tensors in the arguments of a call require gradients."""
    for _, each in (pair for name, one in arguments.items() for pair in _tensors(one, name)):
        if each.is_leaf and each.is_floating_point() and not each.is_inference():
            each.requires_grad_()


def _tensors(value: Any, path: str, depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    if type(value) is torch.Tensor and value.layout is torch.strided and value.device.type != "meta":
        yield path, value
    elif depth and type(value) in (dict, list, tuple):
        for key, item in value.items() if type(value) is dict else enumerate(value):
            yield from _tensors(item, f"{path}.{key}", depth - 1)
    elif depth and isinstance(own := getattr(value, "__dict__", None), dict) and not callable(value):
        for name, item in list(own.items()):
            yield from _tensors(item, f"{path}.{name}", depth - 1)


_PLAIN = (bool, int, float, enum.Enum, torch.Tensor, np.ndarray, np.generic, torch.dtype, torch.device, type(None))


def parts(value: Any, path: str, roots: tuple[str, ...] = (), depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value with their paths: items, public attributes, and the weights and gradients of a
    model."""
    kind = type(value)
    if issubclass(kind, str):
        for root in roots:
            value = value.replace(root, "")
        yield path, _PLACES.sub("", value)
    elif issubclass(kind, _PLAIN):
        try:
            yield path, tensors.observe(value)
        except (TypeError, RuntimeError):
            yield path, f"{kind.__name__} {list(value.shape)}"
    elif issubclass(kind, StubModule) or kind.__module__ == "unittest.mock" or not depth:
        yield path, kind.__name__
    elif issubclass(kind, torch.nn.Module):
        for name, weight in value.named_parameters():
            yield from parts((weight, weight.grad), f"{path}.{name}", roots, depth - 1)
    elif issubclass(kind, Mapping) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__")):
        for key in list(value.keys()):
            with suppress(Exception):  # a configuration may lack a required attribute
                yield from parts(value[key], f"{path}.{key}" if path else str(key), roots, depth - 1)
    elif issubclass(kind, (set, frozenset)):
        yield path, sorted(map(str, value))
    elif issubclass(kind, (list, tuple)) and value and all(type(item) in (int, float, bool) for item in value):
        yield path, tensors.observe(np.array(value, np.float64))
    elif issubclass(kind, (list, tuple)):
        yield f"{path} has", len(value)
        for place, item in enumerate(value):
            yield from parts(item, f"{path}.{place}", roots, depth - 1)
    elif callable(value) or not isinstance(own := getattr(value, "__dict__", None), dict):
        yield path, getattr(value, "__name__", kind.__name__)
    else:
        yield path, kind.__name__
        for name in [name for name in own if isinstance(name, str) and not name.startswith("_")]:
            yield from parts(own[name], f"{path}.{name}", roots, depth - 1)
