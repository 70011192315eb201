"""Recipes: one YAML (or JSON) file that pins a known bug. Loading, validating, normalising."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.refs import Ref


@dataclass(frozen=True)
class Tolerance:
    """How closely a value must agree; None stands for the default of the observation's dtype."""

    relative: float | None = None
    absolute: float | None = None
    exact: bool = False


@dataclass(frozen=True)
class Expected:
    """One expected value.

    :ivar value: a scalar, string, None, nested list of numbers, or a :class:`~sentinel.values.Tensor` where the recipe
        gives a dtype (which then must agree too).
    """

    value: Any
    tolerance: Tolerance = Tolerance()


@dataclass(frozen=True)
class Pin:
    """:ivar ref: an immutable ref.
    :ivar expect: the verdict it must give.
    """

    ref: Ref
    expect: str
    note: str = ""


@dataclass(frozen=True)
class Recipe:
    """A recipe after validation.

    :ivar boundary: the dotted path as the recipe writes it.
    :ivar variants: variant name -> canonical input -> literal (see :mod:`sentinel.values`), defaults filled in; the one
        name ``""`` where the recipe has no variants.
    :ivar defaulted: the input names that were filled in from the contract's defaults.
    :ivar requires: dotted paths that a checkout must have for this recipe to be about it.
    :ivar digest: ``sha256:<hex>`` of the file's bytes.
    :ivar published: whether the file is a blob as in a published report.
    :ivar document: the file's content as plain data, for readers and for exports.
    :ivar notes: warnings found while loading, each with file, line and column.
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
    tolerance: Tolerance = Tolerance()
    upstream: Mapping[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    watch: tuple[Ref, ...] = ()
    affects: tuple[str, ...] = ()
    story: str = ""
    published: bool = False
    document: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
