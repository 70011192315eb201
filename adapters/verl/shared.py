"""Stand-ins that verl's bindings share: a table as the model, an optimiser that records gradients, and others."""

from __future__ import annotations

from typing import Any

from sentinel import StandIn
from sentinel.binding.kit import torch

#: Links of dialects refer to verl's main branch of August 2026.
MAIN = "https://github.com/verl-project/verl/blob/1dda039b9c6311889a9c9a26040677e1254814f9/verl"

MODEL = StandIn("model", "a table of log-probs, in which the forward pass looks up the requested rows")
OPTIMIZER = StandIn("optimizer", "adds up the gradients of all steps, and changes no parameter")
SELF = StandIn("self", "the real worker starts a process group; the method reads only these attributes")
CONFIG = StandIn("config", "an omegaconf object, as verl makes from YAML, with the options that the method reads")
CPU = StandIn("device", "tensors that verl moves to its accelerator stay where they are")
MEMORY = StandIn("_get_current_mem_info", "a decorator logs the accelerator's memory, which a CPU does not have")


def make_model(table: Any) -> Any:
    """Make a torch module whose only parameter is a copy of ``table``."""
    model = torch.nn.Module()
    model.table = torch.nn.Parameter(table.detach().clone())
    return model


class Recorder:
    """A stand-in optimiser that adds up the gradients of all steps, and changes no parameter."""

    def __init__(self, model: Any) -> None:
        self._table = model.table
        self.gradient = torch.zeros_like(model.table)

    def zero_grad(self) -> None:
        self._table.grad = None

    def step(self, ranks: int = 1) -> None:
        """Add the model's current gradient, divided by ``ranks``, to :attr:`gradient`."""
        if self._table.grad is not None:
            self.gradient += self._table.grad / ranks
