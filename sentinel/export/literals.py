"""Values as Python, as people write them: no digit too many, and equal ones by their number."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np

from sentinel.reports.escaping import visible


def dtype_name(name: str) -> str:
    return "object" if name == "object" or name.startswith(("<U", "str")) else f'"{name}"'


def scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value) if not isinstance(value, str) else _string(value)


def _string(value: str) -> str:
    """With Python's escapes for what a reader of the program would not see, or would see in another order."""
    return '"' + visible(value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


#: A tensor of so many equal values is written as their number.
UNIFORM = 8


def everywhere(values: Any) -> Any:
    """The one value of a nested list, or None."""
    while isinstance(values, list):
        if any(repr(item) != repr(values[0]) for item in values):
            return None
        values = values[0]
    return values


def shortest(values: Any, dtype: str) -> Any:
    """Numbers with the digits that their dtype can tell apart, and no more: 0.1, not 0.10000000149011612."""
    if isinstance(values, list):
        return [shortest(item, dtype) for item in values]
    single = dtype in ("float32", "bfloat16", "float16") and isinstance(values, float) and math.isfinite(values)
    return float(str(np.float32(values))) if single else values


#: A row of so many values is written as their number, where it is of so few runs, and one of them is so long.
_REPEATED = 5
_RUNS = 2
_RUN = 3


def row(items: list[str]) -> str:
    """A list, of how its items are written."""
    runs = [(text, len(list(same))) for text, same in groupby(items)]
    short = len(items) >= _REPEATED and len(runs) <= _RUNS and not any("[" in item for item in items)
    if short and (len(runs) == 1 or max(count for _, count in runs) >= _RUN):
        return " + ".join(f"[{text}] * {count}" if count > 1 else f"[{text}]" for text, count in runs)
    return "[" + ", ".join(items) + "]"


def nested(values: Any, short: bool = False) -> str:
    """:param short: write whole numbers without ``.0``, where a dtype stands beside them."""
    if isinstance(values, list):
        return row([nested(item, short) for item in values])
    if short and isinstance(values, float) and abs(values) < 1e6 and values == int(values) and str(values) != "-0.0":
        return str(int(values))
    return scalar(values)


def sequence(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
