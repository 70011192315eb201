"""Define the law ``gradients_stay_where_they_belong``: there is a gradient exactly where the definition has one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.agreement import Numbers, against_oracle, literal
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import Flags, address

_MEANINGS = {
    "masked": "has a gradient on a masked token",
    "leaked": "has a gradient although the definition has none",
    "dropped": "has no gradient although the definition has one",
}


@law(
    "a gradient exactly where the definition has one, and never on masked tokens",
    needs_oracle=True,
)
def gradients_stay_where_they_belong(case: Case) -> Iterator[Violation]:
    """Check that masked tokens have gradient 0, and that other tokens have a gradient exactly where the oracle has one.

    ``g[b, t] == 0`` if the mask is 0; ``|g| <= bound`` if the oracle's gradient is exactly 0; ``g != 0`` if the
    oracle's gradient is larger than the bound.

    Catches an importance weight that is not detached (AReaL #1405), a reward that is not detached (AReaL #964), and
    a token that loses its gradient to a stray ``no_grad`` or mask.
    """
    answers = list(against_oracle(case, ("gradient",)))
    if not answers:
        raise DoesNotApply("no gradient was returned by both the framework and the oracle")
    for variant, item, answer in answers:
        got, right, bound = answer.observed, answer.demanded, answer.scale.bound(answer.dtype)
        if got.shape != right.shape:
            raise DoesNotApply("the gradient's shape differs from that of the oracle's gradient")
        counts = np.ones(got.shape, dtype=bool) if answer.counts is None else answer.counts
        with np.errstate(invalid="ignore"):
            wrong = {
                "masked": ~counts & (got != 0),
                "leaked": counts & (right == 0) & ~(np.abs(got) <= bound),
                "dropped": counts & (got == 0) & np.isfinite(right) & (np.abs(right) > bound),
            }
        demanded = np.where(counts, right, 0.0)
        for what, places in wrong.items():
            if places.any():
                yield _violation(address(variant, item.key), what, got, demanded, places, answer.dtype)


def _violation(key: str, what: str, got: Numbers, demanded: Numbers, places: Flags, dtype: str) -> Violation:
    place = tuple(int(n) for n in np.argwhere(places)[0])
    value, right = got[place].item(), demanded[place].item()
    symptom = "value" if np.isfinite(got[places]).all() else "non-finite"
    detail = f"element {list(place)} {_MEANINGS[what]}: {value!r}, not {right!r}"
    return Violation(key, literal(got, dtype), literal(demanded, "float64"), detail, symptom)
