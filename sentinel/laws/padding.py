"""Define the law ``padding_is_invisible``: more padding does not change the result."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import Match, same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import Flags, axes, entries, equal, first_two, like, mask_of
from sentinel.values.literals import Tensor

#: Side of the padding -> (columns before the tokens, columns after the tokens), for one column of padding.
_SIDES = {"right": (0, 1), "left": (1, 0)}


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make a variant with one to three more columns of padding on a side that the boundary accepts."""
    valid = mask_of(contract, inputs)
    declared = contract.input(contract.mask)
    styles = declared.choices if declared is not None and declared.choices else ("right",)
    sides = [side for side, (left, right) in _SIDES.items() if _fits(_widened(valid, 1, left, right), styles)]
    if not sides:
        raise DoesNotApply("the boundary accepts no padding on either side")
    left, right = _SIDES[choose.one_of(sides)]
    count = choose.integer(1, 3)
    padded = dict(inputs)
    for name, value in inputs.items():
        shape = axes(contract, inputs, name)
        if isinstance(value, Tensor) and "tokens" in shape:
            padded[name] = like(value, _widened(value.array(), shape.index("tokens"), left * count, right * count))
    return {BASELINE: inputs, "padded": padded}


@law("more padding columns change nothing at valid positions", needs_oracle=True, oracle_optional=True, vary=_vary)
def padding_is_invisible(case: Case) -> Iterator[Violation]:
    """Check that additional padding columns change neither the values at valid tokens nor scalars.

    If the contract's own definition divides by the number of columns, the oracle's value changes too, and nothing is
    compared. Catches a mean over all positions combined with a variance over the valid ones (SkyRL #1782), and a
    normalisation that includes padding (AReaL #394).
    """
    first, others = first_two(case)
    for other in others:
        yield from same(case, first, other, _match(case, first, other), "with more padding, ")


def _match(case: Case, first: str, other: str) -> Match:
    """Return the columns of the first variant that correspond to columns of the second, which has more padding."""
    one, two = (case.inputs[name] for name in (first, other))
    width, wider = (mask_of(case.contract, inputs).shape[-1] for inputs in (one, two))
    if width >= wider or set(one) != set(two):
        raise DoesNotApply(f"variant {other!r} must have more columns than {first!r}, but does not")
    for start in range(wider - width + 1):
        columns = (np.arange(width), np.arange(start, start + width))
        outside = np.delete(mask_of(case.contract, two), columns[1], axis=-1)
        alike = all(
            equal(entries(value, ()), entries(two[name], axes(case.contract, one, name), columns=columns[1]))
            for name, value in one.items()
        )
        if alike and not outside.any():
            return Match(columns=columns)
    raise DoesNotApply(f"variant {other!r} is not {first!r} with more padding")


def _widened(array: Any, axis: int, left: int, right: int) -> Any:
    """Pad an array with zeros on both sides, like :func:`numpy.pad` but several times faster."""
    sizes = [(*array.shape[:axis], count, *array.shape[axis + 1 :]) for count in (left, right)]
    return np.concatenate([np.zeros(sizes[0], array.dtype), array, np.zeros(sizes[1], array.dtype)], axis=axis)


def _fits(valid: Flags, styles: Collection[str]) -> bool:
    """Return True if the boundary accepts masks that are padded like this one."""
    steps = np.diff(valid.astype(int), axis=-1)
    return (
        "gaps" in styles
        or ("right" in styles and bool((steps <= 0).all()))
        or ("left" in styles and bool((steps >= 0).all()))
    )
