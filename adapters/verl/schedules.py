"""verl: what changes over the steps of a training: the KL coefficient and the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, StandIn

_CORE = "verl.trainer.ppo.core_algos"
_TORCH = "verl.utils.torch_functional"
_OPTIONS = StandIn("kl_ctrl", "the options that it reads by their names, in whatever holds them")


def _coefficients(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A controller made of options. At first those were the critic's, in the whole configuration."""
    from sentinel.worker.drift import StandInNamespace

    options = StandInNamespace(
        type="adaptive" if inputs["adaptive"] else "fixed",
        kl_coef=inputs["initial"],
        target_kl=inputs["target_kl"],
        horizon=inputs["horizon"],
    )
    whole = StandInNamespace(critic=StandInNamespace(kl_ctrl=options), kl_ctrl=options)
    controller = boundary.invoke({}, kl_ctrl=options, config=whole)
    return {"coefficients": [controller.value, *(_after(controller, kl, inputs) for kl in inputs["kls"])]}


def _after(controller: Any, kl: float, inputs: Mapping[str, Any]) -> Any:
    controller.update(current_kl=kl, n_steps=inputs["samples_per_step"])
    return controller.value


def _rates(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The rates that an optimiser has, update after update. At first a cosine began at 0, with step 0."""
    import torch

    from sentinel.worker.drift import AbsentError

    later = {"init_lr_ratio": inputs["initial_ratio"], "zero_indexed_step": inputs["first_step"]}
    if missing := [name for name, value in later.items() if value and name not in boundary.parameters]:
        raise AbsentError(f"not in this version: it has no {missing[0]}")
    early = inputs["schedule"] == "cosine" and "init_lr_ratio" not in boundary.parameters
    if early and inputs["min_ratio"] and inputs["warmup_steps"]:
        raise AbsentError("not in this version: a warm-up that begins at 0 where there is a minimum")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=inputs["peak"])
    given = {name: inputs[name] for name in boundary.binding.arguments if name != "initial_ratio"}
    options = {"init_lr_ratio": inputs["initial_ratio"], "zero_indexed_step": inputs["first_step"] == 0}
    scheduler = boundary.invoke(given, optimizer=optimizer, **options)
    rates = []
    for _ in range(inputs["training_steps"]):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"rates": rates}


_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "warmup_steps": ("num_warmup_steps",),
    "training_steps": ("num_training_steps",),
    "min_ratio": ("min_lr_ratio",),
    "initial_ratio": ("init_lr_ratio",),
    "stable_ratio": ("stable_ratio",),
}
#: What a schedule has not -> what it is then.
_WITHOUT: Mapping[str, Any] = {"min_ratio": 0.0, "initial_ratio": 0.0, "stable_ratio": 0.0, "first_step": 0}


def _schedule(schedule: str, *names: str) -> Binding:
    """:param names: the inputs that it has beside the steps of its warm-up."""
    taken = ("warmup_steps", *(name for name in names if name in _ARGUMENTS))
    return Binding(
        f"{_TORCH}.get_{schedule}_schedule_with_warmup",
        "learning_rate",
        arguments={name: _ARGUMENTS[name] for name in taken},
        call=_rates,
        fixed={"schedule": schedule, **{name: value for name, value in _WITHOUT.items() if name not in names}},
    )


BINDINGS = (
    Binding(f"{_CORE}.get_kl_controller", "kl_coefficient", call=_coefficients, stand_ins=(_OPTIONS,)),
    _schedule("constant"),
    _schedule("cosine", "training_steps", "min_ratio", "initial_ratio", "first_step"),
    _schedule("wsd", "training_steps", "min_ratio", "stable_ratio"),
)
