"""The contract of a function that nobody has bound: it is called with what the lexicon knows, and all of its answer is
looked at. Its inputs and observation keys are those of one function; a search makes them (``sentinel.search``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input

#: Parts of an answer that are looked at, at most.
_MOST = 60

#: What torch says where a gradient is what makes a call impossible.
_GRADIENT = ("leaf Variable", "requires grad", "non-differentiable", "resize_", "detached")


def parts_of(value: Any, path: str, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """List the parts of an answer that the lexicon knows, each with its path; one value a row becomes one array."""
    import torch

    if hasattr(type(value), "is_unknown"):
        return
    if hasattr(value, "batch") and hasattr(value, "non_tensor_batch"):
        value = {**dict(value.batch or {}), **dict(value.non_tensor_batch or {})}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        for key in list(value.keys()):
            yield from parts_of(value[key], f"{path}.{key}", depth)
    elif isinstance(value, (list, tuple)) and value:
        if all(isinstance(item, torch.Tensor) for item in value) and len({item.shape for item in value}) == 1:
            value = torch.stack(list(value)) if isinstance(value, list) else value
        if isinstance(value, list) and all(type(item) in (int, float, bool) for item in value):
            value = torch.tensor(value, dtype=torch.float64)
        if isinstance(value, torch.Tensor):
            yield path, value
            return
        for place, item in enumerate(value):
            yield from parts_of(item, f"{path}.{place}", depth)
    elif isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        yield from parts_of(list(value.unbind()) if value.is_nested else value.to_dense(), path)
    elif isinstance(value, set):
        yield path, sorted(map(str, value))
    elif hasattr(value, "__dict__") and vars(value) and not callable(value) and depth:
        yield from parts_of(vars(value), path, depth - 1)
    else:
        yield path, value


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call once; observe the parts of the answer, and the gradients of all of them that have one."""
    floats = [name for name in inputs["how"]["gradients"] if inputs.get(name) is not None]
    leaves = {name: inputs[name].detach().clone().requires_grad_(True) for name in floats}
    try:
        answer = call(**{**inputs, **leaves})
    except (RuntimeError, AssertionError) as error:
        if not leaves or not any(message in str(error) for message in _GRADIENT):
            raise
        leaves, answer = {}, call(**inputs)
    parts = dict(list(parts_of(answer, "answer"))[:_MOST])
    return {**parts, **_gradients(parts, leaves)}


def _gradients(parts: Mapping[str, Any], leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Differentiate a sum in which each number has another weight, by what it is and not by where it stands."""
    import torch

    live = [part for part in parts.values() if isinstance(part, torch.Tensor) and part.grad_fn is not None]
    live = [part for part in live if part.is_floating_point()]
    if not live or not leaves:
        return {}
    torch.autograd.backward(torch.stack([(part + part.square() / 2).double().sum() for part in live]).sum())
    return {f"gradient.{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


AUTOMATIC = Contract(
    name="automatic",
    summary="a function that nobody has bound, called with what its parameters' names mean",
    source="the lexicon, and what the function did at an earlier revision",
    inputs=(Input("how", "mapping", "how the arguments are made of the other inputs", default={}),),
    observes=(),
    measure=_measure,
    open_keys=True,
    mask="",
)
