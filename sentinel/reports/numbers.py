"""List the elements in which two values differ, each with its index and both numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.reports.escaping import message
from sentinel.values.closeness import mismatch

#: The address of an element, followed by the element at this address in each of several values.
Row = tuple[Any, ...]


def wrong(document: Mapping[str, Any]) -> tuple[list[Row], int]:
    """Return the wrong elements in an evidence document as rows (address, observed, right), and the number of compared
    elements."""
    rows: list[Row] = []
    count = 0
    for item in document["comparison"]:
        if item["fixed"] is None and not item["matches_fixed"] and item["key"] not in document["expectation"]["fixed"]:
            continue
        count += len(dict(flat(item["observed"], item["key"])))
        if not item["matches_fixed"]:
            rows += differing_elements(item["key"], item["observed"], item["fixed"])
    return rows, count


def differing_elements(key: str, value: Any, right: Any, *others: Any) -> list[Row]:
    """Return one row (address, element, right element) for each element that differs from the right value.

    If the structures of the two values differ, return one row with both whole values.

    :param others: further values, whose elements are appended to each row; None for a missing element.
    """
    here, there, *more = (dict(flat(each, key)) for each in (value, right, *others))
    if here.keys() != there.keys():
        return [(key, *map(plain, (value, right, *others)))]
    return [
        (place, here[place], there[place], *(each.get(place) for each in more))
        for place in here
        if mismatch(here[place], there[place])
    ]


def one_number(document: Mapping[str, Any]) -> str:
    """Return one wrong number of an evidence document, and how many are wrong: ``loss[0,1]: 26.0, right 1.0; 3 of 18
    differ``."""
    rows, count = wrong(document)
    if not rows:
        return ""
    key, *values = rows[0]
    observed, right = distinguish(*values)
    return f"{message(key)}: {observed}, right {right}" + (f"; {len(rows)} of {count} differ" if count > 1 else "")


def plain(value: Any) -> Any:
    """Convert the record of a tensor or array in evidence to nested lists, without its dtype."""
    if isinstance(value, Mapping) and ("tensor" in value or "array" in value):
        return value.get("tensor", value.get("array"))
    return value


def flat(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield each element of a nested value with its address, such as ``loss[0,1]`` or ``metrics.kl``."""
    value = plain(value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            inner = f"{place[:-1]},{number}]" if place.endswith("]") else f"{place}[{number}]"
            yield from flat(item, inner)
    else:
        yield place, value


def distinguish(one: Any, other: Any) -> list[str]:
    """Format two different values as two different strings, with no more digits than necessary."""
    one, other = [float(one), float(other)] if {type(one), type(other)} == {int, float} else [one, other]
    for digits in (6, 9, 17):
        texts = [format_number(one, digits), format_number(other, digits)]
        if texts[0] != texts[1]:
            break
    return texts


def format_number(value: Any, digits: int = 6) -> str:
    """Format a float with this many significant digits; return other values as text."""
    if isinstance(value, float):
        return f"{value:.{digits}g}" + (".0" if value == int(value) and abs(value) < 10**digits else "")
    if isinstance(value, Mapping) and value.keys() == {"type", "message"}:  # an exception
        return message(f"{value['type']}: {value['message']}")
    return message("none" if value is None else str(value))
