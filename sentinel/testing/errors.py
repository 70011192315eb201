"""The failure of a check."""

from __future__ import annotations


class LawBroken(AssertionError):
    """Raised by a check: the function breaks a law, or keeps one that it is expected to break."""


LawBroken.__module__ = "sentinel.testing"  # where users import it from
