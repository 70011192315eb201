"""Define the exception of a failed check."""

from __future__ import annotations


class LawBroken(AssertionError):
    """Raised if a function breaks a law, or keeps a law that it is expected to break."""


LawBroken.__module__ = "sentinel.testing"  # where users import it from
