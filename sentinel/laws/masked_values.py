"""Define the law ``masked_values_have_no_influence``: values on masked tokens do not change the result."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import Numbers, same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import (
    PER_TOKEN,
    Flags,
    address,
    axes,
    equal,
    first_two,
    float_inputs,
    like,
    mask_of,
    over,
    valid_tokens,
)
from sentinel.values.literals import FLOATS, Tensor, tensor

#: Values for masked tokens. float16 can represent all of them, even after :func:`_vary` has multiplied them.
JUNK = (7.0, -3.0, 1e4, math.inf, math.nan)


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make variants with other values on the masked tokens of one input, or of all inputs.

    NaN and infinity are put into all rows. Finite numbers are put only into rows that also have a valid token: for
    rows without a valid token, ``a_rejected_row_is_an_absent_row`` would report the same bug.
    """
    valid = mask_of(contract, inputs)
    names = float_inputs(contract, inputs, *PER_TOKEN)
    if not names:
        raise DoesNotApply("the scenario has no float input per token")
    chosen = choose.one_of([*([name] for name in names), names])
    junk = choose.one_of(JUNK)
    masked = ~valid & (valid.any(axis=-1, keepdims=True) | (not np.isfinite(junk)))
    if not masked.any():
        raise DoesNotApply("the scenario has no masked token")
    changes = {
        name: like(
            inputs[name], np.where(over(masked, len(inputs[name].shape)), junk * (1 + place), inputs[name].array())
        )
        for place, name in enumerate(chosen)
    }
    return {BASELINE: inputs, "outlier": {**inputs, **changes}}


@law("a value where the mask is 0 changes neither output nor gradient", vary=_vary)
def masked_values_have_no_influence(case: Case) -> Iterator[Violation]:
    """Check that values on masked tokens do not influence the outputs, and that their gradients are 0.

    For every position *(b, t)* with ``mask[b, t] == 0`` and every x: ``f(.., v, ..) == f(.., v with v[b, t] = x,
    ..)`` at valid tokens and in scalars, and d f / d v *[b, t]* is 0.

    Catches a reduction that divides by the number of valid tokens but sums all of them (ROLL #444), a NaN that is
    multiplied by a zero mask (SkyRL #1635, verl #6349), and a recursion that runs through masked tokens (AReaL
    #392).
    """
    applies = False
    for variant in case.observation:
        for key, gradient, mask in _gradients(case, variant):
            applies = True
            values = gradient.array().astype(np.float64)
            allowed = np.where(mask, values, 0)
            wrong = (values != allowed) & ~(np.isnan(values) & np.isnan(allowed))
            if wrong.any():
                yield _leak(address(variant, key), gradient, values, allowed, wrong)
    if len(case.inputs) > 1:
        first, others = first_two(case)
        for other in others:
            if _differ_only_where_masked(case, first, other):
                applies = True
                yield from same(case, first, other, prefix="with other values on masked tokens, ")
    if not applies:
        raise DoesNotApply(
            "the observation has no per-token gradient, and no two variants differ only on masked tokens"
        )


def _gradients(case: Case, variant: str) -> Iterator[tuple[str, Tensor, Flags]]:
    mask = valid_tokens(case.contract, case.inputs[variant])
    if case.contract is None:
        keys = ["per_token_gradient"]
    else:
        keys = [item.key for item in case.contract.observes if item.role == "gradient" and item.shape in PER_TOKEN]
    for key in keys:
        gradient = case.observation[variant].get(key)
        if isinstance(gradient, Tensor) and mask is not None and mask.shape == gradient.shape[:2]:
            yield key, gradient, over(mask, len(gradient.shape))


def _leak(key: str, gradient: Tensor, values: Numbers, allowed: Numbers, wrong: Flags) -> Violation:
    place = tuple(map(int, np.argwhere(wrong)[0]))
    detail = f"the masked token {list(place)} has gradient {values[place].item()!r}, which must be 0"
    symptom = "value" if np.isfinite(values[wrong]).all() else "non-finite"
    return Violation(key, gradient, tensor(allowed.tolist(), gradient.dtype), detail, symptom)


def _differ_only_where_masked(case: Case, first: str, other: str) -> bool:
    one, two = case.inputs[first], case.inputs[other]
    valid = valid_tokens(case.contract, one)
    if valid is None or set(one) != set(two):
        return False
    for name, value in one.items():
        if equal(value, two[name]):
            continue
        if not (isinstance(value, Tensor) and isinstance(two[name], Tensor) and value.dtype in FLOATS):
            return False
        if (
            axes(case.contract, one, name) not in PER_TOKEN
            or value.shape != two[name].shape
            or value.dtype != two[name].dtype
        ):
            return False
        here, there = (item.array()[valid] for item in (value, two[name]))
        if not np.array_equal(here, there, equal_nan=True):
            return False
    return True
