"""Find the rows and tokens in inputs and observed values; select, reorder and replace them.

The contract's symbolic shapes define which dimensions are rows and tokens. A published recipe has no contract; for it,
the mask's shape defines them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.contract import ACTIONS, TOKENS, Contract, DoesNotApply, Inputs, Observed
from sentinel.laws.law import Case
from sentinel.values.literals import FLOATS, Tensor, from_array

Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
#: Shapes of values to which the token mask applies.
PER_TOKEN = (TOKENS, ACTIONS)


def mask_name(contract: Contract | None, inputs: Inputs) -> str:
    """Return the name of the input that masks tokens; empty if the scenario has no mask."""
    names = (contract.mask,) if contract is not None else ("response_mask", "loss_mask")
    return next((name for name in names if isinstance(inputs.get(name), Tensor)), "")


def valid_tokens(contract: Contract | None, inputs: Inputs) -> Flags | None:
    """Return the tokens that carry a loss, as booleans [batch, tokens]; None if the scenario has no mask."""
    name = mask_name(contract, inputs)
    return inputs[name].array() != 0 if name else None


def mask_of(contract: Contract | None, inputs: Inputs) -> Flags:
    """Return the tokens that carry a loss, as booleans [batch, tokens].

    :raises DoesNotApply: if the scenario has no mask.
    """
    valid = valid_tokens(contract, inputs)
    if valid is None:
        raise DoesNotApply("the scenario has no mask")
    return valid


def axes(contract: Contract | None, inputs: Inputs, name: str) -> tuple[str, ...]:
    """Return the names of the symbolic dimensions of an input's value; empty if it has none."""
    value = inputs[name]
    declared = contract.input(name) if contract is not None else None
    if declared is not None:
        if isinstance(value, Tensor):
            return declared.shape if len(declared.shape) == len(value.shape) else ()
        return ("batch",) if isinstance(value, list) and declared.kind == "labels" else ()
    mask = inputs.get(mask_name(contract, inputs))
    if isinstance(mask, Tensor) and isinstance(value, Tensor):
        return _guessed(value, mask.shape)
    return ("batch",) if isinstance(mask, Tensor) and isinstance(value, list) and len(value) == mask.shape[0] else ()


def _guessed(value: Tensor, shape: tuple[int, ...]) -> tuple[str, ...]:
    if value.shape == shape:
        return TOKENS
    return ("batch", *[""] * (len(value.shape) - 1)) if value.shape[:1] == shape[:1] else ()


def row_count(contract: Contract | None, inputs: Inputs) -> int:
    """Return the number of rows.

    :raises DoesNotApply: if no input has a dimension ``batch``.
    """
    for name, value in inputs.items():
        shape = axes(contract, inputs, name)
        if shape[:1] == ("batch",):
            return value.shape[0] if isinstance(value, Tensor) else len(value)
    raise DoesNotApply("no input has one entry for each row")


def over(valid: Flags, dimensions: int) -> Flags:
    """Append dimensions of size 1 to a mask of rows or tokens, so that it broadcasts to an array with ``dimensions``
    dimensions."""
    return valid.reshape(*valid.shape, *[1] * (dimensions - valid.ndim))


def float_inputs(contract: Contract, inputs: Inputs, *shapes: tuple[str, ...]) -> list[str]:
    """Return the names of the float tensors that have one of these shapes and are not masks."""
    masks = {contract.mask, *(item.name for item in contract.inputs if item.domain == "mask")}
    return [
        name
        for name, value in inputs.items()
        if isinstance(value, Tensor)
        and value.dtype in FLOATS
        and axes(contract, inputs, name) in shapes
        and name not in masks
    ]


def entries(value: Any, shape: tuple[str, ...], rows: Indices | None = None, columns: Indices | None = None) -> Any:
    """Select rows and token columns from a tensor or list, and return the selection as an array or list. A selection
    along a dimension that the value does not have is ignored."""
    if isinstance(value, Tensor):
        array = value.array()
        for axis, indices in (("batch", rows), ("tokens", columns)):
            if indices is not None and axis in shape:
                array = np.take(array, indices, axis=shape.index(axis))
        return array
    return [value[row] for row in rows] if rows is not None and "batch" in shape else value


def pick_rows(contract: Contract | None, inputs: Inputs, rows: Indices) -> dict[str, Any]:
    """Return the scenario with only these rows, in this order."""
    picked = {name: entries(value, axes(contract, inputs, name), rows) for name, value in inputs.items()}
    return {
        name: like(value, picked[name]) if isinstance(value, Tensor) else picked[name] for name, value in inputs.items()
    }


def permutation(contract: Contract | None, one: Inputs, other: Inputs) -> Indices:
    """Return, for each row of ``other``, the index of the same row in ``one``. Equal rows are matched in order.

    :raises DoesNotApply: if ``one`` and ``other`` do not have the same rows.
    """
    places: dict[Any, list[int]] = {}
    for place, row in enumerate(_row_keys(contract, one)):
        places.setdefault(row, []).append(place)
    order = [places[row].pop(0) if places.get(row) else -1 for row in _row_keys(contract, other)]
    if -1 in order or any(places.values()):
        raise DoesNotApply("the variants do not have the same rows")
    return np.array(order, dtype=np.intp)


def _row_keys(contract: Contract | None, inputs: Inputs) -> list[tuple[Any, ...]]:
    """Return one hashable key per row: the row's entries in all inputs."""
    columns: list[list[Any]] = []
    for name, value in inputs.items():
        if axes(contract, inputs, name)[:1] == ("batch",):
            rows = [part.tobytes() for part in value.array()] if isinstance(value, Tensor) else value
            columns.append([row.data if isinstance(row, Tensor) else row for row in rows])
    if not columns or len({len(column) for column in columns}) != 1:
        raise DoesNotApply("no input has one entry for each row")
    return list(zip(*columns))


def like(value: Tensor, array: npt.NDArray[Any], dtype: str = "") -> Tensor:
    """Return a copy of a tensor literal with the values of ``array``. Its dtype stays, unless ``dtype`` is given."""
    made = from_array(array, dtype or value.dtype)
    return replace(value, dtype=made.dtype, shape=made.shape, data=made.data)


def equal(left: Any, right: Any) -> bool:
    """Return True if two inputs, or two entries of an input, are equal. NaN equals NaN."""
    if left is right:
        return True
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and equal(left.array(), right.array())
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        same_kind = left.dtype == right.dtype and left.shape == right.shape
        return same_kind and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    return type(left) is type(right) and bool(left == right)


def equal_numbers(left: Any, right: Any) -> bool:
    """Return True if two tensors have equal numbers, even if their dtypes differ. NaN equals NaN."""
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return False
    return np.array_equal(left.array().astype(np.float64), right.array().astype(np.float64), equal_nan=True)


def observed_keys(case: Case, variant: str) -> Iterator[Observed]:
    """Yield the keys that the contract observes. Without a contract, yield the keys with one number per row or
    token."""
    if case.contract is not None:
        yield from case.contract.observes
        return
    mask = case.inputs[variant].get(mask_name(None, case.inputs[variant]))
    for key, value in case.observation[variant].items():
        if isinstance(value, Tensor) and isinstance(mask, Tensor) and (shape := _guessed(value, mask.shape)):
            yield Observed(key, "", shape)


def address(variant: str, key: str) -> str:
    """Return a key with its variant in the form that recipes use: ``baseline.loss``."""
    return f"{variant}.{key}" if variant else key


def first_two(case: Case) -> tuple[str, tuple[str, ...]]:
    """Return the name of the first variant, and the names of all other variants.

    :raises DoesNotApply: if there is only one.
    """
    first, *others = case.inputs
    if not others:
        raise DoesNotApply("the law compares variants, and the scenario has only one")
    return first, tuple(others)
