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
    ),
)
