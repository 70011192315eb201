"""ROLL (alibaba/ROLL): how Sentinel's contracts bind to its boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, PackageRoot, Target

#: ROLL's names of the estimators.
_ESTIMATORS = {"k1": "kl", "k2": "mse", "low_var_kl": "k3"}


def _without(boundary: Any, inputs: Mapping[str, Any], *dialect: str) -> Any:
    """Call without the inputs that the function does not take: it has no option for them, or leaves them to callers."""
    return boundary.invoke({name: value for name, value in inputs.items() if name not in dialect})


def _kl(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Its k3 is cut to [-10, 10]: ``clamp: 10``, and no clamp for the others.

    https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/roll/utils/functionals.py#L202
    """
    estimator = _ESTIMATORS.get(inputs["kl_estimator"], inputs["kl_estimator"])
    return _without(boundary, {**inputs, "kl_estimator": estimator}, "clamp")


def _gae(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """It takes no mask and does not whiten: every token is a step of the episode, so that rewards and values behind the
    mask must be 0, and a gap in the mask counts as steps.

    https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/roll/utils/functionals.py#L530
    """
    return _without(boundary, inputs, "whiten", "response_mask")


TARGET = Target(
    name="roll",
    repository="https://github.com/alibaba/ROLL",
    roots=(PackageRoot("roll"),),
    preload=("tensordict", "omegaconf"),
    bindings=(
        Binding(
            "roll.utils.functionals.agg_loss",
            "loss_aggregation",
            arguments={
                "response_mask": ("loss_mask",),
                "global_batch_size": ("global_valid_samples",),
            },
            outputs=("loss",),
        ),
        Binding(
            "roll.utils.functionals.compute_approx_kl",
            "kl_estimate",
            arguments={
                "ref_log_probs": ("log_probs_base",),
                "kl_estimator": ("kl_penalty",),
                "response_mask": ("action_mask",),
            },
            outputs=("kl",),
            call=_kl,
        ),
        Binding(
            "roll.utils.functionals.compute_gae_advantage_return",
            "generalised_advantage",
            arguments={"lam": ("lambd",)},
            outputs=("advantages", "returns"),
            call=_gae,
        ),
    ),
)
