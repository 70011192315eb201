"""ROLL (alibaba/ROLL): how Sentinel's contracts bind to its boundaries."""

from __future__ import annotations

from sentinel.targets import Binding, PackageRoot, Target

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
    ),
)
