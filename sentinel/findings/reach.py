"""Whether a training configuration reaches a bug, as far as the recipe's ``affects`` names settings.

``affects`` is prose in which settings stand as ``key=value``. A configuration that sets one of them to something else
is not reached by that line; one that has them all is. What names no setting that the configuration has is not known: a
person has to read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError

#: ``loss_agg_mode=token-mean``, ``actor.mask_no_eos_with_zero=true``
_SETTING = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)=([\w.+-]+)")

ANSWERS = ("reached", "not known", "not reached")

#: What of a configuration is read: the longest that people train with has some thousand settings.
_MOST = 100_000
_DEEPEST = 50


def flattened(data: Any, prefix: str = "") -> dict[str, str]:
    """Dotted key -> value, lower-case, as a configuration file has them."""
    if isinstance(data, Mapping):
        return {
            key: value
            for name, item in data.items()
            for key, value in flattened(item, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: _text(data)}


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read(file: Path) -> dict[str, str]:
    """A YAML or JSON file, flattened.

    :raises SentinelError: where it is not one.
    """
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        depth = 0
        # Looked at first: the loader itself takes a minute for ten thousand levels.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise SentinelError(f"{file} is nested deeper than {_DEEPEST} levels; none of it is read")
        data = yaml.safe_load(text)
    except OSError as error:
        raise SentinelError(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # a day that is none; too deep
        raise SentinelError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise SentinelError(f"{file} holds no mapping of options")
    _bounded(file, data)
    try:
        return flattened(data)
    except ValueError as error:  # a number with more digits than Python writes
        raise SentinelError(f"{file} cannot be read: {error}") from None


def _bounded(file: Path, data: Any) -> None:
    """A few aliases of aliases are a thousand million settings, and one inside itself never ends."""
    left, depth = [(data, 0)], 0
    for count in range(_MOST):
        if not left or depth > _DEEPEST:
            break
        value, depth = left.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        left += [(item, depth + 1) for item in islice(inner, _MOST - count)]
    if left:
        raise SentinelError(f"{file} holds more than {_MOST} settings, or deeper ones than {_DEEPEST}; none is read")


def reach(affects: Sequence[str], configuration: Mapping[str, str]) -> tuple[str, str]:
    """One of :data:`ANSWERS`, and the setting that says so. Any of the lines may reach."""
    found = [_line(line, configuration) for line in affects]
    return min(found, key=lambda answer: ANSWERS.index(answer[0]), default=("not known", "the recipe names no setting"))


def _line(line: str, configuration: Mapping[str, str]) -> tuple[str, str]:
    told = []
    wanted: dict[str, list[str]] = {}
    for key, value in _SETTING.findall(line):
        wanted.setdefault(key, []).append(value.rstrip("."))
    for key, values in wanted.items():
        here = _find(key, configuration)
        if here is None:
            continue
        name, value = here
        if value.lower() not in [item.lower() for item in values]:
            return "not reached", f"{name}={value}"
        told.append(f"{name}={value}")
    if wanted and len(told) == len(wanted):
        return "reached", ", ".join(told)
    return "not known", ", ".join(told) or "the configuration has none of the settings that it names"


def _find(key: str, configuration: Mapping[str, str]) -> tuple[str, str] | None:
    """A setting by its whole name or by the end of it, where that is one setting only."""
    same = [name for name in configuration if name == key or name.endswith(f".{key}")]
    return (same[0], configuration[same[0]]) if len(same) == 1 else None
