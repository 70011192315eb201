"""Nested lists of numbers in a recipe to tensors, with the index of whatever does not fit."""

from __future__ import annotations

import math
from typing import Any

from sentinel.errors import nearest
from sentinel.recipes.findings import describe
from sentinel.values.literals import FLOATS, STORAGE, Tensor, tensor

#: How JSON, which has no such numbers, writes them; evidence does too.
TAGGED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class LiteralError(ValueError):
    """A value that is not what its input takes.

    :ivar place: where inside the value, from its top.
    """

    def __init__(self, message: str, place: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.place = message, place

    def below(self, *outer: Any) -> LiteralError:
        """The same error seen from further out."""
        return LiteralError(self.message, (*outer, *self.place))


def untagged(value: Any) -> Any:
    """Nested lists with JSON's tagged strings as the floats they stand for."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    return TAGGED.get(value, value) if isinstance(value, str) else value


def numbers(value: Any) -> tuple[int, ...]:
    """The shape of a rectangular nesting of numbers.

    :raises LiteralError: where something is no number or a row has another length, with its index.
    """
    if not isinstance(value, list):
        if isinstance(value, (bool, int, float)):
            return ()
        raise LiteralError(f"expected a number, found {describe(value)}")
    shape: tuple[int, ...] | None = None
    for index, item in enumerate(value):
        try:
            this = numbers(item)
        except LiteralError as error:
            raise error.below(index) from None
        if shape is not None and this != shape:
            raise LiteralError(
                f"ragged: [{index}] {_extent(this)} where [0] {_extent(shape)}; a tensor needs rows of equal length",
                (index,),
            )
        shape = this
    return (len(value), *(shape or ()))


def _extent(shape: tuple[int, ...]) -> str:
    return "is a number" if not shape else f"has shape {list(shape)}" if len(shape) > 1 else f"has length {shape[0]}"


def make_tensor(value: Any, dtype: Any, requires_grad: Any = False, contiguous: Any = True) -> Tensor:
    """A tensor from nested numbers.

    :raises LiteralError: naming the element that does not fit.
    """
    if dtype not in STORAGE:
        raise LiteralError(f"unknown dtype {describe(dtype)}{nearest(str(dtype), STORAGE, 'one of')}", ("dtype",))
    if not isinstance(requires_grad, bool):
        raise LiteralError(f"requires_grad must be true or false, found {describe(requires_grad)}", ("requires_grad",))
    if requires_grad and dtype not in FLOATS:
        raise LiteralError(f"requires_grad needs a float dtype, not {dtype}", ("requires_grad",))
    if not isinstance(contiguous, bool):
        raise LiteralError(f"contiguous must be true or false, found {describe(contiguous)}", ("contiguous",))
    plain = untagged(value)
    numbers(plain)
    try:
        return tensor(plain, dtype, requires_grad, contiguous)
    except (ValueError, OverflowError, TypeError) as error:
        place = _misfit(plain, dtype)
        raise LiteralError(
            f"{describe(_dig(plain, place))} does not fit dtype {dtype}" if place else str(error), place
        ) from None


def _misfit(value: Any, dtype: str) -> tuple[Any, ...]:
    """The first element that does not fit a dtype by itself."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            below = _misfit(item, dtype)
            if below or (not isinstance(item, list) and not _fits(item, dtype)):
                return (index, *below)
    return ()


def _fits(value: Any, dtype: str) -> bool:
    try:
        tensor(value, dtype)
    except (ValueError, OverflowError, TypeError):
        return False
    return True


def _dig(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


def natural_dtype(value: Any) -> str:
    """The dtype that torch gives to nested Python numbers."""
    if isinstance(value, list):
        found = {natural_dtype(item) for item in value}
        return next((name for name in ("float32", "int64", "bool") if name in found), "float32")
    return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
