"""Define the tolerance of a comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute tolerance. None means the default for the observed dtype; ``exact`` requires equality."""

    relative: float | None = None
    absolute: float | None = None
    exact: bool = False
