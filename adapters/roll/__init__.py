"""Adapter for ROLL (alibaba/ROLL): the functions that Sentinel checks, and how it calls them.

ROLL's workers need Ray and GPUs, which do not affect the results of their losses. The losses run as methods of the real
classes, on ROLL's own configuration and batches, with the small stand-ins that each binding declares.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, DriftError, PackageRoot, StandIn, Target, UnknownInputError
from sentinel.binding import kit
from sentinel.binding.families import (
    MASKED_STATISTICS,
    RANKS,
    REWARD_NORMALISATION,
    aggregated,
    masked_statistic,
    normalised_rewards,
)
from sentinel.binding.kit import torch

from . import agents, containers, data, forwards, objectives, remotes, reports, rewards, schedulers, turns
from .containers import PROTOCOL

_MAIN = "https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/roll"
_FUNCTIONALS = "roll.utils.functionals"
_CORRECTIONS = "roll.utils.train_infer_corrections"
_AGENTIC = "roll.pipeline.agentic.utils"
_AGENTIC_CONFIG = "roll.pipeline.agentic.agentic_config"
_RLVR_CONFIG = "roll.pipeline.rlvr.rlvr_config"
_BASE_CONFIG = "roll.configs.base_config"
_WORKER_CONFIG = "roll.configs.worker_config"

#: The worker classes with policy losses, and their configuration classes.
_RLVR_PG = "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker"
_AGENTIC_PG = "roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker"
_CONFIG_OF = {"rlvr": (_RLVR_CONFIG, "RLVRConfig"), "agentic": (_AGENTIC_CONFIG, "AgenticConfig")}

#: KL estimator of the contract -> its name in ROLL.
_ESTIMATORS = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "k3"}

_ONLY_FULL = {"response_mask": ("full",)}


def _batch(boundary: Any, tensors: Mapping[str, Any], labels: Mapping[str, Any] | None = None) -> Any:
    """Return a DataProto with the given tensors. ``labels`` are columns of Python objects."""
    import numpy as np

    arrays = {name: np.array(values, dtype=object) for name, values in (labels or {}).items()}
    return boundary.imported[PROTOCOL].DataProto.from_dict(tensors=dict(tensors), non_tensors=arrays)


#: Option that older configurations lack -> the value with which newer versions behave like older versions.
_BEFORE: Mapping[str, Any] = {
    "ratio_type": "token",
    "use_pg_clip_range": False,
    "importance_sampling": "token",
    "enable_old_logprobs_recompute": True,
}


def _settings(owner: Any, options: Mapping[str, Any]) -> None:
    """Set options of one of ROLL's configuration objects.

    :raises AbsentError: if the scenario needs an option that this version does not have.
    :raises DriftError: for any other missing option. Setting it would create an attribute that nothing reads.
    """

    for name, value in options.items():
        if hasattr(owner, name):
            setattr(owner, name, value)
        elif name not in _BEFORE:
            raise DriftError(f"the configuration has no option {name!r}")
        elif value != _BEFORE[name]:
            raise AbsentError(f"this version's configuration has no option {name!r}")


def _configuration(boundary: Any, kind: str, options: Mapping[str, Any], worker_options: Mapping[str, Any]) -> Any:
    """Build the configuration of a pipeline and of its actor from ROLL's classes.

    The pipeline's constructor does not run, because it looks for checkpoints and creates log folders. Fields have their
    defaults. Losses read the options of their variants from the actor's configuration, although it declares only a few
    of these options.
    """
    module, name = _CONFIG_OF[kind]
    made = kit.make_unbuilt(getattr(boundary.imported[module], name))
    _settings(made, options)
    made.actor_train = kit.make_unbuilt(boundary.imported[_WORKER_CONFIG].WorkerConfig, **worker_options)
    return made


def _scheduled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of training steps that ROLL computes if each device trains on four samples.

    The step limit of the environment is twice the number of turns, because ROLL assumes that half of the limit is used.
    """
    options = kit.stand_in(per_device_train_batch_size=4, gradient_accumulation_steps=inputs["batch_size"] // 4)
    trained = kit.stand_in(training_args=options)
    made = kit.make_unbuilt(
        boundary.imported[_AGENTIC_CONFIG].AgenticConfig,
        rollout_batch_size=inputs["prompts_per_step"],
        ppo_epochs=inputs["update_epochs"],
        max_steps=-1,
        actor_train=trained,
        critic=kit.stand_in(training_args=kit.stand_in(**vars(options))),
        actor_infer=kit.stand_in(generating_args=kit.stand_in(num_return_sequences=inputs["samples_per_prompt"])),
        custom_envs={"environment": {"max_steps": 2 * inputs["turns"]}},
    )
    steps = inputs["steps_per_epoch"] * inputs["epochs"]
    boundary.function(made, steps if inputs["max_steps"] is None else min(steps, inputs["max_steps"]))
    return {"length": options.max_steps}


def _passed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if "num_correct" in boundary.parameters:
        counts, correct = zip(*((len(own), sum(map(bool, own))) for own in inputs["right"]))
        return {"pass_at_k": boundary.function(list(counts), list(correct), inputs["k"]).mean()}
    results = {str(place): [[value] for value in own] for place, own in enumerate(inputs["right"])}
    return {"pass_at_k": boundary.function(results, [inputs["k"]])[f"pass@{inputs['k']}"]}


def _averaged(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean, or another statistic, that ROLL reports for a metric with one value per sample."""
    values = [value for part in inputs["parts"] for value in part]
    statistic = inputs["statistic"]
    if "metrics_list" in boundary.parameters:
        return {"mean": boundary.function([{"loss": value} for value in values])["loss"]}
    if "history_metrics" in boundary.parameters:
        modes = {} if statistic == "mean" else {"loss": statistic}
        return {"mean": boundary.function([{"loss": value} for value in values], modes)["loss"]}
    return {"mean": boundary.function({f"loss@{statistic}": values})[f"loss@{statistic}"]}


# -- token by token ----------------------------------------------------------------------------------------------------


def _aggregated(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Aggregate token losses with ROLL.

    :raises AbsentError: if the scenario counts rows without a token, and this version takes row weights but cannot
        count such rows.
    """

    if "weights" in boundary.parameters and "global_valid_samples" not in boundary.parameters:
        empty = not (inputs["response_mask"] != 0).any(-1).all()
        if empty and inputs.get("empty_rows") == "counted":
            raise AbsentError("this version does not count rows without a token in a mean over rows")
    return boundary.invoke(inputs)


_COUNT_EPSILON = Dialect(
    "count_epsilon",
    1e-8,
    "a small number is added to the token count to prevent a division by 0",
    f"{_MAIN}/utils/functionals.py#L290",
)


# -- rewards and returns -----------------------------------------------------------------------------------------------


def _group_reward_norm(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Normalise rewards within groups with ROLL. Until June 2025, the function took rewards instead of a batch."""
    level, rewards = inputs["std_level"], inputs["rewards"]
    bare = "response_level_rewards" in boundary.parameters
    answer = boundary.invoke(
        {},
        rewards if bare else _batch(boundary, {"response_level_rewards": rewards}),
        n_sample=kit.group_size(inputs),
        div_std=level is not None,
        div_std_global=level == "batch",
    )
    return {"normalised": answer if bare else answer.batch["response_level_rewards"]}


def _reward_norm(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    names = {name: inputs[name] for name in ("rewards", "mean_level", "std_level")}
    return boundary.invoke(names, n_sample=kit.group_size(inputs))


#: (level of the mean, level of the standard deviation) -> (grouping, method) of older configurations.
_METHODS = {
    (None, None): ("batch", "identity"),
    ("batch", None): ("batch", "mean"),
    ("batch", "batch"): ("batch", "mean_std"),
    ("group", None): ("traj_group_id", "mean"),
    ("group", "group"): ("traj_group_id", "mean_std"),
}


def _agentic_reward_norm(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Normalise the rewards of agents with ROLL. ROLL computes in float32, so float64 rewards are converted first."""
    rewards, levels = inputs["rewards"], (inputs["mean_level"], inputs["std_level"])
    rewards = rewards.float() if rewards.dtype == torch.float64 else rewards
    states = [f"state of {label}" for label in inputs["group"]]
    labels = {"traj_group_id": inputs["group"], "state_hash": states, "episode_scores": rewards.tolist()}
    batch = _batch(boundary, {"scores": rewards}, labels)
    norm = boundary.imported[_AGENTIC_CONFIG].RewardNormalizationConfig(grouping="traj_group_id")
    if hasattr(norm, "norm_mean_type"):
        norm.norm_mean_type, norm.norm_std_type = levels
    elif levels in _METHODS:
        norm.grouping, norm.method = _METHODS[levels]
    else:
        raise AbsentError(
            "this version cannot take the mean and the standard deviation at different levels (group and batch)"
        )
    if "pipeline_config" not in boundary.parameters:
        return boundary.invoke({}, batch, norm)
    batch.batch["scores"] = rewards[:, None]
    config = kit.stand_in(
        adv_estimator=_OF[inputs["rewards_of"]], reward_normalization=norm, reward_clip=inputs["clip"]
    )
    if inputs["rewards_of"] != "episode":
        batch.batch["step_rewards"], batch.batch["scores"] = rewards, torch.full_like(rewards[:, None], torch.nan)
    if inputs["rewards_of"] == "both":
        # All steps of a group have the same state. The rewards of steps are the negative rewards of episodes, so the
        # sum of 1.5 and 0.5 of their normalised values is the normalised reward. ROLL normalises the rewards of steps
        # only within groups of equal states, so at other levels their weight is 0.
        grouped = levels in ((None, None), ("group", None), ("group", "group"))
        norm.method = _METHODS[levels][1] if grouped else "mean"
        config.episode_reward_weight, config.step_reward_weight = (1.5, 0.5) if grouped else (1.0, 0.0)
        batch.batch["step_rewards"] = -rewards
    return {"normalised": boundary.function(batch, config)[0].batch["response_level_rewards"]}


#: What rewards belong to -> ROLL's estimator.
_OF = {"episode": "grpo", "step": "step_reinforce", "both": "gigpo"}


def _postprocessed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Normalise and clip rewards with ROLL's postprocessing function."""
    grouped = inputs["mean_level"] == inputs["std_level"] == "group"  # as ROLL's GRPO sets it
    config = kit.stand_in(
        adv_estimator="grpo" if grouped else "reinforce",
        reward_clip=inputs["clip"],
        norm_mean_type=inputs["mean_level"],
        norm_std_type=inputs["std_level"],
        actor_infer=kit.stand_in(generating_args=kit.stand_in(num_return_sequences=kit.group_size(inputs))),
    )
    data, _ = boundary.function(_batch(boundary, {"response_level_rewards": inputs["rewards"]}), config, {})
    return {"normalised": data.batch["response_level_rewards"]}


def _penalised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the GAE advantages that ROLL computes from token rewards with a KL penalty."""
    mask = kit.prepend_prompt(inputs["response_mask"].long())
    columns = {"response_mask": mask, "attention_mask": torch.cat([mask[:, :1] + 1, mask[:, 1:]], 1)}
    columns["position_ids"] = (columns["attention_mask"].cumsum(-1) - 1).clamp(min=0) * columns["attention_mask"]
    columns |= {"old_log_probs": inputs["log_probs"], "ref_log_probs": inputs["ref_log_probs"]}
    data = _batch(boundary, {**columns, "response_level_rewards": inputs["rewards"], "values": inputs["values"]})
    controller = boundary.imported["roll.utils.kl_controller"].FixedKLController(inputs["kl_coef"])
    config = kit.stand_in(kl_penalty="kl", add_token_level_kl=True, reward_clip=None)
    rest = (config, controller) if "pipeline_config" in boundary.parameters else (controller,)
    data, _ = boundary.function(data, *rest)
    data = boundary.module.compute_advantage(data, inputs["gamma"], inputs["lam"], "gae")
    return {"advantages": data.batch["advantages"], "kl": None}


def _agentic_returns(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the returns of agents with ROLL. Each step of an episode is a row of the batch.

    The adapter uses the estimator ``gigpo``, because it has the same returns as ``step_reinforce`` and also exists in
    older versions.
    """
    rewards, valid = inputs["token_level_rewards"], inputs["response_mask"] != 0
    rows, steps = torch.nonzero(valid, as_tuple=True)
    labels = {"traj_id": rows.tolist(), "step": steps.tolist(), "step_scores": rewards[valid].tolist()}
    batch = _batch(boundary, {"row": rows}, labels)
    of_steps = boundary.invoke({"gamma": inputs["gamma"]}, batch, "gigpo").batch["step_rewards"]
    returns = torch.zeros(rewards.shape, dtype=of_steps.dtype, device=of_steps.device)
    returns[valid] = of_steps
    return {"returns": returns}


def _advantage(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run the advantage step of ROLL's driver, without whitening, reference model and clipping."""
    critic = "values" in inputs
    tensors = {name: inputs[name] for name in ("token_level_rewards", "values") if name in inputs}
    batch = _batch(boundary, {**tensors, "response_mask": kit.prepend_prompt(inputs["response_mask"])})
    estimator = "gae" if critic else "reinforce"
    answer = boundary.invoke({}, batch, gamma=inputs["gamma"], lambd=inputs.get("lam", 1.0), adv_estimator=estimator)
    return {"advantages": answer.batch["advantages"], "returns": answer.batch["returns"]}


def _distilled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run the advantage step of ROLL's driver with one or two teachers, whitening and clipping."""
    mask, routed = inputs["response_mask"], inputs["routed"]
    columns = {"response_mask": kit.prepend_prompt(mask), "token_level_rewards": inputs["token_level_rewards"]}
    columns["old_log_probs"] = inputs["log_probs"]
    coefficients = {"first": inputs["coefficient"], "second": inputs["second_coefficient"]}
    teachers = {name: kit.stand_in(opd_kl_coef=value) for name, value in coefficients.items() if value is not None}
    for name in teachers:
        column = "teacher_log_probs" if name == "first" else "second_teacher_log_probs"
        columns[f"ref_log_probs_{name}"] = inputs[column]
        if routed:
            own = [(label == "p") == (name == "first") for label in inputs["teacher"]]
            columns[f"ref_log_probs_{name}_mask"] = torch.tensor(own, device=boundary.device)
    config = kit.stand_in(
        is_pure_opd=inputs["pure"],
        use_opd=not inputs["pure"],
        reference_configs=teachers,
        enable_old_logprobs_recompute=True,
        kl_penalty=_ESTIMATORS[inputs["kl_estimator"]],
    )
    options = {name: inputs[name] for name in ("advantage_clip", "whiten_advantages", "whiten_rewards", "gamma")}
    # This estimator reads a turn's reward from its last token. Whitening gives every token a reward.
    of_turns = "agentic" in boundary.path and not inputs["whiten_rewards"]
    estimator = "agentic_reinforce" if of_turns else "grpo"
    options |= {"lambd": 1.0, "adv_estimator": estimator, "pipeline_config": config}
    data = boundary.function(_batch(boundary, columns), **options)
    return {"advantages": data.batch["advantages"], "returns": data.batch["returns"]}


_NO_SPREAD = Dialect(
    "the_oracle_agrees",
    reason="a comment in the code states that equal rewards become 0, whatever mean is subtracted",
    link=f"{_MAIN}/pipeline/agentic/utils.py#L138",
    symptom="value",
)

_CLAMP = Dialect(
    "clamp",
    10,
    "k3 is clamped to [-10, 10] so that no token outweighs the others",
    f"{_MAIN}/utils/functionals.py#L202",
    where={"kl_estimator": ("k3",)},
)
_SEGMENTS = Dialect(
    "credit",
    "segment",
    "a turn is one step: its tokens all have the return of the last one, and turns are discounted",
    f"{_MAIN}/pipeline/agentic/utils.py#L396",
)

_ADVANTAGES = ("advantages", "returns")
#: The rewards already include the KL penalty. There is one reward per response.
_OUTCOMES = {"reward_layout": "outcome", "kl": None, "kl_coef": 0.0}


def _drivers(function: str, agents: bool) -> tuple[Binding, ...]:
    """Return three bindings of the advantage step of a ROLL driver: with a critic (GAE), without a critic, and with
    teachers.

    Without a critic, the step uses the mask. GAE does not use the mask, so it includes the values in gaps of the mask,
    although the critic is not trained there.
    """
    gaps = Dialect(
        "masked_steps",
        "counted",
        "returns are discounted by token position, so tool output between two turns counts as steps",
        f"{_MAIN}/utils/functionals.py#L495",
    )
    common: dict[str, Any] = {"outputs": _ADVANTAGES, "call": _advantage, "imports": (PROTOCOL,)}
    common |= {} if agents else {"accepts": {"response_mask": ("full", "right")}}
    return (
        # Scenarios for agents have one reward per response, because a reward on an invalid token would belong to no
        # step.
        Binding(function, "generalised_advantage", fixed={"reward_layout": "outcome"} if agents else {}, **common),
        Binding(function, "discounted_return", fixed=_OUTCOMES, dialects=(gaps,) if agents else (), **common),
        Binding(
            function, "distilled_advantage", fixed={"reward_layout": "outcome"},
            dialects=(
                (_CLAMP, replace(_SEGMENTS, where={"whiten_rewards": (False,)}),
                 replace(gaps, where={"whiten_rewards": (True,)}))
                if agents else (_CLAMP,)
            ),
            # In older versions, there is one teacher, with options of the pipeline.
            requires=(f"{_BASE_CONFIG}.PPOConfig.reference_configs",),
            **{**common, "call": _distilled},
        ),
    )  # fmt: skip


# -- workers -----------------------------------------------------------------------------------------------------------

_SELF = StandIn("self", "the worker's constructor starts Ray and loads a model; its losses read only these attributes")
_ADDRESS = StandIn("get_node_ip", "a decorator reads the machine's address at import, for which a network is needed")
_CONFIG = StandIn(
    "self.pipeline_config",
    "ROLL's own class; its constructor, which looks for checkpoints and creates log folders, does not run",
)
_STRATEGY = StandIn(
    "self.strategy", "returns the scenario's log-probs, and an entropy whose coefficient is 0; the model is not checked"
)


def _worker(boundary: Any, kind: str, options: Mapping[str, Any], worker_options: Mapping[str, Any]) -> Any:
    configuration = _configuration(boundary, kind, options, worker_options)
    worker = kit.stand_in(
        pipeline_config=configuration,
        worker_config=configuration.actor_train,
        logger=kit.make_silent_logger(),
        _cached_metrics={},
        _pg_config_cache={},
        **dict.fromkeys(("_topr_sample_logged", "_cispo_config_logged", "_kimi15_config_logged"), False),
    )
    for name in ("_get_or_cache_config", "get_old_log_probs_with_cache", "compute_sample_weights"):
        if hasattr(boundary.owner, name):
            setattr(worker, name, types.MethodType(getattr(boundary.owner, name), worker))
    return worker


def _clip_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ROLL's options for the clip range.

    The bound of dual clip is ``1 + 2 pg_clip``. If one value of ``pg_clip`` results in the scenario's dual clip and in
    both of its clip bounds, only ``pg_clip`` is set, as in versions without a clip range. Otherwise, ``pg_clip`` sets
    the dual clip, and ``pg_clip_low`` and ``pg_clip_high`` set the clip bounds.
    """
    low, high, dual = inputs["eps_clip_low"], inputs["eps_clip_high"], inputs["dual_clip"]
    cut = high if dual is None else (dual - 1) / 2
    options = {"pg_clip": cut, "dual_clip_loss": dual is not None, "use_pg_clip_range": not low == high == cut}
    return {**options, "pg_clip_low": low, "pg_clip_high": high} if options["use_pg_clip_range"] else options


def _variant_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for loss variants, which ROLL reads from the actor's configuration."""
    low, high = inputs["eps_clip_low"], inputs["eps_clip_high"]
    return {
        "tis_lower_bound": 1 - low,
        "tis_upper_bound": 1 + high,
        "cispo_epsilon_low": low,
        "cispo_epsilon_high": high,
        "cispo_use_unified_mask": inputs["algorithm"] == "cispo_unified",
        "kimi15_tau": inputs["beta"],
        "topr_positive_weight": inputs["positive_weight"],
        "topr_negative_weight": inputs["negative_weight"],
    }


def _counts(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of tokens and of rows in the global batch, under the name of each mask."""
    mask, tokens, rows = inputs["response_mask"], inputs["batch_num_tokens"], inputs["global_batch_size"]
    tokens = (mask != 0).sum().clamp(min=1) if tokens is None else tokens
    rows = (mask != 0).any(-1).sum().clamp(min=1) if rows is None else rows
    return {
        "batch_num_tokens": {"response_mask": tokens, "final_response_mask": tokens},
        "global_valid_samples": {"response_mask": rows, "final_response_mask": rows},
    }


def _policy_loss(kind: str, metric: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token-level losses of one of ROLL's policy losses. The adapter computes the ratios, as ROLL's caller
    does.

    https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/roll/pipeline/rlvr/actor_pg_worker.py#L72
    """
    worker = _worker(boundary, kind, {**_clip_options(inputs), "loss_agg_mode": "token-mean"}, _variant_options(inputs))
    names = ("log_probs", "old_log_probs", "advantages", "response_mask")
    ratio = (inputs["log_probs"] - inputs["old_log_probs"]).exp()
    if not ratio.isfinite().all():
        # ROLL computes this exp and its gradient in loss_func, the caller, so only the binding of loss_func checks
        # overflow.
        raise AbsentError("the importance ratio overflows, but ROLL computes it in the caller of this function")
    scores, data = inputs["scores"], None
    if scores is not None:  # RLVR reads the tensor `scores`; agents read `episode_scores`, one per trajectory
        trajectories = [f"trajectory {row}" for row in range(len(scores))]
        data = _batch(boundary, {"scores": scores}, {"traj_id": trajectories, "episode_scores": scores.tolist()})
    losses = boundary.invoke(
        {name: inputs[name] for name in names if kit.takes_input(boundary, name)},
        worker,
        ratio=ratio,
        data=data,
        **_counts(inputs),
    )
    return {"per_token_loss": losses, "clip_fraction": worker._cached_metrics.get(metric)}


#: These functions return a loss per token. The bindings define the loss of a batch as the sum over its tokens.
_SUM = aggregated("token-sum")


def _positive_where_advantages_are(inputs: Mapping[str, Any]) -> Any:
    """Return the first advantage of each response as its score for TOPR. In most training runs, both have the same
    sign.
    """
    from sentinel import tensor

    advantages = inputs["advantages"]
    return tensor(advantages.array()[:, 0].astype(float).tolist(), advantages.dtype)


def _token_ratio(path: str, lines: Mapping[str, int], variant: str) -> tuple[Dialect, ...]:
    return (
        Dialect(
            "ratio_level",
            "token",
            f"{variant} is applied per token, like ROLL's other losses; its argument is the ratio [batch, tokens]",
            f"{_MAIN}/{path}#L{lines[variant]}",
        ),
    )


def _losses(owner: str, kind: str, path: str, lines: Mapping[str, int]) -> tuple[Binding, ...]:
    tokens = Dialect(
        "masked_values_have_no_influence",
        reason="the function returns token-level losses; agg_loss handles a NaN or infinity on a masked token",
        link=f"{_MAIN}/{path}#L{lines['agg_loss']}",
        symptom="non-finite",
    )
    imports = (PROTOCOL, _CONFIG_OF[kind][0], _WORKER_CONFIG)
    common: dict[str, Any] = {"imports": imports, "stand_ins": (_SELF, _CONFIG, _ADDRESS)}

    def binding(method: str, metric: str = "", accepts: Mapping[str, Any] | None = None, **more: Any) -> Binding:
        fixed, dialects = {**_SUM, "scores": None, **more.pop("fixed", {})}, more.pop("dialects", ())
        return Binding(
            f"{owner}.{method}",
            "policy_loss",
            call=partial(_policy_loss, kind, metric),
            fixed=fixed,
            accepts={"importance_weights": (None,), **(accepts or {})},
            dialects=(tokens, *dialects),
            **common,
            **more,
        )

    return (
        binding("_compute_vanilla_pg_loss", fixed={"algorithm": "reinforce"}),
        binding("_compute_ppo_loss", fixed={"algorithm": "ppo"}),
        binding("_compute_tis_loss", "tis_total_clipfrac", fixed={"algorithm": "cispo"}),
        binding("_compute_cispo_loss", "cispo_total_clipfrac", {"algorithm": ("cispo", "cispo_unified")}),
        binding(
            "_compute_topr_loss",
            "topr_negative_total_clipfrac",
            fixed={"algorithm": "topr", "scores": _positive_where_advantages_are},
            dialects=_token_ratio(path, lines, "TOPR"),
        ),
        binding("_compute_kimi15_loss", fixed={"algorithm": "kimi"}, dialects=_token_ratio(path, lines, "Kimi k1.5")),
    )


def _loss_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a worker's loss, without KL and entropy terms."""
    return {
        **_clip_options(inputs),
        "loss_agg_mode": inputs["loss_agg_mode"],
        "enable_old_logprobs_recompute": True,
        "use_kl_loss": False,
        "entropy_loss_coef": 0,
    }


def _loss_columns(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the microbatch columns that a worker's loss reads."""
    mask, weights = kit.prepend_prompt(inputs["response_mask"]), inputs["importance_weights"]
    return {
        "response_mask": mask,
        "input_ids": torch.zeros_like(mask, dtype=torch.long),
        "ref_log_probs": inputs["old_log_probs"],
        "old_log_probs": inputs["old_log_probs"],
        "advantages": inputs["advantages"],
        "train_infer_is_weight": torch.ones_like(inputs["advantages"]) if weights is None else weights,
    }


def _actor_loss(kind: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a worker's loss on a microbatch, without KL and entropy terms."""
    level = {"importance_sampling": "seq" if inputs["algorithm"] == "gspo" else "token"}
    if kind == "agentic":
        level = {"ratio_type": inputs["ratio_level"] or "token"}
    weights = inputs["importance_weights"]
    worker = _worker(boundary, kind, {**_loss_options(inputs), **level}, {})
    base = boundary.imported[_BASE_CONFIG]
    if hasattr(base, "TrainInferCorrectionConfig"):
        worker.pipeline_config.train_infer_correction = base.TrainInferCorrectionConfig()
        worker.pipeline_config.train_infer_correction.is_weight.enabled = weights is not None
    elif weights is not None:
        raise UnknownInputError("this version's loss has no option for importance weights", "importance_weights")
    worker.strategy = kit.stand_in(
        op_compute_log_probs=lambda **_: inputs["log_probs"],
        op_compute_entropy=lambda **_: torch.zeros_like(inputs["log_probs"]),
    )
    data = _batch(boundary, _loss_columns(inputs))
    data.meta_info.update(_counts(inputs))
    loss, _ = boundary.invoke({}, worker, data, torch.zeros(()))
    return {"loss": loss}


#: Algorithm of the contract -> the variant of ROLL's policy-gradient workers.
_VARIANTS = {
    "reinforce": "vanilla",
    "ppo": "ppo",
    "cispo": "tis",
    "cispo_unified": "cispo",
    "kimi": "kimi15",
    "topr": "topr",
}


def _add_variants(worker: Any, owner: Any) -> None:
    """Add the methods of a worker class that compute its policy losses and their metrics."""
    for name in dir(owner):
        if name.startswith(("_compute_", "_get_pg")):
            setattr(worker, name, types.MethodType(getattr(owner, name), worker))
    worker._pg_variant_logged = True


def _variant_loss(kind: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the loss of a worker with several policy losses on a microbatch, without KL and entropy terms.

    The reference policy differs from the old policy, so that the reported KLs differ.
    """
    level = {"ratio_type": inputs["ratio_level"] or "token"} if kind == "agentic" else {"rl_loss_coef": 1.0}
    options = {**_loss_options(inputs), **level}
    variant = {**_variant_options(inputs), "pg_variant": _VARIANTS[inputs["algorithm"]]}
    worker = _worker(boundary, kind, options, variant)
    _add_variants(worker, boundary.owner)
    correction = boundary.imported[_BASE_CONFIG].TrainInferCorrectionConfig()
    correction.is_weight.enabled = inputs["importance_weights"] is not None
    worker.pipeline_config.train_infer_correction = correction
    log_probs, rows = inputs["log_probs"], len(inputs["response_mask"])
    worker.strategy = kit.stand_in(
        op_compute_log_probs=lambda **_: log_probs, op_compute_entropy=lambda **_: log_probs.detach() * -2
    )
    scores = 1.0 - torch.arange(rows) % 2 if inputs["scores"] is None else inputs["scores"]
    tensors = {**_loss_columns(inputs), "ref_log_probs": inputs["old_log_probs"] - 0.25, "scores": scores}
    trajectories = [f"trajectory {row}" for row in range(rows)]
    data = _batch(boundary, tensors, {"traj_id": trajectories, "episode_scores": scores.tolist()})
    data.meta_info.update(_counts(inputs))
    platform = kit.stand_in(device_type=boundary.device)
    with kit.swap_all(boundary.module, **({"current_platform": platform} if kind == "agentic" else {})):
        loss, _ = boundary.function(worker, data, torch.zeros(()))
    return {"loss": loss}


_FSDP = "roll.distributed.strategy.fsdp2_strategy"
_ACTOR_WORKER = "roll.pipeline.rlvr.actor_worker"
_BASE_WORKER = "roll.pipeline.base_worker"


def _led(boundary: Any, inputs: Mapping[str, Any], whole: Mapping[str, Any], stages: list[Any]) -> dict[str, Any]:
    """Build the batch of an update from rewards. ROLL's functions compute advantages and balance the ranks."""
    functions, named, norms = boundary.imported[_FUNCTIONALS], kit.named_tokens(inputs), ("group", None)
    above = functions.reward_norm(inputs["rewards"], kit.group_size(inputs), {}, *norms)
    fields = {**whole, **named, "token_level_rewards": kit.named_tokens({**inputs, "rewards": above})["rewards"]}
    fields["attention_mask"] = fields["attention_mask"].long()
    del fields["advantages"]
    data = functions.compute_advantage(_batch(boundary, fields), 1.0, 1.0, "grpo")
    stages.append(("compute_advantage", [kit.read_columns(data)]))
    functions.batch_balance(data, dp_size=inputs["dp_size"], minibatch_size=len(data))
    stages.append(("batch_balance", [kit.read_columns(data)]))
    return kit.read_columns(data)


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run the training step of ROLL's strategy on each rank with the worker's real loss, and return the gradients.

    Each token has a unique id, with which the stand-in model looks up the token's log-prob. Gradients are averaged over
    ranks, as in FSDP. If the batch lacks old log-probs, the loss runs twice on each microbatch: the first pass, whose
    loss is dropped, returns the old log-probs, which the worker keeps.
    """
    mask, count = inputs["response_mask"], inputs["dp_size"]
    rows = len(mask)
    share, reference = rows // count, inputs["ref_log_probs"]
    size = inputs["micro_batch_size"] or share
    tables, ids = kit.tables_of(inputs), kit.named_tokens(inputs)["input_ids"]
    tables["old_log_probs"] = kit.prepend_prompt(inputs["old_log_probs"]).flatten()
    stages: list[Any] = []
    whole = {
        "input_ids": ids,
        "response_mask": kit.prepend_prompt(mask),
        **dict.fromkeys(("attention_mask", "position_ids"), torch.ones_like(ids)),
        "ref_log_probs": inputs["old_log_probs"] if reference is None else reference,
        "old_log_probs": inputs["old_log_probs"],
        "advantages": inputs.get("advantages"),
        "train_infer_is_weight": torch.ones_like(inputs["old_log_probs"]),
    }
    keeps = inputs.get("keeps_old_log_probs", False)
    labels: dict[str, list[Any]] = {"sample_uuid": [f"sample {row}" for row in range(rows)]}
    pictured = inputs.get("with_images", False)
    if pictured:
        channels = torch.arange(3)[None, :, None]
        whole["position_ids"] = 100 * torch.arange(rows)[:, None, None] + 10 * channels + torch.arange(ids.shape[1])
        labels["multi_modal_inputs"] = [{"pixel_values": torch.full((1, 2), 0.5 + row)} for row in range(rows)]
    if keeps:
        whole["old_log_probs"] = torch.full_like(inputs["old_log_probs"], torch.nan)
    if "rewards" in inputs:
        whole = _led(boundary, inputs, whole, stages)
    options = {
        **_clip_options(inputs),
        "importance_sampling": "token",
        "rl_loss_coef": 1.0,
        "loss_agg_mode": inputs["loss_agg_mode"],
        "enable_old_logprobs_recompute": not keeps,
        "use_kl_loss": reference is not None,
        "kl_loss_coef": inputs["kl_coef"],
        "entropy_loss_coef": inputs["entropy_coef"],
        "ppo_epochs": 2,
    }
    owner = boundary.imported[_ACTOR_WORKER].ActorWorker
    losses: list[Any] = []

    class Strategy(boundary.owner):  # type: ignore[misc, name-defined]
        """ROLL's training strategy without sharding, gradient clipping and optimiser steps."""

        reduce_scatter_during_grad_accumulation, scaler, param_dtype = True, None, torch.bfloat16
        model = kit.stand_in(train=lambda: None)
        optimizer = kit.stand_in(step=lambda: None, zero_grad=lambda **_: None)
        scheduler = kit.stand_in(step=lambda: None)

        current = "log_probs"

        def __init__(self) -> None:
            worker = _worker(replace(boundary, owner=owner), "rlvr", options, {"name": "actor"})
            worker._logprobs_cache = {}
            worker.pipeline_config.train_infer_correction = boundary.imported[_BASE_CONFIG].TrainInferCorrectionConfig()
            worker.strategy, self.worker, self.worker_config = self, worker, worker.worker_config
            worker.rank_info = kit.stand_in(cp_size=1, dp_size=count)
            steps = {"per_device_train_batch_size": size, "gradient_accumulation_steps": share // size}
            worker.worker_config.training_args = kit.stand_in(**steps)
            worker.pipeline_config.max_grad_norm = 0.0

        def _fsdp2_forward(self, input_ids: Any, position_ids: Any, forward_args: Mapping[str, Any], **_: Any) -> Any:
            """Return the token ids, or the ids of other tokens if the images or the positions are those of other
            rows."""
            if not pictured:
                return input_ids
            row = (input_ids[:, None, 1] == ids[None, :, 1]).long().argmax(-1)
            right = torch.equal(forward_args["pixel_values"], torch.full((len(row), 2), 0.5) + row[:, None])
            right = right and torch.equal(position_ids.transpose(0, 1), whole["position_ids"][row])
            return input_ids if right else torch.zeros_like(input_ids)

        def _clip_grad_norm(self, **_: Any) -> Any:
            return torch.zeros(())

        def op_compute_log_probs(self, logits: Any, **_: Any) -> Any:
            return tables[self.current][logits[:, 1:]]

        def op_compute_entropy(self, logits: Any, **_: Any) -> Any:
            return tables["entropies"][logits[:, 1:]]

    def rank(number: int) -> dict[str, Any]:
        strategy, part = Strategy(), slice(number * share, (number + 1) * share)
        data = _batch(
            boundary,
            {name: column[part] for name, column in whole.items()},
            {name: column[part] for name, column in labels.items()},
        )
        data.meta_info["loss_mask_keys"] = ["response_mask"]

        def loss(batch: Any, output: Any) -> Any:
            if keeps:
                strategy.current = "old_log_probs"
                owner.loss_func(strategy.worker, batch, output)
                strategy.current = "log_probs"
            answer, metrics = owner.loss_func(strategy.worker, batch, output)
            scaled = answer.detach().requires_grad_()
            scaled.register_hook(lambda slope: losses.append((answer, slope)))
            return scaled * 1, metrics

        metrics: dict[str, Any] = boundary.function(strategy, data, loss)
        return metrics

    modules = (boundary.module, boundary.imported[_BASE_WORKER])
    with contextlib.ExitStack() as stack:
        stack.enter_context(kit.keep_random_state())
        for module in (module for module in modules if hasattr(module, "current_platform")):
            stack.enter_context(kit.swap(module, "current_platform", kit.stand_in(device_type=boundary.device)))
        metrics_of_ranks = kit.on_ranks(count, rank)
    (sum(loss * slope for loss, slope in losses) / count).backward()
    reported = {name: sum(sum(one[f"actor/{name}@sum"]) for one in metrics_of_ranks) for name in ("pg_loss", "kl_loss")}
    if stages:
        named = {"number": torch.arange(rows), "input_ids": ids, "old_log_probs": inputs["old_log_probs"]}
        return {"gradient": inputs["log_probs"].grad, "stages": stages, "rows": named}
    return {
        **kit.gradients_of(inputs),
        "pg_loss": reported["pg_loss"],
        "kl_loss": reported["kl_loss"] if inputs["kl_coef"] else None,
    }


_SUM_OVER_SEQUENCES = Dialect(
    "sequence_norm",
    "sum",
    "seq-mean-token-sum-norm divides by the number of columns only; a comment describes how to make it constant",
    f"{_MAIN}/utils/functionals.py#L274",
    where={"loss_agg_mode": ("seq-mean-token-sum-norm",)},
)
_OWN_COUNT = "without a number of responses from the caller, the divisor is the number of rows, including empty ones"
_OWN_LINE = f"{_MAIN}/utils/functionals.py#L252"
_BY_ROWS: Mapping[str, tuple[Any, ...]] = {
    "loss_agg_mode": ("seq-mean-token-sum", "seq-mean-token-mean"),
    "global_batch_size": (None,),
}
_ROWS_AT_HAND = (
    Dialect("empty_rows", "counted", _OWN_COUNT, _OWN_LINE, _BY_ROWS),
    Dialect("a_rejected_row_is_an_absent_row", None, _OWN_COUNT, _OWN_LINE, _BY_ROWS, "value"),
)
#: Rejected tokens are masked only in ``final_response_mask``, and the critic does not read this mask.
_ALL_ROWS = "the critic's loss is the plain mean over the rows of the microbatch, including rows without a token"
_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
#: dp_size and loss_scale_factor are None, because the strategy handles the ranks, and no option sets the divisor of
#: seq-mean-token-sum-norm.
_AGGREGATION = {"loss_agg_mode": _MODES, "dp_size": (None,), "loss_scale_factor": (None,)}


def _actor(owner: str, kind: str, **more: Any) -> Binding:
    return Binding(
        f"{owner}.loss_func",
        "policy_loss",
        call=partial(_actor_loss, kind),
        imports=(PROTOCOL, _CONFIG_OF[kind][0], _WORKER_CONFIG, _BASE_CONFIG),
        stand_ins=(_SELF, _CONFIG, _STRATEGY, _ADDRESS),
        dialects=(_SUM_OVER_SEQUENCES,),
        **{**more, "accepts": {**_AGGREGATION, **more.get("accepts", {})}},
    )


def _variants(owner: str, kind: str, path: str, line: int) -> Binding:
    of_tokens = replace(_token_ratio(path, {"Kimi k1.5": line}, "Kimi k1.5")[0], where={"algorithm": ("kimi", "topr")})
    requires, accepts = (f"{_BASE_CONFIG}.TrainInferCorrectionConfig",), {"algorithm": tuple(_VARIANTS)}
    accepts |= {"ratio_level": (None, "segment")} if kind == "agentic" else {}
    usual = _actor(owner, kind, requires=requires, fixed={"scores": _positive_where_advantages_are}, accepts=accepts)
    return replace(usual, call=partial(_variant_loss, kind), dialects=(*usual.dialects, of_tokens))


def _critic_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values = inputs["vpreds"]
    worker = kit.stand_in(
        pipeline_config=_configuration(boundary, "rlvr", {"value_clip": inputs["cliprange_value"]}, {})
    )
    worker.forward_func_values = types.MethodType(boundary.owner.forward_func_values, worker)
    tensors = {name: inputs[name] for name in ("values", "returns")}
    data = _batch(boundary, {**tensors, "response_mask": kit.prepend_prompt(inputs["response_mask"])})
    output = torch.cat([values, torch.zeros_like(values[:, :1])], dim=1).unsqueeze(-1)
    loss, metrics = boundary.invoke({}, worker, data, output)
    return {"loss": loss, "clip_fraction": metrics["critic/clipfrac"]}


def _correction(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the importance weights, or the mask of kept tokens, that ROLL's off-policy correction computes."""
    config = boundary.imported[_BASE_CONFIG]
    names = ("old_log_probs", "rollout_log_probs", "response_mask")
    settings, level = config.TrainInferCorrectionConfig(), inputs["level"]
    masks = inputs["mode"] == "mask"
    if masks:
        low = 0.0 if inputs["threshold_low"] is None else inputs["threshold_low"]
        rule = config.TrainInferFilterConfig(enabled=True, agg_type=level, ratio_low=low)
        rule.ratio_high = inputs["threshold_high"]
        settings.filters = [rule]
    else:
        if inputs["threshold_low"] is not None:
            raise AbsentError("ROLL's importance weights have no lower bound")
        settings.is_weight.enabled, settings.is_weight.weight_type = True, level
        settings.is_weight.upper_bound = inputs["threshold_high"]
    if "batch" in boundary.parameters:
        renamed = {"infer_logprobs": inputs["rollout_log_probs"], "old_log_probs": inputs["old_log_probs"]}
        data = _batch(boundary, {**renamed, "response_mask": kit.prepend_prompt(inputs["response_mask"].long())})
        data, metrics = boundary.function(kit.stand_in(train_infer_correction=settings), data)
        weights, kept = data.batch["train_infer_is_weight"], data.batch["response_mask"][:, 1:]
    else:
        weights, kept, metrics = boundary.invoke({name: inputs[name] for name in names}, cfg=settings)
    clipped = metrics.get("actor/is_weight_clipfrac@sum")
    return {"kept": kept} if masks else {"weights": weights, "clip_fraction": clipped}


def _token_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with the boundary, and entropies with another function of the same module."""
    names = {name: inputs[name] for name in ("logits", "token_ids")}
    entropy = boundary.module.entropy_from_logits(inputs["logits"]) if inputs["with_entropy"] else None
    return {"log_probs": boundary.invoke(names), "entropy": entropy}


def _critic_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that ROLL's critic reads from the model's outputs. The outputs have one more column, for the
    prompt.
    """
    output = torch.cat([inputs["outputs"], inputs["output_after"][:, None]], dim=1).unsqueeze(-1)
    values, _ = boundary.invoke({}, kit.stand_in(), data=None, output_tensor=output)
    return {"values": values}


_UPDATE = Binding(
    f"{_FSDP}.FSDP2TrainStrategy.train_step", "policy_update", call=_update,
    imports=(PROTOCOL, _FUNCTIONALS, _RLVR_CONFIG, _WORKER_CONFIG, _BASE_CONFIG, _ACTOR_WORKER, _BASE_WORKER),
    requires=(f"{_FSDP}.FSDP2TrainStrategy._get_global_valid_samples",),
    stand_ins=(_SELF, _CONFIG, _STRATEGY, _ADDRESS, RANKS),
    fixed={"kl_estimator": "k3", "max_tokens_per_microbatch": None, "loss_scale_factor": None},
    accepts={"loss_agg_mode": _MODES, "keeps_old_log_probs": (False, True), "with_images": (False, True)},
    dialects=(_SUM_OVER_SEQUENCES, replace(_CLAMP, name="kl_clamp")),
)  # fmt: skip

#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "roll.models.*", "*.third_party.vllm.*", "*.mtp_patcher.*", "*.offload_states_patch.*", "*.send_recv_utils.*",
    "*.scheduler.router.*", "*.agentic.proxy.*", "*.log_monitor.*", "*.otel_receiver.*", "*.utils.tracking.*",
)  # fmt: skip

TARGET = Target(
    name="roll",
    arguments={
        "response_mask": ("response_mask", "final_response_mask", "loss_mask", "action_mask", "mask"),
        "values": ("values", "tensor"), "axis": ("dim",), "epsilon": ("eps",),
    },
    defaults=(
        "roll.pipeline.rlvr.rlvr_config.RLVRConfig", "roll.pipeline.agentic.agentic_config.AgenticConfig",
        "roll.pipeline.distill.distill_config.DistillConfig",
    ),
    repository="https://github.com/alibaba/ROLL", roots=(PackageRoot("roll"),), preload=("tensordict", "omegaconf"),
    bindings=(
        _UPDATE,
        replace(
            _UPDATE, contract="training_step", fixed={"max_tokens_per_microbatch": None, "group_layout": "equal"},
            accepts={"loss_agg_mode": _MODES},
        ),
        Binding(
            f"{_FUNCTIONALS}.agg_loss", "loss_aggregation", arguments={"global_batch_size": ("global_valid_samples",)},
            outputs=("loss",), call=_aggregated, accepts=_AGGREGATION, dialects=(_SUM_OVER_SEQUENCES, *_ROWS_AT_HAND),
        ),
        Binding(
            f"{_FUNCTIONALS}.compute_approx_kl", "kl_estimate",
            arguments={"ref_log_probs": ("log_probs_base",), "kl_estimator": ("kl_penalty",)}, outputs=("kl",),
            call=partial(kit.call_with, values_of={"kl_estimator": _ESTIMATORS}),
            dialects=(_CLAMP,),
        ),
        Binding(
            f"{_FUNCTIONALS}.compute_gae_advantage_return", "generalised_advantage", arguments={"lam": ("lambd",)},
            outputs=_ADVANTAGES, call=partial(kit.call_with, takes=("token_level_rewards", "values", "gamma", "lam")),
            accepts=_ONLY_FULL,
        ),
        Binding(
            f"{_FUNCTIONALS}.compute_reinforce_return", "discounted_return", constants={"lambd": 1.0},
            outputs=_ADVANTAGES, call=partial(kit.call_with, takes=("token_level_rewards", "gamma")),
            accepts=_ONLY_FULL, fixed={"kl": None, "kl_coef": 0.0},
        ),
        *_drivers(f"{_FUNCTIONALS}.compute_advantage", agents=False),
        *_drivers(f"{_AGENTIC}.agentic_compute_advantage", agents=True),
        Binding(
            f"{_AGENTIC}.compute_agentic_reinforce_return", "discounted_return", constants={"lambd": 1.0},
            outputs=_ADVANTAGES, fixed=_OUTCOMES,
            dialects=(_SEGMENTS,),
        ),
        Binding(
            f"{_AGENTIC}.compute_discounted_returns", "discounted_return", call=_agentic_returns, imports=(PROTOCOL,),
            fixed={"kl": None, "kl_coef": 0.0},
        ),
        masked_statistic(f"{_FUNCTIONALS}.masked_mean", "mean", "axis", dialects=(_COUNT_EPSILON,)),
        masked_statistic(f"{_FUNCTIONALS}.masked_sum", "sum", "axis"),
        masked_statistic(f"{_FUNCTIONALS}.masked_var", "var", "unbiased", dialects=(_COUNT_EPSILON,)),
        masked_statistic(f"{_FUNCTIONALS}.masked_whiten", "whiten", "shift_mean", dialects=(_COUNT_EPSILON,)),
        masked_statistic(
            f"{_FUNCTIONALS}.masked_normalize", "whiten", "epsilon", fixed={"axis": "token", "unbiased": False},
            dialects=(
                Dialect(
                    "epsilon_placement", "floor", "the variance is clamped to at least eps instead of adding eps",
                    f"{_MAIN}/utils/functionals.py#L361",
                ),
            ),
        ),
        Binding(
            f"{_AGENTIC}.compute_segment_masked_mean", "masked_statistics", outputs=("whitened",),
            fixed={"statistic": "segment_mean", **MASKED_STATISTICS.lacking()},
            dialects=(replace(_COUNT_EPSILON, link=f"{_MAIN}/pipeline/agentic/utils.py#L384"),),
        ),
        Binding(
            f"{_FUNCTIONALS}.reward_norm", "reward_normalisation",
            arguments={
                "rewards": ("response_level_rewards",), "mean_level": ("norm_mean_type",),
                "std_level": ("norm_std_type",),
            },
            outputs=("normalised",), call=_reward_norm,
            fixed={"group_layout": "equal", **REWARD_NORMALISATION.lacking("mean_level", "std_level")},
        ),
        normalised_rewards(
            f"{_FUNCTIONALS}.group_reward_norm", _group_reward_norm, "std_level", imports=(PROTOCOL,),
            fixed={"group_layout": "equal"},
            dialects=(
                Dialect(
                    "std_about", "subtracted",
                    "div_std_global is the standard deviation over the batch of the deviations from the group means",
                    f"{_MAIN}/utils/functionals.py#L1422",
                ),
            ),
        ),
        normalised_rewards(
            f"{_FUNCTIONALS}.reward_postprocess", _postprocessed, "std_level", "clip", imports=(PROTOCOL,),
            fixed={"group_layout": "equal"},
        ),
        *(
            Binding(
                f"{_FUNCTIONALS}.{function}", "penalised_advantage", call=_penalised, dtypes=("float32",),
                imports=(PROTOCOL, "roll.utils.kl_controller"), accepts=_ONLY_FULL,
            )
            for function in ("apply_kl_penalty", "compute_token_reward")
        ),
        # This function existed until August 2025, when reward_norm replaced it.
        normalised_rewards(
            f"{_FUNCTIONALS}.batch_reward_norm",
            partial(
                kit.call_with, leading=("rewards",), takes=("std_level",),
                values_of={"std_level": {None: False, "batch": True}},
            ),
            "std_level", arguments={"std_level": ("div_std",)}, outputs=("normalised",),
            requires=(f"{_FUNCTIONALS}.batch_reward_norm",), fixed={"mean_level": "batch"},
            accepts={"std_level": ("batch", None)},
        ),
        *(
            Binding(
                f"{_AGENTIC}.{function}", "reward_normalisation", formerly=formerly, outputs=("normalised",),
                call=_agentic_reward_norm, imports=(PROTOCOL, _AGENTIC_CONFIG),
                fixed=REWARD_NORMALISATION.lacking("mean_level", "std_level", *more), accepts=accepts,
                dialects=(
                    replace(_NO_SPREAD, where={"std_level": ("group",), "mean_level": ("batch", None)}),
                    replace(_NO_SPREAD, where={"std_level": ("batch",), "mean_level": (None,)}),
                    replace(_NO_SPREAD, name="every_knob_counts", symptom="", where={"std_level": ("group", "batch")}),
                ),
            )
            for function, formerly, more, accepts in (
                ("agentic_reward_norm", (f"{_AGENTIC}.grouped_reward_norm",), (), {}),
                ("compute_response_level_rewards", (), ("clip",), {"rewards_of": tuple(_OF)}),
            )
        ),
        *_losses(
            _RLVR_PG, "rlvr", "pipeline/rlvr/actor_pg_worker.py", {"TOPR": 265, "Kimi k1.5": 430, "agg_loss": 109},
        ),
        *_losses(
            _AGENTIC_PG, "agentic", "pipeline/agentic/agentic_actor_pg_worker.py",
            {"TOPR": 278, "Kimi k1.5": 451, "agg_loss": 100},
        ),
        _actor("roll.pipeline.rlvr.actor_worker.ActorWorker", "rlvr", accepts={"algorithm": ("ppo", "gspo")}),
        _actor(
            "roll.pipeline.agentic.agentic_actor_worker.ActorWorker", "agentic",
            formerly=("roll.pipeline.base_worker.ActorWorker.loss_func",), fixed={"algorithm": "ppo"},
            accepts={"ratio_level": (None, "segment")},
        ),
        _variants(_RLVR_PG, "rlvr", "pipeline/rlvr/actor_pg_worker.py", 430),
        _variants(_AGENTIC_PG, "agentic", "pipeline/agentic/agentic_actor_pg_worker.py", 451),
        Binding(
            "roll.pipeline.base_worker.CriticWorker.loss_func", "value_loss", call=_critic_loss,
            imports=(PROTOCOL, _RLVR_CONFIG, _WORKER_CONFIG), stand_ins=(_SELF, _CONFIG, _ADDRESS),
            fixed=aggregated("seq-mean-token-mean"),
            dialects=(
                Dialect(
                    "factor", 0.5, "the loss is half the squared error, as in PPO2 of OpenAI Baselines",
                    f"{_MAIN}/pipeline/base_worker.py#L678",
                ),
                Dialect(
                    "clip_fraction_over", "sequences", "critic/clipfrac is the mean over the sequences, as the loss is",
                    f"{_MAIN}/pipeline/base_worker.py#L672",
                ),
                Dialect("empty_rows", "counted", _ALL_ROWS, f"{_MAIN}/pipeline/base_worker.py#L678"),
                Dialect(
                    "a_rejected_row_is_an_absent_row", reason=_ALL_ROWS, link=f"{_MAIN}/pipeline/base_worker.py#L678",
                    symptom="value",
                ),
            ),
        ),
        Binding(
            f"{_FUNCTIONALS}.log_probs_from_logits", "token_log_probs", arguments={"token_ids": ("labels",)},
            call=_token_log_probs, fixed={"temperature": 1.0}, accepts=_ONLY_FULL,
            # The function takes logits of any of these dtypes, because it converts them to float32.
            dtypes=("float32", "bfloat16", "float16"),
        ),
        Binding(
            "roll.pipeline.base_worker.CriticWorker.forward_func_values", "critic_values", call=_critic_values,
            stand_ins=(_SELF, _ADDRESS),
            dialects=(
                Dialect(
                    "outside_the_mask", "any",
                    "the function returns the value of every position; its callers apply the mask",
                    f"{_MAIN}/pipeline/base_worker.py#L690",
                ),
            ),
        ),
        *(
            Binding(
                f"{_CORRECTIONS}.{function}", "importance_weight",
                arguments={"rollout_log_probs": ("infer_log_probs",)}, call=_correction,
                imports=(_BASE_CONFIG, PROTOCOL),
            )
            for function in ("compute_train_infer_correction", "apply_train_infer_correction_to_batch")
        ),
        Binding(
            f"{_AGENTIC_CONFIG}.AgenticConfig.set_max_steps", "schedule_length", call=_scheduled,
            formerly=(f"{_BASE_CONFIG}.PPOConfig.set_max_steps",), imports=(_AGENTIC_CONFIG,),
            fixed={"warmup_ratio": 0.0},
        ),
        *(
            Binding(
                f"roll.utils.local_code.pass_k_utils.{function}", "pass_at_k", call=_passed, accepts={"of": ("any",)},
                dialects=(
                    Dialect(
                        "scale", 100.0, "pass@k is in percent", f"{_MAIN}/utils/local_code/pass_k_utils.py#L13"
                    ),
                ),
            )
            for function in ("compute_metrics_from_results", "estimate_pass_at_k")
        ),
        *(
            Binding(
                f"{_FUNCTIONALS}.{function}", "mean_of_parts", call=_averaged, fixed={"missing": False},
                accepts={"statistic": statistics},
            )
            for function, statistics in (
                ("reduce_metrics", ("mean", "sum", "max", "min")),
                ("reduce_metrics_list", ("mean",)),
                ("aggregate_metrics", ("mean", "sum", "max", "min", "last")),
            )
        ),
        *data.BINDINGS, *containers.BINDINGS, *agents.BINDINGS, *rewards.BINDINGS, *objectives.BINDINGS,
        *turns.BINDINGS, *reports.BINDINGS, *remotes.BINDINGS,
        *schedulers.BINDINGS, *forwards.BINDINGS,
    ),
    at_import={"roll.utils.network_utils.get_node_ip": "127.0.0.1"},
    # Stub modules need these versions, because ROLL's engine wrappers raise an exception for unknown ones.
    stub_versions={"vllm": "0.8.4", "sglang": "0.5.7"}, no_signal=_NO_SIGNAL,
)  # fmt: skip
