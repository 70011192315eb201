"""Which function a frame runs, and under what name a program finds it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

#: Stands for nothing at all, where None would be something.
MISSING = object()


def owner_of(first: Any, code: CodeType) -> tuple[type, str, str, Any] | None:
    """The class through which a frame's first argument has this code: (class, attribute, kind, function)."""
    own: tuple[type, ...] = tuple(first.__mro__) if isinstance(first, type) else ()
    classes = (*own, *type(first).__mro__)
    for cls in classes:
        for name, member in list(vars(cls).items()):
            inner = member
            kind = "method"
            if isinstance(member, property):
                inner, kind = member.fget, "property"
            elif isinstance(member, classmethod):
                inner, kind = member.__func__, "classmethod"
            elif isinstance(member, staticmethod):
                continue
            if getattr(_unwrapped(inner), "__code__", None) is code:
                return cls, name, kind, inner
    return None


def functions_of(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The functions of a module and of its classes, by their paths in it."""
    for key, value in list(vars(module).items()) if module is not None else ():
        if isinstance(value, type) and value.__module__ == name:
            for attribute, member in list(vars(value).items()):
                yield f"{value.__qualname__}.{attribute}", getattr(member, "__func__", member)
        elif callable(value) and getattr(value, "__module__", name) == name:
            yield key, value


def runs(value: Any, frame: FrameType) -> bool:
    """Whether a call of the function, or of what it wraps, is in this frame."""
    seen = 0
    while callable(value) and seen < 5:
        code = getattr(value, "__code__", None)
        if code is frame.f_code:
            cells = dict(zip(code.co_freevars, getattr(value, "__closure__", None) or ()))
            return all(frame.f_locals.get(name, MISSING) is _content(cell) for name, cell in cells.items())
        value, seen = getattr(value, "__wrapped__", None), seen + 1
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return MISSING


def _unwrapped(value: Any) -> Any:
    try:
        return inspect.unwrap(value) if callable(value) else value
    except Exception:
        return value


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """Those of what a function wraps; none where they cannot be known."""
    try:
        return list(inspect.signature(inspect.unwrap(function), follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return []


def torch_name(function: Any) -> str:
    """Under which name a program calls a function of torch's."""
    from torch.overrides import resolve_name

    if isinstance(function, FunctionType):  # torch re-exports its own under names that do not always import
        return f"{function.__module__}.{function.__qualname__}"
    return str(resolve_name(function) or f"torch.{getattr(function, '__name__', function)}")


def found(name: str) -> Any:
    """What has this dotted name."""
    import importlib

    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
