"""What differs between two values, element by element: its place and two texts that are not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.reports.escaping import message
from sentinel.values.closeness import mismatch

#: The place of a number, and that number in each of several values.
Row = tuple[Any, ...]


def wrong(document: Mapping[str, Any]) -> tuple[list[Row], int]:
    """Each number of evidence that is not the right one: its place, as observed, right; and how many were compared."""
    rows: list[Row] = []
    count = 0
    for item in document["comparison"]:
        if item["fixed"] is None and not item["matches_fixed"] and item["key"] not in document["expectation"]["fixed"]:
            continue
        count += len(dict(flat(item["observed"], item["key"])))
        if not item["matches_fixed"]:
            rows += differing(item["key"], item["observed"], item["fixed"])
    return rows, count


def differing(key: str, value: Any, right: Any, *others: Any) -> list[Row]:
    """Give the elements of a value that are not those of the right one; the whole of both where their forms are unlike.

    :param others: values of which the same elements are told, None where one has none.
    """
    here, there, *more = (dict(flat(each, key)) for each in (value, right, *others))
    if here.keys() != there.keys():
        return [(key, *map(plain, (value, right, *others)))]
    return [
        (place, here[place], there[place], *(each.get(place) for each in more))
        for place in here
        if mismatch(here[place], there[place])
    ]


def in_short(document: Mapping[str, Any]) -> str:
    """Write one number that is wrong, and how many are: ``loss[0,1]: 26.0, right 1.0; 3 of 18 differ``."""
    rows, count = wrong(document)
    if not rows:
        return ""
    key, *values = rows[0]
    observed, right = apart(*values)
    return f"{message(key)}: {observed}, right {right}" + (f"; {len(rows)} of {count} differ" if count > 1 else "")


def plain(value: Any) -> Any:
    """Give a value without its dtype."""
    if isinstance(value, Mapping) and ("tensor" in value or "array" in value):
        return value.get("tensor", value.get("array"))
    return value


def flat(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Give each element of a value with its place: ``loss[0,1]``, ``metrics.kl``."""
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


def apart(one: Any, other: Any) -> list[str]:
    """Two values as texts that are not the same, in as few digits as that takes."""
    one, other = [float(one), float(other)] if {type(one), type(other)} == {int, float} else [one, other]
    for digits in (6, 9, 17):
        texts = [in_digits(one, digits), in_digits(other, digits)]
        if texts[0] != texts[1]:
            break
    return texts


def in_digits(value: Any, digits: int = 6) -> str:
    """Give a number in so many digits; anything else as it is."""
    if isinstance(value, float):
        return f"{value:.{digits}g}" + (".0" if value == int(value) and abs(value) < 10**digits else "")
    if isinstance(value, Mapping) and value.keys() == {"type", "message"}:  # what a call raised
        return message(f"{value['type']}: {value['message']}")
    return message("none" if value is None else str(value))
