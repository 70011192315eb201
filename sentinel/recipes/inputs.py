"""Convert a recipe's input values to the literals (:mod:`sentinel.values.literals`) that the contract declares.

* ``[[1.0, .nan]]``: a tensor of the contract's dtype (inputs of kind ``tensor``)
* ``{tensor: [[1.0]], dtype: float32, requires_grad: true, contiguous: false}``: a tensor; not contiguous means that its
  elements are not adjacent in memory
* ``{full: 0.0, shape: [2, 3], dtype: float32}``: a tensor of one value
* ``{array: [a, b], dtype: object}``: a numpy array
* ``{tuple: [...]}``: a tuple
* ``{mapping: {...}}``: a dictionary whose keys would otherwise be read as a literal
* ``{namespace: {...}}``: an object with these attributes
* ``{new: dotted.path, arguments: {...}}``: an object of the target, created by a real call
* ``{attribute: dotted.path}``: a function, class or enum member of the target
* ``{device: cpu}``: a torch device

Literals other than tensors are for inputs of kind ``any``. JSON has no NaN: the strings ``"NaN"``, ``"Infinity"`` and
``"-Infinity"`` stand for these floats wherever a number is expected, as in evidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from sentinel.contracts.contract import Input
from sentinel.errors import nearest
from sentinel.recipes.problems import describe
from sentinel.values.literals import (
    FLOATS,
    STORAGE,
    TAGGED,
    Array,
    Attribute,
    Device,
    Namespace,
    New,
    Tensor,
    Tuple,
    tensor,
)


class LiteralError(ValueError):
    """Raised if a recipe's value is not valid for its input. ``place`` is the path to the wrong part of the value."""

    def __init__(self, message: str, place: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.place = message, place

    def below(self, *outer: Any) -> LiteralError:
        """Return the same error for an enclosing value. ``outer`` is the path from that value to this one."""
        return LiteralError(self.message, (*outer, *self.place))


def read_tags(value: Any) -> Any:
    """Replace the strings "NaN", "Infinity" and "-Infinity" by floats, also in nested lists."""
    if isinstance(value, list):
        return [read_tags(item) for item in value]
    return TAGGED.get(value, value) if isinstance(value, str) else value


def numbers(value: Any) -> tuple[int, ...]:
    """Return the shape of a nested list, after checking that it contains only numbers and is rectangular.

    :raises LiteralError: if an item is not a number or the rows differ in shape.
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
                f"ragged: [{index}] {_extent(this)}, but [0] {_extent(shape)}; "
                "rows of a tensor must have the same length",
                (index,),
            )
        shape = this
    return (len(value), *(shape or ()))


def _extent(shape: tuple[int, ...]) -> str:
    return "is a number" if not shape else f"has shape {list(shape)}" if len(shape) > 1 else f"has length {shape[0]}"


def make_tensor(value: Any, dtype: Any, requires_grad: Any = False, contiguous: Any = True) -> Tensor:
    """Return a tensor from nested lists of numbers.

    :raises LiteralError: if a number does not fit the dtype or an option is invalid.
    """
    if dtype not in STORAGE:
        raise LiteralError(f"unknown dtype {describe(dtype)}{nearest(str(dtype), STORAGE, 'one of')}", ("dtype",))
    if not isinstance(requires_grad, bool):
        raise LiteralError(f"requires_grad must be true or false, found {describe(requires_grad)}", ("requires_grad",))
    if requires_grad and dtype not in FLOATS:
        raise LiteralError(f"requires_grad needs a float dtype, not {dtype}", ("requires_grad",))
    if not isinstance(contiguous, bool):
        raise LiteralError(f"contiguous must be true or false, found {describe(contiguous)}", ("contiguous",))
    plain = read_tags(value)
    numbers(plain)
    try:
        return tensor(plain, dtype, requires_grad, contiguous)
    except (ValueError, OverflowError, TypeError) as error:
        place = _misfit(plain, dtype)
        raise LiteralError(
            f"{describe(reduce(getitem, place, plain))} does not fit dtype {dtype}" if place else str(error), place
        ) from None


def _misfit(value: Any, dtype: str) -> tuple[Any, ...]:
    """Return the index of the first element that the dtype cannot represent, or ``()``."""
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


def natural_dtype(value: Any) -> str:
    """Return the dtype that torch gives to nested Python numbers by default."""
    if isinstance(value, list):
        dtypes = {natural_dtype(item) for item in value}
        return next((name for name in ("float32", "int64", "bool") if name in dtypes), "float32")
    return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"


#: Maximum number of elements that ``full`` may create, so that a small recipe cannot use much memory.
MAX_ELEMENTS = 1_000_000

_OPTIONS = ("dtype", "requires_grad", "contiguous")
_TENSOR_KEYS = {"tensor": ("tensor", *_OPTIONS), "full": ("full", "shape", *_OPTIONS)}
_ARRAY_DTYPES = ("object", *(name for name in STORAGE if name != "bfloat16"))
_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_DEVICE = re.compile(r"[a-z]{1,16}(:[0-9]{1,3})?")


def read_input(spec: Input, value: Any, packages: Collection[str] = ()) -> Any:
    """Convert a value in a recipe to the literal for one input of a contract.

    :param packages: the target's packages; ``new`` and ``attribute`` must name objects in them.
    :raises LiteralError: if the value does not fit, with the expected kind and the place.
    """
    if spec.kind == "any":
        return read_any(value, packages)
    if spec.kind == "tensor":
        return _read_tensor(spec, value)
    if spec.kind == "number":
        value = read_tags(value)
    if spec.kind in ("number", "integer") and isinstance(value, Mapping):
        # some functions take a tensor without dimensions instead of a number
        return tensor_literal(value, "float32" if spec.kind == "number" else "int64")
    kinds, expected = _KINDS[spec.kind]
    if type(value) not in kinds:
        raise LiteralError(f"expected {expected}, found {describe(value)}")
    for index, item in enumerate(value) if spec.kind == "labels" else ():
        if type(item) not in (str, int, float):
            raise LiteralError(f"expected a string or a number at [{index}], found {describe(item)}", (index,))
    return value.copy() if spec.kind in ("labels", "mapping") else value


def inside(path: Any, packages: Collection[str]) -> str | None:
    """Return why a dotted path is not in one of these packages, or None if it is."""
    if not isinstance(path, str) or not _DOTTED.fullmatch(path):
        return f"{describe(path)} is not a dotted path such as {next(iter(packages), 'package')}.module.name"
    if path.partition(".")[0] not in packages:
        return f"{path!r} is outside the target's package{'s' if len(packages) > 1 else ''} {', '.join(packages)}"
    return None


def _form(value: Mapping[str, Any], forms: Mapping[str, tuple[str, ...]], otherwise: str) -> str:
    """Return the key that determines the kind of literal, such as ``tensor``. Raise LiteralError for unknown keys."""
    form = next((name for name in forms if name in value), None)
    if form is None:
        wrong = next(iter(value), "")
        raise LiteralError(
            f"expected {otherwise}, found a mapping{f' with {wrong!r}' + nearest(wrong, forms) if wrong else ''}"
        )
    for key in value:
        if key not in forms[form]:
            escape = "" if forms is _TENSOR_KEYS else "; write a dictionary that has such keys as {mapping: {...}}"
            raise LiteralError(
                f"{{{form}: ...}} has no option {key!r}{nearest(key, forms[form], 'only')}{escape}", (key,)
            )
    return form


def tensor_literal(value: Mapping[str, Any], dtype: str | None) -> Tensor:
    """Return the tensor that ``{tensor: ...}`` or ``{full: ..., shape: ...}`` describes.

    :param dtype: the dtype of a literal that states no dtype; None for torch's default.
    """
    form = _form(value, _TENSOR_KEYS, "a tensor: nested lists, {tensor: [...]} or {full: 0.0, shape: [...]}")
    content = read_tags(value[form]) if form == "tensor" else _full(value)
    options = {"dtype": dtype or natural_dtype(content), **{name: value[name] for name in _OPTIONS if name in value}}
    try:
        return make_tensor(content, **options)
    except LiteralError as error:
        raise error if error.place[:1] in {(name,) for name in _OPTIONS} else error.below(form) from None


def _full(value: Mapping[str, Any]) -> Any:
    fill, shape = read_tags(value["full"]), value.get("shape")
    if not isinstance(fill, (bool, int, float)):
        raise LiteralError(f"{{full: ...}} needs a number, found {describe(fill)}", ("full",))
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise LiteralError("{full: ...} needs a shape, such as shape: [2, 3]", ("shape",) if "shape" in value else ())
    if math.prod(shape) > MAX_ELEMENTS or len(shape) > 16 or max(shape, default=0) > MAX_ELEMENTS:
        raise LiteralError(f"shape {shape} has more than {MAX_ELEMENTS:,} elements", ("shape",))
    return np.full(shape, fill, dtype=None if isinstance(fill, (bool, float)) else object).tolist()


def _read_tensor(spec: Input, value: Any) -> Any:
    if isinstance(value, Mapping):
        return tensor_literal(value, spec.dtype)
    if isinstance(value, (list, bool, int, float)) or value in TAGGED:
        return make_tensor(value, spec.dtype)
    raise LiteralError(f"expected a tensor (nested lists or {{tensor: [...]}}), found {describe(value)}")


#: Kind of input -> (its Python types, its name in messages).
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "number": ((int, float), "a number"),
    "integer": ((int,), "an integer"),
    "boolean": ((bool,), "true or false"),
    "string": ((str,), "a string"),
    "labels": ((list,), "a list with a string or number for each row"),
    "mapping": ((dict,), "a mapping"),
}


def read_any(value: Any, packages: Collection[str]) -> Any:
    """Convert a value to the literal that it describes, including the items of lists and mappings."""
    if isinstance(value, list):
        return [_below(item, packages, index) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if not any(name in value for name in _FORMS):
        return {key: _below(item, packages, key) for key, item in value.items()}
    form = _form(value, _FORMS, "a literal")
    content, (kind, make) = value[form], _LITERALS[form]
    if isinstance(content, Mapping) and kind != "a mapping":
        escape = f"to pass a dictionary with this key, write {{mapping: {{{form}: ...}}}}"
        raise LiteralError(f"{form} does not take a mapping; {escape}", (form,))
    if not isinstance(content, {"a list": list, "a string": str, "a mapping": Mapping}.get(kind, object)):
        raise LiteralError(f"{form} takes {kind}, found {describe(content)}", (form,))
    return make(value, packages)


def _below(value: Any, packages: Collection[str], *outer: Any) -> Any:
    try:
        return read_any(value, packages)
    except LiteralError as error:
        raise error.below(*outer) from None


def _members(value: Any, packages: Collection[str], form: str) -> dict[str, Any]:
    return {key: _below(item, packages, form, key) for key, item in value.items()}


def _items(value: Mapping[str, Any], packages: Collection[str], form: str) -> tuple[Any, ...]:
    return tuple(_below(item, packages, form, index) for index, item in enumerate(value[form]))


def _array(value: Mapping[str, Any], packages: Collection[str]) -> Array:
    dtype = value.get("dtype", "object")
    if dtype not in _ARRAY_DTYPES:
        raise LiteralError(f"unknown dtype {describe(dtype)}{nearest(str(dtype), _ARRAY_DTYPES, 'one of')}", ("dtype",))
    if dtype == "object":
        return Array(_items(value, packages, "array"))
    try:
        make_tensor(value["array"], dtype)
    except LiteralError as error:
        raise error.below("array") from None
    return Array(tuple(read_tags(value["array"])), dtype)


def _path(value: Mapping[str, Any], packages: Collection[str], form: str) -> str:
    problem = inside(value[form], packages)
    if problem:
        raise LiteralError(problem, (form,))
    return str(value[form])


def _new(value: Mapping[str, Any], packages: Collection[str]) -> New:
    arguments = value.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        raise LiteralError(f"{{arguments: ...}} needs a mapping, found {describe(arguments)}", ("arguments",))
    return New(_path(value, packages, "new"), _members(arguments, packages, "arguments"))


def _device(name: str) -> Device:
    if not _DEVICE.fullmatch(name):
        raise LiteralError(f"{name!r} is not a device such as cpu or cuda:0", ("device",))
    return Device(name)


Make = Callable[[Mapping[str, Any], Collection[str]], Any]

#: Literal -> (the kind of value that it takes, its constructor). Tensor literals check their numbers themselves.
_LITERALS: dict[str, tuple[str, Make]] = {
    **dict.fromkeys(_TENSOR_KEYS, ("numbers", lambda value, packages: tensor_literal(value, None))),
    "array": ("a list", _array),
    "tuple": ("a list", lambda value, packages: Tuple(_items(value, packages, "tuple"))),
    "mapping": ("a mapping", lambda value, packages: _members(value["mapping"], packages, "mapping")),
    "namespace": ("a mapping", lambda value, packages: Namespace(_members(value["namespace"], packages, "namespace"))),
    "new": ("a string", _new),
    "attribute": ("a string", lambda value, packages: Attribute(_path(value, packages, "attribute"))),
    "device": ("a string", lambda value, packages: _device(value["device"])),
}
_FORMS: dict[str, tuple[str, ...]] = {name: (name,) for name in _LITERALS}
_FORMS |= {**_TENSOR_KEYS, "array": ("array", "dtype"), "new": ("new", "arguments")}
