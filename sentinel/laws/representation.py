"""Define the law ``representation_is_invisible``: dtypes, group labels and memory layout do not change the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Input, Inputs
from sentinel.laws.agreement import same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import axes, equal, equal_numbers, first_two, like
from sentinel.values.literals import FLOATS, Tensor

_INTEGERS = ("int64", "int32")


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make a variant with one input in another dtype, with renumbered labels, or in a non-contiguous memory layout."""
    options = [
        (item.name, other)
        for item in contract.inputs
        if item.name in inputs and not item.dialect
        for other in _others(item, inputs[item.name])
    ]
    if not options:
        raise DoesNotApply(
            "no input of the scenario can be written in another dtype, with other labels or in another memory layout"
        )
    name, other = choose.one_of(options)
    return {BASELINE: inputs, "restated": {**inputs, name: other}}


@law("the result does not depend on the dtype of masks and integers, on group labels, or on memory layout", vary=_vary)
def representation_is_invisible(case: Case) -> Iterator[Violation]:
    """Check that the result does not depend on the dtype of masks and integers, on group labels, or on memory layout.

    The output's dtype may change; its values may not. Catches an integer mask that is used as indices where a boolean
    mask would select (verl #60, #1082), integer labels that are not renumbered (verl #7150), and a ``view`` of a tensor
    that is not contiguous.
    """
    first, others = first_two(case)
    for other in others:
        one, two = case.inputs[first], case.inputs[other]
        changed = [name for name, value in one.items() if not _identical(value, two.get(name))]
        if set(one) != set(two) or not all(_restates(case.contract, one, two, name) for name in changed):
            raise DoesNotApply(f"the inputs of variant {other!r} have different values from those of {first!r}")
        prefix = f"with {', '.join(changed)} in another representation, "
        yield from same(case, first, other, prefix=prefix)


def _identical(left: Any, right: Any) -> bool:
    layout = not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.contiguous == right.contiguous
    return layout and equal(left, right)


def _restates(contract: Contract | None, one: Inputs, two: Inputs, name: str) -> bool:
    """Return True if an input means the same in two variants: it has equal values, or labels that form the same
    groups."""
    left, right = one[name], two[name]
    if isinstance(left, list) and isinstance(right, list) and axes(contract, one, name) == ("batch",):
        return _numbered(left) == _numbered(right)
    return equal_numbers(left, right)


def _numbered(labels: list[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]


def _others(item: Input, value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        dtypes = (item.dtype, *item.dtypes) if item.dtypes else _INTEGERS if value.dtype in _INTEGERS else ()
        for dtype in dtypes:
            if dtype != value.dtype and _holds(dtype, value):
                yield like(value, value.array(), dtype)
        if value.contiguous and len(value.data) and max(value.shape, default=0) > 1:
            yield replace(value, contiguous=False)
    elif item.kind == "labels" and isinstance(value, list) and all(isinstance(label, str) for label in value):
        yield _numbered(value)


def _holds(dtype: str, value: Tensor) -> bool:
    """Return True if a dtype can represent every value of a tensor."""
    array = value.array().astype(np.float64)
    if dtype == "bool" or dtype in FLOATS:
        return bool(((array == 0) | (array == 1)).all())
    return bool((array == np.round(array)).all() and (np.abs(array) < 2**31).all())
