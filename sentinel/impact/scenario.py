"""Compare, in numbers, what a boundary returns on the recipe's own scenario at base and at head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.contract import Contract
from sentinel.deciding.outcomes import Observation
from sentinel.laws.layout import address
from sentinel.values.closeness import BARE, bounds
from sentinel.values.literals import Tensor, tensor
from sentinel.values.tolerance import Tolerance

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Row:
    """Hold one numeric output at base beside the same at head. A pair is (base, head).

    :ivar address: as recipes write it, and below that the path to the number or tensor.
    :ivar forms: dtype and shape.
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
        angle=(apart := angle_and_ratio(left, right))[0],
        ratio=apart[1],
        largest=largest,
        relative=None if largest is None or not scale else largest / scale,
    )


def angle_and_ratio(base: Array, head: Array) -> tuple[float | None, float | None]:
    """Return the angle in degrees and the ratio of the norms; None where one is zero or not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = float(np.sqrt((base**2).sum())), float(np.sqrt((head**2).sum()))
    if not (all(np.isfinite(norms)) and all(norms)):
        return None, None
    # By way of the difference of the directions: an arc cosine loses half the digits of a small angle.
    apart = float(np.sqrt(((base / norms[0] - head / norms[1]) ** 2).sum()))
    return float(np.degrees(2 * np.arcsin(min(apart / 2, 1.0)))), norms[0] / norms[1]


def sentence(rows: Sequence[Row]) -> str:
    """Say the first difference, that of the largest gradient where one differs."""
    row = max((row for row in rows if not row.same), key=lambda row: row.is_gradient * row.sizes[0], default=None)
    if row is None:
        return "no number differs"
    if row.forms[0] != row.forms[1]:
        return f"{row.address} is {row.forms[0]} at base, {row.forms[1]} at head"
    if row.not_finite[0] != row.not_finite[1]:
        counts = " at base, ".join(f"{count} of {row.sizes[0]}" for count in row.not_finite)
        return f"{row.address} has numbers that are not finite: {counts} at head"
    if row.is_gradient and row.angle is not None and row.ratio is not None:
        return f"{row.address} is off by {row.angle:.2f}°, and {short(row.ratio)} times as long as head's"
    if row.largest is None:
        return f"{row.address} is not finite at either"
    scale = "" if row.relative is None else f", {short(row.relative)} times head's largest number"
    return f"{row.address} differs by up to {short(row.largest)}{scale}"


def short(value: float) -> str:
    """Write two digits behind the point; of a small number its first."""
    if value == 0 or abs(value) >= 0.005:
        return f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}"
    return f"{value:.1g}"
