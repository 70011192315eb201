"""AReaL (areal-project/AReaL): how Sentinel's contracts bind to its boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, PackageRoot, StandIn, Target

#: The fields of PPOActorConfig that the advantage step reads, by canonical input.
_CONFIG = (
    *("reward_bias", "reward_scaling", "reward_clip", "kl_ctl", "kl_estimator", "discount", "gae_lambda"),
    "mask_no_eos_with_zero",
)

_BATCH = ("input_ids", "attention_mask", "loss_mask", "rewards", "logprobs")


def _advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run the step on an actor made by its own constructor from the target's own configuration classes."""
    arguments = boundary.imported["areal.api.cli_args"]

    def norm(fields: Mapping[str, Any] | None) -> Any:
        return None if fields is None else arguments.NormConfig(**fields)

    config = arguments.PPOActorConfig(
        experiment_name="sentinel",
        trial_name="sentinel",
        path="sentinel",
        use_decoupled_loss=False,
        recompute_logprob=False,
        overlong_reward_penalty=False,
        reward_norm=norm(inputs["reward_norm"]),
        adv_norm=norm(inputs["adv_norm"]),
        **{name: inputs[name] for name in _CONFIG},
    )
    actor = boundary.owner(config, None)
    return boundary.function(actor, {name: inputs[name].clone() for name in _BATCH})


def _kl(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Its one switch cuts every estimator, k1 and k2 too, to [-10, 10].

    https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal/utils/data.py#L1697
    """
    from sentinel.worker.drift import DriftError

    clamp = inputs["clamp"]
    if clamp not in (None, 10):
        raise DriftError(f"{boundary.path} clamps at 10 or not at all, and the scenario wants {clamp:g}")
    rest = {name: value for name, value in inputs.items() if name != "clamp"}
    return boundary.invoke(rest, apply_clamp=clamp is not None)


TARGET = Target(
    name="areal",
    repository="https://github.com/areal-project/AReaL",
    roots=(PackageRoot("areal"),),
    pypi="areal",
    preload=("torch._dynamo", "tabulate", "omegaconf", "colorlog"),
    bindings=(
        Binding(
            "areal.trainer.ppo.actor.PPOActor._compute_advantages",
            "advantage_step",
            formerly=("areal.engine.ppo.actor.PPOActor.compute_advantages",),
            outputs=("advantages", "returns", "tot_rewards", "kl_rewards", "loss_mask"),
            call=_advantages,
            imports=("areal.api.cli_args",),
            stand_ins=(StandIn("engine", "None: the advantage step never touches the training engine"),),
        ),
        Binding(
            "areal.utils.data.KLEstimator._compute_approx_kl",
            "kl_estimate",
            arguments={"ref_log_probs": ("log_probs_base",)},
            outputs=("kl",),
            call=_kl,
        ),
    ),
)
