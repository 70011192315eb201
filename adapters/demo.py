"""An example adapter for demo_rl, a tiny framework in tests/demo_framework.

An adapter is the only file that Sentinel needs for a framework. For each boundary (a real function that carries
training signal), the adapter declares the contract that the boundary must fulfil, and maps the contract's names to
upstream's. ``docs/contracts.md`` lists the contracts.

An adapter is loaded twice: by pytest, which does not import torch, and by the worker, next to the framework's code. At
the top, it must import only ``sentinel`` and ``sentinel.binding``; the kit's ``torch`` is imported on first use. An
adapter translates arguments and results. It must not compute the result of a boundary, which is the task of upstream's
code.

To start your own, copy this file to ``adapters/<name>.py``. docs/adapters.md describes how to test it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel import Binding, Dialect, PackageRoot, Registry, StandIn, Target
from sentinel.binding.families import group_advantage


def _rejection(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call demo_rl's function with one tensor per sample, and reshape the mask that it returns to ``[batch, tokens]``.

    ``boundary`` is the function that was found in the checkout. ``boundary.invoke`` binds arguments by name (see
    ``arguments`` below), ``boundary.module`` is its module, and ``boundary.imported`` has the modules of ``imports``.
    """
    from types import SimpleNamespace

    names = ("log_probs", "old_log_probs", "advantages", "response_mask")
    samples = {name: list(inputs[name]) for name in names}
    # An argument that the contract does not have is passed under its upstream name. ``options`` is a stand-in, which
    # is declared below.
    mask, fraction = boundary.invoke(samples, options=SimpleNamespace(delta=inputs["opsm_delta"]))
    losses = boundary.module.policy_loss(
        inputs["ppo_kl"], inputs["advantages"], inputs["eps_clip"], inputs["eps_clip_high"]
    )
    # Return the contract's outputs under the contract's names. The contract's `measure` function makes the observation.
    return {"opsm_mask": mask.reshape(inputs["log_probs"].shape), "opsm_clipfrac": fraction, "policy_loss": losses}


TARGET = Target(
    # The name for --sentinel-target, which is the name of this file.
    name="demo",
    # The repository. Add pypi="..." if upstream publishes releases.
    repository="https://example.invalid/demo_rl.git",
    # The directories that are importable packages, including those of older revisions.
    roots=(PackageRoot("demo_rl"),),
    # preload=("tensordict",) would name small third-party packages that boundaries use when they run. A package that is
    # only imported, such as demo_missing_tracker in demo_rl/losses.py, becomes a stub module if it is not installed.
    # Upstream names of contract inputs throughout the framework. A binding lists only exceptions.
    arguments={"group": ("index",)},
    # Functions that the framework registers with a decorator need no bindings of their own. They are called in the same
    # way as the boundary ``like``, and must satisfy those laws of the contract that need no oracle.
    registries=(Registry("register_aggregation", like="demo_rl.losses.agg_loss", table="AGGREGATIONS"),),
    bindings=(
        Binding(
            # The current dotted path, which recipes use, and the former paths.
            "demo_rl.losses.agg_loss",
            "loss_aggregation",
            formerly=("demo_rl.core.agg_loss",),
            # Upstream names of the contract's inputs, newest first. Inputs that have the same name upstream are not
            # listed.
            arguments={"response_mask": ("loss_mask", "mask")},
            # One name stands for the whole return value. Several names stand for the items of a returned tuple.
            outputs=("loss",),
            # The values that a search may draw, if the contract has more. This function has one aggregation mode and no
            # parameter for the other inputs.
            accepts={
                "loss_agg_mode": ("token-mean",),
                **dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor"), (None,)),
                "weights": (None,),
            },
        ),
        # A family is a function that makes a binding for a common kind of boundary. This boundary needs no call
        # function (None), and lacks the contract's optional inputs.
        group_advantage(
            "demo_rl.advantages.group_advantage",
            None,
            "grpo",
            (),
            # Inputs that this boundary fixes because it has no parameter for them. The oracle uses the same values.
            fixed={"norm_by_std": False, "epsilon": None},
        ),
        Binding(
            "demo_rl.rejection.reject_sequences",
            "sequence_rejection",
            arguments={"response_mask": ("loss_masks",)},
            # A function that translates the call, for boundaries that differ in more than names.
            call=_rejection,
            # Every stand-in is declared, with the reason why it does not change the result.
            stand_ins=(
                StandIn("options", "the boundary reads only the field delta of the trainer's command-line options"),
            ),
            # Intended differences: the name of a law (or of a dialect input of the contract, with a value), the reason,
            # and a link. A search lists them, and reports those that upstream no longer has.
            dialects=(
                Dialect(
                    "metrics_tell_the_truth",
                    reason="the function returns the mean over the sequences of a batch; the contract has the sum",
                    link="https://example.invalid/demo_rl/blob/main/demo_rl/rejection.py",
                ),
            ),
        ),
    ),
)
