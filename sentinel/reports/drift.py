"""Two values out of evidence, element by element, within the tolerance of their dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.reports.escaping import message
from sentinel.values.closeness import BARE, bounds
from sentinel.values.tolerance import Tolerance

_TAGS = ("NaN", "Infinity", "-Infinity")
_TYPED = {"dtype", "shape", "tensor"}


@dataclass(frozen=True)
class Difference:
    """One element that is not identical.

    :ivar within: whether it agrees within the tolerance.
    """

    where: str
    recorded: str
    now: str
    note: str = ""
    within: bool = False

    @property
    def brief(self) -> str:
        return f"{self.recorded} recorded, {self.now} now" + (f" ({self.note})" if self.note else "")

    def __str__(self) -> str:
        return f"{message(self.where)}: {self.brief}"


def compare(recorded: Any, now: Any, where: str, tolerance: Tolerance, dtype: str = BARE) -> Iterator[Difference]:
    """Every element that is not identical, those within tolerance too."""
    if is_tensor(recorded) and is_tensor(now):
        for part in ("dtype", "shape"):
            if recorded[part] != now[part]:
                yield Difference(f"{where} ({part})", _show(recorded[part]), _show(now[part]))
                return
        yield from compare(recorded["tensor"], now["tensor"], where, tolerance, recorded["dtype"])
    elif isinstance(recorded, dict) and isinstance(now, dict) and set(recorded) == set(now):
        for key in sorted(recorded):
            yield from compare(recorded[key], now[key], f"{where}.{key}", tolerance, dtype)
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for index, (one, other) in enumerate(zip(recorded, now, strict=True)):
            yield from compare(one, other, f"{where}[{index}]", tolerance, dtype)
    elif type(recorded) is not type(now) or recorded != now:
        yield _leaf(recorded, now, where, tolerance, dtype)


def _leaf(recorded: Any, now: Any, where: str, tolerance: Tolerance, dtype: str) -> Difference:
    left, right = number(recorded), number(now)
    shown = _show(recorded), _show(now)
    if left is None or right is None:
        return Difference(where, *shown)
    relative, absolute = bounds(dtype, tolerance)
    apart = abs(left - right)
    within = math.isfinite(apart) and apart <= absolute + relative * abs(left)
    note = f"{apart:.3g} apart; allowed {relative:g} relative, {absolute:g} absolute" if math.isfinite(apart) else ""
    return Difference(where, *shown, note, within)


def number(value: Any) -> float | None:
    """The float that a document holds, tagged or not; None for what must agree exactly: integers, booleans, text."""
    if isinstance(value, float):
        return value
    return float(value) if isinstance(value, str) and value in _TAGS else None


def is_tensor(value: Any) -> bool:
    """Whether evidence holds a tensor there."""
    return isinstance(value, Mapping) and value.keys() >= _TYPED


def _show(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    text = message(str(value) if isinstance(value, (str, int)) else repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
