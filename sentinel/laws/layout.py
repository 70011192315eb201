"""What a row and a token is in the inputs and observations of a case, and how to pick, order and replace them.

From the contract's symbolic shapes. Where a law is asked without a contract (a published recipe), from the mask's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.contract import Contract, DoesNotApply, Inputs, Observed
from sentinel.laws.law import Case
from sentinel.values.literals import FLOATS, Tensor, from_array

Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
TOKENS = ("batch", "tokens")


def mask_name(contract: Contract | None, inputs: Inputs) -> str:
    """Give the input that says which tokens count; empty where there is none."""
    names = (contract.mask,) if contract is not None else ("response_mask", "loss_mask")
    return next((name for name in names if isinstance(inputs.get(name), Tensor)), "")


def valid_tokens(contract: Contract | None, inputs: Inputs) -> Flags | None:
    """Say which tokens count, as booleans of shape ``[batch, tokens]``; None where the scenario has no mask."""
    name = mask_name(contract, inputs)
    return inputs[name].array() != 0 if name else None


def mask_of(contract: Contract | None, inputs: Inputs) -> Flags:
    """As :func:`valid_tokens`.

    :raises DoesNotApply: where the scenario has no mask.
    """
    valid = valid_tokens(contract, inputs)
    if valid is None:
        raise DoesNotApply("the scenario has no mask")
    return valid


def axes(contract: Contract | None, inputs: Inputs, name: str) -> tuple[str, ...]:
    """Give the symbolic dimensions of an input's value; empty for what has none."""
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
    """:raises DoesNotApply: where no input has a dimension ``batch``."""
    for name, value in inputs.items():
        shape = axes(contract, inputs, name)
        if shape[:1] == ("batch",):
            return value.shape[0] if isinstance(value, Tensor) else len(value)
    raise DoesNotApply("no input has one entry for each row")


def float_inputs(contract: Contract, inputs: Inputs, shape: tuple[str, ...]) -> list[str]:
    """Give the inputs of these dimensions that hold numbers of the training step: no masks, no counts, no labels."""
    masks = {contract.mask, *(item.name for item in contract.inputs if item.domain == "mask")}
    return [
        name
        for name, value in inputs.items()
        if isinstance(value, Tensor)
        and value.dtype in FLOATS
        and axes(contract, inputs, name) == shape
        and name not in masks
    ]


def entries(value: Any, shape: tuple[str, ...], rows: Indices | None = None, columns: Indices | None = None) -> Any:
    """Give what an input has at these rows and columns: an array, a list, or what has no rows as it is."""
    if isinstance(value, Tensor):
        array = value.array()
        for axis, indices in (("batch", rows), ("tokens", columns)):
            if indices is not None and axis in shape:
                array = np.take(array, indices, axis=shape.index(axis))
        return array
    return [value[row] for row in rows] if rows is not None and "batch" in shape else value


def pick_rows(contract: Contract | None, inputs: Inputs, rows: Indices) -> dict[str, Any]:
    """Give the scenario with these of its rows, in this order."""
    picked = {name: entries(value, axes(contract, inputs, name), rows) for name, value in inputs.items()}
    return {
        name: like(value, picked[name]) if isinstance(value, Tensor) else picked[name] for name, value in inputs.items()
    }


def permutation(contract: Contract | None, one: Inputs, other: Inputs) -> Indices:
    """Say which row of one scenario each row of another is; rows that are alike are taken in their order.

    :raises DoesNotApply: where the other does not have the same rows, in whatever order.
    """
    places: dict[Any, list[int]] = {}
    for place, row in enumerate(_row_keys(contract, one)):
        places.setdefault(row, []).append(place)
    order = [places[row].pop(0) if places.get(row) else -1 for row in _row_keys(contract, other)]
    if -1 in order or any(places.values()):
        raise DoesNotApply("the variants do not have the same rows")
    return np.array(order, dtype=np.intp)


def _row_keys(contract: Contract | None, inputs: Inputs) -> list[tuple[Any, ...]]:
    """Give a hashable key for each row: its part of every input that has rows."""
    columns: list[list[Any]] = []
    for name, value in inputs.items():
        if axes(contract, inputs, name)[:1] == ("batch",):
            rows = [part.tobytes() for part in value.array()] if isinstance(value, Tensor) else value
            columns.append([row.data if isinstance(row, Tensor) else row for row in rows])
    if not columns or len({len(column) for column in columns}) != 1:
        raise DoesNotApply("no input has one entry for each row")
    return list(zip(*columns))


def like(value: Tensor, array: npt.NDArray[Any], dtype: str = "") -> Tensor:
    """Give a tensor literal with other values (and another dtype); the rest stays."""
    made = from_array(array, dtype or value.dtype)
    return replace(value, dtype=made.dtype, shape=made.shape, data=made.data)


def equal(left: Any, right: Any) -> bool:
    """Say whether two inputs, or the entries of two, are the same, NaN being itself."""
    if left is right:
        return True
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and equal(left.array(), right.array())
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        same_kind = left.dtype == right.dtype and left.shape == right.shape
        return same_kind and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    return type(left) is type(right) and bool(left == right)


def observed_keys(case: Case, variant: str) -> Iterator[Observed]:
    """The observation keys of a case that have dimensions; without a contract those with one number a row or token."""
    if case.contract is not None:
        yield from case.contract.observes
        return
    mask = case.inputs[variant].get(mask_name(None, case.inputs[variant]))
    for key, value in case.observation[variant].items():
        if isinstance(value, Tensor) and isinstance(mask, Tensor) and (shape := _guessed(value, mask.shape)):
            yield Observed(key, "", shape)


def address(variant: str, key: str) -> str:
    """Say how recipes name a key of a variant."""
    return f"{variant}.{key}" if variant else key


def first_two(case: Case) -> tuple[str, tuple[str, ...]]:
    """Give the scenario's variant, and the others.

    :raises DoesNotApply: where there is only one.
    """
    first, *others = case.inputs
    if not others:
        raise DoesNotApply("the law compares variants, and the scenario has one")
    return first, tuple(others)
