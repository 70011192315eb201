"""ROLL: the KL coefficient over the steps of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import coefficients


def _coefficients(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without a target it is fixed."""
    target = inputs["target_kl"] if inputs["adaptive"] else None
    controller = boundary.function(init_kl_coef=inputs["initial"], target_kl=target, kl_horizon=inputs["horizon"])
    return coefficients(controller, inputs)


BINDINGS = (Binding("roll.utils.kl_controller.get_kl_controller", "kl_coefficient", call=_coefficients),)
