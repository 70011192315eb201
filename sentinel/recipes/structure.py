"""The published JSON Schema of recipes, and its verdict on a document in sentences with places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.errors import nearest
from sentinel.recipes.json_schema import JsonSchema
from sentinel.recipes.problems import Findings, describe

_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "null": "nothing",
}


_SCHEMA = JsonSchema("recipe")


def schema() -> dict[str, Any]:
    """Give the published JSON Schema of recipes."""
    return _SCHEMA.schema


def check_structure(findings: Findings) -> set[str]:
    """Report everything about a document that its schema does not allow.

    :returns: the top-level keys in which something is wrong, so that nobody reads them any further.
    """
    data = findings.document.data
    if not isinstance(data, dict):
        findings.error((), f"a recipe is a mapping that begins with recipe_version: 1; found {describe(data)}")
        return set()
    broken: set[str] = set()
    for error in _SCHEMA.errors(data):
        place = tuple(error.instance_path)
        before = len(findings.problems)
        _SENTENCES.get(error.kind.name, _other)(findings, place, error)
        if place and len(findings.problems) > before:
            broken.add(str(place[0]))
    return broken


def _additional(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    properties = _SCHEMA.part(error).get("properties", {})
    for key in error.kind.unexpected:
        findings.error((*place, key), f"unknown key {key!r}{nearest(key, properties, 'known are')}", key=True)


def _required(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    key = error.kind.property
    meaning = _resolved(_SCHEMA.part(error).get("properties", {}).get(key, {})).get("description", "")
    findings.error(place, f"missing key {key!r}{f': {meaning}' if meaning else ''}")


def _resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = part.get("$ref")
    return schema()["$defs"][reference.rsplit("/", 1)[-1]] if reference else part


def _type(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    wanted = _SCHEMA.part(error)["type"]
    kinds = [wanted] if isinstance(wanted, str) else wanted
    if "number" in kinds and isinstance(_value_at(findings, place), float):
        return  # not finite, which JSON has no number for; whoever reads the field says so
    expected = " or ".join(_TYPES[kind] for kind in kinds)
    findings.error(place, f"{_name(place)} must be {expected}, found {describe(error.instance)}")


def _enum(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    options = [str(item) for item in error.kind.options]
    near = nearest(str(error.instance), options)
    findings.error(place, f"{_name(place)} must be one of {', '.join(options)}; found {describe(error.instance)}{near}")


def _const(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    findings.error(place, f"{_name(place)} must be {error.kind.expected_value}, found {describe(error.instance)}")


def _property_names(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    name = error.kind.error.instance
    findings.error((*place, name), f"{name!r} is not {_meaning(error)}", key=True)


def _other(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    meaning = _meaning(error)
    if error.kind.name == "minProperties":
        findings.error(place, f"{_name(place)} is empty; {meaning}")
    else:
        findings.error(place, f"{_name(place)}: {describe(error.instance)} will not do; {meaning}")


def _meaning(error: Any) -> str:
    part = _SCHEMA.part(error)
    return str(part.get("description") or part.get("title") or error.message[:200])


def _value_at(findings: Findings, place: tuple[Any, ...]) -> Any:
    value = findings.document.data
    for step in place:
        value = value[step]
    return value


def _name(place: tuple[Any, ...]) -> str:
    """A place as a reader would write it: ``pins[0].expect``."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text or "the document"


_SENTENCES: dict[str, Callable[[Findings, tuple[Any, ...], Any], None]] = {
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "required": _required,
    "type": _type,
    "enum": _enum,
    "const": _const,
}
