"""Record the calls of a framework's function, for a script that repeats them without Sentinel."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from sentinel.binding.drift import StandInNamespace
from sentinel.worker import tensors

#: A value as data, ``[kind, ...]``:
#:
#: * ``value``: a plain scalar
#: * ``tensor``: a tensor; ``leaf``: a tensor that requires gradients
#: * ``array``: dtype and items
#: * ``list``, ``tuple``: items
#: * ``dict``: pairs of key and value
#: * ``new``: path of a class, and the arguments for its constructor
#: * ``made``: path of a class, and the attributes of an instance that was made without the constructor
#: * ``bare``: as ``made``, for an instance without attributes: path of the class
#: * ``other``: a value that cannot be recorded, described by a text such as the name of its type
Node = list[Any]

_PLAIN = (type(None), bool, int, float, str)


def observe_calls(
    measure: Callable[[Any, Mapping[str, Any]], Any], boundary: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Call a boundary once. Return ``{"calls": [...]}``: the arguments and the result of each call of its function.

    :param boundary: a :class:`sentinel.worker.calling.Boundary`.
    """
    recorder = _Recorder(boundary.function, boundary.owner)
    measure(dataclasses.replace(boundary, function=recorder), inputs)
    return {"calls": [[arguments, recorder.write(result)] for arguments, result in recorder.calls]}


class _Recorder:
    """Calls a function, and records its arguments (as data, before the call) and its result."""

    def __init__(self, function: Callable[..., Any], owner: type | None) -> None:
        self._function, self._owner = function, owner
        self.calls: list[tuple[Node, Any]] = []
        functools.update_wrapper(self, function)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        arguments = self._bind(positional, named)
        result = self._function(*positional, **named)
        self.calls.append((arguments, result))
        return result

    def _bind(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> Node:
        signature = inspect.signature(self._function)
        try:
            bound = signature.bind(*positional, **named).arguments
        except TypeError:  # the call itself will raise the same error
            return ["other", "argument that the function does not accept"]
        pairs: list[list[Any]] = []
        for place, (name, value) in enumerate(bound.items()):
            kind = signature.parameters[name].kind
            if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
                pairs.append([["value", name], ["other", "positional argument"]])
            elif kind is inspect.Parameter.VAR_KEYWORD:
                pairs += [[["value", key], self.write(item)] for key, item in value.items()]
            else:
                pairs.append([["value", name], self._write_self(value) if place == 0 else self.write(value)])
        return ["dict", pairs]

    def _write_self(self, value: Any) -> Node:
        empty = isinstance(value, StandInNamespace) and not vars(value)
        return ["bare", _path(self._owner)] if empty and self._owner is not None else self.write(value)

    def write(self, value: Any) -> Node:
        """Convert a value to data that can be sent to pytest's process."""
        kind = type(value)
        if kind in _PLAIN:
            return ["value", value]
        if isinstance(value, torch.Tensor):
            try:
                return ["leaf" if value.requires_grad else "tensor", tensors.from_torch(value)]
            except TypeError:
                return ["other", kind.__name__]
        if isinstance(value, np.ndarray):
            return ["array", str(value.dtype), [self.write(item) for item in value.tolist()]]
        if kind in (list, tuple):
            return [kind.__name__, [self.write(item) for item in value]]
        if kind is dict:
            return ["dict", [[self.write(key), self.write(item)] for key, item in value.items()]]
        if kind is argparse.Namespace:
            return ["new", _path(kind), self._attributes(vars(value))]
        if dataclasses.is_dataclass(value):
            return ["new", _path(kind), self._attributes(_non_default_fields(value))]
        if kind is self._owner and hasattr(value, "__dict__"):
            return self._instance(value)
        return ["other", kind.__name__]

    def _instance(self, value: Any) -> Node:
        attributes = dict(vars(value))
        if isinstance(value, torch.nn.Module):
            if [*value.parameters(), *value.children()]:
                return ["other", type(value).__name__]
            fresh = vars(torch.nn.Module())
            attributes = {name: item for name, item in attributes.items() if name not in fresh}
        if not attributes and not isinstance(value, torch.nn.Module):
            return ["bare", _path(type(value))]
        return ["made", _path(type(value)), self._attributes(attributes)]

    def _attributes(self, attributes: Mapping[str, Any]) -> list[list[Any]]:
        return [[name, self.write(item)] for name, item in attributes.items()]


def _non_default_fields(value: Any) -> dict[str, Any]:
    arguments = {}
    for field in dataclasses.fields(value):
        if not field.init or not hasattr(value, field.name):
            continue
        item = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if repr(item) != repr(default):
            arguments[field.name] = item
    return arguments


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
