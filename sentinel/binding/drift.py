"""Define errors that mean an adapter does not fit a revision. They say nothing about bugs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar


class DriftError(Exception):
    """Raised if a function is missing, or has another signature or return type than the adapter expects.

    The message names the difference.
    """


class UnknownInputError(DriftError):
    """Raised if a function has no parameter for ``input``, which the scenario sets."""

    def __init__(self, message: str, input: str) -> None:
        super().__init__(message)
        self.input = input


class StandInMissingError(AttributeError):
    """Raised if the framework reads an attribute that a stand-in lacks.

    It is an AttributeError, so ``getattr`` defaults work.
    """


class Neutral:
    """Replaces an attribute that an adapter does not define, of an object such as a counter or logger.

    It is false, empty, and callable without effect.

    Results of operations with it are neutral too, and comparisons are false. It is not a number: a boundary result that
    contains it is drift. Each name is recorded for the evidence.
    """

    recorded: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.__dict__["_neutral"] = name
        if name not in self.recorded:
            self.recorded.append(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self

    def __repr__(self) -> str:
        return repr(self.__dict__["_neutral"])

    def __call__(self, *_: Any, **__: Any) -> Neutral:
        return self

    __enter__ = __getitem__ = __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __call__
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __call__

    def __bool__(self, *_: object) -> bool:
        return False

    __contains__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __exit__(self, *_: object) -> None:
        return None

    __setattr__ = __setitem__ = __exit__


#: Returns the target's default for an attribute, given the other attributes of a stand-in; empty without a default.
Declared = Callable[[Mapping[str, Any], str], Sequence[Any]]


class StandInNamespace(SimpleNamespace):
    """A stand-in object whose error messages name the missing attribute.

    As a configuration it takes missing options from the target's defaults (:func:`use_declared_defaults`). As ``self``
    it has the methods and class attributes of its class (:func:`give_class_attributes`).
    """

    _owner: ClassVar[type | None] = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        member = inspect.getattr_static(self._owner, name, _NOTHING) if self._owner is not None else _NOTHING
        if member is not _NOTHING:
            bind = getattr(type(member), "__get__", None)
            return bind(member, self, self._owner) if bind is not None else member
        for value in _declared[0](vars(self), name):
            setattr(self, name, value)
            return value
        raise StandInMissingError(f"the code reads an attribute {name!r} that the stand-in does not have")


_NOTHING = object()


def give_class_attributes(stand_in: StandInNamespace, owner: type) -> None:
    """Give a stand-in object the class attributes and methods of ``owner``."""
    stand_in.__class__ = type(owner.__name__, (StandInNamespace,), {"_owner": owner})


class Bookkeeping(StandInNamespace):
    """A stand-in object for counters, loggers and configurations. Undefined attributes are :class:`Neutral`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except StandInMissingError:
            value = Neutral(name)
            setattr(self, name, value)
            return value


def use_declared_defaults(declared: Declared) -> None:
    """Let stand-in objects read missing attributes from the framework's default configuration."""
    _declared[:] = [declared]


_declared: list[Declared] = [lambda *_: ()]


class AbsentError(Exception):
    """Raised if this version does not have a name that a binding requires. The adapter may still be correct."""


class RanksDisagreeError(Exception):
    """Raised if simulated ranks call different collectives. In a training run, they would hang."""
