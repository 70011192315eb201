"""slime (THUDM/slime): how Sentinel's contracts bind to its boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, PackageRoot, StandIn, Target


def _opsm(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """slime takes lists of one-dimensional samples and returns one concatenated mask.

    #1917 renames ``advantages`` to ``full_advantages`` and adds ``local_advantages``, the shape of the returned mask
    under context parallelism; without context parallelism the two are the same.
    """
    from argparse import Namespace

    shape = inputs["log_probs"].shape
    samples = {name: list(inputs[name]) for name in ("log_probs", "old_log_probs", "advantages", "response_mask")}
    mask, clip_fraction = boundary.invoke(samples, args=Namespace(opsm_delta=inputs["opsm_delta"]))
    policy_loss = boundary.module.compute_policy_loss
    losses, _ = policy_loss(inputs["ppo_kl"], inputs["advantages"], inputs["eps_clip"], inputs["eps_clip_high"])
    return {"opsm_mask": mask.reshape(shape), "opsm_clipfrac": clip_fraction, "policy_loss": losses}


def _without(boundary: Any, inputs: Mapping[str, Any], *dialect: str) -> Any:
    """Call without the inputs that the function does not take: it has no option for them, or leaves them to callers."""
    return boundary.invoke({name: value for name, value in inputs.items() if name not in dialect})


def _kl(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Its low_var_kl is k3 cut to [-10, 10]: ``clamp: 10``, and no clamp for the others, k3 among them.

    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/utils/ppo_utils.py#L49
    """
    return _without(boundary, inputs, "clamp")


def _gae(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """It takes no mask and does not whiten: every token is a step of the episode. Its caller pads responses with 0.

    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/utils/ppo_utils.py#L600
    """
    return _without(boundary, inputs, "whiten", "response_mask")


def _advantages(function: str) -> Binding:
    return Binding(
        f"slime.utils.ppo_utils.{function}",
        "generalised_advantage",
        arguments={"token_level_rewards": ("rewards",), "lam": ("lambd",)},
        outputs=("advantages", "returns"),
        call=_gae,
    )


TARGET = Target(
    name="slime",
    repository="https://github.com/THUDM/slime",
    roots=(PackageRoot("slime"), PackageRoot("slime_plugins")),
    # Its boundaries are decorated with torch.compile, whose machinery torch imports on first use.
    preload=("torch._dynamo",),
    bindings=(
        Binding(
            "slime.utils.ppo_utils.compute_opsm_mask",
            "sequence_rejection",
            arguments={
                "log_probs": ("full_log_probs",),
                "old_log_probs": ("full_old_log_probs",),
                "advantages": ("full_advantages", "advantages"),
                "response_mask": ("loss_masks",),
            },
            call=_opsm,
            stand_ins=(
                StandIn("args", "the boundary reads one field, opsm_delta, of the trainer's command-line namespace"),
            ),
        ),
        Binding(
            "slime.utils.ppo_utils.compute_approx_kl",
            "kl_estimate",
            arguments={"ref_log_probs": ("log_probs_base",), "kl_estimator": ("kl_loss_type",)},
            outputs=("kl",),
            call=_kl,
        ),
        _advantages("vanilla_gae"),
        _advantages("chunked_gae"),
    ),
)
