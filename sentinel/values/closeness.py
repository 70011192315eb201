"""Compare an observed value with an expected one, within the tolerance of the observed dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sentinel.values.literals import FLOATS, Tensor, tensor
from sentinel.values.tolerance import Tolerance

#: dtype -> (relative tolerance, absolute tolerance). For bfloat16 and float16, the relative tolerance is four machine
#: epsilons and the absolute tolerance is one machine epsilon: the error of a sum of a few numbers near 1.
DEFAULTS: dict[str, tuple[float, float]] = {
    "float64": (1e-9, 1e-12),
    "float32": (1e-5, 1e-6),
    "float16": (4 * 2.0**-10, 2.0**-10),
    "bfloat16": (4 * 2.0**-7, 2.0**-7),
}


#: The assumed dtype of a number without a dtype. Such a number is usually ``tensor.item()`` of a float32 tensor.
BARE = "float32"


def mismatch(observed: Any, expected: Any, tolerance: Tolerance = Tolerance()) -> str:
    """Return the first difference from the expected value as text, with the tolerance; empty if the values agree.

    Floats agree within the tolerance of the observed dtype; integers, booleans, strings and shapes must be equal. NaN
    agrees only with NaN. If nested lists of numbers are expected, the observed tensor may have any dtype; an expected
    :class:`Tensor` must have the observed dtype.
    """
    if isinstance(observed, Tensor):
        return _tensors(observed, expected, tolerance)
    if isinstance(expected, Tensor):
        return f"expected a tensor of shape {list(expected.shape)}, observed {_name(observed)}"
    if isinstance(observed, Mapping) and isinstance(expected, Mapping):
        return _mappings(observed, expected, tolerance)
    if isinstance(observed, (list, tuple)) and isinstance(expected, (list, tuple)):
        if len(observed) != len(expected):
            return f"expected {len(expected)} items, observed {len(observed)}"
        for index, (left, right) in enumerate(zip(observed, expected)):
            if detail := mismatch(left, right, tolerance):
                return f"item {index}: {detail}"
        return ""
    if _is_number(observed) and _is_number(expected):
        return _scalars(observed, expected, tolerance)
    same = type(observed) is type(expected) and observed == expected
    return "" if same else f"expected {expected!r}, observed {observed!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _name(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _scalars(observed: float, expected: float, tolerance: Tolerance) -> str:
    if isinstance(observed, int):
        same = observed == expected
        return "" if same else f"expected {expected!r}, observed {observed!r}"
    relative, absolute = bounds(BARE, tolerance)
    if math.isnan(observed) or math.isnan(expected) or math.isinf(observed) or math.isinf(expected):
        same = (math.isnan(observed) and math.isnan(expected)) or observed == expected
    else:
        same = abs(observed - expected) <= absolute + relative * abs(expected)
    return "" if same else f"expected {expected!r}, observed {observed!r}{_at(relative, absolute)}"


def _mappings(observed: Mapping[str, Any], expected: Mapping[str, Any], tolerance: Tolerance) -> str:
    if set(observed) != set(expected):
        return f"expected the keys {sorted(expected)}, observed {sorted(observed)}"
    for key, value in expected.items():
        if detail := mismatch(observed[key], value, tolerance):
            return f"{key}: {detail}"
    return ""


def _tensors(observed: Tensor, expected: Any, tolerance: Tolerance) -> str:
    if isinstance(expected, Tensor):
        if expected.dtype != observed.dtype:
            return f"expected dtype {expected.dtype}, observed {observed.dtype}"
        right: Any = expected.array()
    elif isinstance(expected, bool) or expected is None or isinstance(expected, (str, Mapping)):
        if isinstance(expected, bool) and observed.shape == () and observed.dtype == "bool":
            same = bool(observed.array()) == expected
            return "" if same else f"expected {expected}, observed {observed.nested()}"
        return f"expected {expected!r}, observed a tensor of shape {list(observed.shape)}"
    else:
        try:
            right = tensor(list(expected) if isinstance(expected, tuple) else expected, _wide(observed.dtype)).array()
        except ValueError as error:
            return f"the expected value is not a tensor: {error}"
    left = observed.array()
    if left.shape != right.shape:
        return f"expected shape {list(right.shape)}, observed {list(left.shape)}"
    left, right = left.astype(_compared_as(observed.dtype)), right.astype(_compared_as(observed.dtype))
    relative, absolute = bounds(observed.dtype, tolerance)
    if observed.dtype in FLOATS:
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(left - right) <= absolute + relative * np.abs(right)
        near = np.where(
            np.isfinite(left) & np.isfinite(right), near, (left == right) | (np.isnan(left) & np.isnan(right))
        )
    else:
        near = left == right
    if near.all():
        return ""
    first = tuple(int(n) for n in np.argwhere(~near)[0])
    place = f"element {list(first)}" if first else "the value"
    where = f" ({int((~near).sum())} of {near.size} differ)" if near.size > 1 else ""
    values = f"expected {right[first].item()!r}, observed {left[first].item()!r}"
    return f"{place}: {values}{_at(relative, absolute)}{where}"


def _wide(dtype: str) -> str:
    # Expected values have full precision. Converting them to the observed dtype would round them before the comparison.
    return "float64" if dtype in FLOATS else "int64"


def _compared_as(dtype: str) -> Any:
    return np.float64 if dtype in FLOATS else np.int64


def bounds(dtype: str, tolerance: Tolerance) -> tuple[float, float]:
    """Return the relative and absolute tolerance for an observed dtype; zeros if values must be equal."""
    if tolerance.exact or dtype not in DEFAULTS:
        return 0.0, 0.0
    relative, absolute = DEFAULTS[dtype]
    return (
        relative if tolerance.relative is None else tolerance.relative,
        absolute if tolerance.absolute is None else tolerance.absolute,
    )


def _at(relative: float, absolute: float) -> str:
    return f" (tolerance {relative:g} relative, {absolute:g} absolute)"


def minus(left: Any, right: Any) -> Any:
    """Return ``left - right`` for numbers, tensors of the same shape (in the dtype of ``left``), or lists of them.

    :raises ValueError: for other values.
    """
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape:
            raise ValueError(f"shapes {list(left.shape)} and {list(right.shape)} cannot be subtracted")
        if left.dtype not in FLOATS:
            return tensor((left.array().astype(np.int64) - right.array().astype(np.int64)).tolist(), "int64")
        with np.errstate(invalid="ignore", over="ignore"):
            return tensor((left.array() - right.array()).tolist(), left.dtype)
    if _is_number(left) and _is_number(right):
        return left - right
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [minus(one, two) for one, two in zip(left, right)]
    raise ValueError(f"{_name(left)} and {_name(right)} cannot be subtracted")
