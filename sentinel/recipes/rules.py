"""Convert a document to a recipe, and check it against targets, contracts and laws.

A recipe states both sets of expected values (with and without the bug), or neither. Without values, its verdict depends
on a law: the recipe's ``invariant`` or the contract's law. Only one set is an error, because every result that does not
match this set would be ``changed``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.contracts.contract import Contract
from sentinel.errors import SentinelError, nearest
from sentinel.recipes.affects import can_both_hold, condition_in_words, in_text, read_affected
from sentinel.recipes.digests import document_digest
from sentinel.recipes.expectations import indistinguishable, read_expectations, read_tolerance
from sentinel.recipes.inputs import inside
from sentinel.recipes.problems import Findings, Problem, shown
from sentinel.recipes.recipe import Pin, Recipe
from sentinel.recipes.scenario import ScenarioReader, Variants
from sentinel.recipes.structure import check_structure, schema
from sentinel.recipes.triggers import ANY, MINUS, ONLY, Trigger, also_broken_laws, alternatives, unfit
from sentinel.targets import Binding, Target
from sentinel.targets.refs import Ref
from sentinel.values.documents import Document, DocumentError, Place, read

if TYPE_CHECKING:
    from sentinel.recipes.catalog import Catalog

_PARAMETER = re.compile(r"(.*)\(([A-Za-z_][A-Za-z0-9_]*)\)")


def read_pins(findings: Findings, written: Iterable[Mapping[str, Any]], target: Target | None) -> tuple[Pin, ...]:
    """Convert the pins of a recipe, and add an error to ``findings`` for each invalid one."""
    pins: list[Pin] = []
    for index, item in enumerate(written):
        place = ("pins", index, "ref")
        ref = _ref(findings, item["ref"], place)
        if ref is None:
            continue
        if not ref.immutable:
            moving = ref.kind in ("git", "pypi")
            way = "write a moving ref in watch:;" if moving else "a pin must not refer to this machine;"
            message = f"{ref} is not immutable; {way} a pin is git:<all 40 hex digits> or pypi:<version>"
            findings.error(place, message)
        if ref.kind == "pypi" and target is not None and target.pypi is None:
            findings.error(place, f"{ref}: target {target.name} has no releases on PyPI")
        if any(pin.ref == ref for pin in pins):
            findings.error(place, f"{ref} is pinned twice")
        pins.append(Pin(ref, item["expect"], item.get("note", "").strip()))
    return tuple(pins)


def read_watch(findings: Findings, written: Iterable[str]) -> tuple[Ref, ...]:
    """Convert the refs of ``watch``, which are checked only on request. Add an error for each invalid one."""
    refs: list[Ref] = []
    for index, text in enumerate(written):
        ref = _ref(findings, text, ("watch", index))
        if ref is not None and ref.kind not in ("git", "pypi"):
            message = f"{ref.kind}: refs differ between machines; watch git: or pypi: refs"
            findings.error(("watch", index), message)
        elif ref is not None:
            refs.append(ref)
    return tuple(refs)


def read_requires(findings: Findings, written: str | list[str], target: Target) -> tuple[str, ...]:
    """Return the dotted paths that a checkout must have. Add an error for each path outside the target's packages."""
    listed = [written] if isinstance(written, str) else written
    for index, path in enumerate(listed):
        match = _PARAMETER.fullmatch(path)
        problem = inside(match.group(1) if match else path, target.packages)
        if problem:
            findings.error(("requires",) if isinstance(written, str) else ("requires", index), f"requires: {problem}")
    return tuple(listed)


def _ref(findings: Findings, text: str, place: Place) -> Ref | None:
    try:
        return Ref.parse(text)
    except SentinelError as error:
        findings.error(place, str(error))
        return None


#: A bug id, which is also the name of the recipe's file and of its evidence folder.
BUG_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def examine(path: Path, catalog: Catalog) -> tuple[Recipe | None, list[Problem]]:
    """Return the recipe of a file (None if it has errors), and all problems of the file."""
    document, problem = read_or_problem(path)
    if document is None:
        return None, [problem] if problem else []
    return examine_document(document, path, catalog)


def read_or_problem(path: Path) -> tuple[Document | None, Problem | None]:
    """Return the document of a file and None, or None and the problem if it cannot be read."""
    try:
        return read(path), None
    except DocumentError as error:
        return None, Problem("error", shown(path), error.line, error.column, error.message)


def examine_document(document: Document, path: Path, catalog: Catalog) -> tuple[Recipe | None, list[Problem]]:
    """Return the recipe of a document (None if it has errors), and all problems of the document."""
    findings = Findings(shown(path), document)
    broken = check_structure(findings)
    if not isinstance(document.data, dict):
        return None, findings.problems
    recipe = _Reading(findings, path, catalog, broken).recipe()
    return (None if findings.errors else recipe), findings.problems


class _Reading:
    """Converts one document to a recipe. Keys with an error in the schema check are skipped."""

    def __init__(self, findings: Findings, path: Path, catalog: Catalog, broken: set[str]) -> None:
        self.findings, self.path, self.catalog, self.broken = findings, path, catalog, broken
        self.whole: dict[str, Any] = findings.document.data
        self.data = {key: value for key, value in self.whole.items() if key not in broken}
        self.published = "validation_mode" in self.whole and "recipe_version" not in self.whole
        self.boundary_key = "hooked_boundary" if self.published else "boundary"

    def recipe(self) -> Recipe | None:
        bug_id = self.data.get("bug_id", "")
        target = self._target()
        native = {} if self.published else self.data
        pins = read_pins(self.findings, native.get("pins", ()), target)
        watch = read_watch(self.findings, native.get("watch", ()))
        if target is None:
            return None
        requires = read_requires(self.findings, native.get("requires", []), target)
        contract = self._contract(target)
        if contract is None:
            return None
        properties = schema()["$defs"]["published"]["properties"]
        for key in self.whole if self.published else ():
            if key not in properties:
                self.findings.warn((key,), f"unknown key {key!r} is ignored{nearest(key, properties)}", key=True)
        variants, defaulted = self._scenario(contract, target)
        tolerance = read_tolerance(self.findings, native.get("tolerance"), ("tolerance",))
        # The names come from the document, so that they are complete even if a variant's inputs are invalid.
        names = tuple(variants if self.published else self.data.get("variants") or ("",))
        readable = names and "variants" not in self.broken
        unpatched, fixed = (
            read_expectations(self.findings, contract, names, (readable and self.data.get(key)) or {}, (key,))
            for key in ("expected_unpatched", "expected_fixed")
        )
        if unpatched and fixed and not self.findings.errors:
            reason = indistinguishable(unpatched, fixed, tolerance)
            if reason:
                self.findings.error(("expected_fixed",), reason, key=True)
        self._check_reach(native)
        invariant = self._invariant(contract, bool(unpatched or fixed))
        entries = enumerate(native.get("also_breaks", ()))
        own = {item["law"]: ("also_breaks", place, "when") for place, item in entries if isinstance(item, dict)}
        when_breaking = {law: self._trigger(contract, place) for law, place in own.items()}
        law = self.catalog.laws.get(invariant or "")
        if law is not None and law.vary is not None and readable and len(names) < 2 and not (unpatched or fixed):
            message = f"the law {law.name} compares variants, but the recipe has none: add variants: with at least two"
            self.findings.error(("invariant",), message)
        upstream = native.get("upstream", {}).items()
        story = self.data.get("expected_invariant" if self.published else "story", "")
        if self.findings.errors:
            return None
        return Recipe(
            bug_id=bug_id,
            title=str(self.data.get("title") or bug_id).strip(),
            target=target.name,
            contract=contract.name,
            boundary=str(self.data[self.boundary_key]),
            variants=variants,
            path=self.path,
            digest=document_digest(self.whole),
            expected_unpatched=unpatched,
            expected_fixed=fixed,
            defaulted=defaulted,
            invariant=invariant,
            also_breaks=also_broken_laws(native),
            when=self._trigger(contract, ("when",)),
            when_breaking=when_breaking,
            tolerance=tolerance,
            # JSON Schema accepts 444.0 as an integer, but pull/444/head needs an int
            upstream={key: int(item) if isinstance(item, float) else item for key, item in upstream},
            requires=requires,
            pins=pins,
            watch=watch,
            affects=tuple(map(read_affected, native.get("affects", ()))),
            until={key: in_text(value) for key, value in native.get("until", {}).items()},
            story=story.strip(),
            published=self.published,
            document=self.whole,
            notes=tuple(map(str, self.findings.warnings)),
        )

    def _check_reach(self, native: Mapping[str, Any]) -> None:
        """Report entries of ``affects`` whose settings omit or contradict the conditions of ``reach``."""
        needed = native.get("reach", {}).get("when", {}).items()
        for index, entry in enumerate(native.get("affects", ())):
            when = entry["when"] if isinstance(entry, Mapping) else {}
            for name, condition in needed if when else ():
                needs = f"reach needs {condition_in_words(name, condition)}"
                if name not in when:
                    message = f"{needs}, but affects[{index}] does not set {name}; add it there"
                    self.findings.error(("affects", index, "when"), message, key=True)
                elif not can_both_hold(when[name], condition):
                    message = (
                        f"{needs}, but affects[{index}] has {condition_in_words(name, when[name])}; "
                        "no value meets both conditions"
                    )
                    self.findings.error(("affects", index, "when", name), message, key=True)

    def _target(self) -> Target | None:
        targets = self.catalog.targets
        name = self.data.get("target")
        if name is not None:
            if name not in targets:
                self.findings.error(("target",), f"unknown target {name!r}{nearest(name, targets, 'the targets are')}")
            return targets.get(name)
        boundary = self.data.get(self.boundary_key)
        if not self.published or boundary is None:
            return None  # the schema check reports that it is missing
        package = boundary.partition(".")[0]
        owners = [target for target in targets.values() if package in target.packages]
        if len(owners) != 1:
            packages = [name for target in targets.values() for name in target.packages]
            hint = nearest(package, packages, "the packages are")
            self.findings.error((self.boundary_key,), f"{boundary!r} is not in a package of a known target{hint}")
            return None
        return owners[0]

    def _contract(self, target: Target) -> Contract | None:
        """Return the recipe's contract. If the boundary is not bound to it, add an error and return None."""
        boundary, name = self.data.get(self.boundary_key), None if self.published else self.data.get("contract")
        contracts, place = self.catalog.contracts, (self.boundary_key,)
        if name is not None and name not in contracts:
            hint = nearest(name, contracts, "the contracts are")
            self.findings.error(("contract",), f"unknown contract {name!r}{hint}")
        if boundary is None:
            return None
        problem = inside(boundary, target.packages) or (
            "" if "." in boundary else f"{boundary!r} is a package, not a function"
        )
        if problem:
            self.findings.error(place, f"{self.boundary_key}: {problem}")
            return None
        if "contract" in self.broken or (name is not None and name not in contracts):
            return None
        if name is not None and contracts[name].open_keys:
            return contracts[name]
        bindings = [binding for binding in target.bindings if boundary in binding.paths]
        # a registered function has the contract of its registry's binding
        if not bindings and self.data.get("requires") in (boundary, [boundary]):
            bindings = [each for each in [target.binding(boundary, name)] if each is not None and name is not None]
        fitting = [binding for binding in bindings if name in (None, binding.contract)]
        if not bindings:
            self.findings.error(place, _unknown_boundary(boundary, target, name))
        elif not fitting:
            bound = ", ".join(sorted({binding.contract for binding in bindings}))
            self.findings.error(("contract",), f"adapter {target.name} binds {boundary} to {bound}, not to {name}")
        elif len({binding.contract for binding in fitting}) > 1 and not self.published:
            bound = ", ".join(sorted({binding.contract for binding in fitting}))
            self.findings.error(
                place, f"{boundary} is bound to several contracts ({bound}): add contract: with one of them"
            )
        else:
            return self._bound(fitting, place)
        return None

    def _bound(self, bindings: list[Binding], place: tuple[str, ...]) -> Contract | None:
        contracts = [
            self.catalog.contracts[item.contract] for item in bindings if item.contract in self.catalog.contracts
        ]
        if not contracts:
            self.findings.error(
                place, f"the adapter binds this function to contract {bindings[0].contract!r}, which does not exist"
            )
            return None
        written = {key for name in _PUBLISHED_VALUES for key in (self.data.get(name) or ())}
        names = {item.name: {*item.aliases, *item.keys, *(each.name for each in item.inputs)} for item in contracts}
        return max(contracts, key=lambda contract: len(written & names[contract.name]))

    def _scenario(self, contract: Contract, target: Target) -> Variants:
        key = "constructed_scenario" if self.published else "scenario"
        if self.broken & {key, "variants"}:
            return {}, ()
        written = self.data.get(key) or {}
        reader = ScenarioReader(self.findings, contract, target.packages, (key,))
        return reader.published(written) if self.published else reader.native(written, self.data.get("variants") or {})

    def _trigger(self, contract: Contract, place: Place) -> Trigger:
        """Convert a ``when:`` condition, and add errors for names that are not inputs of a contract."""
        written: Any = {} if self.published else self.data
        for step in place:
            written = written.get(step) if isinstance(written, dict) else written[step]
        # Inputs and keys of all contracts are accepted, because a bug in a shared function may also be observed at
        # boundaries with other contracts.
        every = self.catalog.contracts.values()
        known = {item.name: item for each in (*every, contract) for item in each.inputs}
        keys = {key for each in every for key in each.keys}
        for index, alternative in enumerate(alternatives(written)):
            where = (*place, index) if isinstance(written, list) else place
            for number, key in enumerate(alternative.get(ONLY, ())):
                if key not in keys:
                    message = f"no contract observes {key!r}{nearest(key, contract.keys, f'{contract.name} observes')}"
                    self.findings.error((*where, ONLY, number), message)
            for name, condition in alternative.items():
                for part in () if name == ONLY else name.split(MINUS):
                    if part not in known and part != ANY:
                        own = [item.name for item in contract.inputs]
                        hint = nearest(part, [*own, ANY], f"those of {contract.name} are")
                        message = f"no contract has an input {part!r}{hint}"
                        self.findings.error((*where, name), message, key=True)
                    elif problem := unfit(known.get(part), condition):
                        self.findings.error((*where, name), problem)
        return Trigger(alternatives(written), contract.mask, contract.group)

    def _invariant(self, contract: Contract, has_values: bool) -> str | None:
        """Return the law that decides the recipe: its ``invariant`` or else the contract's law. Return None if expected
        values decide it."""
        sides = [key for key in ("expected_unpatched", "expected_fixed") if key in self.whole]
        if len(sides) == 1:
            other = "expected_fixed" if sides[0] == "expected_unpatched" else "expected_unpatched"
            message = f"{sides[0]} needs {other}: write both, or neither to let a law decide (invariant: ...)"
            self.findings.error((sides[0],), message, key=True)
        laws = self.catalog.laws
        native = {} if self.published else self.data
        written: str | None = native.get("invariant")
        named: dict[tuple[str | int, ...], str] = {("invariant",): written} if written is not None else {}
        named |= {("also_breaks", place): name for place, name in enumerate(also_broken_laws(native))}
        for where, name in named.items():
            if name not in laws:
                self.findings.error(where, f"unknown invariant {name!r}{nearest(name, laws, 'the laws are')}")
        if written is not None:
            return written
        if sides or has_values or "invariant" in self.broken:
            return None
        if contract.law is None:
            nothing = "no expected values and no invariant"
            message = f"the recipe cannot decide: {nothing}, and contract {contract.name} has no law of its own"
            self.findings.error((), message)
        elif contract.law not in laws:
            self.findings.error((), f"contract {contract.name} names the law {contract.law!r}, which does not exist")
        return contract.law


_PUBLISHED_VALUES = ("constructed_scenario", "expected_unpatched", "expected_fixed")


def _unknown_boundary(boundary: str, target: Target, contract: str | None) -> str:
    paths = {path for item in target.bindings if contract in (None, item.contract) for path in item.paths}
    paths = paths or {path for item in target.bindings for path in item.paths}
    module, _, name = boundary.rpartition(".")
    siblings = [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == module]
    hint = (
        nearest(name, siblings)
        or nearest(boundary, paths)
        or nearest(name, {path.rpartition(".")[2] for path in paths})
    )
    unbound = f"; adapter {target.name} does not bind it (contract: call needs no binding)"
    return f"unknown boundary {boundary!r}{hint or unbound}"
