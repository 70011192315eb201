"""Convert values to HTML tables in which masked cells, rejected rows and wrong numbers are marked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from sentinel.reports.evidence import bare, is_tensor
from sentinel.values.closeness import mismatch

#: Maximum size of a table. Larger tables are truncated on the page; the evidence has all values.
MOST_ROWS, MOST_COLUMNS = 12, 16
#: Maximum number of characters of a value that is not displayed as a table. Longer text is truncated.
_LONGEST = 600

#: The mark of a cell. ``leak``: a masked value that affects the result. ``varies``: a value that differs between
#: variants. ``wrong``: a wrong value. ``mended``: the right value in place of a wrong one.
Mark = Literal["", "leak", "varies", "wrong", "mended"]

Rows = list[list[Any]]
Marks = Mapping[tuple[int, int], Mark]


@dataclass(frozen=True)
class Cell:
    text: str
    masked: bool = False
    mark: Mark = ""


@dataclass(frozen=True)
class Line:
    """One row of a table.

    :ivar rejected: whether all cells of the row are masked.
    """

    cells: tuple[Cell, ...]
    rejected: bool = False


@dataclass(frozen=True)
class Grid:
    """A value to be displayed as an HTML table.

    :ivar kind: the dtype and shape of a tensor; empty for other values.
    :ivar lines: the rows of the table; empty if the value cannot be displayed as a table.
    :ivar plain: the value as text if there is no table.
    :ivar upright: whether a one-dimensional value is displayed as a column, so that each number is a row.
    :ivar left: how many rows and columns are left out, as text.
    :ivar note: the meaning of the value.
    """

    name: str
    kind: str = ""
    lines: tuple[Line, ...] = ()
    plain: str = ""
    upright: bool = False
    left: str = ""
    note: str = ""


def grid(
    name: str,
    value: Any,
    *,
    mask: Rows | None = None,
    upright: bool = False,
    marks: Marks = MappingProxyType({}),
    note: str = "",
    other: Any = None,
) -> Grid:
    """Convert a value in an evidence document to a table.

    :param mask: the rows of the mask. If it has the value's shape, masked cells are marked; if it has as many rows as
        the value, rejected rows are marked; otherwise it is ignored.
    :param upright: display a one-dimensional value as a column.
    :param marks: (row, column) of the value, before ``upright`` is applied -> mark.
    :param other: the value that is displayed next to this one. Numbers that differ get enough digits to look different.
    """
    rows = rows_of(value)
    full = _round_alike(value, other)
    if rows is None or not any(rows):
        return Grid(name, kind_of(value), plain=written(value, full), note=note)
    flat = one_dimensional(value)
    upright = upright and flat
    if upright:
        rows = [[item] for item in rows[0]]
    behind = fitting(mask, rows)
    rejected = (
        [not any(row) for row in mask] if mask is not None and len(mask) == len(rows) and (upright or not flat) else []
    )
    lines = []
    for index, row in enumerate(rows[:MOST_ROWS]):
        cells = tuple(
            Cell(
                number(item, full),
                bool(behind and not behind[index][column]),
                marks.get((0, index) if upright else (index, column), ""),
            )
            for column, item in enumerate(row[:MOST_COLUMNS])
        )
        lines.append(Line(cells, bool(rejected and rejected[index])))
    more = [
        f"{len(rows) - MOST_ROWS} more rows" if len(rows) > MOST_ROWS else "",
        f"{max(map(len, rows)) - MOST_COLUMNS} more columns" if max(map(len, rows)) > MOST_COLUMNS else "",
    ]
    return Grid(name, kind_of(value), tuple(lines), "", upright, ", ".join(filter(None, more)), note)


def rows_of(value: Any) -> Rows | None:
    """Return the rows of a tensor or list with one or two dimensions, or of a list of 1-d tensors. Return None for
    other values."""
    if is_tensor(value):
        shape = value["shape"]
        return [value["tensor"]] if len(shape) == 1 else value["tensor"] if len(shape) == 2 else None
    if not isinstance(value, list) or not value:
        return None
    if all(is_tensor(item) and len(item["shape"]) == 1 for item in value):
        return [item["tensor"] for item in value]
    if all(isinstance(item, list) and not any(isinstance(part, (list, dict)) for part in item) for item in value):
        return value
    return None if any(isinstance(item, (list, dict)) for item in value) else [value]


def one_dimensional(value: Any) -> bool:
    if is_tensor(value):
        return len(value["shape"]) == 1
    return isinstance(value, list) and not any(isinstance(item, (list, dict)) for item in value)


def fitting(mask: Rows | None, rows: Sequence[Sequence[Any]]) -> Rows | None:
    """Return the mask if it has the same shape as these rows; otherwise None."""
    return mask if mask is not None and list(map(len, mask)) == list(map(len, rows)) else None


def kind_of(value: Any) -> str:
    if not is_tensor(value):
        return ""
    grad = ", leaf with a gradient" if value.get("requires_grad") else ""
    return f"{value['dtype']}[{', '.join(map(str, value['shape']))}]{grad}"


_NAMES = {"NaN": "NaN", "Infinity": "∞", "-Infinity": "-∞"}


def _round_alike(value: Any, other: Any) -> bool:
    pairs = zip(_leaves(bare(value)), _leaves(bare(other)))
    return any(one != other and number(one) == number(other) for one, other in pairs)


def _leaves(value: Any) -> Iterable[Any]:
    return (leaf for item in value for leaf in _leaves(item)) if isinstance(value, list) else (value,)


def number(item: Any, full: bool = False) -> str:
    """Format a number with at most six digits or, if ``full``, with all of its digits."""
    if isinstance(item, bool) or item is None:
        return {True: "true", False: "false", None: "null"}[item]
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return "0" if item == 0 else (repr(item) if full else f"{item:.6g}").replace("e+0", "e+").replace("e-0", "e-")
    return _NAMES.get(item, str(item)) if isinstance(item, str) else written(item)


def written(value: Any, full: bool = False) -> str:
    """Format a value without a table as recipes write it. Long text is truncated."""
    if is_tensor(value) and not value["shape"]:
        return number(value["tensor"], full)
    if not isinstance(value, (list, Mapping)):
        return number(value, full)
    text = json.dumps(_terse(value), ensure_ascii=False).replace('"', "")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _terse(value: Any) -> Any:
    if is_tensor(value):
        return {"tensor": value["tensor"], "dtype": value["dtype"]}
    if isinstance(value, Mapping):
        return {key: _terse(item) for key, item in value.items()}
    return [_terse(item) for item in value] if isinstance(value, list) else value


def as_number(item: Any) -> float | None:
    """Return an element as a float, including NaN and infinity, or None if it is not a number."""
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return float(item)
    return float(item) if isinstance(item, str) and item in _NAMES else None


def close(one: Any, other: Any) -> bool:
    """Return True if two elements are equal within the default tolerance. Verdicts use that of the recipe instead."""
    left, right = as_number(one), as_number(other)
    return bool(one == other) if left is None or right is None else not mismatch(left, right)


def differing(value: Any, right: Any) -> frozenset[tuple[int, int]]:
    """Return the positions (row, column) at which two values differ.

    Differences within the default tolerance are included only if there are no larger ones.
    """
    rows, others = rows_of(bare(value)), rows_of(bare(right))
    if rows is None:
        return frozenset()
    if others is None or list(map(len, rows)) != list(map(len, others)):
        return frozenset(_places(rows))
    apart = frozenset((i, j) for i, j in _places(rows) if not close(rows[i][j], others[i][j]))
    return apart or frozenset((i, j) for i, j in _places(rows) if rows[i][j] != others[i][j])


def _places(rows: Rows) -> Iterable[tuple[int, int]]:
    return ((i, j) for i, row in enumerate(rows) for j in range(len(row)))
