"""Keeps what the files of a target define, by blob: what was parsed once is read the next time."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentinel.diff import reached
from sentinel.diff.reached import Module, Unit
from sentinel.history import bindings
from sentinel.history.bindings import Name
from sentinel.reports.store import file_name
from sentinel.sources.home import Home, replace_file

#: Modules that a file keeps, some 20 kB each: the last ones.
_KEPT = 800


class Modules(dict[str, Module]):
    """Those that were seen of a target, below ``SENTINEL_HOME``; what reads them otherwise has a file of its own."""

    def __init__(self, target: str) -> None:
        super().__init__()
        sources = (Path(str(module.__file__)).read_bytes() for module in (reached, bindings))
        digest = hashlib.sha256(b"".join([sys.version.encode(), *sources])).hexdigest()[:12]
        self._file = Home.default().path / "history" / file_name(target) / "modules" / f"{digest}.lines"
        self._read: dict[str, str] = {}
        with suppress(OSError, ValueError):  # a line is read where it is asked for
            self._read.update(line.partition(" ")[::2] for line in self._file.read_text("utf-8").split("\n"))
        self._on_disk = set(self._read)

    def __contains__(self, blob: object) -> bool:
        if not super().__contains__(blob) and blob in self._read:
            with suppress(
                LookupError, TypeError, ValueError, AttributeError, RecursionError
            ):  # it is not what we write
                self[str(blob)] = _module(json.loads(self._read.pop(str(blob))))
        return super().__contains__(blob)

    def save(self) -> None:
        """Write what is new; what cannot be written is parsed again."""
        if self.keys() <= self._on_disk:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            kept = {**self._read, **{blob: json.dumps(_plain(module)) for blob, module in self.items()}}
            replace_file(self._file, "\n".join(f"{blob} {plain}" for blob, plain in list(kept.items())[-_KEPT:]))
        self._on_disk |= self.keys()


def _plain(module: Module) -> list[Any]:
    units = [_listed(vars(unit).values()) for unit in module.units.values()]
    imports = {key: sorted(paths) for key, paths in module.imports.items()}
    return [units, _plain_names(module.names), imports, sorted(module.stars)]


def _plain_names(names: Mapping[str, Name]) -> dict[str, Any]:
    return {
        name: [each.kind, each.span, each.leads, _plain_names(each.names), sorted(each.parameters)]
        for name, each in names.items()
    }


def _listed(values: Iterable[Any]) -> list[Any]:
    return [sorted(value) if isinstance(value, frozenset) else value for value in values]


def _module(plain: Any) -> Module:
    units, names, imports, stars = plain
    made = {
        name: Unit(name, kind, tuple(span), text, frozenset(used), frozenset(attributes), _pairs(chains), frozenset(by))
        for name, kind, span, text, used, attributes, chains, by in units
    }
    return Module(made, _names(names), {key: frozenset(paths) for key, paths in imports.items()}, frozenset(stars))


def _names(plain: Mapping[str, Any]) -> dict[str, Name]:
    return {
        name: Name(kind, tuple(span), tuple(leads), _names(names), frozenset(parameters))
        for name, (kind, span, leads, names, parameters) in plain.items()
    }


def _pairs(plain: Iterable[Any]) -> frozenset[tuple[str, str]]:
    return frozenset((first, attribute) for first, attribute in plain)
