"""Masked values have no influence."""

from __future__ import annotations

import numpy as np

from sentinel.invariants.invariant import Case, DoesNotApply, Invariant, Violation
from sentinel.values import Tensor, tensor


def masked_values_have_no_influence(case: Case) -> list[Violation]:
    """For every position *(b, t)* with ``response_mask[b, t] == 0``: d output / d input *[b, t]* is 0.

    Catches a reduction that divides by the number of valid tokens but sums all of them (ROLL #444).
    """
    violations: list[Violation] = []
    looked = False
    for variant, observed in case.observation.items():
        mask, gradient = case.inputs[variant].get("response_mask"), observed.get("per_token_gradient")
        if not isinstance(mask, Tensor) or not isinstance(gradient, Tensor) or mask.shape != gradient.shape:
            continue
        looked = True
        values = gradient.array()
        allowed = np.where(mask.array() != 0, values, 0)
        wrong = (values != allowed) & ~(np.isnan(values) & np.isnan(allowed))
        if wrong.any():
            row, column = (int(n) for n in np.argwhere(wrong)[0])
            violations.append(
                Violation(
                    f"{variant}.per_token_gradient" if variant else "per_token_gradient",
                    gradient,
                    tensor(allowed.tolist(), gradient.dtype),
                    f"the masked token [{row}, {column}] has gradient {values[row, column].item()!r}, which must be 0",
                )
            )
    if not looked:
        raise DoesNotApply("the observation has no gradient beside a mask")
    return violations


MASKED_VALUES_HAVE_NO_INFLUENCE = Invariant(
    "masked_values_have_no_influence",
    "a value where the mask is 0 changes neither output nor gradient",
    masked_values_have_no_influence,
)
