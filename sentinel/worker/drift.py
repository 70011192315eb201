"""Drift: the framework has moved away from what the adapter knows. Never a verdict about the bug itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class DriftError(Exception):
    """The boundary is gone, has another signature, or returns something else; the message names what was looked for."""


class UnknownInputError(DriftError):
    """The boundary has no parameter for an input that the scenario gives.

    :ivar input: its canonical name.
    """

    def __init__(self, message: str, input: str) -> None:
        super().__init__(message)
        self.input = input


class StandInMissingError(AttributeError):
    """The target reads an attribute that a stand-in does not have.

    An ``AttributeError``, so that the target's own ``getattr(x, name, default)`` and ``hasattr`` work on stand-ins.
    """


class StandInNamespace(SimpleNamespace):
    """A stand-in object: a namespace that says by name what was missing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise StandInMissingError(f"the code reads an attribute {name!r} that the stand-in does not have")


class AbsentError(Exception):
    """The checkout lacks what a binding requires: another version, and no drift."""
