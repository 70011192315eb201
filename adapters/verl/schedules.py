"""Bindings for verl's schedules of the KL coefficient and the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit

_CORE = "verl.trainer.ppo.core_algos"
_TORCH = "verl.utils.torch_functional"
_OPTIONS = StandIn("kl_ctrl", "options that the function reads by name, in any container")


def _coefficients(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    kind = "adaptive" if inputs["adaptive"] else "fixed"
    options = kit.stand_in(type=kind, kl_coef=inputs["initial"], **kit.take_inputs(inputs, "target_kl", "horizon"))
    whole = kit.stand_in(critic=kit.stand_in(kl_ctrl=options), kl_ctrl=options)
    controller = boundary.invoke({}, kl_ctrl=options, config=whole)
    return kit.read_coefficients(controller, inputs, "current_kl")


def _rates(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    later = {"init_lr_ratio": inputs["initial_ratio"], "zero_indexed_step": inputs["first_step"]}
    if missing := [name for name, value in later.items() if value and name not in boundary.parameters]:
        raise AbsentError(f"this version's {inputs['schedule']} schedule has no parameter {missing[0]}")
    early = inputs["schedule"] == "cosine" and "init_lr_ratio" not in boundary.parameters
    if early and inputs["min_ratio"] and inputs["warmup_steps"]:
        raise AbsentError("this version's cosine schedule cannot warm up from 0 if min_ratio is not 0")
    arguments = {
        name: inputs[name] for name in boundary.binding.arguments if name in inputs and name != "initial_ratio"
    }
    options = {"init_lr_ratio": inputs["initial_ratio"], "zero_indexed_step": inputs["first_step"] == 0}
    return kit.read_rates(inputs, lambda optimizer: boundary.invoke(arguments, optimizer=optimizer, **options))


_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "warmup_steps": ("num_warmup_steps",),
    "training_steps": ("num_training_steps",),
    "min_ratio": ("min_lr_ratio",),
    "initial_ratio": ("init_lr_ratio",),
    "stable_ratio": ("stable_ratio",),
}
#: Fixed values of the inputs that a schedule lacks.
_WITHOUT: Mapping[str, Any] = {"min_ratio": 0.0, "initial_ratio": 0.0, "stable_ratio": 0.0, "first_step": 0}


def _schedule(schedule: str, *names: str) -> Binding:
    """Bind one of verl's learning-rate schedules.

    :param names: the inputs that the schedule takes in addition to ``warmup_steps``.
    """
    own = ("warmup_steps", *(name for name in names if name in _ARGUMENTS))
    return Binding(
        f"{_TORCH}.get_{schedule}_schedule_with_warmup",
        "learning_rate",
        arguments={name: _ARGUMENTS[name] for name in own},
        call=_rates,
        fixed={"schedule": schedule, **{name: value for name, value in _WITHOUT.items() if name not in names}},
    )


BINDINGS = (
    Binding(f"{_CORE}.get_kl_controller", "kl_coefficient", call=_coefficients, stand_ins=(_OPTIONS,)),
    _schedule("constant"),
    _schedule("cosine", "training_steps", "min_ratio", "initial_ratio", "first_step"),
    _schedule("wsd", "training_steps", "min_ratio", "stable_ratio"),
)
