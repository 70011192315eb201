"""Whether a document obeys one of our own JSON Schemas, decided without importing jsonschema.

That import takes longer than reading forty recipes, and its answer several times as long as this one. So what is
valid, as almost everything is, is found valid here; what is not goes to jsonschema, which says why. Only the keywords
that our schemas use are known, and any other is refused; a property test holds the two to the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]

_SAID = frozenset({"$schema", "$id", "$defs", "title", "description", "examples", "then", "else"})

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: (type(value) is int) or (isinstance(value, float) and value.is_integer()),
}


def accepts(schema: Schema | bool, value: Any, root: Schema) -> bool:
    """Whether a value is valid.

    :param schema: ``True`` stands for anything.
    :param root: the whole schema, in which references are looked up.
    :raises NotImplementedError: for a keyword that is not in the subset.
    """
    if isinstance(schema, bool):
        return schema
    for keyword, wanted in schema.items():
        if keyword in _SAID:
            continue
        rule = _RULES.get(keyword)
        if rule is None:
            raise NotImplementedError(f"JSON Schema keyword {keyword!r}: teach {__name__} first")
        if not rule(wanted, value, schema, root):
            return False
    return True


def _type(wanted: Any, value: Any, schema: Schema, root: Schema) -> bool:
    return any(_TYPES[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _same(one: Any, other: Any) -> bool:
    """Equality of scalars as JSON Schema has it: 1 is 1.0, but true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _reference(wanted: str, value: Any, schema: Schema, root: Schema) -> bool:
    return accepts(root["$defs"][wanted.removeprefix("#/$defs/")], value, root)


def _if(wanted: Schema, value: Any, schema: Schema, root: Schema) -> bool:
    return accepts(schema.get("then" if accepts(wanted, value, root) else "else", {}), value, root)


def _properties(wanted: Mapping[str, Schema], value: Any, schema: Schema, root: Schema) -> bool:
    return not isinstance(value, dict) or all(
        accepts(part, value[name], root) for name, part in wanted.items() if name in value
    )


def _additional(wanted: Any, value: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    others = [item for name, item in value.items() if name not in known]
    return not others if wanted is False else all(accepts(wanted, item, root) for item in others)


_RULES: dict[str, Callable[[Any, Any, Schema, Schema], bool]] = {
    "type": _type,
    "const": lambda wanted, value, schema, root: _same(wanted, value),
    "enum": lambda wanted, value, schema, root: any(_same(item, value) for item in wanted),
    "$ref": _reference,
    "if": _if,
    "allOf": lambda wanted, value, schema, root: all(accepts(part, value, root) for part in wanted),
    "not": lambda wanted, value, schema, root: not accepts(wanted, value, root),
    "required": lambda wanted, value, schema, root: (
        not isinstance(value, dict) or all(name in value for name in wanted)
    ),
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": lambda wanted, value, schema, root: (
        not isinstance(value, dict) or all(accepts(wanted, name, root) for name in value)
    ),
    "minProperties": lambda wanted, value, schema, root: not isinstance(value, dict) or len(value) >= wanted,
    "maxProperties": lambda wanted, value, schema, root: not isinstance(value, dict) or len(value) <= wanted,
    "items": lambda wanted, value, schema, root: (
        not isinstance(value, list) or all(accepts(wanted, item, root) for item in value)
    ),
    "minimum": lambda wanted, value, schema, root: not _TYPES["number"](value) or not value < wanted,
    "minLength": lambda wanted, value, schema, root: not isinstance(value, str) or len(value) >= wanted,
    "maxLength": lambda wanted, value, schema, root: not isinstance(value, str) or len(value) <= wanted,
    "pattern": lambda wanted, value, schema, root: not isinstance(value, str) or bool(re.search(wanted, value)),
}
