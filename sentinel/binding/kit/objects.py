"""Make stand-in objects, and replace attributes of objects and modules."""

from __future__ import annotations

import asyncio
import base64
import copy
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

from sentinel.binding.drift import Bookkeeping, StandInNamespace


def stand_in(**attributes: Any) -> Any:
    """Make a stand-in object with these attributes. Reading any other attribute raises :class:`StandInMissingError`."""
    return StandInNamespace(**attributes)


def bookkeeping(**attributes: Any) -> Any:
    """Make a stand-in for a counter, logger or progress bar. Attributes that are not given are :class:`Neutral`
    objects, and their use is recorded.
    """
    return Bookkeeping(**attributes)


def make_unbuilt(owner: Any, **attributes: Any) -> Any:
    """Make an instance of a class without calling its constructor, and set these attributes."""
    instance = object.__new__(owner)
    vars(instance).update(attributes)
    return instance


class Named(dict[str, Any]):
    """A mapping whose keys are also attributes, like the outputs of transformers models."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def return_first(value: Any, *_: Any, **__: Any) -> Any:
    return value


def swap(owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    """Return a context manager that replaces an attribute of an object, or does nothing if the object lacks it."""
    return mock.patch.object(owner, name, value) if hasattr(owner, name) else nullcontext()


@contextmanager
def swap_all(owner: Any, **values: Any) -> Iterator[None]:
    """Replace attributes of an object during a ``with`` block. Attributes that the object lacks are left out."""
    with ExitStack() as swaps:
        for name, value in values.items():
            swaps.enter_context(swap(owner, name, value))
        yield


def make_silent_logger(*_: Any, **__: Any) -> Any:
    """Make a logger without output."""
    return bookkeeping(**dict.fromkeys(("debug", "info", "warning"), partial(return_first, None)))


def run_async(way: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop in which ``sleep`` takes no time."""
    at_once = asyncio.sleep

    with swap(asyncio, "sleep", lambda *_, **__: at_once(0)):
        return asyncio.run(way)


@contextmanager
def with_base64(*modules: Any) -> Iterator[None]:
    """Replace the package pybase64 with Python's base64 during a ``with`` block."""
    with ExitStack() as alone:
        alone.enter_context(mock.patch.dict(sys.modules, pybase64=base64))
        for module in modules:
            alone.enter_context(swap(module, "pybase64", base64))
        yield


def record_maker(owner: Any) -> Callable[..., Any]:
    """Return a function that makes stand-ins for instances of a class that cannot be instantiated here. They have the
    annotated fields of the class, with its defaults."""
    defaults = {name: getattr(owner, name, None) for name in owner.__annotations__}
    return lambda **values: stand_in(
        **{**copy.deepcopy(defaults), **{name: values[name] for name in defaults if name in values}}
    )


def read_list(owner: Any, name: str) -> Any:
    """Return the list in a field; [] if the field's value is None, and None if the field does not exist."""
    if not hasattr(owner, name):
        return None
    value = getattr(owner, name)
    return [] if value is None else value
