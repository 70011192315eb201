"""Define errors for adapters that do not fit a revision, and stand-in objects that raise them.

Such an error is not evidence of a bug.
"""

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
    """Raised if the scenario sets ``input``, but the framework's function has no parameter for it."""

    def __init__(self, message: str, input: str) -> None:
        super().__init__(message)
        self.input = input


class StandInMissingError(AttributeError):
    """Raised if the framework reads an attribute that a stand-in lacks.

    The class derives from AttributeError, so that ``hasattr`` and ``getattr`` with a default work as usual.
    """


class Neutral:
    """The value of an undefined attribute of a :class:`Bookkeeping` object.

    A neutral object is false and empty. Calls and arithmetic operations have no effect and return the object itself;
    comparisons return False. It is not a number: if a boundary's result contains a neutral object, drift is reported.
    The evidence lists the names of the attributes that were replaced.
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


#: A function ``declared(attributes, name)``. It returns a sequence with the framework's default for the attribute
#: ``name``, which a stand-in with these ``attributes`` lacks. The sequence is empty if the default is unknown.
Declared = Callable[[Mapping[str, Any], str], Sequence[Any]]


class StandInNamespace(SimpleNamespace):
    """A stand-in object whose error messages name the missing attribute.

    A stand-in for a configuration gets missing options from the framework's defaults (:func:`use_declared_defaults`).
    A stand-in for ``self`` has the methods and class attributes of the framework's class
    (:func:`give_class_attributes`).
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
        raise StandInMissingError(f"the framework reads the attribute {name!r}, which the adapter's stand-in lacks")


_NOTHING = object()


def give_class_attributes(stand_in: StandInNamespace, owner: type) -> None:
    """Make the class attributes and methods of the class ``owner`` available on a stand-in object."""
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
    """Set the function that returns the framework's defaults for missing attributes of all stand-in objects."""
    _declared[:] = [declared]


_declared: list[Declared] = [lambda *_: ()]


class AbsentError(Exception):
    """Raised if the framework's version lacks what a scenario or a binding needs. The adapter may still be correct."""


class RanksDisagreeError(Exception):
    """Raised if simulated ranks call different collectives. A training run would hang at this point."""
