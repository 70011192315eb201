"""Define the law ``finite_in_finite_out``: finite inputs give finite outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.agreement import Numbers, each_number, literal, numbers, scale_of
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import Flags, address
from sentinel.values.literals import FLOATS, Tensor


@law(
    "finite inputs give finite outputs and gradients",
    needs_oracle=True,
    oracle_optional=True,
)
def finite_in_finite_out(case: Case) -> Iterator[Violation]:
    """Check that every output, gradient and metric at valid positions is finite if every input is finite.

    An infinity is accepted in two cases: the oracle's value is infinite too, or N times the oracle's value overflows
    the coarsest dtype of inputs and outputs, because the framework may sum a batch of N numbers. Without an oracle,
    every number must be finite. On masked tokens, an output may have any value except NaN, because 0 times NaN is NaN.

    Catches the exponential of a large log-ratio that is masked too late (slime #2198), a division by a temperature of 0
    (slime #2197), a coefficient of 0 that is multiplied by infinity (slime #2258), and 0 / 0 for a prompt whose
    responses are all rejected (verl #6452, OPO).
    """
    applies = False
    for variant, inputs in case.inputs.items():
        tensors = [value for value in inputs.values() if isinstance(value, Tensor) and value.dtype in FLOATS]
        if not all(np.isfinite(value.array()).all() for value in tensors):
            raise DoesNotApply("an input is not finite")
        reference = (case.oracle or {}).get(variant, {})
        scale = scale_of(case, [inputs], [case.observation[variant]])
        for item, values, dtype, counts in each_number(case, variant):
            applies = True
            finite = np.isfinite(values)
            wrong = ~finite if counts is None else ~finite & counts
            right = numbers(reference.get(item.key))
            if right is not None and right[0].shape == values.shape:
                wrong = wrong & np.isfinite(right[0]) & (np.abs(right[0]) <= scale.limit(dtype))
            key, observed = address(variant, item.key), literal(values, dtype)
            if wrong.any():
                place, demanded = _first(wrong), None if right is None else literal(right[0], "float64")
                detail = f"{_named(values, place)} although every input is finite{_of_oracle(right, place)}"
                yield Violation(key, observed, demanded, detail, "non-finite")
            if counts is not None and item.role == "output" and (hidden := np.isnan(values) & ~counts).any():
                detail = f"{_named(values, _first(hidden))}, on a masked token: multiplied by the mask it is still NaN"
                demanded = literal(np.where(hidden, 0.0, values), dtype)
                yield Violation(key, observed, demanded, detail, "masked-nan")
    if not applies:
        raise DoesNotApply("the observation has no numbers")


def _first(flags: Flags) -> tuple[int, ...]:
    return tuple(int(n) for n in np.argwhere(flags)[0])


def _named(values: Numbers, place: tuple[int, ...]) -> str:
    return f"{f'element {list(place)}' if place else 'it'} is {values[place].item()!r}"


def _of_oracle(right: tuple[Numbers, str] | None, place: tuple[int, ...]) -> str:
    if right is None or right[0].ndim != len(place):
        return ""
    return f"; the oracle's value is {right[0][place].item()!r}"
