"""verl (verl-project/verl): how Sentinel's contracts bind to its boundaries.

They are functions of tensors. Options come to them in the target's own configuration classes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel.binding.drift import AbsentError, DriftError, UnknownInputError
from sentinel.binding.families import group_advantage, masked_statistic, policy_loss
from sentinel.binding.kit import passed, swapped, taken
from sentinel.contracts.normalisation import MASKED_STATISTICS
from sentinel.targets import Binding, Dialect, PackageRoot, Registry, Target

from . import agents, containers, data, rewards, schedules, updates
from .shared import CPU
from .shared import MAIN as _MAIN

_CORE = "verl.trainer.ppo.core_algos"
_CORRECTION = "verl.trainer.ppo.rollout_corr_helper"
_TORCH = "verl.utils.torch_functional"
_CONFIG = "verl.workers.config"
_GROUPWISE = "verl.utils.groupwise"


def _core_line(number: int) -> str:
    return f"{_MAIN}/trainer/ppo/core_algos.py#L{number}"


def _made(owner: Any, options: Mapping[str, Any]) -> Any:
    """Make a configuration of the target's own class.

    :raises DriftError: for an option that the class does not have.
    """
    for name in options:
        if name not in owner.__dataclass_fields__:
            raise DriftError(f"{owner.__name__} has no option {name!r}")
    return owner(**options)


# -- advantages -------------------------------------------------------------------------------------------------------

_ADVANTAGES = ("advantages", "returns")


def _algorithm(boundary: Any, options: Mapping[str, Any]) -> Any:
    """Make the algorithm's configuration: a class of its own since #2147, omegaconf's mapping before."""
    import omegaconf

    values = {name: value for name, value in options.items() if value is not None}
    owner = getattr(boundary.module, "AlgoConfig", None)
    return omegaconf.OmegaConf.create(values) if owner is None else _made(owner, values)


def _group(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """verl groups rows by a numpy array of objects (the ``uid`` of the prompt)."""
    import numpy

    return {**inputs, "group": numpy.array(inputs["group"], dtype=object)}


def _estimator(names: tuple[str, ...], boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """:param names: the inputs that it takes; empty for all."""
    rest = taken(_group(inputs), *(names or inputs))
    if rest.get("norm_by_std") is True and "norm_adv_by_std_in_grpo" not in boundary.parameters:
        del rest["norm_by_std"]  # GRPO had no such switch until #990, and divided
    # Without a GPU it answers torch.cpu, which is no device.
    with swapped(sys.modules.get(_GROUPWISE), "get_torch_device", lambda: boundary.device):
        return boundary.invoke(rest)


def _pass_at_k(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """GRPO-PassK reads its one switch from the algorithm's configuration; at first it was a parameter."""
    rest = _group(inputs)
    if "config" not in boundary.parameters:
        return boundary.invoke(rest)
    return boundary.invoke(rest, config=_algorithm(boundary, {"norm_adv_by_std_in_grpo": rest.pop("norm_by_std")}))


def _reinforce_plus_plus(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    if "config" not in boundary.parameters:
        return boundary.invoke(taken(inputs, "token_level_rewards", "response_mask", "gamma"))
    config = _algorithm(boundary, {"gamma": inputs["gamma"]})
    return boundary.invoke(taken(inputs, "token_level_rewards", "response_mask"), config=config)


def _alone(line: int) -> Dialect:
    return Dialect("group_of_one", "score", "a response without others has the baseline 0", _core_line(line))


def _outcome(function: str, estimator: str, knobs: tuple[str, ...], *dialects: Dialect, **more: Any) -> Binding:
    call = more.pop("call", partial(_estimator, ()))
    return group_advantage(f"{_CORE}.{function}", call, estimator, knobs, *dialects, **more)


_WITH_PROBABILITIES = partial(
    _estimator, ("token_level_rewards", "response_mask", "group", "old_log_probs", "sum_squared_probs")
)
_OUTCOMES = (
    _outcome(
        "compute_grpo_outcome_advantage",
        "grpo",
        ("epsilon", "norm_by_std"),
        _alone(316),
        twins=(f"{_CORE}.compute_grpo_vectorized_outcome_advantage",),
    ),
    _outcome(
        "compute_grpo_vectorized_outcome_advantage",
        "grpo",
        ("epsilon", "norm_by_std"),
        Dialect(
            "group_of_one",
            "score",
            "a response without others has the baseline 0 and the scale 1",
            f"{_MAIN}/utils/groupwise.py#L37",
        ),
        stand_ins=(CPU,),
        twins=(f"{_CORE}.compute_grpo_outcome_advantage",),
    ),
    _outcome("compute_grpo_passk_outcome_advantage", "passk", ("epsilon", "norm_by_std"), call=_pass_at_k),
    _outcome("compute_reinforce_plus_plus_baseline_outcome_advantage", "reinforce_plus_plus_baseline", (), _alone(573)),
    _outcome("compute_gdpo_outcome_advantage", "gdpo", ("epsilon", "norm_by_std"), _alone(316)),
    _outcome(
        "compute_rloo_outcome_advantage",
        "rloo",
        (),
        _alone(623),
        twins=(f"{_CORE}.compute_rloo_vectorized_outcome_advantage",),
    ),
    _outcome(
        "compute_rloo_vectorized_outcome_advantage", "rloo", (), twins=(f"{_CORE}.compute_rloo_outcome_advantage",)
    ),
    _outcome(
        "compute_gpg_outcome_advantage",
        "gpg",
        (),
        _alone(818),
        Dialect(
            "zero_gradient",
            "zero_scores",
            "alpha is the number of responses by the number of those whose score is not 0",
            _core_line(810),
        ),
    ),
    _outcome("compute_opo_outcome_advantage", "opo", (), _alone(679)),
    _outcome(
        "compute_remax_outcome_advantage",
        "remax",
        (),
        call=partial(_estimator, ("token_level_rewards", "response_mask", "reward_baselines")),
    ),
    _outcome(
        "compute_optimal_token_baseline_advantage",
        "optimal_token_baseline",
        (),
        _alone(980),
        call=_WITH_PROBABILITIES,
        accepts={"response_mask": ("full", "right")},
    ),
    _outcome(
        "compute_multi_turn_optimal_token_baseline_advantage",
        "optimal_token_baseline",
        (),
        _alone(1106),
        call=_WITH_PROBABILITIES,
    ),
)

# -- policy losses ----------------------------------------------------------------------------------------------------

_CLIP = {"eps_clip_low": "clip_ratio_low", "eps_clip_high": "clip_ratio_high"}

_METRICS = {
    "clip_fraction": ("actor/pg_clipfrac",),
    "dual_clip_fraction": ("actor/pg_clipfrac_lower",),
    "approx_kl": ("actor/ppo_kl",),
}
#: What a policy loss returned beside the loss before it returned a mapping of metrics (#4062), in this order.
_RETURNED = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")


#: Options of a loss that the trainer put into its configuration before that declared them.
_PUT_THERE = frozenset({"rollout_correction"})


def _actor(boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Make the actor's configuration; the trainer leaves the counts of the global batch in it for the loss.

    :param options: by name; ``policy_loss.NAME`` for those of the loss.
    """
    counts = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
    counted = {name: inputs[name] for name in counts if inputs[name] is not None}
    of_loss = {name.partition(".")[2]: value for name, value in options.items() if "." in name}
    required: dict[str, Any] = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    actor = getattr(boundary.module, "ActorConfig", None)
    if counted and "global_batch_info" not in getattr(actor, "__dataclass_fields__", ()):
        raise UnknownInputError("the actor's configuration has no option 'global_batch_info'", next(iter(counted)))
    if actor is None:  # until #2621 it was Hydra's
        from omegaconf import OmegaConf

        usual = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None}
        return OmegaConf.create({**usual, **options, "policy_loss": of_loss})
    losses, optimizer = sys.modules[_CONFIG].PolicyLossConfig, sys.modules[_CONFIG].OptimizerConfig
    if getattr(optimizer, "lr", None) == "???":  # until #3235 it had none by default
        required["optim"] = optimizer(lr=1e-6)
    beside = {name: value for name, value in of_loss.items() if name in _PUT_THERE - losses.__dataclass_fields__.keys()}
    chosen = {name: value for name, value in required.items() if name in actor.__dataclass_fields__}
    chosen |= {name: value for name, value in options.items() if "." not in name}
    if counted:
        chosen["global_batch_info"] = counted
    if of_loss:
        chosen["policy_loss"] = _made(losses, {name: of_loss[name] for name in of_loss.keys() - beside.keys()})
    made = _made(actor, chosen)
    for name, value in beside.items():
        object.__setattr__(made.policy_loss, name, value)
    return made


def _loss(
    knobs: Mapping[str, str],
    metrics: Mapping[str, tuple[str, ...]],
    options: Mapping[str, Any],
    boundary: Any,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """The parameters are those of :func:`_policy`."""
    names = ("log_probs", "old_log_probs", "advantages", "response_mask", "importance_weights", "loss_agg_mode")
    chosen = {option: inputs[name] for name, option in knobs.items()}
    config = _actor(boundary, inputs, {**options, **chosen})
    loss, *rest = boundary.invoke(taken(inputs, *names), config=config)
    reported = rest[0] if len(rest) == 1 else dict(zip(_RETURNED, rest))
    shares = {key: sum(reported[name] for name in names) for key, names in metrics.items() if names[0] in reported}
    return {"loss": loss, **shares}


def _policy(
    function: str,
    algorithm: str,
    knobs: Mapping[str, str],
    *dialects: Dialect,
    metrics: Mapping[str, tuple[str, ...]] = _METRICS,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Binding:
    """:param knobs: canonical input -> option of the actor's configuration.
    :param metrics: observation -> what the loss calls it; several are shares of the same tokens.
    :param options: further options.
    """
    call = partial(_loss, dict(knobs), dict(metrics), dict(options or {}))
    arguments = {"old_log_probs": ("old_log_prob", "rollout_log_prob")}
    path = f"{_CORE}.{function}"
    return policy_loss(path, call, algorithm, [*knobs], *dialects, weights=True, arguments=arguments, **more)


def _cut(line: int) -> Dialect:
    return Dialect("log_ratio_clamp", 20.0, "the log-ratio is cut to [-20, 20] for stability", _core_line(line))


def _surrogate(line: int) -> Dialect:
    return Dialect(
        "surrogate",
        "log_prob",
        "the weight of a token is a constant, and its log-prob carries the gradient",
        _core_line(line),
    )


def _token_means_alone(boundary: Any, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the argument that chooses an aggregation, if any; before April 2025 it was always the tokens' mean.

    :raises AbsentError: where the scenario wants another one then.
    """
    if "loss_agg_mode" in boundary.parameters:
        return ("loss_agg_mode",)
    if inputs["loss_agg_mode"] != "token-mean":
        raise AbsentError("not in this version: a loss is the mean over tokens")
    return ()


def _deprecated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """At first there was one range, and no second clip."""
    names = ("log_probs", "old_log_probs", "advantages", "response_mask", *_token_means_alone(boundary, inputs))
    if "cliprange_low" in boundary.parameters:
        returned = boundary.invoke(taken(inputs, *names, "eps_clip_low", "eps_clip_high", "dual_clip"))
    elif inputs["dual_clip"] is not None:
        raise UnknownInputError("the loss knows no second clip", "dual_clip")
    elif inputs["eps_clip_low"] != inputs["eps_clip_high"]:
        raise AbsentError("not in this version: the clip has one range")
    else:
        returned = boundary.invoke(taken(inputs, *names), cliprange=inputs["eps_clip_low"])
    return dict(zip(("loss", "clip_fraction", "approx_kl", "dual_clip_fraction"), returned))


#: Losses of whole sequences: a comment says that they "need to aggregate the loss at the sequence level".
_BY_SEQUENCE = {"loss_agg_mode": "seq-mean-token-mean", "loss_scale_factor": None}
_GLOBAL = ("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")
_DUAL = {**_CLIP, "dual_clip": "clip_ratio_c"}
_DPPO = {**_CLIP, "ratio_cap": "clip_ratio_c"}

_POLICY_LOSSES = (
    _policy("compute_policy_loss_vanilla", "ppo", _DUAL, _cut(1338), accepts={"dual_clip": (3.0, 1.5)}),
    policy_loss(
        f"{_CORE}.compute_policy_loss",
        _deprecated,
        "ppo",
        [*_DUAL],
        _cut(1256),
        arguments={
            "eps_clip_low": ("cliprange_low",),
            "eps_clip_high": ("cliprange_high",),
            "dual_clip": ("clip_ratio_c",),
        },
        fixed=dict.fromkeys(_GLOBAL),
        accepts={"dual_clip": (3.0, 1.5)},
        twins=(f"{_CORE}.compute_policy_loss_vanilla",),
    ),
    _policy(
        "compute_policy_loss_bypass_mode",
        "ppo",
        _DUAL,
        _cut(1338),
        imports=(_CORRECTION,),
        fixed={"importance_weights": None},
        options={"policy_loss.rollout_correction": {"loss_type": "ppo_clip"}},
        accepts={"dual_clip": (3.0, 1.5)},
        twins=(f"{_CORE}.compute_policy_loss_vanilla",),
    ),
    _policy(
        "compute_policy_loss_dppo_tv", "dppo_tv", _DPPO, _cut(1420), _surrogate(1439), accepts={"ratio_cap": (5.0, 1.5)}
    ),
    _policy(
        "compute_policy_loss_dppo_kl",
        "dppo_kl",
        _DPPO,
        _cut(1501),
        _surrogate(1523),
        Dialect("epsilon", 1e-8, "1e-8 is added to both 1 - p of the binary KL", _core_line(1516)),
        accepts={"ratio_cap": (5.0, 1.5)},
    ),
    _policy(
        "compute_policy_loss_gspo",
        "gspo_token",
        _CLIP,
        Dialect("log_ratio_clamp", 10.0, "the logarithm of the ratio is cut for stability", _core_line(1590)),
        Dialect("log_ratio_clamp_side", "upper", "it is cut from above alone", _core_line(1590)),
        fixed=_BY_SEQUENCE,
    ),
    _policy(
        "compute_policy_loss_sapo", "sapo", {"tau_pos": "tau_pos", "tau_neg": "tau_neg"}, _cut(1665), fixed=_BY_SEQUENCE
    ),
    _policy("compute_policy_loss_gpg", "gpg", {}),
    _policy(
        "compute_policy_loss_clip_cov",
        "clip_cov",
        _CLIP,
        Dialect(
            "nothing_else_is_touched",
            reason="which tokens lose their gradient is drawn from the global generator",
            link=_core_line(1822),
            symptom="global-state",
        ),
        metrics={"clip_fraction": ("actor/pg_clipfrac",)},
        # Of a few tokens the defaults take none; and all that the bounds name are no matter of chance.
        fixed={"cov_share": 1.0, "cov_low": 0.05, "cov_high": 100.0},
        options={"policy_loss.clip_cov_ratio": 1.0, "policy_loss.clip_cov_lb": 0.05, "policy_loss.clip_cov_ub": 100.0},
    ),
    _policy(
        "compute_policy_loss_kl_cov",
        "kl_cov",
        {},
        Dialect(
            "order_does_not_matter",
            reason="a fixed number of tokens with the largest covariance is penalised; of equal ones the first",
            link=_core_line(1906),
            symptom="value",
        ),
        metrics={},
        fixed={"cov_share": 0.3, "cov_kl_coef": 1.0},
        options={"policy_loss.kl_cov_ratio": 0.3, "policy_loss.ppo_kl_coef": 1.0},
    ),
    _policy(
        "compute_policy_loss_geo_mean",
        "gmpo",
        _CLIP,
        Dialect("epsilon", 1e-10, "1e-10 is added to a weight before its logarithm", _core_line(1995)),
        # One is of positive advantages, the other of negative ones.
        metrics={"clip_fraction": ("actor/pg_clipfrac", "actor/pg_clipfrac_lower"), "approx_kl": ("actor/ppo_kl",)},
        fixed=_BY_SEQUENCE,
    ),
    _policy("compute_policy_loss_dro", "dro", {"beta": "policy_loss.dro_beta"}),
    _policy("compute_policy_loss_cispo", "cispo", _CLIP, _cut(2070)),
    _policy("compute_policy_loss_reinforce", "reinforce", {}, metrics={"approx_kl": ("actor/ppo_kl",)}),
)

# -- off-policy correction --------------------------------------------------------------------------------------------

_SAFETY_BOUND = Dialect(
    "log_ratio_clamp",
    20.0,
    "SAFETY_BOUND: log-ratios are cut to [-20, 20] before they are exponentiated",
    f"{_MAIN}/trainer/ppo/rollout_corr_helper.py#L75",
)
_RATIO = {"ratio": "k1", "k2": "k2", "k3": "k3"}
_AGGREGATES = {"token": "token", "sequence": "seq_sum", "geometric": "seq_mean", "largest": "seq_max"}


def _log_ratio(inputs: Mapping[str, Any]) -> Any:
    """Compute what the caller in the same module hands in.

    https://github.com/verl-project/verl/blob/1dda039b9c6311889a9c9a26040677e1254814f9/verl/trainer/ppo/rollout_corr_helper.py#L849
    """
    return inputs["old_log_probs"] - inputs["rollout_log_probs"]


def _truncated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run the whole correction with weights alone. For sequences it reports a share of the sequences."""
    level = inputs["level"]
    batch, _, metrics = boundary.invoke(
        taken(inputs, "old_log_probs", "rollout_log_probs", "response_mask"),
        rollout_is=level,
        rollout_is_threshold=inputs["threshold_high"],
        rollout_is_batch_normalize=bool(inputs["normalise"]),
    )
    cut = metrics["rollout_corr/rollout_is_ratio_fraction_high"] if level == "token" else None
    return {"weights": batch.batch["rollout_is_weights"], "clip_fraction": cut}


def _zeroed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call IcePop: two thresholds in one string."""
    if not hasattr(boundary.module, "_parse_rollout_is_threshold"):
        raise AbsentError("not in this version: weights are truncated alone, and never set to 0")
    weights, metrics = boundary.invoke(
        taken(inputs, "response_mask"),
        log_ratio=_log_ratio(inputs),
        rollout_is=inputs["level"],
        rollout_is_threshold=f"{inputs['threshold_low']}_{inputs['threshold_high']}",
        rollout_is_batch_normalize=bool(inputs["normalise"]),
    )
    return {"weights": weights, "clip_fraction": metrics["rollout_is_oob_ratio"]}


def _rejected(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """K1 options have two thresholds of the ratio, the others one of the divergence."""
    low, high = inputs["threshold_low"], inputs["threshold_high"]
    if "rollout_rs_threshold_lower" in boundary.parameters:
        return _rejected_by_ratio(boundary, inputs)
    if inputs["level"] == "largest" and inputs["statistic"] == "ratio":
        raise AbsentError("there is no such option")
    kept, metrics = boundary.invoke(
        taken(inputs, "response_mask"),
        log_ratio=_log_ratio(inputs),
        rollout_rs=f"{_AGGREGATES[inputs['level']]}_{_RATIO[inputs['statistic']]}",
        rollout_rs_threshold=f"{low}_{high}" if inputs["statistic"] == "ratio" else f"{high}",
    )
    return {"kept": kept, "clip_fraction": metrics["rollout_rs_masked_fraction"]}


def _rejected_by_ratio(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Until February 2026 options named a level alone, and the ratio had two thresholds of its own."""
    if inputs["statistic"] != "ratio":
        raise AbsentError("not in this version: what is rejected goes by its ratio")
    kept, metrics = boundary.invoke(
        taken(inputs, "response_mask"),
        log_ratio=_log_ratio(inputs),
        rollout_rs=inputs["level"],
        rollout_rs_threshold=inputs["threshold_high"],
        rollout_rs_threshold_lower=inputs["threshold_low"],
    )
    return {"kept": kept, "clip_fraction": metrics["rollout_rs_masked_fraction"]}


def _correction(function: str, call: Any, fixed: Mapping[str, Any], **accepts: tuple[Any, ...]) -> Binding:
    return Binding(
        f"{_CORRECTION}.{function}",
        "importance_weight",
        call=call,
        fixed=fixed,
        accepts=accepts,
        dialects=(_SAFETY_BOUND,),
    )


def _mismatched(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The correction before rejection had a mask of its own. What is not kept has no weight in the loss."""
    batch, *masks, metrics = boundary.invoke(
        taken(inputs, "old_log_probs", "rollout_log_probs", "response_mask"),
        rollout_is_level=inputs["level"],
        rollout_is_mode="mask",
        rollout_is_threshold=inputs["threshold_high"],
        rollout_is_threshold_lower=inputs["threshold_low"],
        rollout_is_veto_threshold=None,
    )
    kept = masks[0] if masks else inputs["response_mask"]
    weights = batch.batch["rollout_is_weights"] * kept
    return {"weights": weights, "kept": kept, "clip_fraction": metrics["mismatch/rollout_is_masked_fraction"]}


_CORRECTIONS = (
    Binding(
        "verl.trainer.ppo.mismatch_helper.compute_rollout_importance_weights",
        "importance_weight",
        call=_mismatched,
        requires=("verl.trainer.ppo.mismatch_helper.compute_rollout_importance_weights",),
        fixed={"mode": "mask", "normalise": None},
        accepts={"level": ("token", "sequence", "geometric"), "threshold_low": (0.5, 0.9)},
        dialects=(
            _SAFETY_BOUND,
            Dialect(
                "detached",
                False,
                "the trainer's log-probs are constants when it is called",
                "https://github.com/verl-project/verl/blob/4424616d7dfe03cc564866dc5e99dfaba1daba2e/"
                "verl/trainer/ppo/mismatch_helper.py#L130",
            ),
        ),
    ),
    _correction(
        "compute_rollout_correction_and_rejection_mask",
        _truncated,
        {"mode": "truncate", "threshold_low": None},
        level=("token", "sequence"),
        normalise=(False, True),
    ),
    _correction(
        "compute_rollout_correction_weights",
        _zeroed,
        {"mode": "mask"},
        level=("token", "sequence"),
        threshold_low=(0.5, 0.9),
        normalise=(False, True),
    ),
    _correction(
        "compute_rollout_rejection_mask",
        _rejected,
        {"mode": "mask"},
        level=tuple(_AGGREGATES),
        threshold_low=(0.5, 0.9),
        statistic=("k2", "k3", "ratio"),
    ),
)

# -- the rest ---------------------------------------------------------------------------------------------------------


def _kl(function: str, **more: Any) -> Binding:
    return Binding(
        f"{_CORE}.{function}",
        "kl_estimate",
        outputs=("kl",),
        accepts={"response_mask": (None,), "kl_estimator": ("k1", "abs", "k2", "k3", "low_var_kl")},
        dialects=(
            Dialect(
                "clamp", 10, "k3 is cut to [-10, 10]", _core_line(2244), where={"kl_estimator": ("k3", "low_var_kl")}
            ),
        ),
        **more,
    )


def _as_verl_has_them(*bindings: Binding) -> tuple[Binding, ...]:
    """Nothing in verl is in double precision, and a mask in single precision does not go well with it."""
    return tuple(replace(binding, dtypes=("float32", "bfloat16", "float16")) for binding in bindings)


#: What carries no training signal, or runs on what is not there: reason -> paths.
_ASIDE = {
    "layers and attention of a model": "*transformers.*attn* *transformers.*flash_att* *_get_input_embeds "
    "*.*base_forward* *.prepare_fa2* *.process_position_ids *.qwen3_5._[ps]* *.qwen3_5.*_forward *.qwen2_vl_forward "
    "*.npu_* *.mtp_patch.* *.torchtitan.utils.* *.activation_offload.* *.modelopt.* *.mcore.util.*attn_mask*",
    "an engine on a package that is not installed": "*.engine.automodel.* *.engine.torchtitan.* *.engine.veomni.* "
    "*.engine.megatron.* *.mcore.model_forward* *.fsdp_turbo_impl.* *.prefix_grouper_utils.* verl.utils.kernel.*",
    "rollouts that are kept, shown, and read again to skip them": "verl.utils.skip.* verl.utils.tracking.* "
    "*.rollout_trace.* *.trajectory_tracker.* *._log_rollout_data *._dump_generations *._write_generations "
    "*._maybe_log_val_generations",
    "it sets a training up, or goes through its steps": "verl.experimental.separation.* *.one_step_off_policy.* "
    "*.fully_async_trainer.* *.fully_async_rollouter.* *Trainer.fit *Trainer._validate *PPOTrainer.step "
    "*PPOTrainer._step_once *Trainer.__init__ *Trainer._build_* *Trainer._create_dataloader",
    "it starts servers and workers, or hands on what they send": "*.reward_loop.reward_model.* *.reward_loop.*_init* "
    "*.init_model *.update_weights verl.checkpoint_engine.* *.main_ppo_v0.* *.message_queue.* *.unittest.* "
    "*.engine_workers_tinker.* *.dynamic_schedule.* *.main_eval.* *.main_generation_server.*",
    "which tool a text calls": "*.tool_parser.* verl.tools.*",
    "which experts a router has chosen, for a replay in layers not installed": "*.veomni.router_replay.*e[_d]* "
    "*.router_replay_patch.RouterReplay.[cg]* *.RouterReplay.set_[gr]* *.router_replay_patch._* "
    "*.router_replay_patch.patched_routing *.router_replay_utils.*_index* *.router_replay_utils.*Helper.* "
    "*.router_replay_utils.*_data *.build_padding_routed_experts",
    "a forward pass of a model of transformers, which is not imported": "*.models.transformers.*.forward_with_*",
    "images, videos and sounds, as a processor makes them": "*.get_rope_index *.vision_utils.* *.*multi_modal_inputs "
    "*._pad_last_dim_and_cat *._extract_audio_info *VL*ContinuousTokenBuilder.[!_]* *._to_vl2_conversation "
    "*.render_tokens_with_mm *.embeds_padding_2_no_padding",
    "ranks that hand tokens to each other": "*.ulysses.*Manager.*process_data *.ulysses.SeqAllToAll.backward "
    "*.ulysses.gather_outputs_and_unpad *.dynamic_cp_scheduler.*chedule* *.dynamic_cp_scheduler.postprocess* "
    "*.distillation.megatron.* *.engine.spec._shard_dims_group",
    "how a call is dealt out to workers, by chunk and concat of DataProto, which are bound": "*.base.decorator.*",
    "a copy of torch's own": "verl.third_party.*",
    "it loads a tokenizer, a class or a function by a name": "*.hf_tokenizer *.get_processor_token_id "
    "*.set_pad_token_id *.get_dataset_class *.get_custom_reward_fn *.resolve_reward_manager_cls "
    "*.load_reward_manager *_distillation_loss *_distillation_loss_fn *.create_continuous_token_builder "
    "*.migrate_legacy_reward_impl",
    "options that do not go together are refused": "*CriticConfig.validate *CriticConfig._check_* "
    "*.DistillationLossSettings.* *._resolve_filter_groups_metric",
    "keys of what TransferQueue holds, which is not installed": "*.v1.replay_buffer.*terminal* "
    "*.*_accumulate_eviction* *.v1.replay_buffer.*_clear_groups *.v1.replay_buffer.*_keys *.v1.replay_buffer.*_uids "
    "*._has_enough_samples *.async_batch_meta2kv_batch_meta *.construct_minimal_padding_template "
    "*.upsample_batch_to_divisible_size",
    "what validation shows": "*._val_metrics_update *._merge_validation_results",
    "Megatron's own schedule": "*.get_megatron_optimizer_param_scheduler",
}

#: Functions that are left out for one reason: reason -> paths.
_TOGETHER = {
    "it registers and looks up functions by name, and computes nothing": f"""{_CORE}.register_policy_loss
        {_CORE}.get_policy_loss_fn {_CORE}.register_adv_est {_CORE}.get_adv_estimator_fn""",
    "of November 2025 alone; compute_policy_loss_reinforce and the correction's masks and weights are bound": f"""
        {_CORE}.compute_policy_loss_with_rollout_correction {_CORE}.compute_policy_loss_rollout_correction_wrapper""",
    "metrics alone": f"""{_CORRECTION}.compute_rs_metrics {_CORRECTION}.compute_is_metrics
        {_CORRECTION}.compute_offpolicy_metrics {_CORRECTION}.compute_rollout_corr_metrics_from_logprobs""",
    "it needs a process group": f"{_TORCH}.distributed_masked_mean {_TORCH}.distributed_mean_max_min_std",
    "it needs a kernel of another device": f"""{_TORCH}.logprobs_from_logits_flash_attn
        {_TORCH}.logprobs_from_logits_torch_npu {_TORCH}.log_probs_from_logits_all_rmpad""",
    "it slices what logprobs_from_logits, which is bound, returns": f"""{_TORCH}.log_probs_from_logits_response
        {_TORCH}.log_probs_from_logits_response_rmpad""",
}

TARGET = Target(
    name="verl",
    arguments={
        "response_mask": ("response_mask", "loss_mask", "mask", "eos_mask"),
        "log_probs": ("log_probs", "log_prob", "logprob"),
        "old_log_probs": ("old_log_probs", "old_log_prob"),
        "rollout_log_probs": ("rollout_log_probs", "rollout_log_prob"),
        "ref_log_probs": ("ref_logprob",),
        "group": ("index",),
        "labels": ("index",),
        "norm_by_std": ("norm_adv_by_std_in_grpo",),
        "sum_squared_probs": ("sum_pi_squared",),
        "importance_weights": ("rollout_is_weights",),
        "kl_estimator": ("kl_penalty",),
    },
    defaults=("verl/trainer/config/_generated_ppo_trainer.yaml", "verl/trainer/config/ppo_trainer.yaml"),
    repository="https://github.com/verl-project/verl",
    roots=(PackageRoot("verl"),),
    moved={
        **{f"verl.workers.{role}": (f"verl.trainer.ppo.{role}",) for role in ("actor", "critic")},
        "verl.workers.utils.losses": ("verl.workers.roles.utils.losses",),
    },
    pypi="verl",
    preload=("tensordict", "omegaconf"),
    registries=(
        Registry("register_policy_loss", f"{_CORE}.compute_policy_loss_vanilla", "POLICY_LOSS_REGISTRY"),
        Registry("register_adv_est", f"{_CORE}.compute_grpo_outcome_advantage", "ADV_ESTIMATOR_REGISTRY"),
    ),
    bindings=_as_verl_has_them(
        *_OUTCOMES,
        Binding(
            f"{_CORE}.compute_reinforce_plus_plus_outcome_advantage",
            "discounted_return",
            outputs=_ADVANTAGES,
            call=_reinforce_plus_plus,
            fixed={"kl": None, "kl_coef": 0.0},
            dialects=(Dialect("whiten", True, "the estimator whitens its returns over the batch", _core_line(728)),),
        ),
        Binding(
            f"{_CORE}.compute_gae_advantage_return",
            "generalised_advantage",
            outputs=_ADVANTAGES,
            dialects=(Dialect("whiten", True, "the estimator whitens its advantages over the batch", _core_line(262)),),
        ),
        Binding(
            f"{_CORE}.agg_loss",
            "loss_aggregation",
            outputs=("loss",),
            fixed={"weights": None},
            accepts={"dp_size": (1, 2)},
        ),
        *_POLICY_LOSSES,
        Binding(
            f"{_CORE}.compute_value_loss",
            "value_loss",
            outputs=("loss", "clip_fraction"),
            call=partial(passed, since={"loss_agg_mode": "token-mean"}),
            accepts={"cliprange_value": (0.2, 0.6), "dp_size": (1, 2)},
            dialects=(Dialect("factor", 0.5, "the loss is half the squared error", _core_line(2174)),),
        ),
        _kl("kl_penalty", twins=(f"{_CORE}.kl_penalty_forward",)),
        _kl("kl_penalty_forward", twins=(f"{_CORE}.kl_penalty",)),
        *_CORRECTIONS,
        # At the head of #6362 alone.
        Binding(
            f"{_CORE}._masked_reward_sum",
            "masked_statistics",
            arguments={"values": ("token_level_rewards",)},
            outputs=("row_statistic",),
            fixed={**MASKED_STATISTICS.lacking(), "statistic": "sum", "axis": "token"},
            requires=(f"{_CORE}._masked_reward_sum",),
        ),
        masked_statistic(f"{_TORCH}.masked_mean", "mean", "axis"),
        masked_statistic(f"{_TORCH}.masked_sum", "sum", "axis"),
        masked_statistic(f"{_TORCH}.masked_var", "var", "unbiased"),
        masked_statistic(f"{_TORCH}.masked_whiten", "whiten", "shift_mean"),
        *updates.BINDINGS,
        *data.BINDINGS,
        *containers.BINDINGS,
        *schedules.BINDINGS,
        *rewards.BINDINGS,
        *agents.BINDINGS,
    ),
    unbound={
        **{path: reason for reason, paths in _TOGETHER.items() for path in paths.split()},
        f"{_CORE}.compute_rewards": "nothing calls it",
        f"{_CORE}.normalize_gift_kl": "a pull request's loss, which is registered, asks it",
        f"{_CORE}.compute_entropy_loss": "an entropy of logits, aggregated by agg_loss, which is bound",
        f"{_CORE}.compute_pf_ppo_reweight_data": "it draws rows at random, by weights of its own",
        f"{_CORRECTION}.compute_rollout_correction_and_add_to_batch": "it hands a batch to what is bound",
        f"{_CORRECTION}.apply_bypass_mode": "it renames a field of the batch, and sets options",
        f"{_CORRECTION}.apply_rollout_correction": "as apply_bypass_mode, which is its later name",
        "verl.workers.utils.losses.value_loss": "it hands a packed batch to compute_value_loss, which is bound",
        "verl.trainer.ppo.ray_trainer.apply_kl_penalty": "kl_penalty, which is bound, times what a controller moves",
        "verl.trainer.ppo.ray_trainer.compute_spec_decode_metrics": "counts of speculative decoding",
        "verl.trainer.ppo.ray_trainer.compute_timing_metrics": "what is timed",
        "verl.trainer.ppo.ray_trainer.reduce_metrics": "a mean of each metric",
        "verl.trainer.ppo.ray_trainer._compute_response_info": "lengths, for metrics; compute_response_mask came later",
        "verl.trainer.ppo.mismatch_helper.*": "metrics alone, and the glue around what is bound",
        "verl.workers.reward_manager.*": "registers of the managers, which are bound, and the processes of one",
        **rewards.UNBOUND,
        **agents.UNBOUND,
        "verl.workers.rollout.*": "it hands what the agent's loop asks for, which is bound, to an engine's own record",
        "verl.utils.dataset.sft_dataset.*": "one prompt and one response, as a tokenizer makes them of text",
        "verl.workers.hybrid_engine.*": "engines hand a batch to their shards and back",
        "verl.workers.roles.utils.losses.*": "it hands a packed batch to what is bound",
        "verl.trainer.ppo.metric_utils.process_validation_metrics": "bootstrap_metric, bound, for each data source",
        "verl.trainer.ppo.metric_utils.calc_maj_val": "a vote among answers, for validation alone",
        "verl.trainer.ppo.metric_utils.*": "what is timed, or counted of experts: nothing is trained on it",
        **containers.UNBOUND,
        "verl.protocol.*": "serialisation and dictionaries under DataProto",
        "verl.utils.dataset.multiturn_sft_dataset.*": "printing",
        "verl.utils.groupwise.group_mean_std": "grpo_vectorized and the other estimators that call it are bound",
        "verl.utils.seqlen_balancing.greedy_partition": "nothing calls it",
        "verl.utils.seqlen_balancing.get_reverse_idx": "restore_dynamic_batch, which is bound, puts rows back with it",
        "verl.utils.seqlen_balancing.calculate_workload": "an estimate of time, by which rows are dealt out",
        "verl.utils.seqlen_balancing.log_seqlen_unbalance": "a metric of _balance_batch, which is bound",
        "verl.utils.seqlen_balancing.*": "divisions of integers",
        f"{_TORCH}.gather_from_labels": "one gather, in the log-probs that are bound",
        f"{_TORCH}.clip_by_value": "one clamp, in the value loss that is bound",
        f"{_TORCH}.calculate_sum_pi_squared_from_logits": "an input of the optimal token baseline, which is bound",
        f"{_TORCH}.post_process_logits": "nothing calls it",
        f"{_TORCH}.tokenize_and_postprocess_data": "a tokenizer, and postprocess_data, which is bound",
        f"{_TORCH}.*": "collectives, devices and attention kernels",
        **{path: reason for reason, paths in _ASIDE.items() for path in paths.split()},
    },
)
