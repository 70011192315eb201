"""Define the law ``a_rejected_row_is_an_absent_row``: rows without a training signal do not affect other rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import Match, same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import (
    PER_TOKEN,
    Flags,
    Indices,
    axes,
    entries,
    equal,
    first_two,
    float_inputs,
    like,
    mask_of,
    pick_rows,
)
from sentinel.values.literals import Tensor


def rejected_rows(inputs: Mapping[str, Any], contract: Contract | None = None) -> Flags:
    """Return booleans of shape ``[batch]``: True for rows that get no training signal.

    These are the rows whose mask is all zero and, if ``mask_no_eos_with_zero`` is on, also the rows without padding.
    """
    rejected: Flags = np.logical_not(mask_of(contract, inputs).any(axis=-1))
    attention = inputs.get("attention_mask")
    if inputs.get("mask_no_eos_with_zero") and isinstance(attention, Tensor):
        rejected = rejected | (attention.array() != 0).all(axis=-1)
    return rejected


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make variants without the rejected rows, or with different numbers in these rows.

    The scenario's global counts stay the same, because they count only valid tokens and sequences.
    """
    rejected = rejected_rows(inputs, contract)
    if not rejected.any() or rejected.all():
        raise DoesNotApply("the law needs a rejected row and an accepted row")
    names = float_inputs(contract, inputs, *PER_TOKEN, ("batch",))
    number = choose.one_of((5.0, -2.0, 100.0))
    changes = {}
    for name in names:
        array = inputs[name].array()
        changes[name] = like(inputs[name], np.where(rejected.reshape(-1, *[1] * (array.ndim - 1)), number, array))
    variants: dict[str, Inputs] = {BASELINE: inputs}
    if inputs.get("group_layout") != "equal":  # else removing a row would make the groups unequal
        variants["without"] = pick_rows(contract, inputs, np.flatnonzero(~rejected))
    if names:
        variants["changed"] = {**inputs, **changes}
    return variants


@law(
    "changing or removing a row that gets no training signal changes no other row's output",
    vary=_vary,
)
def a_rejected_row_is_an_absent_row(case: Case) -> Iterator[Violation]:
    """Check that changing or removing rejected rows changes neither scalars nor the outputs of accepted rows.

    If one variant has fewer rows, it must have exactly the other variant's accepted rows. Catches group statistics over
    rows that rejection sampling has dropped (verl #6452), sequences without a token in the divisor of a mean over
    sequences (verl #3915, #4769), and normalisation over rewards that a mask zeroes later (AReaL #1351).
    """
    first, others = first_two(case)
    rejected = {name: rejected_rows(inputs, case.contract) for name, inputs in case.inputs.items()}
    accepted = {name: np.flatnonzero(~rows) for name, rows in rejected.items()}
    if not any(rows.any() for rows in rejected.values()):
        raise DoesNotApply("no variant has a rejected row")
    for other in others:
        _require_same_accepted(case, first, other, accepted)
        match = Match(rows=(accepted[first], accepted[other]))
        yield from same(case, first, other, match, prefix="accepted rows differ: ")


def _require_same_accepted(case: Case, first: str, name: str, accepted: Mapping[str, Indices]) -> None:
    one, two = case.inputs[first], case.inputs[name]
    for key, value in one.items():
        shape = axes(case.contract, one, key)
        if key not in two or not equal(
            entries(value, shape, accepted[first]), entries(two[key], shape, accepted[name])
        ):
            raise DoesNotApply(f"variants {first!r} and {name!r} differ in accepted rows too ({key})")
