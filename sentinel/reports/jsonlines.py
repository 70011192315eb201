"""Read and write files of JSON lines. Values that several lines share are stored once, at the top of the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sentinel.errors import SentinelError
from sentinel.reports.escaping import message, visible
from sentinel.values.documents import json_data
from sentinel.values.files import regular_bytes

_T = TypeVar("_T")

#: The size limit of a file in bytes.
_MOST = 64 << 20


def encode(value: Any) -> str:
    """Return a value as one line of ASCII JSON."""
    # Escape ``##[``, because a CI runner executes ``##[command]`` in any output.
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("##[", "#\\u0023[")


def sort_keys(value: Any) -> Any:
    """Return a copy of nested data with the keys of all mappings sorted."""
    if isinstance(value, Mapping):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    return [sort_keys(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_text(entries: Iterable[Mapping[str, Any]], first: Sequence[str], shared: Sequence[str] = ()) -> str:
    """Convert entries to lines of JSON.

    :param first: the keys with which every line begins, in this order.
    :param shared: the keys whose values are stored once, at the top of the file.
    """
    top: dict[tuple[str, str], str] = {}
    lines = []
    for entry in entries:
        keys = [*(key for key in first if key in entry), *sorted(entry.keys() - {*first})]
        line = {key: sort_keys(entry[key]) for key in keys}
        for name in shared:
            if name in line:
                text = encode(line[name])
                digest = hashlib.sha256(text.encode()).hexdigest()[:8]
                top[name, digest] = text
                line[name] = digest
        lines.append(encode(line))
    heads = [f'{{"shared":"{digest}","{name}":{text}}}' for (name, digest), text in sorted(top.items())]
    return "\n".join([*heads, *lines, ""])


def read(file: Path, shared: Sequence[str], convert: Callable[[dict[str, Any]], _T]) -> list[_T]:
    """Read a file of JSON lines, and return ``convert(entry)`` for each entry.

    :param shared: the keys whose values are stored once, at the top of the file.
    :raises OSError: if the file is unreadable.
    :raises SentinelError: if a line is damaged; the message begins with the file and the line.
    """
    top: dict[tuple[str, str], Any] = {}
    entries = []
    for number, line in enumerate(regular_bytes(file, _MOST).splitlines(), 1):
        try:
            value = json_data(line)
            if "shared" in value:
                name = next(name for name in shared if name in value)
                top[name, value["shared"]] = value[name]
                continue
            value |= {name: top[name, value[name]] for name in shared if name in value}
            entries.append(convert(value))
        except (
            SentinelError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
            StopIteration,
        ) as error:
            why = message(str(error)) or type(error).__name__
            raise SentinelError(f"{visible(str(file))}:{number}: not a valid line: {why}") from None
    return entries
