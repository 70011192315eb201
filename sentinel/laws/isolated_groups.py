"""Define the law ``groups_are_isolated``: a group's outputs do not depend on other groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import Match, same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import PER_TOKEN, Flags, axes, equal, first_two, float_inputs, like, row_count


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make a variant in which all numbers in the rows of one group are multiplied by a factor."""
    labels = inputs.get(contract.group) if contract.group else None
    keys = labels if isinstance(labels, list) else list(range(row_count(contract, inputs)))
    groups = list(dict.fromkeys(keys))
    if len(groups) < 2:
        raise DoesNotApply("the scenario has only one group")
    chosen = choose.one_of(groups)
    rows = np.array([key == chosen for key in keys])
    names = float_inputs(contract, inputs, *PER_TOKEN, ("batch",))
    if not names:
        raise DoesNotApply("no float input has one entry for each row or token")
    factor = choose.one_of((2.0, 0.5, 3.0))
    changes = {}
    for name in names:
        array = inputs[name].array()
        factors = np.where(rows, factor, 1.0).reshape(-1, *[1] * (array.ndim - 1))
        changes[name] = like(inputs[name], array.astype(np.float64) * factors)
    if all(equal(inputs[name], value) for name, value in changes.items()):
        raise DoesNotApply("all numbers of the chosen group are 0, so multiplying them by a factor changes nothing")
    return {BASELINE: inputs, "changed": {**inputs, **changes}}


@law(
    "changing one group, row or packed sequence does not change the output of another",
    needs_oracle=True,
    oracle_optional=True,
    vary=_vary,
)
def groups_are_isolated(case: Case) -> Iterator[Violation]:
    """Check that the outputs for a group's rows do not depend on the inputs of another group.

    Scalars of the whole batch are not compared. If the contract's own definition mixes groups, as whitening over
    the batch does, the oracle's values change too, and nothing is compared. Catches a baseline that counts another
    prompt's rows (slime #2302), and a shift across the border between packed rows (verl #5797).
    """
    first, others = first_two(case)
    for other in others:
        left = np.flatnonzero(~_touched(case, first, other))
        if not left.size:
            raise DoesNotApply("all groups have changed inputs, so no group can be compared")
        prefix = f"in a row whose group is the same as in {first!r}, "
        yield from same(case, first, other, Match(rows=(left, left), scalars=False), prefix)


def _touched(case: Case, first: str, other: str) -> Flags:
    """Return a boolean for each row: True if the inputs of its group differ between the two variants."""
    contract, one, two = case.contract, case.inputs[first], case.inputs[other]
    rows = row_count(contract, one)
    if set(one) != set(two) or row_count(contract, two) != rows:
        raise DoesNotApply(f"variants {first!r} and {other!r} do not have the same rows")
    changed = np.zeros(rows, dtype=bool)
    fixed = {contract.mask, contract.group} if contract is not None else {"response_mask", "loss_mask", "group"}
    for name, value in one.items():
        if equal(value, two[name]):
            continue
        if name in fixed or axes(contract, one, name)[:1] != ("batch",) or isinstance(value, list):
            raise DoesNotApply(f"variants {first!r} and {other!r} differ in {name}, which is not a value per row")
        before, after = (item.array().astype(np.float64).reshape(rows, -1) for item in (value, two[name]))
        if before.shape != after.shape:
            raise DoesNotApply(f"variants {first!r} and {other!r} differ in the shape of {name}")
        changed |= ((before != after) & ~(np.isnan(before) & np.isnan(after))).any(axis=-1)
    if not changed.any():
        raise DoesNotApply(f"variants {first!r} and {other!r} are the same")
    labels = one.get(contract.group if contract is not None else "group")
    if isinstance(labels, list):
        touched = {label for label, flag in zip(labels, changed) if flag}
        return np.array([label in touched for label in labels])
    return changed
