"""The errors that reach a user. Every message says what was wrong and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

#: Where Sentinel itself lies, as ``[project.urls] Repository`` of pyproject.toml says too; empty while it lies nowhere.
REPOSITORY = ""

#: How an extra is installed. There is no release on PyPI yet: when there is, this says so, and nothing else does.
INSTALL = (
    f"pip install 'rl-sentinel[{{}}] @ git+{REPOSITORY}'"
    if REPOSITORY
    else "pip install '.[{}]' in a checkout of Sentinel"
)


class SentinelError(Exception):
    """Something the user can mend: a typo, a missing file, an option that does not fit."""


class RecipeError(SentinelError):
    """A recipe that cannot be used; the message starts with ``file:line:column: ``."""


class NothingExamined(SentinelError):
    """Nothing could be examined, so no claim is made: a command exits with 2, pytest with 5.

    :param reason: what was missing and where, and what to do.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"nothing was examined: {reason}")
        self.reason = reason


class Unavailable(SentinelError):
    """The thing asked for cannot be had, so nothing can be decided about it.

    :param reason: one sentence for a person.
    :param kind: ``ref`` (the revision cannot be had), ``not-in-this-version`` or ``python``
        (the checkout's code needs another interpreter).
    """

    def __init__(self, reason: str, kind: Literal["ref", "not-in-this-version", "python"] = "ref") -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


def nearest(name: str, known: Iterable[str], all_of: str = "", alike: float = 0.6) -> str:
    """Name what a wrong name may have meant: `` — did you mean 'x'?``; else the known names after ``all_of``.

    :param alike: how much of the two must be the same: less for what is typed by hand and short.
    """
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(name, names, 1, alike)
    if near:
        return f" — did you mean {near[0]!r}?"
    return f"; {all_of} {', '.join(sorted(names))}" if all_of and names else ""
