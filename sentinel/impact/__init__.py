"""Measure what a bug does to gradients and to every other number, on the recipe's own scenario.

``impact.json``: ``impact_version`` 3; ``bug_id``, ``title``, ``target``, ``contract``, ``boundary``; ``base`` and
``head``: ``ref``, ``revision`` and ``verdict``; ``scenario``: a list of :class:`Row`, a pair being [base, head].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.contract import Contract
from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.outcomes import Observation
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import SentinelError
from sentinel.laws.layout import address
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.reports.summary import aligned
from sentinel.search.boundary_search import example
from sentinel.targets.refs import Ref
from sentinel.values.closeness import BARE, bounds
from sentinel.values.literals import Tensor, plain, tensor
from sentinel.values.tolerance import Tolerance

#: What ``--head`` calls the contract's reference.
REFERENCE = "reference"

_HEADINGS = ("output", "is", "angle", "norm, base / head", "largest difference", "relative", "not finite")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Side:
    """Hold base, or head.

    :ivar ref: as the user writes it; :data:`REFERENCE` for the contract's own, which has no revision and no verdict.
    :ivar revision: the commit, version or digest of the tree.
    """

    ref: str
    short: str
    revision: str
    verdict: str
    observation: Observation


@dataclass(frozen=True)
class Row:
    """Hold one numeric output at base beside the same at head. A pair is (base, head).

    :ivar address: as recipes write it, and below that the path to the number or tensor.
    :ivar sizes: how many numbers it has, ``not_finite`` how many of them are NaN or infinite.
    :ivar same: whether they agree within the tolerance of their dtype.
    :ivar angle: in degrees between the two as vectors, ``ratio`` of their norms, base by head; None where the shapes
        differ, or one is zero or not finite.
    :ivar largest: the largest difference of two finite numbers, ``relative`` to head's largest; None where the shapes
        differ or no number is finite at both.
    """

    address: str
    is_gradient: bool
    forms: tuple[str, str]
    sizes: tuple[int, int]
    not_finite: tuple[int, int]
    same: bool = False
    angle: float | None = None
    ratio: float | None = None
    largest: float | None = None
    relative: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        forms = self.forms[0] if self.forms[0] == self.forms[1] else " / ".join(self.forms)
        angle = "" if self.angle is None or max(self.sizes) == 1 else f"{self.angle:.2f}°"
        numbers = ("" if value is None else _short(value) for value in (self.ratio, self.largest, self.relative))
        not_finite = " / ".join(map(str, self.not_finite)) if any(self.not_finite) else ""
        return self.address, forms, angle, *numbers, not_finite


@dataclass(frozen=True)
class Impact:
    """Hold all that was measured of a bug; ``rows`` with gradients first."""

    recipe: Recipe
    base: Side
    head: Side
    rows: Sequence[Row]

    @property
    def differing(self) -> list[Row]:
        return [row for row in self.rows if not row.same]

    @property
    def summary(self) -> str:
        """The row of the largest gradient that differs, else the first that does."""
        row = max(self.differing, key=lambda row: row.is_gradient * row.sizes[0], default=None)
        if row is None:
            return "no number differs"
        return ", ".join(f"{name} {cell}" for name, cell in zip(_HEADINGS, row.cells) if cell)

    @property
    def lines(self) -> list[str]:
        sides = (f"{name} {side.short} {side.verdict}".rstrip() for name, side in self._sides.items())
        table = aligned([_HEADINGS, *(row.cells for row in self.differing)]).splitlines() if self.differing else []
        counts = f"{len(self.differing)} of {len(self.rows)} outputs differ"
        return [f"{self.recipe.bug_id}: {self.recipe.title}", ", ".join(sides), *table, counts]

    @property
    def _sides(self) -> dict[str, Side]:
        return {"base": self.base, "head": self.head}

    def document(self) -> dict[str, Any]:
        names = ("bug_id", "title", "target", "contract", "boundary")
        sides = {
            name: {key: getattr(side, key) for key in ("ref", "revision", "verdict")}
            for name, side in self._sides.items()
        }
        own = {name: getattr(self.recipe, name) for name in names}
        document: dict[str, Any] = plain(
            {"impact_version": 3, **own, **sides, "scenario": [asdict(row) for row in self.rows]}
        )
        return document


def impact_of(runner: Runner, catalog: Catalog, recipe: Recipe, base: str | None, head: str | None) -> Impact:
    """:raises SentinelError: where the recipe cannot be decided at a revision, or the reference has no answer."""
    named = Ref.parse(head) if head and head != REFERENCE else None
    wrong, right = recipe.revisions(Ref.parse(base) if base else None, named)
    first = _at_revision(runner, recipe, wrong)
    if right is None or head == REFERENCE:
        second = _at_reference(runner, catalog, recipe, wrong)
    else:
        second = _at_revision(runner, recipe, right)
    contract = catalog.contracts[recipe.contract]
    rows = compare(contract, first.observation, second.observation, second.ref == REFERENCE)
    return Impact(recipe, first, second, rows)


def _at_revision(runner: Runner, recipe: Recipe, ref: Ref) -> Side:
    decision = runner.decide(Job(recipe, ref))
    if decision.measurement is None or decision.checkout is None:
        raise SentinelError(f"{recipe.bug_id} at {ref.short}: {decision.verdict.reason}")
    checkout = decision.checkout
    revision = checkout.commit or checkout.version or checkout.tree
    return Side(str(ref), ref.short, revision, decision.verdict.name, decision.measurement.observation)


def _at_reference(runner: Runner, catalog: Catalog, recipe: Recipe, base: Ref) -> Side:
    """:param base: whose process answers; no code of it runs."""
    adapter, contract = catalog.adapters[recipe.target], catalog.contracts[recipe.contract]
    binding = adapter.target.binding(recipe.boundary, recipe.contract)
    if binding is None:
        raise SentinelError(f"{recipe.boundary} is not bound to {recipe.contract} in the adapter {recipe.target}")
    if contract.oracle is None:
        raise SentinelError(f"the contract {contract.name} has no reference; name a revision with --head REF")
    subject = Subject(binding, contract, (), str(adapter.file), recipe.boundary)
    session = runner.open_target(recipe.target, base, [binding]).law_session
    try:
        observed = session.consult(subject, example(subject, recipe).variants)
    except Undecidable as error:
        raise SentinelError(
            f"the contract's reference has no answer: {error}; name a revision with --head REF"
        ) from error
    finally:
        session.close()
    return Side(REFERENCE, "the contract's reference", "", "", observed)


def compare(contract: Contract, base: Observation, head: Observation, reference: bool = False) -> list[Row]:
    """Return a row for every numeric output, gradients first; what only one side has is absent at the other.

    :param reference: whether head is the contract's reference: another dtype, or what only base has, is no difference.
    """
    gradients = {item.key for item in contract.observes if item.role == "gradient"} | {"gradients"}
    rows = []
    for variant, values in base.items():
        for key in dict.fromkeys((*values, *head[variant])):
            name, is_gradient = address(variant, key), key in gradients or key.endswith("_gradient")
            left, right = (dict(_numbers(name, of[variant].get(key))) for of in (base, head))
            for path in dict.fromkeys((*left, *right)):
                if not reference or (path in left and path in right):
                    rows.append(_row(path, is_gradient, left.get(path), right.get(path), reference))
    return sorted(rows, key=lambda row: not row.is_gradient)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Walk the numbers and tensors of an observed value, each with its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{name}.{key}", item)
    elif isinstance(value, (bool, int, float, list, tuple)):
        try:
            yield name, tensor(list(value) if isinstance(value, tuple) else value, "float64")
        except ValueError:  # ragged, or no numbers
            for place, item in enumerate(value if isinstance(value, (list, tuple)) else ()):
                yield from _numbers(f"{name}.{place}", item)


def _row(name: str, is_gradient: bool, base: Tensor | None, head: Tensor | None, reference: bool) -> Row:
    both = [Tensor("", (0,), b"") if of is None else of for of in (base, head)]
    left, right = (of.array().astype(np.float64) if of.dtype else np.zeros(0) for of in both)
    forms = ["absent" if not of.dtype else f"{'' if reference else of.dtype}{list(of.shape)}" for of in both]
    row = Row(
        *(name, is_gradient, (forms[0], forms[1]), (left.size, right.size)),
        (int((~np.isfinite(left)).sum()), int((~np.isfinite(right)).sum())),
    )
    if left.shape != right.shape:
        return row
    relative, absolute = bounds(both[0].dtype if both[0].shape else BARE, Tolerance())
    finite = np.isfinite(left) & np.isfinite(right)
    largest = float(np.abs(left[finite] - right[finite]).max()) if finite.any() else None
    scale = float(np.abs(right[finite]).max()) if finite.any() else 0.0
    return replace(
        row,
        same=forms[0] == forms[1] and bool(np.allclose(left, right, relative, absolute, equal_nan=True)),
        angle=(apart := _angle_and_ratio(left, right))[0],
        ratio=apart[1],
        largest=largest,
        relative=None if largest is None or not scale else largest / scale,
    )


def _angle_and_ratio(base: Array, head: Array) -> tuple[float | None, float | None]:
    """Return the angle in degrees and the ratio of the norms; None where one is zero or not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = float(np.sqrt((base**2).sum())), float(np.sqrt((head**2).sum()))
    if not (all(np.isfinite(norms)) and all(norms)):
        return None, None
    # By way of the difference of the directions: an arc cosine loses half the digits of a small angle.
    apart = float(np.sqrt(((base / norms[0] - head / norms[1]) ** 2).sum()))
    return float(np.degrees(2 * np.arcsin(min(apart / 2, 1.0)))), norms[0] / norms[1]


def _short(value: float) -> str:
    """Write two digits behind the point; of a small number its first."""
    if value == 0 or abs(value) >= 0.005:
        return f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}"
    return f"{value:.1g}"
