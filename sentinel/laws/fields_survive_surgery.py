"""Define the law ``fields_survive_surgery``: operations on rows keep every field."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import address

_LOSSES = {
    "dropped": "fields of the real rows are missing",
    "shape_changed": "fields have another shape than in the real rows",
    "dtype_changed": "fields have another dtype than in the real rows",
}


@law("pad, split, reorder and concat keep every field, with its shape and dtype")
def fields_survive_surgery(case: Case) -> Iterator[Violation]:
    """Check that padded, split, reordered and concatenated rows keep every field, with its shape and dtype.

    The symptoms are ``dropped``, ``shape`` and ``dtype``. Catches a padding microbatch without a field that the
    loss reads (SkyRL #1811).
    """
    if not any(key in observed for observed in case.observation.values() for key in _LOSSES):
        raise DoesNotApply("the observation does not list dropped or changed fields")
    for variant, observed in case.observation.items():
        for key, meaning in _LOSSES.items():
            if observed.get(key):
                detail = f"{meaning}: {', '.join(observed[key])}"
                yield Violation(address(variant, key), observed[key], [], detail, key.partition("_")[0])
