"""A rejected row is an absent row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from sentinel.closeness import agree
from sentinel.invariants.invariant import Case, DoesNotApply, Invariant, Violation
from sentinel.values import FLOATS, Tensor, tensor


def rejected_rows(inputs: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Which rows of a scenario get no training signal of their own, as booleans of shape ``[batch]``.

    Those whose mask is all zero; and, where ``mask_no_eos_with_zero`` is on, those that filled the whole length.
    """
    mask = inputs.get("response_mask", inputs.get("loss_mask"))
    if not isinstance(mask, Tensor):
        raise DoesNotApply("the scenario has no mask")
    rejected: npt.NDArray[np.bool_] = (mask.array() == 0).all(axis=-1)
    attention = inputs.get("attention_mask")
    if inputs.get("mask_no_eos_with_zero") and isinstance(attention, Tensor):
        rejected = rejected | (attention.array() != 0).all(axis=-1)
    return rejected


def a_rejected_row_is_an_absent_row(case: Case) -> list[Violation]:
    """For variants that differ only in rows that are rejected: ``output[accepted rows]`` is the same in all of them.

    A variant with fewer rows must be another one with its rejected rows left out. Catches group statistics over rows
    that rejection sampling has dropped (verl #6452), and normalisation over rewards that a mask zeroes later (AReaL
    #1351).
    """
    names = list(case.inputs)
    if len(names) < 2:
        raise DoesNotApply("the law compares variants, and the scenario has one")
    first = names[0]
    rejected = {name: rejected_rows(case.inputs[name]) for name in names}
    accepted = {name: np.flatnonzero(~rows) for name, rows in rejected.items()}
    if not any(rows.any() for rows in rejected.values()):
        raise DoesNotApply("no variant has a rejected row")
    violations: list[Violation] = []
    looked = False
    for name in names[1:]:
        _require_same_accepted(case, first, name, accepted)
        for key, reference in case.observation[first].items():
            other = case.observation[name].get(key)
            if not (_has_rows(reference, rejected[first]) and _has_rows(other, rejected[name])):
                continue
            looked = True
            left = _rows(other, accepted[name])
            right = _rows(reference, accepted[first])
            found = agree(left, right)
            if not found.agrees:
                violations.append(
                    Violation(
                        f"{name}.{key}", left, right, f"accepted rows differ from those of {first!r}: {found.detail}"
                    )
                )
    if not looked:
        raise DoesNotApply("nothing in the observation has a row for each row of the scenario")
    return violations


def _has_rows(value: Any, rows: npt.NDArray[np.bool_]) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.shape[:1] == rows.shape


def _require_same_accepted(case: Case, first: str, name: str, accepted: Mapping[str, npt.NDArray[np.intp]]) -> None:
    for key, value in case.inputs[first].items():
        other = case.inputs[name][key]
        if isinstance(value, Tensor) and value.shape and isinstance(other, Tensor):
            same = np.array_equal(
                value.array()[accepted[first]], other.array()[accepted[name]], equal_nan=value.dtype in FLOATS
            )
        elif isinstance(value, list) and isinstance(other, list):
            same = [value[i] for i in accepted[first]] == [other[i] for i in accepted[name]]
        else:
            same = value == other
        if not same:
            raise DoesNotApply(f"variants {first!r} and {name!r} differ in accepted rows too ({key})")


def _rows(value: Tensor, rows: npt.NDArray[np.intp]) -> Tensor:
    return tensor(value.array()[rows].tolist(), value.dtype)


A_REJECTED_ROW_IS_AN_ABSENT_ROW = Invariant(
    "a_rejected_row_is_an_absent_row",
    "a row that gets no training signal of its own may be changed or removed: every other row's output stays",
    a_rejected_row_is_an_absent_row,
)
