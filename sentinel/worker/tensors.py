"""Convert tensor literals to torch tensors and back."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from sentinel.binding.drift import DriftError, Neutral, StandInNamespace
from sentinel.values.literals import STORAGE, Array, Attribute, Device, Namespace, New, Tensor, Tuple
from sentinel.worker.stubs import StubModule


def to_torch(literal: Tensor, device: str = "cpu") -> torch.Tensor:
    """Return a new torch tensor with the literal's values. It is a leaf if the literal requires gradients."""
    dtype = getattr(torch, literal.dtype)
    if literal.data:
        value = torch.frombuffer(bytearray(literal.data), dtype=dtype).reshape(literal.shape)
    else:
        value = torch.empty(literal.shape, dtype=dtype)
    value = value.to(device) if device != "cpu" else value
    value = value if literal.contiguous else _strided(value)
    return value.requires_grad_(True) if literal.requires_grad else value


#: Functions of torch that create tensors from numbers.
_FACTORIES = {getattr(torch, name) for name in (
    "arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor", "zeros"
)}  # fmt: skip

#: Prefixes of the names of Sentinel's modules, and of adapters and contracts that are loaded from files.
_OURS = ("sentinel.", "sentinel_file_")


class _OnDevice(TorchFunctionMode):
    """Creates the tensors of adapters and contracts on the scenario's device, unless the call names a device.

    Calls in the framework's own code are not changed. If the framework creates a tensor on another device than its
    arguments have, this is a bug, which the probe must show.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        made_here = function in _FACTORIES and options.get("device") is None
        if made_here and sys._getframe(1).f_globals.get("__name__", "").startswith(_OURS):
            options = {**options, "device": self._device}
        return function(*arguments, **options)


#: The code object of the method that wraps every torch function while :func:`on_device` is active.
PASSED_ON = _OnDevice.__torch_function__.__code__


def on_device(device: str) -> AbstractContextManager[object]:
    """Return a context manager in which adapters and contracts create tensors on a scenario's device."""
    return nullcontext() if device == "cpu" else _OnDevice(device)


def _strided(value: torch.Tensor) -> torch.Tensor:
    """Return a non-contiguous tensor with these values.

    The gaps between the values contain NaN or the largest integer, so that code that reads them returns wrong results.
    """
    if value.dim() == 0:
        return value
    if value.is_floating_point():
        between = torch.full_like(value, torch.nan)
    else:
        between = torch.full_like(value, True if value.dtype == torch.bool else torch.iinfo(value.dtype).max)
    return torch.stack([value, between], dim=-1).flatten(-2)[..., ::2]


def from_torch(value: torch.Tensor) -> Tensor:
    """Convert a torch tensor to a literal.

    :raises TypeError: if its values cannot be read (meta, sparse, quantised).
    """
    if value.layout is not torch.strided or value.device.type == "meta":
        raise TypeError(f"a tensor's values cannot be read: its layout is {value.layout}, its device {value.device}")
    plain = value.detach().to("cpu").contiguous()
    dtype = str(plain.dtype).removeprefix("torch.")
    if dtype not in STORAGE:
        raise TypeError(f"a tensor has the dtype {dtype}, which Sentinel does not support")
    if dtype == "bfloat16":
        plain = plain.view(torch.int16)
    return Tensor(dtype, tuple(value.shape), plain.numpy().tobytes(), bool(value.requires_grad))


def build(value: Any, resolve: Callable[[str], Any], device: str = "cpu") -> Any:
    """Create the object for a literal. ``resolve`` returns the framework's object for a dotted path."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value  # the most frequent case first: isinstance(x, Mapping) is slow with torch
    if isinstance(value, Tensor):
        return to_torch(value, device)
    if isinstance(value, Array):
        if value.dtype == "object":
            array = np.empty(len(value.values), dtype=object)
            for index, item in enumerate(value.values):
                array[index] = build(item, resolve, device)
            return array
        return np.array(list(value.values), dtype=value.dtype)
    if isinstance(value, Tuple):
        return tuple(build(item, resolve, device) for item in value.items)
    if isinstance(value, Namespace):
        return StandInNamespace(**{key: build(item, resolve, device) for key, item in value.attributes.items()})
    if isinstance(value, New):
        kind = resolve(value.path)
        return kind(**{key: build(item, resolve, device) for key, item in value.arguments.items()})
    if isinstance(value, Attribute):
        return resolve(value.path)
    if isinstance(value, Device):
        return torch.device(value.name)
    if isinstance(value, Mapping):
        return {key: build(item, resolve, device) for key, item in value.items()}
    if isinstance(value, list):
        return [build(item, resolve, device) for item in value]
    return value


def observe(value: Any) -> Any:
    """Convert a function's result to data that can be sent to pytest's process.

    Tensors and arrays become :class:`~sentinel.values.literals.Tensor`. The items of containers are converted. Enum
    members and dtypes become their names. An object of any other type becomes ``{"type": dotted name}``."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, StubModule):
        bool(value)  # returning a stub module counts as using it, which raises and is recorded
    if isinstance(value, Neutral):
        what = f"the result contains {value}, which the adapter does not handle"
        raise DriftError(f"the adapter is older than this revision: {what}")
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, torch.Tensor):
        return from_torch(value)
    if isinstance(value, np.generic):
        return observe(value.item())
    if isinstance(value, np.ndarray):
        return (
            [observe(item) for item in value.tolist()]
            if value.dtype == object
            else from_torch(torch.from_numpy(value.copy()))
        )
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        return {str(key): observe(value[key]) for key in list(value.keys())}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [observe(item) for item in items]
    if isinstance(value, SimpleNamespace):
        return observe(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: observe(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}
