"""Read a configuration file as a flat mapping from dotted names to strings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes.affects import RECORDED, in_text
from sentinel.values.documents import DocumentError, parse_yaml, read_text, suffix_of
from sentinel.values.files import read_bytes

#: OmegaConf's text for a value that the user must set.
MISSING = "???"


def flattened(data: Any, prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to dotted names with string values. ``--eps-clip`` becomes ``eps_clip``."""
    if isinstance(data, Mapping) and data:
        return {
            key: value
            for name, item in data.items()
            for key, value in flattened(item, f"{prefix}.{spelled(name)}" if prefix else spelled(name)).items()
        }
    return {prefix: "" if isinstance(data, Mapping) else in_text(data)} if prefix else {}


def spelled(name: object) -> str:
    """Return a setting's name as recipes write it: without leading dashes, and with underscores for other dashes."""
    return str(name).lstrip("-").replace("-", "_")


def settings_of(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Remove the keys ``defaults`` and ``hydra``, which belong to Hydra, and the key that ``sentinel watch`` adds."""
    return {name: value for name, value in data.items() if name not in ("defaults", "hydra", RECORDED)}


def classes_recorded(data: Mapping[Any, Any]) -> list[str] | None:
    """Return the configuration class of a recorded run and its base classes, by name. Return None if ``sentinel watch``
    did not write the file."""
    classes = data.get(RECORDED)
    return list(map(str, classes)) if isinstance(classes, list) else None


def read_mapping(file: Path) -> dict[str, Any]:
    """Read a YAML, JSON or TOML file and return its mapping.

    :raises SentinelError: if the file cannot be read or is not a mapping; the message starts with ``file:line:column``.
    """
    try:
        data = read_text(read_bytes(file), suffix_of(file), configuration=True).data
    except DocumentError as error:
        raise SentinelError(f"{file}:{error.line}:{error.column}: {error.message}") from None
    if not isinstance(data, dict):
        raise SentinelError(f"{file}: the top level must be a mapping of options")
    return data


def position_of(file: Path, name: str) -> str:
    """Return ``file:line`` of a setting in a YAML or JSON file, or "" if the file does not have it."""
    try:
        document = read_text(read_bytes(file), suffix_of(file), configuration=True)
    except (DocumentError, SentinelError):
        return ""
    lines = (line for place, (line, _) in document.keys.items() if ".".join(map(spelled, place)) == name)
    return next((f"{file}:{line}" for line in lines), "")


def value_of(text: str) -> Any:
    """Parse the text of a setting as YAML. If it is not valid YAML, return the text."""
    try:
        return None if text == "None" else parse_yaml(text, configuration=True).data if text.strip() else None
    except DocumentError:
        return text
