"""AReaL: the learning rate over the steps of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, Dialect

_MAIN = "https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal"


def _rates(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The rates that an optimiser has, update after update."""
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=inputs["peak"])
    given = {name: inputs[name] for name in boundary.binding.arguments}
    scheduler = boundary.invoke(given, optimizer=optimizer)
    rates = []
    for _ in range(inputs["training_steps"]):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"rates": rates}


BINDINGS = (
    Binding(
        "areal.engine.fsdp_utils.get_cosine_schedule_with_warmup",
        "learning_rate",
        formerly=("areal.utils.fsdp.get_cosine_schedule_with_warmup",),
        arguments={
            "warmup_steps": ("num_warmup_steps",),
            "training_steps": ("num_training_steps",),
            "min_ratio": ("min_lr_ratio",),
        },
        call=_rates,
        fixed={"schedule": "cosine", "initial_ratio": 0.0, "stable_ratio": 0.0, "first_step": 0},
        dialects=(
            Dialect(
                "warmup_from",
                "minimum",
                "the rate is never below its minimum, in the warm-up neither",
                f"{_MAIN}/engine/fsdp_utils/__init__.py#L197",
            ),
        ),
    ),
)
