"""AReaL: the learning rate over the steps of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, Dialect
from sentinel.worker.kit import rates

_MAIN = "https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal"

_ARGUMENTS = "areal.api.cli_args"
_ARCHON = "areal.experimental.engine.archon_utils"


def _scheduled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: inputs[name] for name in boundary.binding.arguments}
    return rates(inputs, lambda optimizer: boundary.invoke(given, optimizer=optimizer))


def _configured(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """By the optimiser's own options; once the warm-up was a share of the training, and cut to a whole number."""
    made, steps = boundary.imported[_ARGUMENTS].OptimizerConfig, inputs["training_steps"]
    warmup = {"warmup_steps": inputs["warmup_steps"]}
    if "warmup_steps" not in made.__dataclass_fields__:
        warmup = {"warmup_steps_proportion": (inputs["warmup_steps"] + 0.5) / steps}
    options = made(lr=inputs["peak"], lr_scheduler_type="cosine", min_lr_ratio=inputs["min_ratio"], **warmup)
    return rates(inputs, lambda optimizer: boundary.function(optimizer, options, steps))


_COSINE: Mapping[str, Any] = {"schedule": "cosine", "initial_ratio": 0.0, "stable_ratio": 0.0, "first_step": 0}
_FROM_MINIMUM = Dialect(
    "warmup_from",
    "minimum",
    "the rate is never below its minimum, in the warm-up neither",
    f"{_MAIN}/engine/fsdp_utils/__init__.py#L197",
)

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
        call=_scheduled,
        fixed=_COSINE,
        dialects=(_FROM_MINIMUM,),
    ),
    Binding(
        f"{_ARCHON}.create_lr_scheduler",
        "learning_rate",
        call=_configured,
        imports=(_ARGUMENTS,),
        requires=(f"{_ARCHON}.create_lr_scheduler",),
        fixed=_COSINE,  # its other schedules are those of transformers
        dialects=(_FROM_MINIMUM,),
    ),
)

UNBOUND = {
    f"{_ARCHON}.create_optimizer": "torch's own optimisers, by the names of the options",
    f"{_ARCHON}.force_pad_to_maximum": "it turns an option on; what pads by it is bound",
    f"{_ARCHON}.*": "what is recomputed, compiled and made deterministic on a GPU",
}
