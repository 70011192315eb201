"""What a call did besides answering: inputs it changed, global state it left behind."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.worker import tensors


class Watched:
    """The boundary's call, watched. Pass it to a contract's ``measure`` in place of the boundary.

    :ivar mutated: names of canonical inputs whose values were others after a call than before.
    :ivar changed: names of global states that were others after a call than before.
    """

    def __init__(self, call: Callable[..., Mapping[str, Any]]) -> None:
        self._call = call
        self.mutated: list[str] = []
        self.changed: list[str] = []

    def __call__(self, /, **inputs: Any) -> Mapping[str, Any]:
        values, state = _values(inputs), global_state()
        outputs = self._call(**inputs)
        after = _values(inputs)
        self.mutated += [name for name in inputs if values[name] != after[name] and name not in self.mutated]
        now = global_state()
        self.changed += [name for name in state if state[name] != now[name] and name not in self.changed]
        return outputs

    def effects(self) -> dict[str, Any]:
        return {"mutated": sorted(self.mutated), "globals": sorted(self.changed)}


def _values(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensors.observe(value) for name, value in inputs.items()}


def global_state() -> dict[str, Any]:
    """Give what one call may leave behind for the next."""
    import numpy
    import torch

    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "random": random.getstate(),
        "numpy.random": (kind, keys.tobytes(), *rest),  # type: ignore[union-attr]
        "torch.random": torch.default_generator.get_state().numpy().tobytes(),
        "torch.default_dtype": torch.get_default_dtype(),
        "torch.grad_enabled": torch.is_grad_enabled(),
        "torch.inference_mode": torch.is_inference_mode_enabled(),
        "torch.deterministic": torch.get_deterministic_debug_mode(),
        "torch.num_threads": torch.get_num_threads(),
        "os.environ": dict(os.environ),
    }
