"""The published JSON Schema of recipes, and its verdict on a document in sentences with places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sentinel.errors import nearest
from sentinel.recipes.problems import Findings, describe
from sentinel.recipes.schema_subset import Published

_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "null": "nothing",
}


_PUBLISHED = Published("recipe")


def schema() -> dict[str, Any]:
    """Give the published JSON Schema of recipes."""
    return _PUBLISHED.schema


def check_structure(findings: Findings) -> set[str]:
    """Report everything about a document that its schema does not allow.

    :returns: the top-level keys in which something is wrong, so that nobody reads them any further.
    """
    data = findings.document.data
    if not isinstance(data, dict):
        findings.error((), f"a recipe is a mapping that begins with recipe_version: 1; found {describe(data)}")
        return set()
    broken: set[str] = set()
    if _PUBLISHED.accepts(data):
        return broken
    for error in _leaves(_PUBLISHED.errors(data)):
        place = tuple(error.absolute_path)
        before = len(findings.problems)
        _SENTENCES.get(str(error.validator), _other)(findings, place, error)
        if place and len(findings.problems) > before:
            broken.add(str(place[0]))
    return broken


def _leaves(errors: Iterable[Any]) -> Iterable[Any]:
    """Errors themselves instead of those of the combinators (if/then/else) that hold them."""
    for error in errors:
        if error.context and error.validator in ("if", "allOf", "anyOf", "oneOf"):
            yield from _leaves(error.context)
        else:
            yield error


def _additional(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    known = error.schema.get("properties", {})
    for key in error.instance:
        if key not in known:
            findings.error((*place, key), f"unknown key {key!r}{nearest(key, known, 'known are')}", key=True)


def _required(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    for key in error.validator_value:
        if key not in error.instance:
            meaning = _resolved(error.schema.get("properties", {}).get(key, {})).get("description", "")
            findings.error(place, f"missing key {key!r}{f': {meaning}' if meaning else ''}")


def _resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = part.get("$ref")
    return schema()["$defs"][reference.rsplit("/", 1)[-1]] if reference else part


def _type(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    kinds = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
    expected = " or ".join(_TYPES[kind] for kind in kinds)
    findings.error(place, f"{_name(place)} must be {expected}, found {describe(error.instance)}")


def _enum(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    known = [str(item) for item in error.validator_value]
    near = nearest(str(error.instance), known)
    findings.error(place, f"{_name(place)} must be one of {', '.join(known)}; found {describe(error.instance)}{near}")


def _const(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    findings.error(place, f"{_name(place)} must be {error.validator_value}, found {describe(error.instance)}")


def _other(findings: Findings, place: tuple[Any, ...], error: Any) -> None:
    meaning = error.schema.get("description") or error.schema.get("title") or error.message[:200]
    if (
        isinstance(error.instance, str)
        and not (place and place[-1] == error.instance)
        and "propertyNames" in error.absolute_schema_path
    ):
        findings.error((*place, error.instance), f"{error.instance!r} is not {meaning}", key=True)
    elif error.validator == "minProperties":
        findings.error(place, f"{_name(place)} is empty; {meaning}")
    else:
        findings.error(place, f"{_name(place)}: {describe(error.instance)} will not do; {meaning}")


def _name(place: tuple[Any, ...]) -> str:
    """A place as a reader would write it: ``pins[0].expect``."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text or "the document"


_SENTENCES: dict[str, Callable[[Findings, tuple[Any, ...], Any], None]] = {
    "additionalProperties": _additional,
    "required": _required,
    "type": _type,
    "enum": _enum,
    "const": _const,
}
