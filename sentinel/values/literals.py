"""Represent tensors, arrays and other values as plain data, to send them between processes or store them.

The controller never imports torch, so a tensor is stored as dtype, shape and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

#: torch's dtype names -> the numpy dtype of their storage. numpy has no bfloat16; its bits are stored as uint16.
STORAGE: dict[str, str] = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint8": "|u1",
    "bool": "|b1",
}

FLOATS = ("float64", "float32", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")

#: String in evidence and recipes -> the float, which JSON cannot represent.
TAGGED: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def tagged(value: float) -> float | str:
    """Return a float for JSON: a number, or a tag such as "NaN" from :data:`TAGGED`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@dataclass(frozen=True)
class Tensor:
    """A tensor as plain data, without torch: shape, dtype and elements.

    :ivar dtype: torch's name without the ``torch.`` prefix.
    :ivar data: C-contiguous little-endian bytes.
    :ivar requires_grad: for inputs, True if the worker must make it a leaf and observe its gradient; for outputs, True
        if it had a gradient function.
    :ivar contiguous: whether its elements are adjacent in the worker's memory. If not, the memory between them is used
        by other elements.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    requires_grad: bool = False
    contiguous: bool = True

    def array(self) -> npt.NDArray[Any]:
        """Return the values as a read-only numpy array; bfloat16 is widened to float32."""
        return self._array

    @cached_property
    def _array(self) -> npt.NDArray[Any]:
        raw = np.frombuffer(self.data, dtype=STORAGE[self.dtype]).reshape(self.shape)
        if self.dtype == "bfloat16":
            wide: npt.NDArray[Any] = np.asarray((raw.astype(np.uint32) << 16).view(np.float32))
            wide.flags.writeable = False
            return wide
        return raw

    def nested(self) -> Any:
        """Return the values as nested lists of Python numbers, or a scalar for zero dimensions."""
        return self.array().tolist()


def tensor(values: Any, dtype: str, requires_grad: bool = False, contiguous: bool = True) -> Tensor:
    """Make a :class:`Tensor` from nested lists.

    :raises ValueError: for ragged lists, values that are not numbers, or numbers that do not fit the dtype.
    """
    if dtype not in STORAGE:
        raise ValueError(f"unknown dtype {dtype!r}; use one of {', '.join(STORAGE)}")
    _require_numbers(values)
    wide = np.array(values, dtype=None if _nonempty(values) else np.float64)
    if wide.dtype == object:
        raise ValueError("rows of unequal length" if isinstance(values, list) else "the integer does not fit 64 bits")
    return from_array(wide, dtype, requires_grad, contiguous)


def from_array(values: npt.NDArray[Any], dtype: str, requires_grad: bool = False, contiguous: bool = True) -> Tensor:
    """Make a :class:`Tensor` from an array of numbers.

    :raises ValueError: if a number does not fit an integer dtype or bool.
    """
    if dtype == "bfloat16":
        array: npt.NDArray[Any] = _to_bfloat16(values.astype(np.float32))
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            array = values.astype(STORAGE[dtype])
        exact = dtype not in FLOATS
        if exact and not np.array_equal(array.astype(np.float64), values.astype(np.float64)):
            raise ValueError(f"a value does not fit dtype {dtype}")
    return Tensor(dtype, tuple(array.shape), np.ascontiguousarray(array).tobytes(), requires_grad, contiguous)


def _nonempty(values: Any) -> bool:
    return bool(np.size(np.array(values, dtype=object)))


def _require_numbers(values: Any) -> None:
    if isinstance(values, list):
        for value in values:
            _require_numbers(value)
    elif not isinstance(values, (bool, int, float)):
        raise ValueError(f"{values!r} is not a number")


def _to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round floats to bfloat16 as torch does (to nearest, ties to even)."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


@dataclass(frozen=True)
class Array:
    """A numpy array argument (``{array: [...], dtype: ...}``); with dtype ``object``, items may be strings."""

    values: tuple[Any, ...]
    dtype: str = "object"


@dataclass(frozen=True)
class Tuple:
    """A tuple argument (``{tuple: [...]}``)."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Namespace:
    """An object with these attributes (``{namespace: {...}}``), written out in a recipe."""

    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class New:
    """An object that the worker creates by calling the framework (``{new: dotted.path, arguments: {...}}``)."""

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Attribute:
    """An object in the framework's modules, such as a function or an enum member (``{attribute: dotted.path}``)."""

    path: str


@dataclass(frozen=True)
class Device:
    """A torch device by name (``{device: cpu}``)."""

    name: str


Literal = Tensor | Array | Tuple | Namespace | New | Attribute | Device

#: Class of a literal -> its keys in a recipe -> the field for each key. The first key identifies the literal.
WRITTEN: Mapping[type, Mapping[str, str]] = {
    Array: {"array": "values", "dtype": "dtype"},
    Tuple: {"tuple": "items"},
    Namespace: {"namespace": "attributes"},
    New: {"new": "path", "arguments": "arguments"},
    Attribute: {"attribute": "path"},
    Device: {"device": "name"},
}


def _written(value: Any, write: Callable[[Any], Any]) -> Any:
    """Return a value in the notation of recipes. ``write`` converts the items of a container."""
    if value is None or isinstance(value, (str, int)):  # the most frequent case first
        return value
    if isinstance(value, float):
        return tagged(value)
    if isinstance(value, Mapping):
        return {str(key): write(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [write(item) for item in value]
    if type(value) in WRITTEN:
        return {key: write(getattr(value, name)) for key, name in WRITTEN[type(value)].items()}
    return value


def plain(value: Any) -> Any:
    """Return a value as JSON for people: tensors as nested lists, other literals as in recipes, NaN as "NaN"."""
    return plain(value.nested()) if isinstance(value, Tensor) else _written(value, plain)


def untyped(value: Any) -> Any:
    """Convert the result of :func:`typed` back to the value; tensors become :class:`Tensor`."""
    if isinstance(value, Mapping):
        if not {"dtype", "shape", "tensor"} <= value.keys():
            return {name: untyped(item) for name, item in value.items()}
        array = np.array(value["tensor"], dtype=object).reshape(value["shape"])
        numbers = array.astype(np.float64 if value["dtype"] in FLOATS else np.int64)  # also reads "NaN"
        return from_array(numbers, value["dtype"], value.get("requires_grad", False), value.get("contiguous", True))
    if isinstance(value, list):
        return [untyped(item) for item in value]
    return float(value) if isinstance(value, str) and value in TAGGED else value


def typed(value: Any) -> Any:
    """Return a value as JSON without loss: like :func:`plain`, but tensors also have their dtype and shape."""
    if isinstance(value, Tensor):
        grad = {"requires_grad": True} if value.requires_grad else {}
        strides = {} if value.contiguous else {"contiguous": False}
        return {"dtype": value.dtype, "shape": list(value.shape), "tensor": plain(value.nested()), **grad, **strides}
    return _written(value, plain if isinstance(value, Array) else typed)
