"""Define the exceptions whose messages are printed for the user. Each message states the problem and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

#: URL of Sentinel's repository, as in ``[project.urls]`` of pyproject.toml; empty while it has none.
REPOSITORY = ""

#: The command that installs an extra. Change it here once there is a release on PyPI.
INSTALL = (
    f"pip install 'rl-sentinel[{{}}] @ git+{REPOSITORY}'"
    if REPOSITORY
    else "pip install '.[{}]' in a checkout of Sentinel"
)


class SentinelError(Exception):
    """A problem that the user can fix: a typo, a missing file, a wrong option."""


class RecipeError(SentinelError):
    """A recipe that cannot be used; the message starts with ``file:line:column: ``."""


class NothingExamined(SentinelError):
    """Nothing could be examined, so there is no result: a command exits with status 2, pytest with 5.

    :param reason: what was missing and where, and what to do.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"nothing was examined: {reason}")
        self.reason = reason


class Unavailable(SentinelError):
    """A revision, a boundary or an interpreter is not available, so items that need it cannot be checked.

    :param reason: one sentence that is printed for the user.
    :param kind: ``ref`` (the revision is not available), ``not-in-this-version`` or ``python``
        (the checkout's code needs another interpreter).
    """

    def __init__(self, reason: str, kind: Literal["ref", "not-in-this-version", "python"] = "ref") -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


def nearest(name: str, known: Iterable[str], all_of: str = "", alike: float = 0.6) -> str:
    """Return a hint to append to a message about an unknown name: `` — did you mean 'x'?``.

    :param all_of: if no name is similar, return all known names after this text; if it is empty, return no hint.
    :param alike: the minimum similarity of a suggested name, 0 to 1; lower for short names that are typed by hand.
    """
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(name, names, 1, alike)
    if near:
        return f" — did you mean {near[0]!r}?"
    return f"; {all_of} {', '.join(sorted(names))}" if all_of and names else ""
