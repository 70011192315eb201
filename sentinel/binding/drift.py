"""Define the errors for an adapter that does not fit a revision. Such an error is not evidence of a bug."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar


class DriftError(Exception):
    """Raised if a function is missing, or if its signature or return type is not the expected one.

    The message names the difference.
    """


class UnknownInputError(DriftError):
    """Raised if a function has no parameter for ``input``, which the scenario sets."""

    def __init__(self, message: str, input: str) -> None:
        super().__init__(message)
        self.input = input


class StandInMissingError(AttributeError):
    """Raised if the framework reads an attribute that a stand-in lacks.

    It is an AttributeError, so ``hasattr``, and ``getattr`` with a default, work as usual.
    """


class Neutral:
    """Takes the place of an undefined attribute of a stand-in object, such as a stand-in for a counter or logger.

    It is false, empty, and callable without effect. Operations on it return a neutral object too, and comparisons
    return False. It is not a number: a boundary whose result contains a neutral object is reported as drift. The
    evidence lists the names of replaced attributes.
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


#: ``declared(attributes, name)`` returns a sequence with the target's default for a missing attribute. The sequence is
#: empty if the default is unknown.
Declared = Callable[[Mapping[str, Any], str], Sequence[Any]]


class StandInNamespace(SimpleNamespace):
    """A stand-in object whose error messages name the missing attribute.

    A stand-in for a configuration takes missing options from the target's defaults (:func:`use_declared_defaults`). A
    stand-in for ``self`` has the methods and class attributes of its class (:func:`give_class_attributes`).
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
    """Give a stand-in object the class attributes and methods of the class ``owner``."""
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
    """Raised if this version lacks a name that a binding requires. The adapter may still be correct."""


class RanksDisagreeError(Exception):
    """Raised if simulated ranks call different collectives. A training run would hang there."""
