"""slime: whole steps of the trainer: advantages of a rollout, and the loss of a step as Megatron sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, Dialect
from sentinel.worker.drift import AbsentError
from sentinel.worker.kit import stand_in, swapped

from .shared import (
    ARGS,
    CP,
    LOG_PROBS,
    LOSS,
    MAIN,
    MPU,
    Answer,
    as_rows,
    full_lengths,
    kl_name,
    one_rank,
    parallel_state,
    policy_microbatch,
    valid_counts,
    valid_samples,
)


def _loss_args(per_token: bool, global_batch_size: int) -> Any:
    """Supervised: the loss of a token is its log-prob's negative, and nothing else is in it."""
    return stand_in(
        loss_type="sft_loss",
        calculate_per_token_loss=per_token,
        global_batch_size=global_batch_size,
        recompute_loss_function=False,
        allgather_cp=False,
        qkv_format="thd",
        rollout_top_p=1.0,
    )


def _microbatch(
    boundary: Any, losses: list[Any], args: Any, batch: Mapping[str, Any], num_microbatches: int
) -> tuple[Any, Any]:
    """(loss, what Megatron divides by) of one microbatch with these losses of its tokens."""
    import torch

    answer = Answer(log_probs=[-row for row in losses])
    with swapped(boundary.module, "get_log_probs_and_entropy", lambda *_, **__: answer):
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
    """One microbatch on one rank. Megatron divides by the tokens that it is told, or by the number of microbatches.

    https://github.com/NVIDIA/Megatron-LM/blob/core_v0.14.0/megatron/core/pipeline_parallel/schedules.py#L288
    """
    per_token = inputs["loss_agg_mode"] == "token-mean"
    masks = list(inputs["response_mask"])
    rows = inputs["global_batch_size"]
    args = _loss_args(per_token, len(masks) if rows is None else rows)
    batch = {
        "loss_masks": masks,
        "rollout_mask_sums": [mask.sum() for mask in masks],
        "unconcat_tokens": None,
        **full_lengths(inputs),
    }
    with one_rank():
        loss, count = _microbatch(boundary, list(inputs["loss_mat"]), args, batch, 1)
    return {"loss": loss / count}


def _shared_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The loss of one sample whose tokens are spread over context-parallel ranks, as Megatron averages it over them."""
    import torch

    losses, ranks = inputs["losses"], inputs["context_parallel_size"]
    mask, tokens = torch.ones_like(losses), len(losses)
    prompt = inputs["prompt_length"]
    batch = {
        "loss_masks": [mask],
        "rollout_mask_sums": [mask.sum()],
        "unconcat_tokens": None,
        "response_lengths": [tokens],
        "total_lengths": [tokens + prompt],
    }
    args = _loss_args(inputs["per_token"], 1)
    if not hasattr(boundary.imported[CP], "slice_log_prob_with_cp"):
        raise AbsentError("not in this version: nothing there gives a rank its part of a response's tokens")
    own = boundary.imported[CP].slice_log_prob_with_cp
    total = 0.0
    for rank in range(ranks):
        with one_rank(rank, context_parallel=ranks, data_parallel=ranks):
            part = own(losses, tokens + prompt, tokens) if ranks > 1 else losses
            loss, count = _microbatch(boundary, [part], args, batch, 1)
        total += loss / count / ranks
    return {"loss": total}


def _advantage_args(estimator: str, **options: Any) -> Any:
    """The KL will be k1, so that log-probs that are KLs beside a reference of 0 have these."""
    return stand_in(
        advantage_estimator=estimator,
        custom_advantage_function_path=None,
        **dict.fromkeys(("use_rollout_logprobs", "use_opd", "normalize_advantages"), False),
        **options,
    )


def _advantage_step(boundary: Any, args: Any, data: dict[str, Any]) -> None:
    """With k1 as the KL.

    :raises AbsentError: of July 2025, when the step knew GRPO alone and took its data from a storage of its own."""

    if len(boundary.parameters) == 1:
        raise AbsentError("not in this version: GRPO is the only estimator")
    args.kl_loss_type = kl_name(boundary.module.compute_approx_kl, "k1")
    with one_rank():
        boundary.function(args, *parallel_state(boundary), data)


def _ppo_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """PPO's advantages, with what the rollout data says of the KL afterwards. Samples of the lengths of the mask."""
    import torch

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
        raise AbsentError("not in this version: the rollout data does not say the KL")
    return {name: as_rows(data[name], width) for name in ("kl", "advantages")}


#: Options of PPO's advantages -> canonical input.
_PPO_OPTIONS = {"kl_coef": "kl_coef", "gamma": "gamma", "lambd": "lam"}


def _outcomes(inputs: Mapping[str, Any]) -> list[float]:
    """One reward a sample: the one that stands on a token that counts."""
    import torch

    rewards = torch.where(inputs["response_mask"] != 0, inputs["token_level_rewards"], 0.0)
    return [float(reward) for reward in rewards.sum(-1)]


def _ppo_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Samples of the lengths that the mask says; no KL penalty."""
    import torch

    (values,) = valid_samples(inputs, "values").values()
    data = {
        **valid_counts(inputs),
        "log_probs": [torch.zeros_like(row) for row in values],
        "values": values,
        "rewards": _outcomes(inputs),
        "loss_masks": [torch.ones_like(row) for row in values],
    }
    args = _advantage_args("ppo", kl_coef=0.0, gamma=inputs["gamma"], lambd=inputs["lam"])
    _advantage_step(boundary, args, data)
    return {name: as_rows(data[name], inputs["values"].shape[1]) for name in ("advantages", "returns")}


def _reinforce_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    rewards = inputs["token_level_rewards"]
    kl = torch.zeros_like(rewards) if inputs["kl"] is None else inputs["kl"]
    data = {
        "log_probs": list(kl),
        "ref_log_probs": list(torch.zeros_like(kl)),
        "rewards": _outcomes(inputs),
        "loss_masks": list(inputs["response_mask"]),
        **full_lengths(inputs),
    }
    args = _advantage_args("reinforce_plus_plus", kl_coef=inputs["kl_coef"], gamma=inputs["gamma"])
    _advantage_step(boundary, args, data)
    return {name: torch.stack(list(data[name])) for name in ("advantages", "returns")}


def _policy_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One step on one microbatch: the gradient of the policy loss and its KL term; no entropy term."""
    import torch

    log_probs, mask = inputs["log_probs"], inputs["response_mask"] != 0
    reference = inputs["ref_log_probs"]

    def token_mean(values: Any) -> Any:
        return torch.where(mask.reshape(-1), values, 0.0).sum() / mask.sum().clamp(min=1)

    loss, told = policy_microbatch(
        boundary,
        {**inputs, "response_mask": mask.to(log_probs.dtype)},
        token_mean,
        {} if reference is None else {"ref_log_probs": list(reference)},
        kl_loss_type=kl_name(boundary.module.compute_approx_kl, inputs["kl_estimator"]),
        kl_loss_coef=inputs["kl_coef"],
        use_kl_loss=reference is not None,
    )
    gradient = torch.autograd.grad(loss, log_probs)[0]
    return {"gradient": gradient, "pg_loss": told["pg_loss"], "kl_loss": told.get("kl_loss")}


def _prompt_mean(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A step with as many responses a prompt, after the division by the responses that follows."""
    import torch

    losses, mask, labels = inputs["loss_mat"], inputs["response_mask"], list(inputs["group"])
    sums = {label: sum(row.sum() for row, own in zip(mask, labels) if own == label) for label in labels}
    args = stand_in(
        loss_aggregation="prompt_mean", n_samples_per_prompt=len(labels) // len(sums), calculate_per_token_loss=False
    )
    batch = {"prompt_mask_sums": [torch.as_tensor(sums[label]) for label in labels]}
    lengths = full_lengths(inputs)
    with one_rank():
        reducer = boundary.invoke({}, args, batch=batch, pg_loss_masks=list(mask), default_reducer=None, **lengths)
        return {"loss": reducer(losses.reshape(-1)) / len(labels)}


BINDINGS = (
    Binding(
        f"{LOSS}.loss_function",
        "loss_aggregation",
        call=_step_loss,
        stand_ins=(ARGS, MPU, LOG_PROBS),
        accepts={
            "loss_agg_mode": ("seq-mean-token-mean", "token-mean"),
            # The number of samples of a step is always given; that of tokens is counted.
            "global_batch_size": (0, 2),
            **dict.fromkeys(("batch_num_tokens", "dp_size", "loss_scale_factor", "weights"), (None,)),
        },
    ),
    Binding(
        f"{LOSS}.loss_function",
        "context_parallel_loss",
        call=_shared_loss,
        imports=(CP,),
        stand_ins=(ARGS, MPU, LOG_PROBS),
    ),
    Binding(
        f"{LOSS}.compute_advantages_and_returns",
        "generalised_advantage",
        call=_ppo_advantages,
        stand_ins=(ARGS, MPU),
        fixed={"reward_layout": "outcome"},
        # A sample is its response alone, so what does not count is padding.
        accepts={"response_mask": ("full", "right")},
        dtypes=("float32",),
    ),
    Binding(
        f"{LOSS}.compute_advantages_and_returns",
        "discounted_return",
        call=_reinforce_advantages,
        stand_ins=(ARGS, MPU),
        fixed={"reward_layout": "outcome"},
        dtypes=("float32",),
        dialects=(
            Dialect(
                "masked_steps",
                "counted",
                "returns are discounted by the position of a token; a token that does not count has no KL penalty",
                f"{MAIN}/utils/ppo_utils.py#L430",
            ),
        ),
    ),
    Binding(
        f"{LOSS}.compute_advantages_and_returns",
        "penalised_advantage",
        call=_ppo_kl,
        stand_ins=(ARGS, MPU),
        accepts={"response_mask": ("full", "right")},
        dtypes=("float32",),
    ),
    Binding(
        f"{LOSS}.policy_loss_function",
        "policy_update",
        call=_policy_step,
        stand_ins=(ARGS, MPU, LOG_PROBS),
        fixed={
            "loss_agg_mode": "token-mean",
            "dp_size": 1,
            # The kernel's clips are looked at on its own boundary.
            **dict.fromkeys(("micro_batch_size", "max_tokens_per_microbatch", "dual_clip")),
        },
        accepts={"kl_estimator": ("k1", "k2", "k3")},
    ),
    Binding(
        f"{LOSS}.get_pg_loss_reducer",
        "prompt_loss",
        call=_prompt_mean,
        stand_ins=(ARGS, MPU),
        requires=(f"{LOSS}.get_pg_loss_reducer",),  # the head of #2090, which was not merged
    ),
)
