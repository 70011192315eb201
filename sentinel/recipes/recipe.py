"""Define the data of a validated recipe."""

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
    """The value that a recipe expects at one address, such as ``baseline.loss``.

    :ivar value: a scalar, string, None, nested list of numbers, or a :class:`~sentinel.values.literals.Tensor` if the
        recipe states a dtype. The observed value must then have this dtype too.
    """

    value: Any
    tolerance: Tolerance = field(default_factory=Tolerance)


@dataclass(frozen=True)
class Pin:
    """An immutable ref, and the verdict that a recipe must have there."""

    ref: Ref
    expect: str
    note: str = ""


@dataclass(frozen=True)
class Recipe:
    """A validated recipe.

    :ivar variants: variant -> canonical input -> literal (see :mod:`sentinel.values.literals`), with defaults. The only
        name is ``""`` if the recipe has no variants.
    :ivar defaulted: names of the inputs that have the contract's default, because the recipe omits them.
    :ivar requires: dotted paths that a checkout must have; otherwise the recipe does not apply to it.
    :ivar when: the scenarios that trigger the bug.
    :ivar when_breaking: law -> the scenarios that trigger the bug for this law, if they differ from ``when``.
    :ivar affects: the training runs that the bug affects; meeting one entry is enough.
    :ivar until: setting -> value with which the bug does not occur, for use until it is fixed upstream.
    :ivar digest: ``sha256:<hex>`` of the content; comments and layout do not count.
    :ivar document: the file's content as plain data.
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
        """Return True if the verdict depends on expected values, and False if it depends on a law."""
        return bool(self.expected_unpatched or self.expected_fixed)

    def scenario_inputs(self, contract: Contract, fixed: Collection[str]) -> list[str]:
        """Return the inputs that the recipe sets, and that the boundary must therefore accept.

        Dialect inputs are left out, because only the oracle reads them.

        :param fixed: the inputs that the binding fixes. They are left out too.
        """
        stated = {name for inputs in self.variants.values() for name in inputs} - set(self.defaulted)
        return sorted(stated - {item.name for item in contract.inputs if item.dialect} - set(fixed))

    @property
    def laws(self) -> tuple[str, ...]:
        """Return the laws that the bug breaks, as the recipe names them."""
        return tuple(name for name in (self.invariant, *self.also_breaks) if name)

    def trigger(self, law: str) -> Trigger:
        """Return the condition under which a scenario triggers the bug so that it breaks this law."""
        return self.when_breaking.get(law, self.when)

    def revisions(self, base: Ref | None = None, head: Ref | None = None) -> tuple[Ref, Ref | None]:
        """Return the base and the head revision to compare if the user names none.

        The head is the first pin without the bug. The base is the first of these that exists: the last pin with the bug
        before the head, the first pin with the bug, the last pin before the head, the first pin.
        """
        expects = [pin.expect for pin in self.pins]
        mended = expects.index("fixed") if "fixed" in expects else 0
        buggy = [pin.ref for pin in self.pins if pin.expect == "reproduced"]
        before = [pin.ref for pin in self.pins[:mended] if pin.expect == "reproduced"]
        others = [pin.ref for pin in self.pins[:mended][-1:] + self.pins]
        base = base or next(iter([*before[-1:], *buggy, *others]), None)
        if base is None:
            raise SentinelError(f"{self.bug_id} has no pins; name a commit with the bug: --base git:<sha>")
        return base, head or next((pin.ref for pin in self.pins if pin.expect == "fixed" and pin.ref != base), None)
