"""Define the exception that a failed check raises."""

from __future__ import annotations


class LawBroken(AssertionError):
    """Raised if a function breaks a law, or satisfies a law that it is expected to break."""


LawBroken.__module__ = "sentinel.testing"  # where users import it from
