"""The scenario of a recipe: inputs by their canonical names, variants, defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.contracts.contract import REQUIRED, Contract, Input
from sentinel.errors import nearest
from sentinel.recipes.inputs import LiteralError, read_input
from sentinel.recipes.problems import Findings
from sentinel.recipes.yamldoc import Place

#: The two variants that published recipes write as prefixes of their scenario's keys.
PUBLISHED_VARIANTS = ("baseline", "outlier")


@dataclass(frozen=True)
class Entry:
    """A value as the document has it, and where."""

    value: Any
    place: Place


@dataclass(frozen=True)
class Scenario:
    """:ivar shared: what every variant has.
    :ivar variants: variant -> what it has besides or instead; ``""`` alone where there are no variants.
    """

    shared: Mapping[str, Entry]
    variants: Mapping[str, Mapping[str, Entry]]


def written_scenario(findings: Findings, contract: Contract, written: Any, place: Place, variants: Any) -> Scenario:
    """Give the scenario of a native recipe; unknown inputs are errors."""
    own: dict[str, Mapping[str, Entry]] = {
        name: _named(findings, contract, overrides or {}, ("variants", name))
        for name, overrides in (variants or {}).items()
    }
    return Scenario(_named(findings, contract, written or {}, place), own or {"": {}})


def published_scenario(findings: Findings, contract: Contract, written: Mapping[str, Any], place: Place) -> Scenario:
    """The scenario of a published recipe: ``baseline_X`` beside ``outlier_X`` are variants, unknown keys are prose."""
    shared: dict[str, Any] = {}
    variants: dict[str, dict[str, Entry]] = {name: {} for name in PUBLISHED_VARIANTS}
    for key, value in written.items():
        prefix, _, rest = key.partition("_")
        entry = Entry(value, (*place, key))
        if (name := _canonical(contract, key)) is not None:
            _place_once(findings, shared, name, key, entry)
        elif prefix in variants and (name := _canonical(contract, rest)) is not None:
            _place_once(findings, variants[prefix], name, key, entry)
        else:
            near = nearest(key, [item.name for item in contract.inputs])
            findings.warn(
                entry.place, f"{key!r} is no input of contract {contract.name}: taken as prose{near}", key=True
            )
    return Scenario(shared, variants if any(variants.values()) else {"": {}})


def _named(findings: Findings, contract: Contract, written: Mapping[str, Any], place: Place) -> dict[str, Entry]:
    named: dict[str, Entry] = {}
    for key, value in written.items():
        name = _canonical(contract, key)
        if name is None:
            inputs = [item.name for item in contract.inputs]
            aliases = [alias for alias, canonical in contract.aliases.items() if canonical in inputs]
            hint = nearest(key, [*inputs, *aliases], "it takes")
            findings.error((*place, key), f"unknown input {key!r} of contract {contract.name}{hint}", key=True)
        else:
            _place_once(findings, named, name, key, Entry(value, (*place, key)))
    return named


def _canonical(contract: Contract, key: str) -> str | None:
    if contract.input(key):
        return key
    name = contract.aliases.get(key, "")
    return name if contract.input(name) else None


def _place_once(findings: Findings, named: dict[str, Entry], name: str, key: str, entry: Entry) -> None:
    if name in named:
        findings.error(
            entry.place, f"{key!r} is {name!r}, which is already given as {named[name].place[-1]!r}", key=True
        )
    else:
        named[name] = entry


def build(
    findings: Findings, contract: Contract, scenario: Scenario, packages: tuple[str, ...], place: Place
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Give the inputs of each variant as literals, in the contract's order, and the names that were left to defaults.

    An input counts as left to its default only where no variant gives it.

    :param place: where to point at when an input is missing.
    """
    read: dict[Place, Any] = {}
    built: dict[str, dict[str, Any]] = {}
    defaulted: set[str] | None = None
    somewhere = {name for own in scenario.variants.values() for name in own}
    for variant, own in scenario.variants.items():
        entries = {**scenario.shared, **own}
        good = [_read(findings, contract, name, item, packages, read) for name, item in entries.items()]
        missing = [item for item in contract.inputs if item.default is REQUIRED and item.name not in entries]
        for item in missing:
            whose = f" of variant {variant!r}" if variant and item.name in somewhere else ""
            findings.error(
                place, f"the scenario{whose} lacks {item.name!r}, which contract {contract.name} needs: {item.meaning}"
            )
        left = {item.name for item in contract.inputs if item.name not in entries}
        defaulted = left if defaulted is None else defaulted & left
        if all(good) and not missing:
            literals = {name: read[item.place] for name, item in entries.items()}
            built[variant] = _filled(findings, contract, literals, packages, place)
    return built, tuple(item.name for item in contract.inputs if item.name in (defaulted or ()))


def _read(
    findings: Findings, contract: Contract, name: str, entry: Entry, packages: tuple[str, ...], read: dict[Place, Any]
) -> bool:
    """Read one input once, however many variants share it."""
    spec = contract.input(name)
    assert spec is not None
    if entry.place not in read:
        try:
            # null is how a recipe says None; only an input that must be there cannot be nothing
            nothing = entry.value is None and spec.default is not REQUIRED
            read[entry.place] = None if nothing else read_input(spec, entry.value, packages)
        except LiteralError as error:
            findings.error((*entry.place, *error.place), f"{entry.place[-1]}: {error.message}")
            read[entry.place] = error
    return not isinstance(read[entry.place], LiteralError)


def _filled(
    findings: Findings, contract: Contract, literals: Mapping[str, Any], packages: tuple[str, ...], place: Place
) -> dict[str, Any]:
    """The inputs with defaults, in the contract's order. A default sees what is given and the defaults before it."""
    so_far = dict(literals)
    for spec in contract.inputs:
        if spec.name not in so_far:
            try:
                so_far[spec.name] = _default(spec, so_far, packages)
            except Exception as error:  # a default is a contract's own code, perhaps a plugin's
                problem = f"{type(error).__name__}: {error}"
                findings.error(
                    place, f"the default of {spec.name!r} cannot be made from this scenario ({problem}); give it"
                )
                so_far[spec.name] = None
    return {spec.name: so_far[spec.name] for spec in contract.inputs}


def _default(spec: Input, so_far: Mapping[str, Any], packages: tuple[str, ...]) -> Any:
    value = spec.default(so_far) if callable(spec.default) else spec.default
    plain = isinstance(value, (list, bool, int, float)) and spec.kind == "tensor"
    already = isinstance(value, list) and any(not isinstance(item, (list, bool, int, float)) for item in value)
    return read_input(spec, value, packages) if plain and not already else value
