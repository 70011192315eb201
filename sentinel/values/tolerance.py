"""How closely a recipe wants values to agree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """How closely a value must agree; None stands for the default of the observation's dtype."""

    relative: float | None = None
    absolute: float | None = None
    exact: bool = False
