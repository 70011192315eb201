"""Whether a document obeys one of our own JSON Schemas, decided without importing jsonschema.

That import takes longer than reading forty recipes, and its answer several times as long as this one. So what is
valid, as almost everything is, is found valid here; what is not goes to jsonschema, which says why. Only the keywords
that our schemas use are known, and any other is refused; a property test holds the two to the same answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import resources
from typing import Any

Schema = Mapping[str, Any]
Check = Callable[[Any], bool]

_SAID = frozenset({"$schema", "$id", "$defs", "title", "description", "examples", "then", "else"})

_TYPES: dict[str, Check] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: (type(value) is int) or (isinstance(value, float) and value.is_integer()),
}


class Published:
    """One of the schemas that Sentinel publishes.

    :param name: ``recipe`` or ``evidence``.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12). Not to be changed by whoever gets it."""
        file = resources.files("sentinel") / "schemas" / f"{self._name}.schema.json"
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return loaded

    @cached_property
    def accepts(self) -> Check:
        return compiled(self.schema)

    def errors(self, document: Any) -> Iterator[Any]:
        """What jsonschema has to say about a document that is not accepted."""
        from jsonschema import Draft202012Validator

        return iter(Draft202012Validator(self.schema).iter_errors(document))


def compiled(root: Schema) -> Check:
    """Give the function that tells whether a value is valid.

    :raises NotImplementedError: for a keyword that is not in the subset.
    """
    return _Compiler(root).check(root)


class _Compiler:
    """:param root: the whole schema, in which references are looked up."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._defined: dict[str, Check] = {}

    def check(self, schema: Schema | bool) -> Check:
        """:param schema: ``True`` stands for anything."""
        if isinstance(schema, bool):
            return lambda value: schema
        checks = []
        for keyword, wanted in schema.items():
            if keyword in _SAID:
                continue
            rule = _RULES.get(keyword)
            if rule is None:
                raise NotImplementedError(f"JSON Schema keyword {keyword!r}: teach {__name__} first")
            checks.append(rule(wanted, schema, self))
        return checks[0] if len(checks) == 1 else _every(checks)

    def reference(self, wanted: str) -> Check:
        name = wanted.removeprefix("#/$defs/")

        def check(value: Any) -> bool:
            if name not in self._defined:  # only now: a definition may refer to itself
                self._defined[name] = self.check(self._root["$defs"][name])
            return self._defined[name](value)

        return check


def _every(checks: Sequence[Check]) -> Check:
    def check(value: Any) -> bool:
        for each in checks:  # noqa: SIM110 - half of a run's validation would go into a generator's overhead
            if not each(value):
                return False
        return True

    return check


def _type(wanted: Any, schema: Schema, compiler: _Compiler) -> Check:
    kinds = [_TYPES[name] for name in ([wanted] if isinstance(wanted, str) else wanted)]
    return kinds[0] if len(kinds) == 1 else lambda value: any(kind(value) for kind in kinds)


def _same(one: Any, other: Any) -> bool:
    """Equality of scalars as JSON Schema has it: 1 is 1.0, but true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _if(wanted: Schema, schema: Schema, compiler: _Compiler) -> Check:
    holds = compiler.check(wanted)
    then, otherwise = (compiler.check(schema.get(name, {})) for name in ("then", "else"))
    return lambda value: then(value) if holds(value) else otherwise(value)


def _properties(wanted: Mapping[str, Schema], schema: Schema, compiler: _Compiler) -> Check:
    checks = {name: compiler.check(part) for name, part in wanted.items()}

    def check(value: Any) -> bool:
        if isinstance(value, dict):
            for name, item in value.items():
                if name in checks and not checks[name](item):
                    return False
        return True

    return check


def _additional(wanted: Any, schema: Schema, compiler: _Compiler) -> Check:
    known, holds = frozenset(schema.get("properties", ())), compiler.check(wanted)
    return lambda value: (
        not isinstance(value, dict) or all(holds(item) for name, item in value.items() if name not in known)
    )


def _items(wanted: Any, schema: Schema, compiler: _Compiler) -> Check:
    holds = compiler.check(wanted)

    def check(value: Any) -> bool:
        if isinstance(value, list):
            for item in value:
                if not holds(item):
                    return False
        return True

    return check


def _names(wanted: Any, schema: Schema, compiler: _Compiler) -> Check:
    holds = compiler.check(wanted)
    return lambda value: not isinstance(value, dict) or all(map(holds, value))


def _all(wanted: Any, schema: Schema, compiler: _Compiler) -> Check:
    return _every([compiler.check(part) for part in wanted])


def _not(wanted: Any, schema: Schema, compiler: _Compiler) -> Check:
    holds = compiler.check(wanted)
    return lambda value: not holds(value)


def _pattern(wanted: str, schema: Schema, compiler: _Compiler) -> Check:
    search = re.compile(wanted).search
    return lambda value: not isinstance(value, str) or search(value) is not None


#: keyword -> what makes its check, of what it says, the schema it stands in and the compiler.
_RULES: dict[str, Callable[[Any, Schema, _Compiler], Check]] = {
    "type": _type,
    "const": lambda wanted, schema, compiler: lambda value: _same(wanted, value),
    "enum": lambda wanted, schema, compiler: lambda value: any(_same(item, value) for item in wanted),
    "$ref": lambda wanted, schema, compiler: compiler.reference(wanted),
    "if": _if,
    "allOf": _all,
    "not": _not,
    "required": lambda wanted, schema, compiler: (
        lambda value: not isinstance(value, dict) or all(name in value for name in wanted)
    ),
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "minProperties": lambda wanted, schema, compiler: lambda value: not isinstance(value, dict) or len(value) >= wanted,
    "maxProperties": lambda wanted, schema, compiler: lambda value: not isinstance(value, dict) or len(value) <= wanted,
    "items": _items,
    "minimum": lambda wanted, schema, compiler: lambda value: not _TYPES["number"](value) or not value < wanted,
    "minLength": lambda wanted, schema, compiler: lambda value: not isinstance(value, str) or len(value) >= wanted,
    "maxLength": lambda wanted, schema, compiler: lambda value: not isinstance(value, str) or len(value) <= wanted,
    "pattern": _pattern,
}
