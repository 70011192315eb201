"""Define the contract ``call``: call any function or method, and observe its result, gradients and side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed
from sentinel.values.lazy import torch


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    from types import SimpleNamespace

    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}" if path else str(index))
    else:
        yield path, value


def _snapshot(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        path: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for path, leaf in _leaves(arguments)
    }


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        alike = left.dtype == right.dtype and left.shape == right.shape
        return alike and bool(torch.equal(left.nan_to_num(), right.nan_to_num()))
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return False
    return left is right or (type(left) is type(right) and repr(left) == repr(right))


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function, and observe the result, the gradients of the sum of all outputs, and the changed arguments."""
    arguments = {"self": inputs["self"], "positional": inputs["positional"], **inputs["arguments"]}
    before = _snapshot(arguments)
    raised = None
    returned = None
    try:
        returned = call(**inputs)["returned"]
    except Exception as error:
        if not inputs["catch"]:
            raise
        raised = {"type": type(error).__name__, "message": str(error)}
    outputs = [leaf for _, leaf in _leaves(returned) if isinstance(leaf, torch.Tensor)]
    live = [leaf for leaf in outputs if leaf.requires_grad and leaf.grad_fn is not None]
    if live:
        torch.autograd.backward(torch.stack([leaf.sum() for leaf in live]).sum())
    after = _snapshot(arguments)
    tensors = {path: leaf for path, leaf in _leaves(arguments) if isinstance(leaf, torch.Tensor)}
    return {
        "returned": returned,
        "raised": raised,
        "gradients": {path: leaf.grad for path, leaf in tensors.items() if leaf.requires_grad and leaf.is_leaf},
        "mutated": sorted(
            path
            for path in {*before, *after}
            if path not in before or path not in after or not _same(before[path], after[path])
        ),
        "arguments": {
            path: value for path, value in after.items() if isinstance(value, (torch.Tensor, int, float, str))
        },
        "dtypes": {
            path or "returned": leaf.dtype for path, leaf in _leaves(returned) if isinstance(leaf, torch.Tensor)
        },
    }


CALL = Contract(
    name="call",
    summary="any importable function or method of the target, called with typed literals",
    source="the boundary's documentation",
    inputs=(
        Input("arguments", "any", "parameter name -> typed literal", default={}),
        Input("positional", "any", "leading positional arguments, after self", default=[]),
        Input(
            "self",
            "any",
            "the instance, if the boundary is a method: {new: …} or {namespace: …}",
            default=None,
        ),
        Input("catch", "boolean", "observe an exception as `raised` instead of failing", default=False),
    ),
    observes=(
        Observed("returned", "the returned value; returned.KEY and returned.INDEX select its items"),
        Observed("raised", "type and message of the exception, if `catch` is true"),
        Observed("gradients", "gradients of the sum of all differentiable outputs, by argument"),
        Observed("mutated", "the arguments that the call changed"),
        Observed("arguments", "the arguments after the call"),
        Observed("dtypes", "dtype of each returned tensor"),
    ),
    measure=_measure,
    open_keys=True,
)
