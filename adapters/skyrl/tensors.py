"""Bindings for SkyRL's functions of tensors: advantages, statistics, reductions, off-policy correction, log-probs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import aggregated, group_advantage, masked_statistic
from sentinel.binding.kit import torch

from .policy_losses import CALLS, POLICY_LOSSES, SAFELY, SUMMED, _critic_loss
from .shared import (
    AS_SUMS,
    BATCH,
    CODE,
    CONFIG,
    FORMER_PPO,
    K3_IS_CUT,
    OFF_POLICY,
    PPO,
    TORCH,
    WORKER_UTILS,
    algorithm_of,
    is_averaged_inside,
    ppo_line,
    training_batch,
    with_options,
)

#: The styles of the masks that a search draws. SkyRL aligns every response-level tensor on the right, with padding on
#: the left.
RIGHT_ALIGNED = ("full", "left")


#: KL estimator -> the arguments that select it in versions in which estimators have no names.
_SWITCHES = {"k1": {}, "abs": {"use_abs_kl": True}, "k3": {"use_kl_estimator_k3": True}}


def _whitens(line: int) -> Dialect:
    return Dialect("whiten", True, "the estimator's last step whitens its advantages over the batch", ppo_line(line))


_SUM_OF_ROW = "the score is the sum of a row's rewards, and the driver sets rewards to 0 outside response tokens"
_ZERO_OUTSIDE = f"{CODE}/train/dataset/preprocess.py#L214"
#: An estimator takes ``response_mask``, the extent of the response. A filtered response keeps this mask and has a
#: ``loss_mask`` of 0, which no estimator reads. The statistics of its group therefore include the filtered response.
_EXTENT = "estimators take response_mask, the extent of a response: a filtered response (loss_mask 0) still counts"
_GIVEN_EXTENT = f"{CODE}/train/trainer.py#L1184"
_COUNTED = (
    Dialect("rejected", "counted", _EXTENT, _GIVEN_EXTENT),
    Dialect("a_rejected_row_is_an_absent_row", None, _EXTENT, _GIVEN_EXTENT),
    Dialect("masked_rewards", "counted", _SUM_OF_ROW, _ZERO_OUTSIDE),
    Dialect("masked_values_have_no_influence", None, _SUM_OF_ROW, _ZERO_OUTSIDE),
)


def _outcome(function: str, estimator: str, knobs: tuple[str, ...], *dialects: Dialect) -> Binding:
    """Bind an advantage estimator that uses one score per response."""
    return group_advantage(
        f"{PPO}.{function}",
        partial(kit.call_with, takes=("token_level_rewards", "response_mask", "group", "epsilon", "norm_by_std")),
        estimator,
        knobs,
        *_COUNTED,
        *dialects,
        fixed={"reward_layout": "outcome"},
        accepts={"response_mask": RIGHT_ALIGNED},
    )


# -- loss reduction ----------------------------------------------------------------------------------------------------

REDUCTIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
BY_SEQUENCE = ("seq-mean-token-mean", "seq-mean-token-sum-norm")
_BATCH_SIZE = "the sum of sequence means is divided by the number of rows, including empty ones"


def empty_rows_count(line: str, modes: tuple[str, ...]) -> tuple[Dialect, ...]:
    where = {"loss_agg_mode": modes}
    return (
        Dialect("empty_rows", "counted", _BATCH_SIZE, line, where),
        Dialect("a_rejected_row_is_an_absent_row", None, _BATCH_SIZE, line, where, "value"),
    )


def _sum_losses(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = kit.take_inputs(inputs, "loss_mat", "response_mask")
    if is_averaged_inside(boundary.module):
        return {"loss": boundary.invoke(names, **AS_SUMS) * len(inputs["loss_mat"])}
    return {"loss": boundary.invoke(names)}


def _normalise_in_place(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if {"mini_batch_size", "mini_batch_boundaries"} & {*boundary.parameters}:
        raise AbsentError("this version's normalisation of advantages also scales them for the loss")
    data = {"advantages": inputs["advantages"].clone(), "response_mask": inputs["response_mask"]}
    return {"normalised": boundary.function(data)["advantages"]}


def _aggregate_losses(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Aggregate losses with SkyRL's function that scales advantages for the loss reduction.

    The losses are passed as advantages, and the scaled values are added up.
    """
    reduction = REDUCTIONS[inputs["loss_agg_mode"]]
    return _scaled(boundary, inputs, loss_reduction=reduction, max_seq_len=inputs["loss_scale_factor"])


def _scaled(boundary: Any, inputs: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    names = kit.take_inputs(inputs, "loss_mat", "response_mask")
    scaled = boundary.invoke(names, micro_batch_size=len(inputs["loss_mat"]), **options)
    return {"loss": boundary.module.reduce_loss(scaled, inputs["response_mask"])}


def _aggregate_by_prompt(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    # The rows of a prompt are adjacent.
    prompts = [(rows[0], rows[-1] + 1) for rows in kit.rows_of_groups(inputs["group"])]
    return _scaled(boundary, inputs, loss_reduction="prompt_mean", max_seq_len=1, prompt_boundaries=prompts)


# -- the trainer's normalisation of advantages -------------------------------------------------------------------------


def _normalise_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Normalise advantages with SkyRL's trainer.

    The loss mask is 0 everywhere, so that the loss reduction, which follows in the same step, divides by 1.
    """
    advantages, mask = kit.take_inputs(inputs, "advantages", "response_mask").values()
    fields = {"advantages": advantages.clone(), "response_mask": mask, "loss_mask": torch.zeros(mask.shape)}
    options = {"advantage_batch_normalize": True, "loss_reduction": "token_mean"}
    algorithm = algorithm_of(boundary, options)
    settings = kit.stand_in(algorithm=algorithm, micro_train_batch_size_per_gpu=1)
    trainer = kit.stand_in(cfg=kit.stand_in(trainer=settings))
    by_size = "mini_batch_size" in boundary.parameters
    whole = len(advantages) if by_size else [(0, len(advantages))]
    batch = boundary.invoke({}, trainer, training_batch(boundary, fields), whole)
    return {"normalised": batch["advantages"]}


_BATCH_NORMALISATION: dict[str, Any] = {
    "fixed": {"mean_level": "batch", "std_level": "batch", "leave_one_out": False, "epsilon": 1e-8},
    "accepts": {"response_mask": RIGHT_ALIGNED},
    "dialects": (
        Dialect("std", "biased", "the variance divides by the number of tokens", f"{CODE}/train/trainer.py#L1481"),
        Dialect("epsilon_placement", "floor", "the variance is at least 1e-8", f"{CODE}/train/trainer.py#L1481"),
        Dialect(
            "masked_output",
            "any",
            "on padding, the result is minus the mean; the loss applies its mask before it sums",
            ppo_line(1149),
        ),
    ),
}


# -- off-policy correction ---------------------------------------------------------------------------------------------

_PAIR = ("old_log_probs", "rollout_log_probs", "response_mask")


def _correct(boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], **more: Any) -> Any:
    config = with_options(boundary.imported[CONFIG].OffPolicyCorrectionConfig(), options)
    return boundary.invoke(kit.take_inputs(inputs, *_PAIR), off_policy_correction=config, **more)


def _truncate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    level = inputs["level"]
    options = {f"{level}_tis_ratio_clip_high": inputs["threshold_high"]}
    weights, metrics = _correct(boundary, inputs, options, tis_ratio_type=level)
    return {"weights": weights, "clip_fraction": metrics.get("tis_token_clip_high_ratio")}


def _thresholds(prefix: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_low": inputs["threshold_low"], f"{prefix}_high": inputs["threshold_high"]}


def _mask_outliers(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    kept, _ = _correct(boundary, inputs, _thresholds("outlier_token_is_threshold", inputs))
    return {"kept": kept}


def _mask_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    kept, metrics = _correct(boundary, inputs, _thresholds("token_mask_is_threshold", inputs))
    return {"kept": kept, "clip_fraction": metrics["token_mask_ratio"]}


_SEQUENCE_METRICS = {"geometric": ("geometric", "geo_mask"), "sequence": ("product", "product_mask")}


def _mask_sequences(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    metric, prefix = _SEQUENCE_METRICS[inputs["level"]]
    kept, _ = _correct(boundary, inputs, _thresholds(prefix, inputs), sequence_mask_metric=metric)
    return {"kept": kept}


def _mask_weights(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return SkyRL's rejection mask, and importance weights multiplied by this mask. No weight is clamped."""
    level = inputs["level"]
    metric, prefix = {
        **_SEQUENCE_METRICS,
        "token": (None, "token_mask_is_threshold"),
        "every_token": (None, "outlier_token_is_threshold"),
    }[level]
    kind = {"sequence": "sequence", "geometric": None}.get(level, "token")
    options = {"sequence_mask_metric": metric, "tis_ratio_type": kind, **_thresholds(prefix, inputs)}
    options |= {f"{kind}_tis_ratio_clip_high": float("inf")} if kind else {}
    weights, _, kept = _correct(boundary, inputs, options)
    return {"weights": None if weights is None else weights * kept, "kept": kept}


def _correction(function: str, call: Any, fixed: Mapping[str, Any], **accepts: tuple[Any, ...]) -> Binding:
    return Binding(
        f"{OFF_POLICY}.{function}",
        "importance_weight",
        call=call,
        imports=(CONFIG,),
        fixed=fixed,
        accepts=accepts,
        dialects=SAFELY,
    )


def _report_mismatch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that SkyRL reports about the distance between trainer and rollout log-probs."""
    apart = inputs["advantages"]
    if (apart < 0).any():
        raise AbsentError("the scenario has a negative advantage; here advantages are distances between log-probs")
    report = boundary.function(apart, torch.zeros_like(apart), inputs["response_mask"])
    return {f"advantages_{name.rpartition('_')[2]}": value for name, value in report.items() if "_sq_" not in name}


#: Lower thresholds without None, because a mask needs both thresholds.
_LOWER = (0.5, 0.9)

_TENSORS = (
    Binding(
        f"{WORKER_UTILS}.compute_minibatch_rollout_logprob_diff_metrics", "batch_report", call=_report_mismatch,
        fixed={"returns": None, "values": None},
        requires=(f"{WORKER_UTILS}.compute_minibatch_rollout_logprob_diff_metrics",),
    ),
    Binding(
        f"{PPO}.compute_approx_kl", "kl_estimate", outputs=("kl",),
        call=partial(kit.call_estimator, _SWITCHES, ("log_probs", "ref_log_probs", "response_mask")),
        dialects=K3_IS_CUT,
    ),
    # The function uses the mask only for whitening, and counts every token as a step. This does not change the
    # discounts, because padding is on the left, before the first step.
    Binding(
        f"{PPO}.compute_gae_advantage_return", "generalised_advantage", outputs=("advantages", "returns"),
        call=partial(kit.call_with, takes=("token_level_rewards", "values", "response_mask", "gamma", "lam")),
        accepts={"response_mask": RIGHT_ALIGNED}, dialects=(_whitens(1339),),
    ),
    Binding(
        f"{PPO}.compute_reinforce_plus_plus_outcome_advantage", "discounted_return", outputs=("advantages", "returns"),
        call=partial(kit.call_with, takes=("token_level_rewards", "response_mask", "gamma")),
        fixed={"kl": None, "kl_coef": 0.0}, accepts={"response_mask": RIGHT_ALIGNED}, dialects=(_whitens(1253),),
    ),
    _outcome(
        "compute_grpo_outcome_advantage", "grpo", ("epsilon", "norm_by_std"),
        Dialect(
            "group_of_one", "score", "a response alone in its group has the baseline 0 and the scale 1", ppo_line(1379),
        ),
    ),
    _outcome("compute_rloo_outcome_advantage", "rloo", ()),
    _outcome(
        "compute_maxrl_advantage", "maxrl", ("epsilon",),
        Dialect("group_of_one", "score", "a response alone in its group has the baseline 0", ppo_line(1416)),
    ),
    *POLICY_LOSSES,
    *CALLS,
    Binding(
        f"{PPO}.ppo_critic_loss", "value_loss", arguments={"vpreds": ("values",), "values": ("old_values",)},
        call=_critic_loss, imports=(CONFIG,), fixed=aggregated("seq-mean-token-mean"),
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", ppo_line(174)),
            *empty_rows_count(ppo_line(173), ("seq-mean-token-mean",)),
        ),
    ),
    Binding(f"{PPO}.reduce_loss", "loss_aggregation", call=_sum_losses, fixed={**SUMMED, "weights": None}),
    Binding(
        f"{PPO}.apply_loss_reduction_to_advantages_minibatch", "loss_aggregation",
        arguments={"loss_mat": ("advantages",)}, call=_aggregate_losses,
        fixed=dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "weights")),
        accepts={"loss_agg_mode": tuple(REDUCTIONS), "loss_scale_factor": (8, 3)},
        dialects=empty_rows_count(f"{CODE}/train/config/config.py#L881", BY_SEQUENCE),
    ),
    Binding(
        f"{PPO}.apply_loss_reduction_to_advantages_minibatch", "prompt_loss", arguments={"loss_mat": ("advantages",)},
        call=_aggregate_by_prompt, requires=(f"{PPO}.apply_loss_reduction_to_advantages_minibatch(prompt_boundaries)",),
    ),
    Binding(
        "skyrl.train.trainer.RayPPOTrainer._normalize_advantages", "advantage_normalisation",
        call=_normalise_advantages, imports=(CONFIG, BATCH),
        stand_ins=(StandIn("self", "the real trainer starts Ray; the step reads three options of its configuration"),),
        **_BATCH_NORMALISATION,
    ),
    # The normalisation of advantages in versions where it is not a method of the trainer.
    Binding(
        f"{PPO}.normalize_advantages_dict", "advantage_normalisation",
        formerly=("skyrl.train.trainer.RayPPOTrainer._normalize_advantages",), call=_normalise_in_place,
        **_BATCH_NORMALISATION,
    ),
    masked_statistic(f"{TORCH}.masked_mean", "mean", "axis"),
    masked_statistic(f"{PPO}.masked_var", "var", "unbiased"),
    masked_statistic(f"{PPO}.masked_whiten", "whiten", "shift_mean"),
    _correction(
        "compute_tis_ratio", _truncate, {"mode": "truncate", "threshold_low": None}, level=("token", "sequence"),
    ),
    _correction("compute_outlier_token_mask", _mask_outliers, {"level": "every_token", "mode": "mask"}),
    _correction("compute_token_mask", _mask_tokens, {"level": "token", "mode": "mask"}, threshold_low=_LOWER),
    _correction(
        "compute_sequence_mask", _mask_sequences, {"mode": "mask"}, level=("geometric", "sequence"),
        threshold_low=_LOWER,
    ),
    _correction(
        "compute_off_policy_correction", _mask_weights, {"mode": "mask"},
        level=("token", "every_token", *_SEQUENCE_METRICS), threshold_low=_LOWER,
    ),
)  # fmt: skip


# -- log-probs and entropies of a model's logits -----------------------------------------------------------------------

#: SkyRL divides logits by the temperature in the model wrapper, before it calls these functions.
_LOG_PROBS = {"temperature": 1.0, "with_entropy": False}
_ENTROPY = {"temperature": 1.0, "with_entropy": True, "entropy_of": "sampled"}


def _compute_entropies(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # The contract also needs log-probs with a gradient. Another function of the same module computes them.
    log_probs = boundary.module.logprobs_from_logits_v2(inputs["logits"], inputs["token_ids"])
    masked = "attention_mask" in boundary.parameters
    masks = {"attention_mask": inputs["response_mask"]} if masked else {}
    return {"log_probs": log_probs, "entropy": boundary.invoke({}, inputs["logits"].detach(), **masks)}


def _bound(function: str, call: Any, fixed: Mapping[str, Any]) -> Binding:
    return Binding(f"{TORCH}.{function}", "token_log_probs", call=call, fixed=fixed)


_LOG_PROBS = (
    _bound("logprobs_from_logits", kit.call_log_probs, _LOG_PROBS),
    _bound("logprobs_from_logits_v2", kit.call_log_probs, _LOG_PROBS),
    _bound("chunked_entropy_from_logits", _compute_entropies, _ENTROPY),
)  # fmt: skip


# -- ``skyrl_train``, a package of its own under Hydra -----------------------------------------------------------------
# Its functions are bound under their present names (``MOVED``), except for the loss, which computes averages itself.


_FORMER = (
    Binding(
        f"{FORMER_PPO}.reduce_loss", "loss_aggregation", formerly=(f"{PPO}.reduce_loss",),
        arguments={"loss_agg_mode": ("loss_reduction",), "loss_scale_factor": ("max_seq_len",)}, outputs=("loss",),
        call=partial(
            kit.call_with, takes=("loss_mat", "response_mask", "loss_agg_mode", "loss_scale_factor"),
            values_of={"loss_agg_mode": REDUCTIONS},
        ),
        requires=(f"{FORMER_PPO}.reduce_loss",),
        fixed=dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "weights")),
        accepts={"loss_agg_mode": tuple(REDUCTIONS), "loss_scale_factor": (8, 3)},
        dialects=empty_rows_count(f"{CODE}/train/config/config.py#L881", BY_SEQUENCE),
    ),
)  # fmt: skip

BINDINGS = (*_TENSORS, *_LOG_PROBS, *_FORMER)
