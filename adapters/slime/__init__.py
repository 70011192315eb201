"""Adapter for slime (THUDM/slime): the functions that Sentinel checks, and how it calls them.

slime stores a batch as a list of one-dimensional samples, and gets its ranks from Megatron. The adapter passes each row
of a scenario as a sample, with its mask as the loss mask. One process replaces Megatron's ranks.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.binding import kit
from sentinel.binding.families import MPU, normalised_rewards, policy_loss
from sentinel.binding.kit import torch

from . import balancing, data, log_probs, rewards, rollouts, samples, steps
from .shared import (
    ARGS,
    CP,
    LOG_PROBS,
    LOSS,
    MAIN,
    PPO,
    SELF,
    TYPES,
    Answer,
    as_rows,
    as_samples,
    full_lengths,
    kl_name,
    mask_sums,
    one_rank,
    parallel_state,
    policy_microbatch,
    valid_counts,
    valid_samples,
)

# -- KL and policy losses ----------------------------------------------------------------------------------------------


def _kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"kl": boundary.invoke({**inputs, "kl_estimator": kl_name(boundary.function, inputs["kl_estimator"])})}


def _opsm(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call slime's OPSM function with a list of samples, and reshape the mask that it returns to ``[batch, tokens]``.

    #1917 renames ``advantages`` to ``full_advantages`` and adds ``local_advantages``. With context parallelism,
    ``local_advantages`` has the shape of the returned mask. Without context parallelism, both are the same.
    """
    shape = inputs["log_probs"].shape
    samples = as_samples(inputs, "log_probs", "old_log_probs", "advantages", "response_mask")
    args = Namespace(opsm_delta=inputs["opsm_delta"])
    mask, clip_fraction = boundary.invoke(samples, args=args, local_loss_masks=samples["response_mask"])
    policy_loss = boundary.module.compute_policy_loss
    losses, _ = policy_loss(inputs["ppo_kl"], inputs["advantages"], inputs["eps_clip"], inputs["eps_clip_high"])
    return {"opsm_mask": mask.reshape(shape), "opsm_clipfrac": clip_fraction, "policy_loss": losses}


def _policy_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token-level losses of one of slime's policy loss functions.

    The function's argument ``ppo_kl`` is the old log-prob minus the new log-prob:
    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/backends/megatron_utils/loss.py#L1033
    """
    names = ("log_probs", "old_log_probs", "advantages", "eps_clip_low", "eps_clip_high", "dual_clip")
    arguments = {name: inputs[name] for name in names if kit.takes_input(boundary, name)}
    answer = boundary.invoke(arguments, ppo_kl=inputs["old_log_probs"] - inputs["log_probs"])
    return {"per_token_loss": answer[0], "clip_fraction": answer[1]}


def _gspo(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute GSPO's token losses: pass the KL of each sequence, from ``compute_gspo_kl``, to slime's policy loss.

    The policy loss has no mask, so advantages of masked tokens are set to 0 here. In slime, the caller's reducer, which
    has its own binding, handles masked tokens.
    """
    shape = inputs["log_probs"].shape
    advantages = torch.where(inputs["response_mask"] != 0, inputs["advantages"], 0.0)
    samples = as_samples(inputs, "log_probs", "old_log_probs", "response_mask")
    local = {"local_log_probs": samples["log_probs"], "local_loss_masks": samples["response_mask"]}
    kl = boundary.invoke(samples, **local).reshape(shape)
    losses, clipped = boundary.module.compute_policy_loss(
        kl, advantages, inputs["eps_clip_low"], inputs["eps_clip_high"], inputs["dual_clip"]
    )
    return {"per_token_loss": losses, "clip_fraction": clipped}


_FUNCTIONS = StandIn("load_function", "returns a reducer of the user, which is slime's own")
_ALGORITHMS = {"ppo": "grpo", "gspo": "gspo", "cispo": "cispo"}


def _policy_loss_function(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute slime's policy loss of a microbatch.

    The old log-probs are those of the trainer, those of the rollout engine, or none if the update is on-policy. The
    importance weights and the reducer may be functions of the user.
    """
    algorithm, module, odd = _ALGORITHMS[inputs["algorithm"]], boundary.module, len(inputs["log_probs"]) % 2
    if algorithm == "cispo" and not hasattr(module, "compute_cispo_loss"):
        raise AbsentError("this version has no function compute_cispo_loss")
    source, weights, masks = (
        kit.source_of(boundary.function),
        inputs["importance_weights"],
        list(inputs["response_mask"]),
    )
    options: dict[str, Any] = {"advantage_estimator": algorithm}
    old = inputs["log_probs"].detach() if inputs["on_policy"] else inputs["old_log_probs"]
    more: dict[str, Any] = {}
    if inputs["on_policy"]:
        if "not old_log_probs" not in source:
            raise AbsentError("this version requires old log-probs")
        more["log_probs"] = None
    with one_rank():
        reducer = _reducer(boundary, inputs)
    usual, functions = reducer, nullcontext()
    if weights is not None:  # weights relative to the rollout's log-probs, without bounds
        own = f"{module.__name__}.icepop_function" if odd and hasattr(module, "icepop_function") else None
        options |= {"use_tis": True, "tis_clip_low": 0.0, "tis_clip": float("inf"), "custom_tis_function_path": own}
        options["calculate_per_token_loss"] = inputs["loss_agg_mode"] == "token-sum"
        more["rollout_log_probs"] = list(old - weights.log())
        more |= mask_sums(masks)
    elif odd and "custom_pg_loss_reducer_function_path" in source:
        options["custom_pg_loss_reducer_function_path"] = "own"
        functions = kit.swap(module, "load_function", lambda _: partial(kit.return_first, reducer))
        usual = _nothing  # only the user's reducer counts
    elif not inputs["on_policy"] and "use_rollout_logprobs" in source:
        options["use_rollout_logprobs"] = True
        more |= {"rollout_log_probs": list(old), "log_probs": list(torch.zeros_like(old))}
    with functions:
        loss, _ = policy_microbatch(boundary, inputs, usual, more, **options)
    return {"loss": _of_sequences(loss, inputs)}


def _nothing(values: Any) -> Any:
    return 0.0 * values.detach().nan_to_num(0.0, 0.0, 0.0).sum()


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs = list(inputs["log_probs"])
    answer = Answer(log_probs=log_probs)
    batch = {"unconcat_tokens": None, **full_lengths(inputs)}
    with one_rank(), kit.swap(boundary.module, "get_log_probs_and_entropy", lambda *_, **__: answer):
        loss, _ = boundary.function(None, *parallel_state(boundary), batch, torch.zeros(()), _reducer(boundary, inputs))
    return {"loss": _of_sequences(loss, inputs)}


def _value_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    vpreds = inputs["vpreds"]
    rows, tokens = vpreds.shape
    per_token = inputs["loss_agg_mode"] == "token-sum"
    args = kit.stand_in(
        value_clip=inputs["cliprange_value"], allgather_cp=False, rollout_temperature=1.0, qkv_format="thd",
        loss_type="value_loss", recompute_loss_function=False, calculate_per_token_loss=per_token,
    )  # fmt: skip
    masks = list(inputs["response_mask"])
    batch = {
        "unconcat_tokens": list(torch.zeros(rows, tokens + 1, dtype=torch.long)),
        "loss_masks": masks,
        **mask_sums(masks),
        **as_samples(inputs, "values", "returns"),
        **full_lengths(inputs),
    }
    # slime reads the value of a token at the position before the token.
    logits = torch.cat([vpreds, torch.zeros_like(vpreds[:, :1])], dim=1).reshape(1, -1, 1)
    with one_rank():
        if rows % 2 and "step_global_batch_size" in kit.source_of(boundary.module.loss_function):
            # slime's caller divides the sum of sequence means itself
            loss, _, _ = boundary.module.loss_function(args, batch, 1, inputs["global_batch_size"], logits)
            return {"loss": loss}
        loss, _ = boundary.invoke({}, args, batch, logits, _reducer(boundary, inputs))
    return {"loss": _of_sequences(loss, inputs)}


# -- reducers ----------------------------------------------------------------------------------------------------------

_MEANS = "seq-mean-token-mean"


def _reducer(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return slime's function that sums the means of samples or, if the mode is ``token-sum``, the losses of tokens."""
    make = boundary.imported[CP].get_sum_of_sample_mean if CP in boundary.imported else boundary.function
    lengths, masks = full_lengths(inputs), list(inputs["response_mask"])
    per_token = inputs["loss_agg_mode"] == "token-sum"
    return make(lengths["total_lengths"], lengths["response_lengths"], masks, calculate_per_token_loss=per_token)


def _of_sequences(loss: Any, inputs: Mapping[str, Any]) -> Any:
    """Divide the loss by the global batch size if it is a sum of sequence means, as slime's caller does.

    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/backends/megatron_utils/loss.py#L1357
    """
    return loss / inputs["global_batch_size"] if inputs["loss_agg_mode"] == _MEANS else loss


def _sum_of_sample_mean(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    with one_rank():
        loss = _reducer(boundary, inputs)(inputs["loss_mat"].reshape(-1))
    return {"loss": _of_sequences(loss, inputs)}


def _packed_sum(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    lengths, masks = full_lengths(inputs), list(inputs["response_mask"])
    loss = boundary.function(inputs["loss_mat"].reshape(-1), lengths["response_lengths"], masks)
    return {"loss": _of_sequences(loss, inputs)}


#: slime's caller always divides by a given number of sequences, so the other counts are None.
_AGGREGATION = {
    "loss_agg_mode": (_MEANS, "token-sum"),
    "global_batch_size": (0, 2),
    **dict.fromkeys(("batch_num_tokens", "dp_size", "loss_scale_factor"), (None,)),
}

#: A dialect of functions that return token-level losses, to which the caller applies the mask.
_TOKENS = Dialect(
    "masked_values_have_no_influence",
    reason="the function returns token-level losses; the reducer handles a NaN or infinity on a masked token",
    link=f"{MAIN}/backends/megatron_utils/loss.py#L1105",
    symptom="non-finite",
)


def _tokens(function: str, algorithm: str, call: Any, *dialects: Dialect) -> Binding:
    """Return the binding of a slime policy loss that returns one loss per token."""
    knobs = ("eps_clip_low", "eps_clip_high", "dual_clip")
    return policy_loss(f"{PPO}.{function}", call, algorithm, knobs, *dialects, mode="token-sum")


# -- importance weights ------------------------------------------------------------------------------------------------


def _importance_weight(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return slime's importance weight of each token.

    slime multiplies a loss by the weights. The adapter passes a loss of 1 for each token, so the result is the weight.
    The log-probs have no gradient, because slime reads them from the rollout batch or detaches them.

    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/backends/megatron_utils/loss.py#L989
    """
    shape, low = inputs["old_log_probs"].shape, inputs["threshold_low"]
    args = kit.stand_in(tis_clip_low=0.0 if low is None else low, tis_clip=inputs["threshold_high"])
    constant = {**inputs, "old_log_probs": inputs["old_log_probs"].detach()}
    samples = as_samples(constant, "old_log_probs", "rollout_log_probs", "response_mask")
    weights, _, metrics = boundary.invoke(
        samples, args, pg_loss=torch.ones(shape.numel()).to(constant["old_log_probs"])
    )
    return {"weights": weights.reshape(shape), "clip_fraction": metrics["tis_clipfrac"].reshape(shape)}


def _weights(path: str, mode: str, **more: Any) -> Binding:
    return Binding(
        path,
        "importance_weight",
        arguments={"old_log_probs": ("train_log_probs",)},
        call=_importance_weight,
        fixed={"level": "token", "mode": mode},
        stand_ins=(ARGS,),
        **more,
    )


# -- returns and rewards -----------------------------------------------------------------------------------------------


def _batched_gae(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    samples, counts = valid_samples(inputs, "values", "token_level_rewards"), valid_counts(inputs)
    discounts = {"gamma": inputs["gamma"], "lam": inputs["lam"]}
    if "chunked" in boundary.parameters:
        discounts["chunked"] = len(inputs["values"]) % 2 == 0
    with one_rank():
        answer = boundary.invoke(discounts, counts["total_lengths"], counts["response_lengths"], *samples.values())
    width = inputs["values"].shape[-1]
    return {name: as_rows(list(rows), width) for name, rows in zip(("advantages", "returns"), answer)}


def _gae_of_a_sample(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    width = inputs["values"].shape[-1]
    discounts = {"gamma": inputs["gamma"], "lam": inputs["lam"]}
    answers = []
    with one_rank():
        for values, rewards in zip(*valid_samples(inputs, "values", "token_level_rewards").values()):
            sample = {**discounts, "values": values, "rewards": rewards}
            answers.append(boundary.invoke(sample, total_len=len(values) + 1, response_len=len(values)))
    return {name: as_rows(list(rows), width) for name, rows in zip(("advantages", "returns"), zip(*answers))}


def _outcome_returns(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rewards = torch.where(inputs["response_mask"] != 0, inputs["token_level_rewards"], 0.0)
    kl = torch.zeros_like(rewards) if inputs["kl"] is None else inputs["kl"]
    columns = {"kl": list(kl), "kl_coef": inputs["kl_coef"], "gamma": inputs["gamma"]}
    columns["response_mask"] = list(inputs["response_mask"])
    taken = {name: value for name, value in columns.items() if kit.takes_input(boundary, name)}
    with one_rank():
        returns = boundary.invoke(taken, rewards.sum(-1), **full_lengths(inputs))
    return {"returns": torch.stack(list(returns))}


def _discounted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"returns": boundary.function(inputs["token_level_rewards"], inputs["gamma"], chunk_size=2)}


def _distilled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Subtract the distillation KL from advantages with slime's function. Each token's advantage is the reward of its
    response. The teacher's log-probs are 0, so the student's log-probs are the KL.

    If the number of rows is odd, slime also computes the advantages.
    """
    rewards = torch.where(inputs["response_mask"] != 0, inputs["token_level_rewards"], 0.0).sum(-1, keepdim=True)
    kl = torch.zeros_like(rewards.expand(inputs["response_mask"].shape)) if inputs["kl"] is None else inputs["kl"]
    data: dict[str, Any] = {"teacher_log_probs": list(torch.zeros_like(kl)), "log_probs": list(kl)}
    args = kit.stand_in(
        **dict.fromkeys(("use_rollout_logprobs", "normalize_advantages"), False),
        advantage_estimator="grpo",
        custom_advantage_function_path=None,
        use_opd=True,
        kl_coef=0.0,
        opd_kl_coef=inputs["kl_coef"],
        opd_type="megatron",
    )
    if len(rewards) % 2:
        data |= {"rewards": rewards[:, 0].tolist(), "loss_masks": list(inputs["response_mask"]), **full_lengths(inputs)}
        with one_rank():
            boundary.module.compute_advantages_and_returns(args, data)
        return {"returns": torch.stack(data["advantages"])}
    advantages = list(rewards.expand(kl.shape))
    boundary.function(args, data, advantages, data["log_probs"])
    return {"returns": torch.stack(advantages)}


def _returns(function: str, **more: Any) -> Binding:
    return Binding(
        f"{PPO}.{function}",
        "discounted_return",
        call=_outcome_returns,
        stand_ins=(MPU,),
        **{**more, "fixed": {"reward_layout": "outcome", **more.get("fixed", {})}},
    )


def _post_process_rewards(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rewards after slime has normalised them within each group of samples.

    If each group has one sample, rewards are not divided by a standard deviation, because slime's argument parser then
    turns this division off.

    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/utils/arguments.py#L1981
    """
    labels = list(inputs["group"])
    groups = list(dict.fromkeys(labels))
    most = max(map(labels.count, groups))
    args = kit.stand_in(
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=inputs["std_level"] == "group" and most > 1,
        n_samples_per_prompt=most,
        rollout_batch_size=len(groups),
        reward_key=None,
    )
    sample = boundary.imported[TYPES].Sample
    numbered = enumerate(zip(labels, inputs["rewards"].tolist()))
    # In older versions, the order of the samples determines their group.
    grouped = "group_index" in sample.__dataclass_fields__
    samples = [
        sample(index=n, reward=reward, **({"group_index": groups.index(label)} if grouped else {}))
        for n, (label, reward) in numbered
    ]
    _, rewards = boundary.invoke({}, kit.stand_in(args=args, custom_reward_post_process_func=None), samples)
    return {"normalised": torch.tensor(rewards, dtype=torch.float32)}


def _advantages(function: str, twin: str) -> Binding:
    return Binding(
        f"{PPO}.{function}",
        "generalised_advantage",
        arguments={"token_level_rewards": ("rewards",)},
        # Small chunks, so that scenarios of a few tokens cross a chunk border.
        constants={"chunk_size": 2},
        outputs=("advantages", "returns"),
        call=partial(kit.call_with, takes=("token_level_rewards", "values", "gamma", "lam")),
        accepts={"response_mask": ("full",)},
        twins=(f"{PPO}.{twin}",),
    )


#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "*.megatron_patch.*", "*.model_provider.*", "*.update_weight.*", "*.hf_checkpoint_saver.*", "*.hf_to_megatron.*",
    "*.observability.*", "*.logging_utils.*", "*.health_monitor.*", "*.rollout_buffer.*", "*.actor_group.*",
)  # fmt: skip

TARGET = Target(
    name="slime",
    arguments={
        "response_mask": ("response_mask", "loss_masks"),
        "log_probs": ("full_log_probs", "log_probs", "local_log_probs"),
        "old_log_probs": ("full_old_log_probs", "old_logprobs", "old_log_probs", "local_old_log_probs"),
        "eps_clip_low": ("eps_clip",), "dual_clip": ("eps_clip_c",), "lam": ("lambd",),
    },
    repository="https://github.com/THUDM/slime", roots=(PackageRoot("slime"), PackageRoot("slime_plugins")),
    defaults=("slime.utils.arguments.get_slime_extra_args_provider",),
    moved={"slime.backends.megatron_utils": ("slime.backends.training_utils",)},  # for a week in January 2026
    # Preloaded, because the boundaries are decorated with torch.compile, and torch imports its compiler on first use.
    preload=("torch._dynamo",),
    bindings=(
        Binding(
            f"{PPO}.compute_opsm_mask", "sequence_rejection",
            arguments={"advantages": ("full_advantages", "advantages")}, call=_opsm, stand_ins=(ARGS,),
        ),
        Binding(
            f"{PPO}.compute_approx_kl", "kl_estimate",
            arguments={"ref_log_probs": ("log_probs_base",), "kl_estimator": ("kl_loss_type",)}, outputs=("kl",),
            call=_kl, fixed={"response_mask": None}, accepts={"kl_estimator": ("k1", "k2", "k3", "low_var_kl")},
            dialects=(
                Dialect(
                    "clamp", 10, "low_var_kl is k3, clamped to [-10, 10] for numerical stability; k3 is not clamped",
                    f"{MAIN}/utils/ppo_utils.py#L49", where={"kl_estimator": ("low_var_kl",)},
                ),
            ),
        ),
        _tokens("compute_policy_loss", "ppo", _policy_loss, _TOKENS),
        _tokens("compute_cispo_loss", "cispo", _policy_loss, _TOKENS), _tokens("compute_gspo_kl", "gspo", _gspo),
        policy_loss(
            f"{LOSS}.policy_loss_function", _policy_loss_function, [*_ALGORITHMS],
            ("eps_clip_low", "eps_clip_high", "dual_clip"), weights=True, imports=(CP,),
            stand_ins=(ARGS, MPU, LOG_PROBS, _FUNCTIONS), accepts={**_AGGREGATION, "on_policy": (False, True)},
        ),
        policy_loss(
            f"{LOSS}.sft_loss_function", _supervised, "cross_entropy", (), imports=(CP,),
            stand_ins=(ARGS, MPU, LOG_PROBS), accepts=_AGGREGATION,
        ),
        Binding(
            f"{LOSS}.value_loss_function", "value_loss", call=_value_loss, imports=(CP,), stand_ins=(ARGS, MPU),
            accepts={"cliprange_value": (0.2, 0.6), **_AGGREGATION},
        ),
        Binding(
            f"{CP}.get_sum_of_sample_mean", "loss_aggregation", call=_sum_of_sample_mean, stand_ins=(MPU,),
            accepts={**_AGGREGATION, "weights": (None,)},
        ),
        *(
            Binding(
                f"slime.backends.fsdp_utils.actor.{function}",
                "loss_aggregation",
                call=_packed_sum,
                requires=("slime.backends.fsdp_utils.actor",),
                accepts={**_AGGREGATION, "loss_agg_mode": (mode,), "weights": (None,)},
            )
            for function, mode in (("sum_of_sample_mean", _MEANS), ("sum_of_token", "token-sum"))
        ),
        _weights(f"{LOSS}.vanilla_tis_function", "truncate"),
        # A function of the FSDP backend; this backend was removed in 2026.
        _weights(f"{PPO}.vanilla_tis_function", "truncate", requires=(f"{PPO}.vanilla_tis_function",)),
        _weights(f"{LOSS}.icepop_function", "mask"), _advantages("vanilla_gae", "chunked_gae"),
        _advantages("chunked_gae", "vanilla_gae"),
        Binding(
            f"{PPO}.get_advantages_and_returns_batch", "generalised_advantage", call=_batched_gae, stand_ins=(MPU,),
            # Samples have only response tokens, so their only invalid tokens are padding on the right.
            accepts={"response_mask": ("full", "right")},
        ),
        # Until 2026, this function existed in addition to the batched one.
        Binding(
            f"{PPO}.get_advantages_and_returns", "generalised_advantage", call=_gae_of_a_sample, stand_ins=(MPU,),
            requires=(f"{PPO}.get_advantages_and_returns",), accepts={"response_mask": ("full", "right")},
        ),
        _returns(
            "get_grpo_returns", fixed={"kl": None, "kl_coef": 0.0, "gamma": 1.0},
            dialects=(
                Dialect(
                    "credit", "response", "each token has the advantage of its response, as in GRPO",
                    f"{MAIN}/utils/ppo_utils.py#L367",
                ),
            ),
        ),
        _returns(
            "get_reinforce_plus_plus_baseline_advantages", fixed={"gamma": 1.0},
            dialects=(
                Dialect(
                    "credit", "response",
                    "REINFORCE++-baseline: each token has the response's reward minus the token's KL",
                    f"{MAIN}/utils/ppo_utils.py#L470",
                ),
            ),
        ),
        _returns(
            "get_reinforce_plus_plus_returns",
            dialects=(
                Dialect(
                    "masked_steps", "counted",
                    "returns are discounted by token position; an invalid token has no KL penalty",
                    f"{MAIN}/utils/ppo_utils.py#L430",
                ),
            ),
        ),
        Binding(
            f"{PPO}.chunked_discounted_returns", "discounted_return", call=_discounted,
            fixed={"kl": None, "kl_coef": 0.0}, accepts={"response_mask": ("full",)},
        ),
        Binding(
            f"{LOSS}.apply_opd_kl_to_advantages", "discounted_return", call=_distilled, stand_ins=(ARGS,),
            fixed={"reward_layout": "outcome", "gamma": 1.0}, requires=(f"{LOSS}.apply_opd_kl_to_advantages",),
            dialects=(
                Dialect(
                    "credit", "response", "each token has the advantage of its response minus the token's KL",
                    f"{MAIN}/backends/megatron_utils/loss.py#L689",
                ),
            ),
        ),
        normalised_rewards(
            "slime.ray.rollout.RolloutManager._post_process_rewards", _post_process_rewards, "std_level",
            formerly=("slime.ray.buffer.RolloutController.post_process_rewards",), imports=(TYPES,),
            stand_ins=(SELF, ARGS), fixed={"group_layout": "consecutive"}, accepts={"std_level": (None, "group")},
        ),
        *log_probs.BINDINGS, *rewards.BINDINGS, *rollouts.BINDINGS, *steps.BINDINGS, *balancing.BINDINGS,
        *data.BINDINGS, *samples.BINDINGS,
    ),
    no_signal=_NO_SIGNAL,
)  # fmt: skip
