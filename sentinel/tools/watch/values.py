"""Copy a call's arguments and result. This module runs inside the training process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

#: The path to a part of a call: a parameter's name, then attributes ``(".", name)``, items ``("[]", key)``, results of
#: methods ``("()", name)``, and a tensor without its first columns ``("[:]", first)``.
Path = tuple[Any, ...]

#: Maximum number of bytes that are copied of one call.
LARGEST = 64 << 20
#: Longer strings are not copied: options are short, and texts of people and models must not leave the process.
_LONGEST = 64
_DEEPEST = 4


class Array(NamedTuple):
    """A copied torch tensor: its dtype, and its numbers as an array (bfloat16 as 16 bits)."""

    dtype: str
    numbers: Any


class Record(NamedTuple):
    """The copied attributes of an object."""

    attributes: dict[str, Any]


class Opaque(NamedTuple):
    """Stands for a value that is not copied, with the name of the value's type."""

    type: str


class NotCopied(Exception):
    """Raised if a call cannot be copied: it is too large, or has a tensor whose values cannot be read."""


def at(arguments: Mapping[str, Any], path: Path, answers: Mapping[str, Any]) -> Any:
    """Return the part of a call at a path. Return None if there is none, for example because this version lacks the
    option.

    :param answers: results of methods by name, for steps ``("()", name)``.
    """
    part: Any = arguments.get(path[0])
    for kind, name in path[1:]:
        if kind == "()":
            part = answers.get(name)
            continue
        try:
            part = getattr(part, name) if kind == "." else part[:, name:] if kind == "[:]" else part[name]
        except Exception:  # attributes of foreign objects may raise any exception
            return None
    return part


class Copier:
    """Copies the values of one call.

    :param room: maximum number of bytes to copy.
    :param names: whether group labels are copied unchanged; otherwise they are replaced by numbers.
    """

    def __init__(self, room: int = LARGEST, names: bool = False) -> None:
        self.room, self._names = room, names
        self._labels: dict[str, str] = {}

    def copy(self, value: Any, depth: int = 0) -> Any:
        """Copy a value on its own device, without waiting for the device. The sending thread waits for it later.

        :raises NotCopied: if the value is too large, or contains a tensor whose values cannot be read.
        """
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            return value if len(value) <= _LONGEST else Opaque("str")
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.Tensor):
            plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
            if not plain or value.is_nested or value.device.type == "meta":
                raise NotCopied(
                    f"the call has a tensor whose values cannot be read ({type(value).__name__}, {value.device.type})"
                )
            self._take(value.numel() * value.element_size())
            return value.detach().clone()
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            if value.dtype == object or value.dtype.kind in "US":
                labels = [self._label(item) for item in value.ravel().tolist()]
                return numpy.array(labels, dtype=object).reshape(value.shape)
            self._take(value.nbytes)
            return value.copy()
        if depth > _DEEPEST:
            return Opaque(type(value).__name__)
        if isinstance(value, (list, tuple)):
            if value and all(isinstance(item, str) for item in value):
                return [self._label(item) for item in value]
            copies = [self.copy(item, depth + 1) for item in value]
            return tuple(copies) if isinstance(value, tuple) else copies
        if isinstance(value, Mapping) or (hasattr(type(value), "keys") and hasattr(type(value), "__getitem__")):
            return {str(key): self.copy(value[key], depth + 1) for key in list(value.keys())}
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else ()
        attributes = {**{name: getattr(value, name, None) for name in fields}, **getattr(value, "__dict__", {})}
        if attributes and not callable(value):
            return Record({name: self.copy(item, depth + 1) for name, item in attributes.items() if not callable(item)})
        return Opaque(type(value).__name__)

    def _take(self, count: int) -> None:
        self.room -= count
        if self.room < 0:
            raise NotCopied(f"the values of the call take more than {LARGEST >> 20} MiB")

    def _label(self, item: Any) -> Any:
        """Replace a group's label by a number, because labels are private. Equal labels get equal numbers."""
        hidden = isinstance(item, str) and not self._names
        return self._labels.setdefault(item, f"{len(self._labels)}") if hidden else item


def packed(value: Any) -> Any:
    """Convert a copied value to plain data, and wait until its device has copied it."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        plain = value.cpu().contiguous()
        dtype = str(plain.dtype).removeprefix("torch.")
        plain = plain.view(torch.int16) if dtype == "bfloat16" else plain
        return Array(dtype, plain.numpy())
    if numpy is not None and isinstance(value, numpy.ndarray):
        return [*value.ravel().tolist()] if value.dtype == object else value
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(packed(item) for item in value)
    if isinstance(value, Record):
        return Record(packed(value.attributes))
    return {key: packed(item) for key, item in value.items()} if isinstance(value, dict) else value


def unpacked(value: Any) -> Any:
    """Convert the result of :func:`packed` to tensors and arrays."""
    if isinstance(value, Array):
        import torch

        return torch.from_numpy(value.numbers).view(getattr(torch, value.dtype))
    if isinstance(value, Record):
        from types import SimpleNamespace

        return SimpleNamespace(**unpacked(value.attributes))
    if type(value) in (list, tuple):
        return type(value)(unpacked(item) for item in value)
    return {key: unpacked(item) for key, item in value.items()} if isinstance(value, dict) else value
