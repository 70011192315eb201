"""Bindings for slime's training step, its advantages, its learning-rate schedule and its pass@k."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MPU
from sentinel.binding.kit import torch

from .balancing import schedule_of
from .shared import (
    ARGS,
    CP,
    LOG_PROBS,
    LOSS,
    MAIN,
    PPO,
    Answer,
    as_rows,
    full_lengths,
    joined,
    kl_name,
    mask_sums,
    one_rank,
    parallel_state,
    policy_args,
    policy_batch,
    shards,
    valid_counts,
    valid_samples,
)


def _loss_args(per_token: bool, global_batch_size: int, loss_type: str = "sft_loss", **options: Any) -> Any:
    """Return the command-line options that slime's loss function reads."""
    off = {"recompute_loss_function": False, "allgather_cp": False, "qkv_format": "thd", "rollout_top_p": 1.0}
    return kit.stand_in(
        loss_type=loss_type,
        calculate_per_token_loss=per_token,
        global_batch_size=global_batch_size,
        **{**off, **options},
    )


def _microbatch(
    boundary: Any, losses: list[Any], args: Any, batch: Mapping[str, Any], num_microbatches: int
) -> tuple[Any, Any]:
    """Run slime's loss function on a microbatch with the given token losses.

    :returns: the loss, and the denominator that slime passes to Megatron.
    """
    answer = Answer(log_probs=[-row for row in losses])  # the default loss type, sft_loss, negates log-probs
    with kit.swap(boundary.module, "get_log_probs_and_entropy", lambda *_, **__: answer):
        loss, count, _ = boundary.invoke(
            {},
            args,
            batch,
            num_microbatches=num_microbatches,
            step_global_batch_size=args.global_batch_size,
            logits=torch.zeros(()),
        )
    return loss, count


def _step_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of one microbatch on one rank, divided by the denominator that slime passes to Megatron.

    If the number of samples is odd, the loss function is one of the user, namely slime's own.

    https://github.com/NVIDIA/Megatron-LM/blob/core_v0.14.0/megatron/core/pipeline_parallel/schedules.py#L288
    """
    per_token = inputs["loss_agg_mode"] == "token-mean"
    masks = list(inputs["response_mask"])
    rows = inputs["global_batch_size"]
    args = _loss_args(per_token, len(masks) if rows is None else rows)
    if len(masks) % 2 and "custom_loss_function_path" in kit.source_of(boundary.function):
        args.loss_type, args.custom_loss_function_path = "custom_loss", f"{boundary.module.__name__}.sft_loss_function"
    batch = {"loss_masks": masks, **mask_sums(masks), "unconcat_tokens": None, **full_lengths(inputs)}
    with one_rank():
        loss, count = _microbatch(boundary, list(inputs["loss_mat"]), args, batch, 1)
    return {"loss": loss / count}


def _shared_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split one sample over context-parallel ranks, and return the mean of the ranks' losses, as Megatron does."""
    losses, ranks = inputs["losses"], inputs["context_parallel_size"]
    mask, tokens = torch.ones_like(losses), len(losses)
    whole = tokens + inputs["prompt_length"]
    lengths = {"response_lengths": [tokens], "total_lengths": [whole]}
    batch = {"loss_masks": [mask], **mask_sums([mask]), "unconcat_tokens": None, **lengths}
    # with an all-gather before the attention, ranks compute the loss of the same tokens
    args = _loss_args(inputs["per_token"], 1, allgather_cp=inputs["prompt_length"] % 2 == 1)
    own = boundary.imported[CP].slice_log_prob_with_cp
    total = 0.0
    for rank in range(ranks):
        with one_rank(rank, context_parallel=ranks, data_parallel=ranks):
            part = own(losses, whole, tokens) if ranks > 1 else losses
            loss, count = _microbatch(boundary, [part], args, batch, 1)
        total += loss / count / ranks
    return {"loss": total}


def _advantage_args(estimator: str, **options: Any) -> Any:
    """Return the command-line options that slime reads to compute advantages."""
    return kit.stand_in(
        advantage_estimator=estimator,
        custom_advantage_function_path=None,
        **dict.fromkeys(("use_rollout_logprobs", "use_opd", "normalize_advantages"), False),
        **options,
    )


def _advantage_step(boundary: Any, args: Any, data: dict[str, Any], ranks: int = 1) -> None:
    """Compute advantages and returns with slime, and store them in ``data``. Each context-parallel rank has a part of
    each response.

    :raises AbsentError: if there are several ranks and this version cannot be called with them.
    """

    args.kl_loss_type = kl_name(boundary.module.compute_approx_kl, "k1")
    if len(boundary.parameters) == 1:
        if ranks > 1:
            raise AbsentError("this version reads its data from a local store, and can be called only with one rank")
        _stored_step(boundary, args, data)
        return
    if ranks == 1 and not args.normalize_advantages:
        with one_rank():
            boundary.function(args, *parallel_state(boundary), data)
        return
    own, cut = shards(data["response_lengths"], ranks), ("log_probs", "ref_log_probs", "values")

    def work(rank: int) -> dict[str, Any]:
        mine = {name: [row[t] for row, t in zip(data[name], own[rank])] for name in cut if name in data}
        mine = {**data, **mine}
        boundary.function(args, *parallel_state(boundary), mine)
        return mine

    with one_rank(None, context_parallel=ranks):
        of_ranks = kit.on_ranks(ranks, work)
    data.update((name, joined([each[name] for each in of_ranks], own)) for name in ("advantages", "returns"))


def _stored_step(boundary: Any, args: Any, data: dict[str, Any]) -> None:
    """Compute advantages with a version of slime from before August 2025, which reads its data from a store. Whitening
    is off.

    :raises AbsentError: if this version does not have the estimator.
    """
    module, kernels = boundary.module, sys.modules[PPO]
    with one_rank(), contextlib.ExitStack() as swaps:
        swaps.enter_context(kit.swap(module, "get_local_storage", data.get))
        swaps.enter_context(kit.swap(module, "set_local_storage", data.__setitem__))
        swaps.enter_context(kit.swap(kernels, "distributed_masked_whiten", kit.return_first))
        try:
            boundary.function(args)
        except NotImplementedError as error:
            raise AbsentError(f"this version does not implement the advantage estimator: {error}") from error


def _ppo_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the PPO advantages and the token KL that slime computes and adds to the rollout data."""
    width = inputs["response_mask"].shape[1]
    data: dict[str, Any] = {
        **valid_samples(inputs, "log_probs", "ref_log_probs", "values"),
        **valid_counts(inputs),
        "rewards": inputs["rewards"].tolist(),
        "loss_masks": [torch.ones(n) for n in valid_counts(inputs)["response_lengths"]],
    }
    args = _advantage_args("ppo", **{name: inputs[key] for name, key in _PPO_OPTIONS.items()})
    _advantage_step(boundary, args, data)
    if "kl" not in data:
        raise AbsentError("this version does not add the KL to the rollout data")
    return {name: as_rows(data[name], width) for name in ("kl", "advantages")}


#: Option of PPO's advantages -> contract input.
_PPO_OPTIONS = {"kl_coef": "kl_coef", "gamma": "gamma", "lambd": "lam"}


def _outcomes(inputs: Mapping[str, Any]) -> list[float]:
    rewards = torch.where(inputs["response_mask"] != 0, inputs["token_level_rewards"], 0.0)
    return [float(reward) for reward in rewards.sum(-1)]


def _ppo_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    (values,) = valid_samples(inputs, "values").values()
    data = {
        **valid_counts(inputs),
        "log_probs": [torch.zeros_like(row) for row in values],
        "values": values,
        "rewards": _outcomes(inputs),
        "loss_masks": [torch.ones_like(row) for row in values],
    }
    args = _advantage_args("ppo", kl_coef=0.0, gamma=inputs["gamma"], lambd=inputs["lam"])
    args.normalize_advantages = inputs["whiten"]
    _advantage_step(boundary, args, data, inputs["context_parallel_size"])
    return {name: as_rows(data[name], inputs["values"].shape[1]) for name in ("advantages", "returns")}


def _of_rewards(_: Any, data: dict[str, Any]) -> None:
    """Set each token's advantage to the reward of its response, as a function of the user."""
    rows = [reward + torch.zeros_like(row) for reward, row in zip(data["rewards"], data["log_probs"])]
    data["advantages"], data["returns"] = rows, rows


def _vary(args: Any, estimator: str, boundary: Any) -> None:
    """Set another advantage estimator, if this version has it."""
    source = kit.source_of(boundary.function)
    if estimator == "own" and "custom_advantage_function_path" in source:
        args.custom_advantage_function_path = estimator
    elif f'"{estimator}"' in source:
        args.advantage_estimator = estimator


def _reinforce_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return slime's REINFORCE++ advantages.

    Without discount and KL penalty, they are the rewards of the responses. The advantages of slime's other estimators
    without a critic, and of a function of the user, are then the same.
    """
    rewards, module = inputs["token_level_rewards"], boundary.module
    kl = torch.zeros_like(rewards) if inputs["kl"] is None else inputs["kl"]
    data = {
        "log_probs": list(kl),
        "ref_log_probs": list(torch.zeros_like(kl)),
        "rewards": _outcomes(inputs),
        "loss_masks": list(inputs["response_mask"]),
        **full_lengths(inputs),
    }
    args = _advantage_args("reinforce_plus_plus", kl_coef=inputs["kl_coef"], gamma=inputs["gamma"])
    args.normalize_advantages = inputs["whiten"]
    if inputs["gamma"] == 1.0 and not (inputs["kl_coef"] and kl.any()):
        _vary(args, ("own", "reinforce_plus_plus", "grpo", "reinforce_plus_plus_baseline")[len(rewards) % 4], boundary)
    with kit.swap(module, "load_function", lambda _: _of_rewards):
        _advantage_step(boundary, args, data, inputs["context_parallel_size"])
    return {name: torch.stack(list(data[name])) for name in ("advantages", "returns")}


def _policy_args(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the command-line options of slime's policy loss, including those of the KL and entropy terms.

    :raises AbsentError: if the scenario needs an option that this version lacks.
    """
    if inputs["unbiased_kl"] and "use_unbiased_kl" not in kit.source_of(boundary.module.policy_loss_function):
        raise AbsentError("this version has no option for an unbiased KL estimate")
    per_token, rows = inputs["loss_agg_mode"] == "token-mean", len(inputs["response_mask"])
    return policy_args(
        inputs,
        **vars(_loss_args(per_token, rows, "policy_loss")),
        entropy_coef=inputs["entropy_coef"],
        kl_loss_type=kl_name(boundary.module.compute_approx_kl, inputs["kl_estimator"]),
        kl_loss_coef=inputs["kl_coef"],
        use_kl_loss=inputs["ref_log_probs"] is not None,
        use_unbiased_kl=inputs["unbiased_kl"],
    )


def _policy_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradient of slime's policy loss for one microbatch, including the KL and entropy terms."""
    log_probs, mask = inputs["log_probs"], inputs["response_mask"] != 0
    reference, current = inputs["ref_log_probs"], list(log_probs)
    args = _policy_args(boundary, inputs)
    batch = policy_batch(inputs, mask.to(log_probs.dtype))
    if reference is not None:
        batch["ref_log_probs"] = list(reference)
    entropies = inputs["entropies"]
    answer = Answer(log_probs=current, entropy=list(torch.zeros_like(log_probs) if entropies is None else entropies))

    def token_mean(values: Any) -> Any:
        return torch.where(mask.reshape(-1), values, 0.0).sum() / mask.sum().clamp(min=1)

    with one_rank(), kit.swap(boundary.module, "get_log_probs_and_entropy", lambda *_, **__: answer):
        loss, metrics = boundary.function(args, *parallel_state(boundary), batch, torch.zeros(()), token_mean)
    loss.backward()
    return {**kit.gradients_of(inputs), **_reported(metrics)}


def _reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {"pg_loss": metrics["pg_loss"], "kl_loss": metrics.get("kl_loss"), "entropy": metrics.get("entropy_loss")}


def _policy_steps(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a training step with slime's own microbatch schedule, data iterator, loss and metrics. slime computes each
    loss again in the backward pass if the number of rows is odd.

    The adapter adds up the losses of all microbatches and ranks, and divides the sum as Megatron does: by the number of
    microbatches and ranks or, if slime's loss is per token, by the number of tokens that slime returns.
    """
    mask, ranks = inputs["response_mask"] != 0, inputs["dp_size"]
    rows, width = mask.shape
    places = torch.arange(1, width + 1)
    lengths = [max(int(last), 1) for last in (mask * places).amax(-1)]  # tokens after the last valid one are padding
    whole = {"response_lengths": lengths, "total_lengths": [length + 1 for length in lengths]}
    cutting = {"budget": inputs["max_tokens_per_microbatch"], "micro_batch_size": inputs["micro_batch_size"]}
    cutting["micro_batch_size"] = cutting["micro_batch_size"] or rows // ranks
    schedule = schedule_of(whole["total_lengths"], ranks, **cutting)
    order, cuts, (count,), (size,) = boundary.imported[_SCHEDULE].build_dp_schedule(**schedule)
    tables = {"current": "log_probs", "entropy": "entropies", "log_probs": "old_log_probs"}
    tables |= {"ref_log_probs": "ref_log_probs", "advantages": "advantages"}
    for name, ours in tables.items():
        if inputs[ours] is not None:
            whole[name] = [row[:length] for row, length in zip(inputs[ours], lengths)]
    whole["loss_masks"] = [row[:length].to(inputs["log_probs"].dtype) for row, length in zip(mask, lengths)]
    whole |= mask_sums(whole["loss_masks"])
    args = _policy_args(boundary, inputs)
    args.recompute_loss_function = rows % 2 == 1
    losses, tokens, logs, per_token = [], 0, [], args.calculate_per_token_loss
    with one_rank(data_parallel=ranks), kit.swap(boundary.module, "get_log_probs_and_entropy", _given):
        for rank in range(ranks):
            own = {name: [values[row] for row in order[rank]] for name, values in whole.items()}
            iterator = boundary.imported[_DATA].DataIterator(own, cuts[rank])
            for _ in range(count):
                batch = iterator.get_next([*whole])
                answer = Answer(log_probs=batch["current"], entropy=batch.get("entropy"))
                answer["entropy"] = answer["entropy"] or [torch.zeros_like(row) for row in batch["current"]]
                batch["unconcat_tokens"] = answer
                loss, counted, log = boundary.function(args, batch, count, size, torch.zeros(()))
                losses.append(loss)
                tokens = tokens + counted
                logs.append(log)
        # within the parallel state, because slime may compute the loss again in the backward pass
        (sum(losses) / (tokens if per_token else count * ranks)).backward()
    reports = boundary.imported[_REPORTS]
    with kit.swap(reports.dist, "all_reduce", lambda *_, **__: None):
        metrics = reports.reduce_train_step_metrics(
            logs, calculate_per_token_loss=per_token, step_global_batch_size=size, cp_size=1, dp_with_cp_group=None
        )
    return {**kit.gradients_of(inputs), **_reported(metrics)}


def _given(*_: Any, unconcat_tokens: Any, **__: Any) -> Any:
    """Return the log-probs and entropies that a batch has in the place of its tokens."""
    return unconcat_tokens


def _passed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    flat = [float(value) for responses in inputs["right"] for value in responses]
    return {"pass_at_k": boundary.function(flat, len(inputs["right"][0]))[f"pass@{inputs['k']}"]}


#: Options of Megatron's scheduler, except those for its length.
_OTHER_OPTIONS = (
    "end_weight_decay", "lr", "lr_decay_iters", "lr_decay_style", "lr_warmup_init", "lr_warmup_iters",
    "lr_wsd_decay_iters", "lr_wsd_decay_style", "min_lr", "override_opt_param_scheduler", "start_weight_decay",
    "use_checkpoint_opt_param_scheduler", "weight_decay_incr_style",
)  # fmt: skip


def _schedule_length(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decay and warm-up lengths, in samples, that slime passes to Megatron's learning-rate scheduler.

    The warm-up is a share of the training run or, with an even number of responses to each prompt, a number of updates.
    The scheduler's last phase is as long as the training run.
    """
    steps = inputs["steps_per_epoch"] * inputs["epochs"]
    steps = steps if inputs["max_steps"] is None else min(steps, inputs["max_steps"])
    updates = steps * inputs["prompts_per_step"] * inputs["samples_per_prompt"] // inputs["batch_size"]
    counted = inputs["samples_per_prompt"] % 2 == 0
    args = kit.stand_in(
        num_rollout=steps,
        rollout_batch_size=inputs["prompts_per_step"],
        n_samples_per_prompt=inputs["samples_per_prompt"],
        global_batch_size=inputs["batch_size"],
        lr_warmup_fraction=None if counted else inputs["warmup_ratio"],
        **{
            **dict.fromkeys(_OTHER_OPTIONS),
            "lr_warmup_iters": updates * inputs["warmup_ratio"],
            "lr_wsd_decay_iters": updates,
        },
    )
    with kit.swap(boundary.module, "OptimizerParamScheduler", lambda *_, **options: kit.stand_in(**options)):
        made = boundary.invoke({}, args, None)
    length = made.lr_decay_steps if made.wsd_decay_steps == made.lr_decay_steps else float("nan")
    return {"length": length, "warmup": made.lr_warmup_steps}


_SCHEDULE = "slime.utils.dp_schedule"
_DATA = "slime.backends.megatron_utils.data"
_REPORTS = "slime.observability.train_metric_utils"


def _prompt_mean(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Average losses over prompts with slime's reducer, and divide by the number of responses, as its caller does."""
    losses, mask, labels = inputs["loss_mat"], inputs["response_mask"], list(inputs["group"])
    sums = {label: sum(row.sum() for row, own in zip(mask, labels) if own == label) for label in labels}
    args = kit.stand_in(
        loss_aggregation="prompt_mean", n_samples_per_prompt=len(labels) // len(sums), calculate_per_token_loss=False
    )
    batch = {"prompt_mask_sums": [torch.as_tensor(sums[label]) for label in labels]}
    lengths = full_lengths(inputs)
    with one_rank():
        reducer = boundary.invoke({}, args, batch=batch, pg_loss_masks=list(mask), default_reducer=None, **lengths)
        return {"loss": reducer(losses.reshape(-1)) / len(labels)}


_RANKED = {"context_parallel_size": (1, 2), "whiten": (False, True)}

BINDINGS = (
    # slime always passes the number of samples in a step and counts the tokens itself, so the other counts are None.
    Binding(
        f"{LOSS}.loss_function", "loss_aggregation", call=_step_loss, stand_ins=(ARGS, MPU, LOG_PROBS),
        accepts={
            "loss_agg_mode": ("seq-mean-token-mean", "token-mean"), "global_batch_size": (0, 2),
            **dict.fromkeys(("batch_num_tokens", "dp_size", "loss_scale_factor", "weights"), (None,)),
        },
    ),
    Binding(
        f"{LOSS}.loss_function", "context_parallel_loss", call=_shared_loss, imports=(CP,),
        requires=(f"{CP}.slice_log_prob_with_cp",), stand_ins=(ARGS, MPU, LOG_PROBS),
    ),
    # Samples have only response tokens, so their only invalid tokens are padding on the right.
    Binding(
        f"{LOSS}.compute_advantages_and_returns", "generalised_advantage", call=_ppo_advantages, stand_ins=(ARGS, MPU),
        fixed={"reward_layout": "outcome"}, accepts={"response_mask": ("full", "right"), **_RANKED},
        dtypes=("float32",),
    ),
    Binding(
        f"{LOSS}.compute_advantages_and_returns", "discounted_return", call=_reinforce_advantages,
        stand_ins=(ARGS, MPU), fixed={"reward_layout": "outcome"}, accepts=_RANKED, dtypes=("float32",),
        dialects=(
            Dialect(
                "masked_steps", "counted",
                "returns are discounted by token position; an invalid token has no KL penalty",
                f"{MAIN}/utils/ppo_utils.py#L430",
            ),
        ),
    ),
    Binding(
        f"{LOSS}.compute_advantages_and_returns", "penalised_advantage", call=_ppo_kl, stand_ins=(ARGS, MPU),
        accepts={"response_mask": ("full", "right")}, dtypes=("float32",),
    ),
    # ``low_var_kl`` is left out, because the function that computes it also clamps it and has a binding of its own.
    Binding(
        f"{LOSS}.policy_loss_function", "policy_update", call=_policy_step, stand_ins=(ARGS, MPU, LOG_PROBS),
        fixed={
            "loss_agg_mode": "token-mean", "dp_size": 1,
            **dict.fromkeys(("micro_batch_size", "max_tokens_per_microbatch", "dual_clip")),
        },
        accepts={"kl_estimator": ("k1", "k2", "k3"), "unbiased_kl": (False, True)},
    ),
    # ``low_var_kl`` is left out, because the function that computes it also clamps it and has a binding of its own.
    Binding(
        f"{LOSS}.loss_function", "policy_update", call=_policy_steps, imports=(_SCHEDULE, _DATA, _REPORTS),
        requires=(f"{_SCHEDULE}.build_dp_schedule(rollout_indices)", f"{_REPORTS}.reduce_train_step_metrics"),
        stand_ins=(ARGS, MPU, LOG_PROBS), fixed={"dual_clip": None},
        accepts={
            "kl_estimator": ("k1", "k2", "k3"), "loss_agg_mode": ("token-mean", "seq-mean-token-mean"),
            "unbiased_kl": (False, True),
        },
        dialects=(
            Dialect(
                "empty_rows", "counted", "a step counts all samples, including those without a valid token",
                f"{MAIN}/backends/megatron_utils/loss.py#L1357", {"loss_agg_mode": ("seq-mean-token-mean",)},
            ),
        ),
    ),
    Binding(
        "slime.backends.megatron_utils.model.get_optimizer_param_scheduler", "schedule_length", call=_schedule_length,
        stand_ins=(ARGS, StandIn("OptimizerParamScheduler", "records its arguments, which are the observation")),
        fixed={"turns": 1, "update_epochs": 1, "unit": "samples"},
    ),
    Binding(
        "slime.observability.metric_utils.compute_pass_rate", "pass_at_k", call=_passed, accepts={"of": ("any",)},
        formerly=("slime.utils.metric_utils.compute_pass_rate",),
    ),
    # This reducer exists only at the head of #2090, which was not merged.
    Binding(
        f"{LOSS}.get_pg_loss_reducer", "prompt_loss", call=_prompt_mean, stand_ins=(ARGS, MPU),
        requires=(f"{LOSS}.get_pg_loss_reducer",),
    ),
)  # fmt: skip
