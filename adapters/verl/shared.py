"""What verl's bindings share: a model that is a table, an optimiser that records, and the stand-ins' reasons."""

from __future__ import annotations

from typing import Any

from sentinel.binding.kit import torch
from sentinel.targets import StandIn

#: Dialects say where verl says so by a line of main in August 2026.
MAIN = "https://github.com/verl-project/verl/blob/1dda039b9c6311889a9c9a26040677e1254814f9/verl"

MODEL = StandIn("model", "a table of log-probs: the forward pass answers the rows of the table that it is asked for")
OPTIMIZER = StandIn("optimizer", "adds up the gradients that a step is taken with; it changes nothing")
SELF = StandIn("self", "the real worker starts a process group; the method reads these attributes alone")
CONFIG = StandIn("config", "the options that the method reads, as the omegaconf object that verl makes of YAML")
CPU = StandIn("device", "what verl moves to its accelerator stays where it is")
MEMORY = StandIn("_get_current_mem_info", "what a decorator logs of the accelerator's memory, which a CPU has none of")


def make_model(table: Any) -> Any:
    """Make a module whose one parameter is the table."""
    model = torch.nn.Module()
    model.table = torch.nn.Parameter(table.detach().clone())
    return model


class Recorder:
    """The optimiser: what its steps are taken with, added up."""

    def __init__(self, model: Any) -> None:
        self._table = model.table
        self.gradient = torch.zeros_like(model.table)

    def zero_grad(self) -> None:
        self._table.grad = None

    def step(self, ranks: int = 1) -> None:
        """:param ranks: whose gradients have been added up where they are averaged."""
        if self._table.grad is not None:
            self.gradient += self._table.grad / ranks
