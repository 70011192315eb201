"""SkyRL: the KL coefficient over the steps of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import coefficients

from .shared import CONFIG, PPO, algorithm_of

_KIND = {True: "adaptive", False: "fixed"}


def _coefficients(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        "kl_ctrl.type": _KIND[inputs["adaptive"]],
        "kl_ctrl.kl_target": inputs["target_kl"],
        "kl_ctrl.horizon": inputs["horizon"],
        "kl_loss_coef": inputs["initial"],
    }
    controller = boundary.function(algorithm_of(boundary, options))
    return coefficients(controller, inputs)


BINDINGS = (Binding(f"{PPO}.get_kl_controller", "kl_coefficient", call=_coefficients, imports=(CONFIG,)),)
