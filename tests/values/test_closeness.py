import math
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.values.closeness import DEFAULTS, minus, mismatch
from sentinel.values.literals import FLOATS, STORAGE, tensor
from sentinel.values.tolerance import Tolerance

_FLOATS = st.floats(width=16)
_ROWS = st.lists(st.lists(_FLOATS, min_size=2, max_size=2), max_size=3)
_DTYPES = st.sampled_from(sorted(FLOATS))
INTEGERS = sorted(set(STORAGE) - {*FLOATS, "bool"})


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error", RuntimeWarning
        )  # numpy's warnings; others may come from anywhere, such as a socket
        yield


@given(_ROWS, _DTYPES)
def test_a_value_agrees_with_itself(rows, dtype):
    value = tensor(rows, dtype)
    assert not mismatch(value, value)
    assert not mismatch(value, value.nested())
    assert not mismatch(value, value.nested(), Tolerance(exact=True))


@given(_FLOATS, _DTYPES, st.sampled_from([0.5, 0.99, 1.5, 100.0]))
def test_a_float_agrees_within_its_dtypes_tolerance_and_not_beyond(value, dtype, times):
    if not math.isfinite(value):
        return
    relative, absolute = DEFAULTS[dtype]
    observed = tensor([value], dtype)
    held = observed.nested()[0]
    if math.isinf(held):
        return
    # The expected value is float64, and the tolerance is relative to it.
    away = held + times * (absolute + relative * abs(held)) / (1 - times * relative)
    assert (not mismatch(observed, [away])) is (abs(held - away) <= absolute + relative * abs(away))
    if times > 1:
        assert mismatch(observed, [away])


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_nan_and_infinity_equal_only_themselves(dtype):
    special = [math.nan, math.inf, -math.inf, 1.0]
    for one in special:
        for other in special:
            same = one == other or (math.isnan(one) and math.isnan(other))
            assert (not mismatch(tensor([one], dtype), [other])) is same
            assert (not mismatch(one, other)) is same


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_compared_exactly(dtype):
    loose = Tolerance(relative=0.5, absolute=10.0)
    assert not mismatch(tensor([100], dtype), [100], loose)
    assert mismatch(tensor([100], dtype), [101], loose)
    assert mismatch(tensor([100], dtype), [100.5], loose)


@pytest.mark.parametrize(
    ("observed", "expected", "same"),
    [
        (tensor([True, False], "bool"), [1, 0], True),
        (tensor([True, False], "bool"), [True, False], True),
        (tensor([True], "bool"), [2], False),
        (tensor([False], "bool"), [0.5], False),
        (tensor(True, "bool"), True, True),
        (tensor(26.0, "float32"), True, False),
        (tensor(1.0, "float32"), 1, True),
        (tensor([1.0], "float32"), 1.0, False),
        (tensor([1.0], "float32"), tensor([1.0], "float32"), True),
        (tensor([1.0], "float32"), tensor([1.0], "float64"), False),
        (tensor([1.0], "float32"), tensor([1.0], "bfloat16"), False),
        (tensor([[1.0], [2.0]], "float32"), [[1.0]], False),
        (tensor([1.0], "float32"), None, False),
        (tensor([1.0], "float32"), [[1.0], [1.0, 2.0]], False),
        (tensor([], "float32"), [], True),
        (None, None, True),
        (None, 0, False),
        (0, False, False),
        (True, 1, False),
        ("a", "b", False),
        ([1, 2.0, "x"], [1, 2.0, "x"], True),
        ([1, 2], [1, 2, 3], False),
        ([1, 2], (1, 2), True),
        ({"a": [1.0]}, {"a": [1.0 + 1e-9]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (3, 3.0, True),
        (3, 3.0000001, False),
        (1.0, [1.0], False),
        (1.0, tensor([1.0], "float32"), False),
    ],
    ids=repr,
)
def test_values_of_different_kinds_differ(observed, expected, same):
    found = mismatch(observed, expected)
    assert bool(found) is not same


def test_the_detail_names_place_difference_and_tolerance():
    found = mismatch(tensor([[1.0, 2.0], [3.0, 4.5]], "float32"), [[1.0, 2.0], [3.5, 4.0]])
    assert found == (
        "element [1, 0]: expected 3.5, observed 3.0 (tolerance 1e-05 relative, 1e-06 absolute) (2 of 4 differ)"
    )
    assert mismatch({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == "a: item 1: b: expected 3, observed 2"
    assert mismatch(tensor([1], "int64"), [2]).startswith("element [0]: expected 2, observed 1")


def test_a_recipes_tolerance_overrides_the_dtypes():
    value = tensor([1.0], "float32")
    assert not mismatch(value, [1.2], Tolerance(relative=0.5))
    assert not mismatch(value, [1.2], Tolerance(absolute=0.5))
    assert mismatch(value, [1.0 + 1e-9], Tolerance(exact=True))
    assert mismatch(value, [1.000005], Tolerance(relative=0.0))


@given(_ROWS, _DTYPES)
def test_a_value_minus_itself_is_zero(rows, dtype):
    value = tensor(rows, dtype)
    zero = minus(value, value)
    assert (zero.dtype, zero.shape) == (dtype, value.shape)
    for row, nothing in zip(rows, zero.nested(), strict=True):
        for before, after in zip(row, nothing, strict=True):
            assert after == 0 or math.isnan(after)
            if dtype != "bfloat16":
                assert math.isnan(after) is not math.isfinite(before)


@pytest.mark.parametrize(
    ("left", "right"),
    [(tensor([1.0], "float32"), tensor([[1.0]], "float32")), ("a", "b"), (None, 1), ([1], [1, 2]), (True, False)],
    ids=repr,
)
def test_values_that_cannot_be_subtracted_are_rejected(left, right):
    with pytest.raises(ValueError, match="cannot be subtracted"):
        minus(left, right)
