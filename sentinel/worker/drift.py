"""Drift: the framework has moved away from what the adapter knows. Never a verdict about the bug itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


class DriftError(Exception):
    """The boundary is gone, has another signature, or returns something else; the message names what was looked for."""


class UnknownInputError(DriftError):
    """The boundary has no parameter for ``input``, which the scenario gives."""

    def __init__(self, message: str, input: str) -> None:
        super().__init__(message)
        self.input = input


class StandInMissingError(AttributeError):
    """The target reads what a stand-in lacks. An AttributeError, so that its own ``getattr`` with a default works."""


#: What the target's own configuration says of an attribute that a stand-in with these others lacks; empty where it says
#: nothing.
Declared = Callable[[Mapping[str, Any], str], Sequence[Any]]


class StandInNamespace(SimpleNamespace):
    """Names what it lacks; in the place of a configuration it has the target's own defaults: :func:`answered_by`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        for value in _declared[0](vars(self), name):
            setattr(self, name, value)
            return value
        raise StandInMissingError(f"the code reads an attribute {name!r} that the stand-in does not have")


def answered_by(declared: Declared) -> None:
    """Have all stand-ins ask for what they lack."""
    _declared[:] = [declared]


_declared: list[Declared] = [lambda *_: ()]


class AbsentError(Exception):
    """The checkout lacks what a binding requires: another version, and no drift."""


class RanksDisagreeError(Exception):
    """Simulated ranks did not call the same collectives: a training would wait for ever."""
