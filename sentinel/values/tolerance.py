"""The tolerance of a recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute tolerance; None stands for the default of the observed dtype."""

    relative: float | None = None
    absolute: float | None = None
    exact: bool = False
