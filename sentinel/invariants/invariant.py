"""What an invariant (law) is: a statement that every boundary of a contract must obey, checked over observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """What a law looks at.

    :ivar inputs: variant -> canonical input -> literal.
    :ivar observation: variant -> key -> value, from the real boundary.
    :ivar oracle: the same from the contract's float64 reference, where the law asked for it.
    """

    inputs: Mapping[str, Mapping[str, Any]]
    observation: Mapping[str, Mapping[str, Any]]
    oracle: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Violation:
    """One place where a law does not hold: the address, what was observed and what the law demands."""

    key: str
    observed: Any
    demanded: Any
    detail: str


class DoesNotApply(Exception):
    """The scenario does not meet the law's premise, so the law says nothing about it."""


@dataclass(frozen=True)
class Invariant:
    """:ivar name: the law as an identifier: ``masked_values_have_no_influence``.
    :ivar statement: the law as a sentence.
    :ivar check: returns the violations, none where the law holds.
    :ivar needs_oracle: whether :attr:`Case.oracle` must be there.
    :raises DoesNotApply: from ``check``.
    """

    name: str
    statement: str
    check: Callable[[Case], list[Violation]]
    needs_oracle: bool = False
