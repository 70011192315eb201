"""A configuration file as settings: dotted name -> text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from sentinel.errors import SentinelError
from sentinel.recipes.affects import in_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: What of a configuration is read: the longest that people train with has some thousand settings.
_MOST = 100_000
_DEEPEST = 50

#: OmegaConf's word for a value that must be given.
MISSING = "???"


def flattened(data: Any, prefix: str = "") -> dict[str, str]:
    """Map dotted name -> text (see :func:`~sentinel.recipes.affects.in_text`). ``--eps-clip`` is ``eps_clip``."""
    if isinstance(data, Mapping) and data:
        return {
            key: value
            for name, item in data.items()
            for key, value in flattened(item, f"{prefix}.{spelled(name)}" if prefix else spelled(name)).items()
        }
    return {prefix: "" if isinstance(data, Mapping) else in_text(data)} if prefix else {}


def spelled(name: object) -> str:
    """Give a setting's name as recipes write it: an option's dashes are underscores."""
    return str(name).lstrip("-").replace("-", "_")


def settings_of(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Without the nodes by which Hydra composes a configuration, and runs it: they are no settings."""
    return {name: value for name, value in data.items() if name not in ("defaults", "hydra")}


def read_mapping(file: Path) -> dict[Any, Any]:
    """Give a YAML, JSON or TOML file that holds a mapping of a size that a configuration can have."""
    try:
        text = file.read_text(encoding="utf-8")
        return _of_toml(text, str(file)) if file.suffix == ".toml" else mapping_of(text, str(file))
    except OSError as error:
        raise SentinelError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SentinelError(f"{file} is no YAML: {error}") from None


def _of_toml(text: str, file: str) -> dict[Any, Any]:
    try:
        data: dict[Any, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SentinelError(f"{file} is no TOML: {' '.join(str(error).split())}") from None
    _bounded(file, data)
    return data


def mapping_of(text: str, file: str) -> dict[Any, Any]:
    """Give what :func:`read_mapping` makes of a file's text."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same answers ten times as fast, where it is built
    try:
        depth = 0
        # Looked at first: the loader itself takes a minute for ten thousand levels.
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise SentinelError(f"{file} is nested deeper than {_DEEPEST} levels; none of it is read")
        data = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # a day that is none; too deep
        raise SentinelError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise SentinelError(f"{file} holds no mapping of options")
    _bounded(file, data)
    try:
        flattened(data)
    except ValueError as error:  # a number with more digits than Python writes
        raise SentinelError(f"{file} cannot be read: {error}") from None
    return data


def _bounded(file: str, data: Any) -> None:
    """Refuse what is too large: aliases of aliases are a thousand million settings, one inside itself never ends."""
    left, depth = [(data, 0)], 0
    for count in range(_MOST):
        if not left or depth > _DEEPEST:
            break
        value, depth = left.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        left += [(item, depth + 1) for item in islice(inner, _MOST - count)]
    if left:
        raise SentinelError(f"{file} holds more than {_MOST} settings, or deeper ones than {_DEEPEST}; none is read")
