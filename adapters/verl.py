"""verl (verl-project/verl): how Sentinel's contracts bind to its boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, PackageRoot, StandIn, Target

_CORE = "verl.trainer.ppo.core_algos"


def _group(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """verl groups rows by a numpy array of objects (the ``uid`` of the prompt)."""
    import numpy

    return {**inputs, "group": numpy.array(inputs["group"], dtype=object)}


def _estimator(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    return boundary.invoke(_group(inputs))


def _pass_at_k(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """GRPO-PassK reads its one switch from the algorithm's configuration."""
    rest = _group(inputs)
    norm_by_std = rest.pop("norm_by_std")
    config = {} if norm_by_std is None else {"norm_adv_by_std_in_grpo": norm_by_std}
    return boundary.invoke(rest, config=config)


def _without(boundary: Any, inputs: Mapping[str, Any], *dialect: str) -> Any:
    """Call without the inputs that only say what the scenario takes this framework to do, by no option of its own."""
    return boundary.invoke({name: value for name, value in inputs.items() if name not in dialect})


def _kl(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Its k3 is cut to [-10, 10]: ``clamp: 10``, and no clamp for the others.

    https://github.com/verl-project/verl/blob/1dda039b9c6311889a9c9a26040677e1254814f9/verl/trainer/ppo/core_algos.py#L2244
    """
    return _without(boundary, inputs, "clamp")


def _gae(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """It whitens the advantages: ``whiten: true``.

    https://github.com/verl-project/verl/blob/1dda039b9c6311889a9c9a26040677e1254814f9/verl/trainer/ppo/core_algos.py#L262
    """
    return _without(boundary, inputs, "whiten")


def _outcome(function: str, call: Any = _estimator, stand_ins: tuple[StandIn, ...] = ()) -> Binding:
    return Binding(
        f"{_CORE}.{function}",
        "group_advantage",
        arguments={"group": ("index",), "norm_by_std": ("norm_adv_by_std_in_grpo",)},
        outputs=("advantages", "returns"),
        call=call,
        stand_ins=stand_ins,
    )


TARGET = Target(
    name="verl",
    repository="https://github.com/verl-project/verl",
    roots=(PackageRoot("verl"),),
    pypi="verl",
    preload=("tensordict", "omegaconf"),
    bindings=(
        _outcome("compute_grpo_outcome_advantage"),
        _outcome("compute_grpo_vectorized_outcome_advantage"),
        _outcome(
            "compute_grpo_passk_outcome_advantage",
            _pass_at_k,
            (StandIn("config", "the boundary reads one key, norm_adv_by_std_in_grpo, with .get as AlgoConfig has it"),),
        ),
        _outcome("compute_reinforce_plus_plus_baseline_outcome_advantage"),
        _outcome("compute_gdpo_outcome_advantage"),
        _outcome("compute_rloo_outcome_advantage"),
        _outcome("compute_rloo_vectorized_outcome_advantage"),
        _outcome("compute_gpg_outcome_advantage"),
        _outcome("compute_opo_outcome_advantage"),
        Binding(
            f"{_CORE}.agg_loss",
            "loss_aggregation",
            arguments={"response_mask": ("loss_mask",)},
            outputs=("loss",),
        ),
        Binding(
            f"{_CORE}.kl_penalty",
            "kl_estimate",
            arguments={
                "log_probs": ("logprob",),
                "ref_log_probs": ("ref_logprob",),
                "kl_estimator": ("kl_penalty",),
            },
            outputs=("kl",),
            call=_kl,
        ),
        Binding(
            f"{_CORE}.compute_gae_advantage_return",
            "generalised_advantage",
            outputs=("advantages", "returns"),
            call=_gae,
        ),
    ),
)
