"""Make a framework's configuration from a scenario's options, and capture requests to an inference engine."""

from __future__ import annotations

import argparse
import asyncio
import copy
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from sentinel.binding.drift import AbsentError, DriftError
from sentinel.binding.kit.objects import stand_in


def nest_options(options: Mapping[str, Any]) -> Any:
    """Make a namespace of options. An option such as ``actor.lr`` becomes an attribute of a nested namespace."""
    namespace, groups = stand_in(), dict[str, dict[str, Any]]()
    for name, value in options.items():
        group, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(group, {})[rest] = value
        else:
            setattr(namespace, name, value)
    for group, inside in groups.items():
        setattr(namespace, group, nest_options(inside))
    return namespace


def keep_accepted(kind: Any, options: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return those options that the framework's class ``kind`` accepts in this version.

    :param usual: option -> the value with which newer versions behave like versions without the option.
    :raises AbsentError: if the class lacks an option whose value differs from ``usual``.
    """
    names: set[str] = set()
    with suppress(ValueError):  # a typed dictionary has no signature
        names.update(inspect.signature(kind).parameters)
    names.update(name for base in kind.__mro__ for name in getattr(base, "__annotations__", {}))
    for name, value in options.items():
        if name not in names and (usual is None or value != usual.get(name)):
            raise AbsentError(f"{kind.__name__} has no option {name!r} in this version")
    return {name: value for name, value in options.items() if name in names}


def with_options(
    make: Callable[..., Any], fields: Mapping[str, Any], inputs: Mapping[str, Any], **extra: Any
) -> tuple[Any, dict[str, Any]]:
    """Make a framework's configuration object from the scenario's options. All other options have the framework's
    defaults.

    :param make: the configuration's class, or a function that makes the configuration. Its parameters are the fields.
    :param fields: option -> its field; or option -> the field and a mapping from the option's values to the field's.
    :param extra: further fields, which are ignored if this version lacks them.
    :return: the configuration; and a mapping of the options that the configuration has, with their values.
    :raises AbsentError: if the scenario sets an option that the configuration lacks.
    """
    parameters = inspect.signature(make).parameters
    values, words = {name: value for name, value in extra.items() if name in parameters}, {}
    for option, field in fields.items():
        name, values_of = (field, None) if isinstance(field, str) else field
        if name in parameters:
            words[option] = (name, values_of)
        if inputs[option] is not None:
            if name not in parameters:
                raise AbsentError(f"the configuration has no option {name} in this version")
            values[name] = values_of[inputs[option]] if values_of else inputs[option]
    configuration = make(**values)
    readings = {}
    for option, (name, values_of) in words.items():
        value = getattr(configuration, name)
        readings[option] = next(word for word in values_of if values_of[word] == value) if values_of else value
    return configuration, readings


def fields(same: str, **others: Any) -> dict[str, Any]:
    """Map each option of the contract to the field of the framework's configuration. ``same`` lists the options
    whose field has the same name.
    """
    return {**{name: name for name in same.split()}, **others}


#: The field for the option ``greedy`` in :func:`with_options`, if the configuration has the opposite option, sampling.
DRAWS = ("do_sample", {True: False, False: True})


class EngineRequest(Exception):
    """Raised instead of a call to an inference engine. Its argument is the request that the engine would receive."""


def engine_request(generation: Coroutine[Any, Any, Any]) -> Any:
    """Run code until its stand-in engine raises :class:`EngineRequest`, and return the request."""
    try:
        asyncio.run(generation)
    except EngineRequest as request:
        return request.args[0]
    raise DriftError("the framework's code returned without sending a request to the inference engine")


def parser_options(adds: Callable[[Any], Any], **extra: Any) -> Callable[..., Any]:
    """Return a function that makes the namespace of a framework's command line from keyword arguments. All other
    options have their defaults.

    :param adds: ``adds(parser)`` adds the framework's arguments to a parser.
    :param extra: defaults of arguments that a package adds if it is installed.
    """
    parser = argparse.ArgumentParser()
    with suppress(Exception):
        adds(parser)
    for action in parser._actions:
        action.required = False
    plain = {**extra, **vars(parser.parse_args([]))}

    def make(**values: Any) -> Any:
        return stand_in(**{**copy.deepcopy(plain), **values})

    fields = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=plain[name]) for name in plain]
    make.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]
    return make


def request_sampling(
    ask: Callable[[Any, Any], Mapping[str, Any]],
    module: str,
    name: str,
    fields: Mapping[str, Any],
    extra: Mapping[str, Any],
    parsed: bool,
    boundary: Any,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the engine request for the scenario's options; see ``families.sampling_request`` for the parameters."""
    if not hasattr(boundary.imported[module], name):
        raise AbsentError(f"{module} has no {name} in this version")
    make = getattr(boundary.imported[module], name)
    make = parser_options(make(), **extra) if parsed else make
    configuration, configured = with_options(make, fields, inputs, **extra)
    return {"request": ask(boundary, configuration), "configured": configured}
