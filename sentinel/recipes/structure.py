"""Check a document against the JSON Schema of recipes, and report each error as a sentence with its position."""

from __future__ import annotations

from typing import Any

from sentinel.errors import nearest
from sentinel.recipes.json_schema import JsonSchema
from sentinel.recipes.problems import Findings, describe
from sentinel.values.documents import Place

_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "null": "null",
}


_SCHEMA = JsonSchema("recipe")


def schema() -> dict[str, Any]:
    """Return the published JSON Schema of recipes."""
    return _SCHEMA.schema


def check_structure(findings: Findings) -> set[str]:
    """Check a document against the schema of recipes, and add each error to ``findings``.

    :returns: the top-level keys that have an error. Later checks skip these keys.
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


def _additional(findings: Findings, place: Place, error: Any) -> None:
    properties = _SCHEMA.part(error).get("properties", {})
    for key in error.kind.unexpected:
        findings.error((*place, key), f"unknown key {key!r}{nearest(key, properties, 'the keys are')}", key=True)


def _required(findings: Findings, place: Place, error: Any) -> None:
    key = error.kind.property
    part = _SCHEMA.part(error).get("properties", {}).get(key, {})
    if "$ref" in part:
        part = schema()["$defs"][part["$ref"].rsplit("/", 1)[-1]]
    findings.error(place, f"missing key {key!r}{f': {meaning}' if (meaning := part.get('description')) else ''}")


def _type(findings: Findings, place: Place, error: Any) -> None:
    wanted = _SCHEMA.part(error)["type"]
    kinds = [wanted] if isinstance(wanted, str) else wanted
    value = findings.document.data
    for step in place:
        value = value[step]
    if "number" in kinds and isinstance(value, float):
        return  # NaN or infinity, which is not a number in JSON Schema; the check of the field reports it
    expected = " or ".join(_TYPES[kind] for kind in kinds)
    findings.error(place, f"{_name(place)} must be {expected}, found {describe(error.instance)}")


def _other(findings: Findings, place: Place, error: Any) -> None:
    kind, value, part = error.kind, describe(error.instance), _SCHEMA.part(error)
    meaning = part.get("description") or part.get("title") or error.message[:200]
    if kind.name == "propertyNames":
        name = kind.error.instance
        findings.error((*place, name), f"{name!r} is not {meaning}", key=True)
    elif kind.name == "enum":
        options = [str(item) for item in kind.options]
        near = nearest(str(error.instance), options)
        findings.error(place, f"{_name(place)} must be one of {', '.join(options)}; found {value}{near}")
    elif kind.name == "const":
        findings.error(place, f"{_name(place)} must be {kind.expected_value}, found {value}")
    elif kind.name == "minProperties":
        findings.error(place, f"{_name(place)} is empty; {meaning}")
    else:
        findings.error(place, f"{_name(place)}: {value} is not valid; {meaning}")


def _name(place: Place) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text or "the document"


_SENTENCES = {"additionalProperties": _additional, "required": _required, "type": _type}
