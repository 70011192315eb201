"""Drift: the framework has moved away from what the adapter knows. Never a verdict about the bug itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar


class DriftError(Exception):
    """The boundary is gone, has another signature, or returns something else; the message names what was looked for."""


class UnknownInputError(DriftError):
    """The boundary has no parameter for ``input``, which the scenario gives."""

    def __init__(self, message: str, input: str) -> None:
        super().__init__(message)
        self.input = input


class StandInMissingError(AttributeError):
    """The target reads what a stand-in lacks. An AttributeError, so that its own ``getattr`` with a default works."""


class Neutral:
    """Stands for bookkeeping that an adapter does not know: false, empty, and nothing happens when it is called.

    Whatever is computed from it is neutral again, and a comparison with it is false. It is never a number: an answer
    that holds one is drift. Each is recorded by its name, for the evidence.
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


#: What the target's own configuration says of an attribute that a stand-in with these others lacks; empty where it says
#: nothing.
Declared = Callable[[Mapping[str, Any], str], Sequence[Any]]


class StandInNamespace(SimpleNamespace):
    """Names what it lacks; in the place of a configuration it has the target's own defaults: :func:`answered_by`.

    In the place of ``self`` it has the other methods and class attributes of its class: :func:`as_self`.
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


def as_self(stand_in: StandInNamespace, owner: type) -> None:
    """Give a stand-in, which stays the same object, what the class of a method has for all its instances."""
    stand_in.__class__ = type(owner.__name__, (StandInNamespace,), {"_owner": owner})


class Bookkeeping(StandInNamespace):
    """Stands for what counts, logs, shows or configures: what it lacks, and no default tells, is :class:`Neutral`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except StandInMissingError:
            value = Neutral(name)
            setattr(self, name, value)
            return value


def answered_by(declared: Declared) -> None:
    """Have all stand-ins ask for what they lack."""
    _declared[:] = [declared]


_declared: list[Declared] = [lambda *_: ()]


class AbsentError(Exception):
    """The checkout lacks what a binding requires: another version, and no drift."""


class RanksDisagreeError(Exception):
    """Simulated ranks did not call the same collectives: a training would wait for ever."""
