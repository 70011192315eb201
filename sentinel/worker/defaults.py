"""Look up the framework's own default of a configuration option that the adapter does not set."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from sentinel.binding.drift import StandInMissingError
from sentinel.worker import stubs


class Settings(dict[str, Any]):
    """A part of a configuration, as a mapping whose keys can also be read as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self[name]

    def __missing__(self, name: str) -> Any:
        raise StandInMissingError(
            f"the code reads the setting {name!r}, which the framework's default configuration does not have"
        )


def default_of(sources: Sequence[str], attributes: Mapping[str, Any], name: str) -> list[Any]:
    """Return the framework's default of an option as a one-element list; an empty list if it is unknown.

    The default is taken from the part of the configuration that shares the most attribute names with the stand-in. The
    list is empty if fewer than two names are shared, if several such parts have different defaults, or if the default
    refers to another option.

    :param sources: dotted paths of configuration classes and argument parsers, or YAML files below an import root.
    :param attributes: the attributes of the stand-in that an adapter uses as the configuration.
    """
    parts = (_parts(node) for source in sources for node in _nodes(source))
    candidates = [(len(attributes.keys() & part.keys()), part[name]) for part in parts if name in part]
    most = max((shared for shared, _ in candidates), default=0)
    values = {repr(value): value for shared, value in candidates if shared == most}
    if most < 2 or len(values) > 1 or next(iter(values)).startswith("'${"):
        return []
    return copy.deepcopy([*values.values()])


@cache
def _nodes(source: str) -> tuple[Any, ...]:
    """Return a configuration, followed by all its nested parts; empty if this version does not have the
    configuration."""
    try:
        with _ignore_stub_use():
            whole = _load(source) if source.endswith(".yaml") else _defaults(_lookup(source))
    except (Exception, SystemExit):
        return ()
    nodes: list[Any] = []
    left = [whole]
    while left and len(nodes) < 1000:
        node = left.pop(0)
        nodes.append(node)
        left += [part for part in _parts(node).values() if isinstance(part, dict) or dataclasses.is_dataclass(part)]
    return tuple(nodes)


@contextmanager
def _ignore_stub_use() -> Iterator[None]:
    used = stubs.state().used
    length = len(used)
    try:
        yield
    finally:
        del used[length:]


def _lookup(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _defaults(source: Any) -> Any:
    if isinstance(source, type):
        return _instance(source)
    parser = argparse.ArgumentParser()
    with suppress(Exception):  # some arguments come from a package that is not installed
        source()(parser)
    for action in parser._actions:
        action.required = False
    return _settings(vars(parser.parse_args([])))


def _instance(make: Any) -> Any:
    """Create an instance of a class without arguments; for a dataclass with required fields, omit these fields."""
    try:
        return make()
    except Exception:
        if not isinstance(make, type):
            raise
    instance: Any = object.__new__(make)
    for field in dataclasses.fields(instance):
        with suppress(Exception):
            if field.default is not dataclasses.MISSING:
                object.__setattr__(instance, field.name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                object.__setattr__(instance, field.name, _instance(field.default_factory))
    return instance


def _load(file: str) -> Any:
    import yaml

    place = next(path for root in sys.path if os.path.isfile(path := os.path.join(root, file)))
    with open(place, encoding="utf-8") as handle:
        return _settings(yaml.safe_load(handle))


def _settings(value: Any) -> Any:
    return Settings({name: _settings(part) for name, part in value.items()}) if isinstance(value, dict) else value


def _parts(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else vars(node)
