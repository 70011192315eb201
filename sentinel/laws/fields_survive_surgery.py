"""Fields survive surgery."""

from __future__ import annotations

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.law import Case, Law, Violation

_LOSSES = {
    "dropped": "fields of the real rows are missing",
    "shape_changed": "fields have another shape than in the real rows",
    "dtype_changed": "fields have another dtype than in the real rows",
}


def fields_survive_surgery(case: Case) -> list[Violation]:
    """Rows that come out of pad, split, reorder or concat have every field of the rows that went in, in shape and
    dtype. Each of the three is a symptom of its own: ``dropped``, ``shape``, ``dtype``.

    Catches a padding microbatch that lacks a field which the loss reads (SkyRL #1811).
    """
    violations: list[Violation] = []
    applies = False
    for variant, observed in case.observation.items():
        for key, meaning in _LOSSES.items():
            if key not in observed:
                continue
            applies = True
            if observed[key]:
                address = f"{variant}.{key}" if variant else key
                detail = f"{meaning}: {', '.join(observed[key])}"
                violations.append(Violation(address, observed[key], [], detail, key.partition("_")[0]))
    if not applies:
        raise DoesNotApply("the observation does not compare fields")
    return violations


FIELDS_SURVIVE_SURGERY = Law(
    "fields_survive_surgery",
    "pad, split, reorder and concat keep every field, with its shape and dtype",
    fields_survive_surgery,
)
