"""How messages name a value and the nearest name to one that is not known."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any


def nearest(name: str, known: Collection[str], all_of: str = "") -> str:
    """`` — did you mean 'x'?``; where nothing is near, the known names after ``all_of``."""
    near = get_close_matches(name, known, 1, 0.6)
    if near:
        return f" — did you mean {near[0]!r}?"
    return f"; {all_of} {', '.join(sorted(known))}" if all_of and known else ""


def describe(value: Any) -> str:
    """A value as messages name it: what it is, and what it says."""
    if value is None:
        return "null"
    for kind, name in ((bool, "the boolean"), (int, "the number"), (float, "the number"), (str, "the string")):
        if isinstance(value, kind):
            text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
            return f"{name} {text if len(text) <= 60 else text[:57] + '...'}"
    return "a list" if isinstance(value, list) else "a mapping"
