"""How to write an adapter: this one is for demo_rl, the tiny framework in tests/demo_framework.

An adapter is the one file that Sentinel needs for a framework. It is a table: for each boundary (a real function that
carries training signal) it says which contract the boundary fulfils and how the contract's names are spelt there.
``sentinel/contracts/`` has the contracts, one file a family.

It is loaded twice: by pytest, which has no torch, and by the worker, beside the framework's code. So nothing is
imported at the top but the vocabulary; a function that needs torch has the kit's, which is imported when it is asked
for something. Nothing here may compute what a boundary is meant to compute: translate, and let upstream's code answer.

To start your own: copy this file to ``adapters/<name>.py``, and see docs/adapters.md for how to test it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel import Binding, Dialect, PackageRoot, Registry, StandIn, Target
from sentinel.binding.families import group_advantage


def _rejection(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """demo_rl takes one tensor a sample and gives one flat mask back; the contract has ``[batch, tokens]`` throughout.

    ``boundary`` is the function as found in the checkout. ``boundary.invoke`` calls it with arguments bound by name
    (see ``arguments`` below), ``boundary.module`` is its module, ``boundary.imported`` those of ``imports``.
    """
    from types import SimpleNamespace

    names = ("log_probs", "old_log_probs", "advantages", "response_mask")
    samples = {name: list(inputs[name]) for name in names}
    # An upstream argument that no contract knows is given under its upstream name. This one is a stand-in, declared
    # below.
    mask, fraction = boundary.invoke(samples, options=SimpleNamespace(delta=inputs["opsm_delta"]))
    losses = boundary.module.policy_loss(
        inputs["ppo_kl"], inputs["advantages"], inputs["eps_clip"], inputs["eps_clip_high"]
    )
    # The contract's outputs by the contract's names; its `measure` function makes the observation from them.
    return {"opsm_mask": mask.reshape(inputs["log_probs"].shape), "opsm_clipfrac": fraction, "policy_loss": losses}


TARGET = Target(
    # What --sentinel-target calls it; the name of this file.
    name="demo",
    # Where its code is fetched from. Add pypi="..." where upstream publishes releases.
    repository="https://example.invalid/demo_rl.git",
    # The directories of the repository that are importable packages; all that were there at any time in its history.
    roots=(PackageRoot("demo_rl"),),
    # preload=("tensordict",) would name small real packages that boundaries use while they run. What is only imported,
    # as demo_missing_tracker in demo_rl/losses.py, needs no mention: it becomes a ghost where it is not installed.
    # What the framework calls a thing everywhere; a binding says what it alone calls otherwise.
    arguments={"group": ("index",)},
    # What the framework registers by a decorator needs no binding each: whatever a revision adds is called as ``like``
    # is, and must keep the laws of that one's contract that need no oracle.
    registries=(Registry("register_aggregation", like="demo_rl.losses.agg_loss", table="AGGREGATIONS"),),
    bindings=(
        Binding(
            # The dotted path today, as recipes write it, and the paths that it had before.
            "demo_rl.losses.agg_loss",
            "loss_aggregation",
            formerly=("demo_rl.core.agg_loss",),
            # canonical input -> its names upstream, newest first. What has the same name on both sides is not listed.
            arguments={"response_mask": ("loss_mask", "mask")},
            # One name: the return value itself. Several: the parts of the returned tuple.
            outputs=("loss",),
            # What a search for broken laws may give it, where that is less than the contract has: this one knows one
            # aggregation mode, and has no parameter for the others.
            accepts={
                "loss_agg_mode": ("token-mean",),
                **dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor"), (None,)),
                "weights": (None,),
            },
        ),
        # A family makes a binding: it knows what boundaries of its kind have everywhere. This one needs no function to
        # call it (None), and has none of the contract's knobs.
        group_advantage(
            "demo_rl.advantages.group_advantage",
            None,
            "grpo",
            (),
            # What the boundary fixes by being what it is; the oracle is told, the boundary has no such parameter.
            fixed={"norm_by_std": False, "epsilon": None},
        ),
        Binding(
            "demo_rl.rejection.reject_sequences",
            "sequence_rejection",
            arguments={"response_mask": ("loss_masks",)},
            # Where names are not enough, a function translates.
            call=_rejection,
            # Everything that stands in for something real is declared with the reason why the answer is the same.
            stand_ins=(
                StandIn("options", "the boundary reads one field, delta, of the trainer's command-line options"),
            ),
            # What the framework means to do otherwise: the name of a law (or of a dialect input of the contract, with a
            # value), why, and where it says so. A search shows it, and tells when it is no longer so.
            dialects=(
                Dialect(
                    "metrics_tell_the_truth",
                    reason="it reports the mean over the sequences of a batch, where the contract has the sum",
                    link="https://example.invalid/demo_rl/blob/main/demo_rl/rejection.py",
                ),
            ),
        ),
    ),
)
