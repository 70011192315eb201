"""What a recipe says, after validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.errors import SentinelError
from sentinel.recipes.affects import Affected
from sentinel.recipes.triggers import Trigger
from sentinel.targets.refs import Ref
from sentinel.values.tolerance import Tolerance

if TYPE_CHECKING:
    from sentinel.contracts.contract import Contract


@dataclass(frozen=True)
class Expected:
    """One expected value.

    :ivar value: a scalar, string, None, nested list of numbers, or a :class:`~sentinel.values.literals.Tensor` where
        the recipe gives a dtype (which then must agree too).
    """

    value: Any
    tolerance: Tolerance = field(default_factory=Tolerance)


@dataclass(frozen=True)
class Pin:
    """An immutable ref with the verdict that it must give."""

    ref: Ref
    expect: str
    note: str = ""


@dataclass(frozen=True)
class Recipe:
    """A recipe after validation.

    :ivar variants: variant -> canonical input -> literal (see :mod:`sentinel.values.literals`), defaults filled in; the
        one name ``""`` where the recipe has no variants.
    :ivar defaulted: the input names that were filled in from the contract's defaults.
    :ivar requires: dotted paths that a checkout must have for this recipe to be about it.
    :ivar when: the scenarios that trigger the bug; ``when_breaking`` those of a law that says it differently.
    :ivar affects: what trains wrongly because of it; each entry alone is enough.
    :ivar until: setting -> value that avoids the bug until it is fixed upstream.
    :ivar digest: ``sha256:<hex>`` of the content; comments and layout do not count.
    :ivar document: the file's content as plain data, for readers and for exports.
    """

    bug_id: str
    title: str
    target: str
    contract: str
    boundary: str
    variants: Mapping[str, Mapping[str, Any]]
    path: Path
    digest: str
    expected_unpatched: Mapping[str, Expected] = field(default_factory=dict)
    expected_fixed: Mapping[str, Expected] = field(default_factory=dict)
    defaulted: tuple[str, ...] = ()
    invariant: str | None = None
    also_breaks: tuple[str, ...] = ()
    when: Trigger = field(default_factory=Trigger)
    when_breaking: Mapping[str, Trigger] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    upstream: Mapping[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    watch: tuple[Ref, ...] = ()
    affects: tuple[Affected, ...] = ()
    until: Mapping[str, str] = field(default_factory=dict)
    story: str = ""
    published: bool = False
    document: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def has_values(self) -> bool:
        """Whether expected values decide; else the law does."""
        return bool(self.expected_unpatched or self.expected_fixed)

    def scenario_inputs(self, contract: Contract, fixed: Collection[str]) -> list[str]:
        """Give the inputs that the scenario states, and that the boundary must be able to take.

        What says which boundary it is, or how it differs, is for the oracle: the boundary needs no parameter for it.
        """
        stated = {name for inputs in self.variants.values() for name in inputs} - set(self.defaulted)
        return sorted(stated - {item.name for item in contract.inputs if item.dialect} - set(fixed))

    @property
    def laws(self) -> tuple[str, ...]:
        """Every law that the bug breaks, as far as the recipe says."""
        return tuple(name for name in (self.invariant, *self.also_breaks) if name)

    def trigger(self, law: str) -> Trigger:
        """Give the scenarios that trigger the bug where a law looks at them."""
        return self.when_breaking.get(law, self.when)

    def revisions(self, base: Ref | None = None, head: Ref | None = None) -> tuple[Ref, Ref | None]:
        """Choose the refs to compare, where they are not given.

        The head is the first pin without the bug, the base the last before it with the bug (or the first with it, where
        none is before): the nearer they are, the more alike they are called. Where no pin has the bug, it is the last
        before the head.
        """
        expects = [pin.expect for pin in self.pins]
        mended = expects.index("fixed") if "fixed" in expects else 0
        buggy = [pin.ref for pin in self.pins if pin.expect == "reproduced"]
        before = [pin.ref for pin in self.pins[:mended] if pin.expect == "reproduced"]
        others = [pin.ref for pin in self.pins[:mended][-1:] + self.pins]
        base = base or next(iter([*before[-1:], *buggy, *others]), None)
        if base is None:
            raise SentinelError(f"{self.bug_id} has no pins; say where the bug is with --base git:<sha>")
        return base, head or next((pin.ref for pin in self.pins if pin.expect == "fixed" and pin.ref != base), None)
