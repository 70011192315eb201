"""Convert a recipe's scenario to literals: inputs, variants and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.contracts.contract import REQUIRED, Contract, Input
from sentinel.errors import nearest
from sentinel.recipes.inputs import LiteralError, read_input
from sentinel.recipes.problems import Findings
from sentinel.values.documents import Place

#: Canonical input -> (its value in the document, its place).
Entries = dict[str, tuple[Any, Place]]

#: (variant -> canonical input -> literal, names of the inputs that have their default in every variant).
Variants = tuple[dict[str, dict[str, Any]], tuple[str, ...]]


@dataclass
class ScenarioReader:
    """Converts scenarios of one contract to literals.

    :ivar packages: the target's packages; literals may name objects in them.
    :ivar place: the scenario's place in the document, where missing inputs are reported.
    :ivar literals: place -> the literal or the error there. It is cached, because variants have most inputs in common.
    """

    findings: Findings
    contract: Contract
    packages: tuple[str, ...]
    place: Place
    literals: dict[Place, Any] = field(default_factory=dict)

    def native(self, written: Mapping[str, Any], variants: Mapping[str, Any]) -> Variants:
        """Convert the scenario of a recipe in Sentinel's format. Unknown inputs are errors."""
        shared = self._named(written, self.place)
        return self._build(shared, {name: self._named(own or {}, ("variants", name)) for name, own in variants.items()})

    def published(self, written: Mapping[str, Any]) -> Variants:
        """Convert the scenario of a recipe in the published format.

        ``baseline_X`` and ``outlier_X`` are the values of the input X in two variants. Unknown keys are ignored, with a
        warning.
        """
        shared: Entries = {}
        variants: dict[str, Entries] = {"baseline": {}, "outlier": {}}
        for key, value in written.items():
            prefix, _, rest = key.partition("_")
            if (name := self._canonical(key)) is not None:
                self._add(shared, name, key, value, self.place)
            elif prefix in variants and (name := self._canonical(rest)) is not None:
                self._add(variants[prefix], name, key, value, self.place)
            else:
                near = nearest(key, [item.name for item in self.contract.inputs])
                message = f"{key!r} is not an input of contract {self.contract.name}; it has no effect{near}"
                self.findings.warn((*self.place, key), message, key=True)
        return self._build(shared, variants if any(variants.values()) else {})

    def _named(self, written: Mapping[str, Any], place: Place) -> Entries:
        entries: Entries = {}
        for key, value in written.items():
            name = self._canonical(key)
            if name is None:
                inputs = [item.name for item in self.contract.inputs]
                aliases = [alias for alias, canonical in self.contract.aliases.items() if canonical in inputs]
                hint = nearest(key, [*inputs, *aliases], "it takes")
                message = f"unknown input {key!r} of contract {self.contract.name}{hint}"
                self.findings.error((*place, key), message, key=True)
            else:
                self._add(entries, name, key, value, place)
        return entries

    def _canonical(self, key: str) -> str | None:
        return next((name for name in (key, self.contract.aliases.get(key, "")) if self.contract.input(name)), None)

    def _add(self, entries: Entries, name: str, key: str, value: Any, place: Place) -> None:
        if name in entries:
            message = f"{key!r} means {name!r}, which is already set as {entries[name][1][-1]!r}"
            self.findings.error((*place, key), message, key=True)
        else:
            entries[name] = value, (*place, key)

    def _build(self, shared: Entries, variants: Mapping[str, Entries]) -> Variants:
        """Return the literals of each variant, in the contract's order. Without variants, the only name is ""."""
        built: dict[str, dict[str, Any]] = {}
        left = {item.name for item in self.contract.inputs} - shared.keys()
        somewhere = {name for own in variants.values() for name in own}
        for variant, own in (variants or {"": {}}).items():
            entries = {**shared, **own}
            good = [self._read(name, *entry) for name, entry in entries.items()]
            missing = [item for item in self.contract.inputs if item.default is REQUIRED and item.name not in entries]
            for item in missing:
                whose = f" of variant {variant!r}" if variant and item.name in somewhere else ""
                needs = f"the scenario{whose} lacks {item.name!r}, which contract {self.contract.name} requires"
                self.findings.error(self.place, f"{needs}: {item.meaning}")
            if all(good) and not missing:
                built[variant] = self._fill_defaults(
                    {name: self.literals[place] for name, (_, place) in entries.items()}
                )
        return built, tuple(item.name for item in self.contract.inputs if item.name in left - somewhere)

    def _read(self, name: str, value: Any, place: Place) -> bool:
        spec = self.contract.input(name)
        assert spec is not None
        if place not in self.literals:
            try:
                # null stands for None, except in a required input
                nothing = value is None and spec.default is not REQUIRED
                self.literals[place] = None if nothing else read_input(spec, value, self.packages)
                wrong = spec.problem(self.literals[place]) if spec.problem and not nothing else ""
                if wrong:
                    raise LiteralError(wrong)
            except LiteralError as error:
                self.findings.error((*place, *error.place), f"{place[-1]}: {error.message}")
                self.literals[place] = error
        return not isinstance(self.literals[place], LiteralError)

    def _fill_defaults(self, literals: dict[str, Any]) -> dict[str, Any]:
        """Add defaults in the contract's order, because a default may depend on earlier inputs."""
        for spec in self.contract.inputs:
            if spec.name not in literals:
                try:
                    literals[spec.name] = _default(spec, literals, self.packages)
                except Exception as error:  # a plugin's contract may compute the default, and raise anything
                    problem = f"{type(error).__name__}: {error}"
                    message = (
                        f"the default of {spec.name!r} failed for this scenario ({problem}); add {spec.name} to it"
                    )
                    self.findings.error(self.place, message)
                    literals[spec.name] = None
        return {spec.name: literals[spec.name] for spec in self.contract.inputs}


def _default(spec: Input, literals: Mapping[str, Any], packages: tuple[str, ...]) -> Any:
    value = spec.default(literals) if callable(spec.default) else spec.default
    plain = isinstance(value, (list, bool, int, float)) and spec.kind == "tensor"
    already = isinstance(value, list) and any(not isinstance(item, (list, bool, int, float)) for item in value)
    return read_input(spec, value, packages) if plain and not already else value
