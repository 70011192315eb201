"""Device placement: a constant that a loss makes lies where its log-probs lie."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Watch every torch call that the boundary's own code makes while its log-probs lie on ``device``."""
    import torch
    from torch.overrides import TorchFunctionMode

    code = inspect.unwrap(getattr(call, "function", call)).__code__
    device = inputs["device"]
    made: list[dict[str, Any]] = []
    mixed: list[int] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", "")
            if name == "item" and args[0].device.type == "meta":
                return 0.0  # a meta tensor has no value; nothing that is observed here depends on one
            result = function(*args, **(kwargs or {}))
            caller = sys._getframe(1)
            if caller.f_code is code:
                devices = {item.device.type for item in args if isinstance(item, torch.Tensor)}
                if not devices and isinstance(result, torch.Tensor):
                    made.append({"operation": name, "line": caller.f_lineno, "device": result.device.type})
                if len(devices) > 1:
                    mixed.append(caller.f_lineno)
            return result

    with Watch():
        call(**inputs)
    elsewhere = [item for item in made if item["device"] != device]
    return {
        "created_off_device": len(elsewhere),
        "mixed_device_operations": len(mixed),
        "tensors_created": len(made),
        "elsewhere": elsewhere,
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Code that makes no tensor of its own makes none elsewhere; the answer on every device is that of the CPU."""
    return {}


DEVICE_PLACEMENT = Contract(
    name="device_placement",
    summary="where the tensors lie that a loss makes by itself",
    source=(
        "PyTorch, CUDA semantics: a factory call without a device gives a CPU tensor, and mixing devices costs or fails"
    ),
    inputs=(
        Input("configuration", "mapping", "dotted option -> value", choices=({},)),
        Input(
            "device",
            "string",
            "where the log-probs lie; meta shows another device on a machine that has only one",
            default="meta",
            choices=("meta",),
        ),
    ),
    observes=(
        Observed("created_off_device", "how many tensors the code itself made on another device"),
        Observed("mixed_device_operations", "how many of its operations took tensors of two devices"),
        Observed("tensors_created", "how many tensors it made by itself", role="other"),
        Observed("elsewhere", "operation, line and device of those on another device", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    laws=("the_oracle_agrees",),
)
