"""Twins agree."""

from __future__ import annotations

import numpy as np

from sentinel.contracts.contract import Choose, Contract
from sentinel.invariants.compare import same
from sentinel.invariants.invariant import BASELINE, Case, DoesNotApply, Inputs, Invariant, Violation
from sentinel.invariants.layout import equal, first_two
from sentinel.values import Tensor


def twins_agree(case: Case) -> list[Violation]:
    """``f(x) == g(x)`` for two implementations f and g of one thing, given the same values.

    Catches a vectorised form that has another formula than the loop (verl's RLOO), a packed mode that drops another end
    than the padded one (verl #6372), and log-probs that are recomputed without the temperature of the loss (AReaL #581).
    """
    first, others = first_two(case)
    violations = []
    for other in others:
        one, two = case.inputs[first], case.inputs[other]
        if set(one) != set(two) or not all(_alike(value, two[name]) for name, value in one.items()):
            raise DoesNotApply(f"variant {other!r} has other values than {first!r}")
        violations += same(case, first, other, said="the twin says otherwise: ")
    return violations


def _alike(left: object, right: object) -> bool:
    """Whether two inputs have the same values, perhaps in another precision."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return np.array_equal(left.array().astype(np.float64), right.array().astype(np.float64), equal_nan=True)
    return equal(left, right)


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    return {BASELINE: inputs, "twin": inputs}


TWINS_AGREE = Invariant(
    "twins_agree",
    "two implementations of one thing agree",
    twins_agree,
    vary=_vary,
    twin="twin",
)
