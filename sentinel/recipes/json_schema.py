"""Validate documents against JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import resources
from typing import Any

from sentinel.errors import SentinelError


class JsonSchema:
    """A JSON Schema (draft 2020-12) for validating documents.

    :param source: the schema, or the name of a published schema: ``recipe``, ``evidence`` or ``fix``.
    """

    def __init__(self, source: str | dict[str, Any]) -> None:
        self._source = source

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Return the schema as data, which must not be modified."""
        if not isinstance(self._source, str):
            return self._source
        file = resources.files("sentinel") / "schemas" / f"{self._source}.schema.json"
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return loaded

    @cached_property
    def _validator(self) -> Any:
        # Imported here, because most importers of this module validate nothing.
        from jsonschema_rs import Draft202012Validator

        return Draft202012Validator(self.schema)

    def accepts(self, document: Any) -> bool:
        try:
            return bool(self._validator.is_valid(document))
        except ValueError:  # nested too deeply, or text with lone surrogates
            return False

    def errors(self, document: Any) -> Iterator[Any]:
        """Yield each error of a document, with ``instance``, ``instance_path``, ``kind`` and ``schema_path``."""
        try:
            yield from self._validator.iter_errors(document)
        except ValueError as error:
            raise SentinelError(f"not valid JSON data: {str(error)[:200]}") from None

    def part(self, error: Any) -> Mapping[str, Any]:
        """Return the part of the schema that an error violates."""
        node: Any = self.schema
        for step in error.schema_path[:-1]:
            node = node[step]
        return dict(node)
