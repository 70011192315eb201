"""slime (THUDM/slime): how Sentinel's contracts bind to its boundaries.

It holds a batch as lists of one-dimensional samples, and asks Megatron for ranks. A scenario's rows are the samples,
their masks the loss masks; one process stands in for Megatron's ranks.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel.binding.drift import AbsentError
from sentinel.binding.families import MPU, normalised_rewards, policy_loss
from sentinel.binding.kit import passed, stand_in, takes_input, torch
from sentinel.targets import Binding, Dialect, PackageRoot, Target

from . import balancing, log_probs, rewards, rollouts, steps
from .shared import (
    ARGS,
    CP,
    LOG_PROBS,
    LOSS,
    MAIN,
    PPO,
    SELF,
    TYPES,
    as_rows,
    as_samples,
    full_lengths,
    kl_name,
    mask_sums,
    one_rank,
    policy_microbatch,
    valid_counts,
    valid_samples,
)

# -- KL and policy losses ---------------------------------------------------------------------------------------------


def _kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"kl": boundary.invoke({**inputs, "kl_estimator": kl_name(boundary.function, inputs["kl_estimator"])})}


def _opsm(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """slime takes lists of one-dimensional samples and returns one concatenated mask.

    #1917 renames ``advantages`` to ``full_advantages`` and adds ``local_advantages``, the shape of the returned mask
    under context parallelism; without context parallelism the two are the same.
    """
    shape = inputs["log_probs"].shape
    samples = as_samples(inputs, "log_probs", "old_log_probs", "advantages", "response_mask")
    args = Namespace(opsm_delta=inputs["opsm_delta"])
    mask, clip_fraction = boundary.invoke(samples, args=args, local_loss_masks=samples["response_mask"])
    policy_loss = boundary.module.compute_policy_loss
    losses, _ = policy_loss(inputs["ppo_kl"], inputs["advantages"], inputs["eps_clip"], inputs["eps_clip_high"])
    return {"opsm_mask": mask.reshape(shape), "opsm_clipfrac": clip_fraction, "policy_loss": losses}


def _policy_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call losses of tokens; their caller hands in ``old - new`` as the KL, and reduces.

    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/backends/megatron_utils/loss.py#L1033
    """
    names = ("log_probs", "old_log_probs", "advantages", "eps_clip_low", "eps_clip_high", "dual_clip")
    arguments = {name: inputs[name] for name in names if takes_input(boundary, name)}
    answer = boundary.invoke(arguments, ppo_kl=inputs["old_log_probs"] - inputs["log_probs"])
    return {"per_token_loss": answer[0], "clip_fraction": answer[1]}


def _gspo(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the KL of the sequences, as the policy loss takes it.

    The loss knows no mask. That an advantage is not finite on a masked token is no matter of the KL, which is what is
    looked at here: the caller's reducer has to do with it, and is bound.
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


_ALGORITHMS = {"ppo": "grpo", "gspo": "gspo", "cispo": "cispo"}


def _policy_loss_function(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    algorithm = _ALGORITHMS[inputs["algorithm"]]
    if algorithm == "cispo" and not hasattr(boundary.module, "compute_cispo_loss"):
        raise AbsentError("not in this version: the arguments know no cispo")
    weights, masks = inputs["importance_weights"], list(inputs["response_mask"])
    options: dict[str, Any] = {"advantage_estimator": algorithm}
    more = {}
    if weights is not None:  # those of a rollout's log-probs, cut nowhere
        options |= {"use_tis": True, "tis_clip_low": 0.0, "tis_clip": float("inf"), "custom_tis_function_path": None}
        options["calculate_per_token_loss"] = inputs["loss_agg_mode"] == "token-sum"
        more["rollout_log_probs"] = list(inputs["old_log_probs"] - weights.log())
        more |= mask_sums(masks)
    with one_rank():
        reducer = _reducer(boundary, inputs)
    loss, _ = policy_microbatch(boundary, inputs, reducer, more, **options)
    return {"loss": _of_sequences(loss, inputs)}


def _value_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The value of a token stands where the token before it is read."""
    vpreds = inputs["vpreds"]
    rows, tokens = vpreds.shape
    args = stand_in(value_clip=inputs["cliprange_value"], allgather_cp=False, rollout_temperature=1.0, qkv_format="thd")
    batch = {
        "unconcat_tokens": list(torch.zeros(rows, tokens + 1, dtype=torch.long)),
        **as_samples(inputs, "values", "returns"),
        **full_lengths(inputs),
    }
    logits = torch.cat([vpreds, torch.zeros_like(vpreds[:, :1])], dim=1).reshape(1, -1, 1)
    with one_rank():
        loss, _ = boundary.invoke({}, args, batch, logits, _reducer(boundary, inputs))
    return {"loss": _of_sequences(loss, inputs)}


# -- reducers ---------------------------------------------------------------------------------------------------------

_MEANS = "seq-mean-token-mean"


def _reducer(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Make slime's own reducer: the sum over the samples of their means, or of all tokens."""
    make = boundary.imported[CP].get_sum_of_sample_mean if CP in boundary.imported else boundary.function
    lengths, masks = full_lengths(inputs), list(inputs["response_mask"])
    per_token = inputs["loss_agg_mode"] == "token-sum"
    return make(lengths["total_lengths"], lengths["response_lengths"], masks, calculate_per_token_loss=per_token)


def _of_sequences(loss: Any, inputs: Mapping[str, Any]) -> Any:
    """Divide a sum of means over sequences by their global number, as the caller does.

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


#: slime's caller always divides by a given number of sequences.
_AGGREGATION = {
    "loss_agg_mode": (_MEANS, "token-sum"),
    "global_batch_size": (0, 2),
    **dict.fromkeys(("batch_num_tokens", "dp_size", "loss_scale_factor"), (None,)),
}

#: Of functions that return tokens, and leave it to the caller which of them count.
_TOKENS = Dialect(
    "masked_values_have_no_influence",
    reason="it returns the loss of each token; what a NaN or an infinity on a masked one becomes is up to its reducer",
    link=f"{MAIN}/backends/megatron_utils/loss.py#L1105",
    symptom="non-finite",
)


def _tokens(function: str, algorithm: str, call: Any, *dialects: Dialect) -> Binding:
    """The loss of a batch is the sum of its tokens' here: these functions do not aggregate."""
    knobs = ("eps_clip_low", "eps_clip_high", "dual_clip")
    return policy_loss(f"{PPO}.{function}", call, algorithm, knobs, *dialects, mode="token-sum")


# -- importance weights -----------------------------------------------------------------------------------------------


def _importance_weight(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A policy loss of 1 a token comes back as the weights. The lower bound is 0 unless given, as in its options.

    The log-probs that it is given carry no gradient: those of the rollout batch, or detached ones.
    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/backends/megatron_utils/loss.py#L989
    """
    shape, low = inputs["old_log_probs"].shape, inputs["threshold_low"]
    args = stand_in(tis_clip_low=0.0 if low is None else low, tis_clip=inputs["threshold_high"])
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


# -- returns and rewards ----------------------------------------------------------------------------------------------


def _batched_gae(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call on samples, which the function pads itself."""
    samples, counts = valid_samples(inputs, "values", "token_level_rewards"), valid_counts(inputs)
    discounts = {"gamma": inputs["gamma"], "lam": inputs["lam"]}
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
    """One reward a sample: the one that stands on a token that counts."""
    rewards = torch.where(inputs["response_mask"] != 0, inputs["token_level_rewards"], 0.0)
    kl = torch.zeros_like(rewards) if inputs["kl"] is None else inputs["kl"]
    columns = {"kl": list(kl), "kl_coef": inputs["kl_coef"], "gamma": inputs["gamma"]}
    columns["response_mask"] = list(inputs["response_mask"])
    taken = {name: value for name, value in columns.items() if takes_input(boundary, name)}
    with one_rank():
        returns = boundary.invoke(taken, rewards.sum(-1), **full_lengths(inputs))
    return {"returns": torch.stack(list(returns))}


def _returns(function: str, **more: Any) -> Binding:
    return Binding(
        f"{PPO}.{function}",
        "discounted_return",
        call=_outcome_returns,
        stand_ins=(MPU,),
        **{**more, "fixed": {"reward_layout": "outcome", **more.get("fixed", {})}},
    )


def _post_process_rewards(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make samples in the order of their groups; a group has as many as were asked for, or fewer.

    A group of one is not scaled: slime's arguments turn that off.
    https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/utils/arguments.py#L1981
    """
    labels = list(inputs["group"])
    groups = list(dict.fromkeys(labels))
    most = max(map(labels.count, groups))
    args = stand_in(
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=inputs["std_level"] == "group" and most > 1,
        n_samples_per_prompt=most,
        rollout_batch_size=len(groups),
        reward_key=None,
    )
    sample = boundary.imported[TYPES].Sample
    numbered = enumerate(zip(labels, inputs["rewards"].tolist()))
    grouped = "group_index" in sample.__dataclass_fields__  # before, samples had an order alone
    samples = [
        sample(index=n, reward=reward, **({"group_index": groups.index(label)} if grouped else {}))
        for n, (label, reward) in numbered
    ]
    _, rewards = boundary.invoke({}, stand_in(args=args, custom_reward_post_process_func=None), samples)
    return {"normalised": torch.tensor(rewards, dtype=torch.float32)}


def _advantages(function: str, twin: str) -> Binding:
    return Binding(
        f"{PPO}.{function}",
        "generalised_advantage",
        arguments={"token_level_rewards": ("rewards",)},
        # So that scenarios of a few tokens cross the border between chunks.
        constants={"chunk_size": 2},
        outputs=("advantages", "returns"),
        call=partial(passed, takes=("token_level_rewards", "values", "gamma", "lam")),
        accepts={"response_mask": ("full",)},
        twins=(f"{PPO}.{twin}",),
    )


#: What carries no training signal, or runs on what is not there: reason -> paths.
_ASIDE = {
    "kernels and layers of a model": "*.megatron_utils.alignment.* *.megatron_patch.* *plugins.models.*.*ward *.glm5.* "
    "*vision_embeddings *.model_provider.* *able_forward_pre_hook",
    "it hands weights to engines, or to a disk": "*.update_weight.* *.hf_checkpoint_saver.* *.hf_to_megatron.* "
    "*.disk_delta.* *.update_from_disk",
    "what is logged, timed and kept to be looked at": "*.observability.*trace* *.logging_utils.* *.train_data_utils.* "
    "*.observability.*debug* *.observability.*perf* *.observability.*sglang* *.ci_utils.* *._wrap_* *.health_monitor.* "
    "*.rollout_metrics.log_* *.train_metric_utils.log_rollout_data",
    "a server, and what it and a client say to each other": "*.rollout_buffer.* *.agent.adapters.*_render_stream "
    "*.BaseAdapter.* *.call_sglang_generate *.sglang_streaming_rollout.* *.sleep_rollout.* *.forge_load.* "
    "*.actor_group.*",
    "which experts a router has chosen, for a replay in Megatron's layers": "*.RoutingReplay.p* "
    "*.RoutingReplay.record *.RoutingReplay.assert* *.RoutingReplay.clear_all_f* *._compute_topk_for_current_router "
    "*.get_routing_replay_compute_topk *.fill_routing_replay *.validate_rollout_routed_experts_for_replay",
    "a server of log-probs on Megatron's ranks; that package is not installed": "*.TeacherLogpRayActor.* "
    "*.server.logprob_utils._[gp]* *._merge_allgather_cp_tensors *.server.logprob_utils.get_label* "
    "*.megatron_server.SampleManager.[gs]*_*",
    "a step of Megatron's engine, which is not installed; its losses are bound": "*.MegatronTrainRayActor.* "
    "*.megatron_utils.model.forward_only *.get_optimizer_param_scheduler",
    "images and videos": "*._extract_images_from_messages *.build_packed_mrope_position_ids",
}

TARGET = Target(
    name="slime",
    arguments={
        "response_mask": ("response_mask", "loss_masks"),
        "log_probs": ("full_log_probs", "log_probs", "local_log_probs"),
        "old_log_probs": ("full_old_log_probs", "old_logprobs", "old_log_probs", "local_old_log_probs"),
        "eps_clip_low": ("eps_clip",),
        "dual_clip": ("eps_clip_c",),
        "lam": ("lambd",),
    },
    repository="https://github.com/THUDM/slime",
    roots=(PackageRoot("slime"), PackageRoot("slime_plugins")),
    defaults=("slime.utils.arguments.get_slime_extra_args_provider",),
    moved={"slime.backends.megatron_utils": ("slime.backends.training_utils",)},  # for a week of January 2026
    # Its boundaries are decorated with torch.compile, whose machinery torch imports on first use.
    preload=("torch._dynamo",),
    bindings=(
        Binding(
            f"{PPO}.compute_opsm_mask",
            "sequence_rejection",
            arguments={"advantages": ("full_advantages", "advantages")},
            call=_opsm,
            stand_ins=(ARGS,),
        ),
        Binding(
            f"{PPO}.compute_approx_kl",
            "kl_estimate",
            arguments={"ref_log_probs": ("log_probs_base",), "kl_estimator": ("kl_loss_type",)},
            outputs=("kl",),
            call=_kl,
            fixed={"response_mask": None},
            accepts={"kl_estimator": ("k1", "k2", "k3", "low_var_kl")},
            dialects=(
                Dialect(
                    "clamp",
                    10,
                    "low_var_kl is k3, cut to [-10, 10] for numerical stability; k3 is not cut",
                    f"{MAIN}/utils/ppo_utils.py#L49",
                    where={"kl_estimator": ("low_var_kl",)},
                ),
            ),
        ),
        _tokens("compute_policy_loss", "ppo", _policy_loss, _TOKENS),
        _tokens("compute_cispo_loss", "cispo", _policy_loss, _TOKENS),
        _tokens("compute_gspo_kl", "gspo", _gspo),
        policy_loss(
            f"{LOSS}.policy_loss_function",
            _policy_loss_function,
            [*_ALGORITHMS],
            ("eps_clip_low", "eps_clip_high", "dual_clip"),
            weights=True,
            imports=(CP,),
            stand_ins=(ARGS, MPU, LOG_PROBS),
            accepts=_AGGREGATION,
        ),
        Binding(
            f"{LOSS}.value_loss_function",
            "value_loss",
            call=_value_loss,
            imports=(CP,),
            stand_ins=(ARGS, MPU),
            accepts={"cliprange_value": (0.2, 0.6), **_AGGREGATION},
        ),
        Binding(
            f"{CP}.get_sum_of_sample_mean",
            "loss_aggregation",
            call=_sum_of_sample_mean,
            stand_ins=(MPU,),
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
        # The FSDP backend's own, until that went in 2026.
        _weights(f"{PPO}.vanilla_tis_function", "truncate", requires=(f"{PPO}.vanilla_tis_function",)),
        _weights(f"{LOSS}.icepop_function", "mask"),
        _advantages("vanilla_gae", "chunked_gae"),
        _advantages("chunked_gae", "vanilla_gae"),
        Binding(
            f"{PPO}.get_advantages_and_returns_batch",
            "generalised_advantage",
            call=_batched_gae,
            stand_ins=(MPU,),
            # A sample is its response alone, so what does not count is padding.
            accepts={"response_mask": ("full", "right")},
        ),
        # It was beside the one for batches until that was left alone in 2026.
        Binding(
            f"{PPO}.get_advantages_and_returns",
            "generalised_advantage",
            call=_gae_of_a_sample,
            stand_ins=(MPU,),
            requires=(f"{PPO}.get_advantages_and_returns",),
            accepts={"response_mask": ("full", "right")},
        ),
        _returns(
            "get_grpo_returns",
            fixed={"kl": None, "kl_coef": 0.0, "gamma": 1.0},
            dialects=(
                Dialect(
                    "credit",
                    "response",
                    "each token has the advantage of its response, as in GRPO",
                    f"{MAIN}/utils/ppo_utils.py#L367",
                ),
            ),
        ),
        _returns(
            "get_reinforce_plus_plus_baseline_advantages",
            fixed={"gamma": 1.0},
            dialects=(
                Dialect(
                    "credit",
                    "response",
                    "REINFORCE++-baseline: the response's reward at each token, less the token's KL",
                    f"{MAIN}/utils/ppo_utils.py#L470",
                ),
            ),
        ),
        _returns(
            "get_reinforce_plus_plus_returns",
            dialects=(
                Dialect(
                    "masked_steps",
                    "counted",
                    "returns are discounted by the position of a token; a token that does not count has no KL penalty",
                    f"{MAIN}/utils/ppo_utils.py#L430",
                ),
            ),
        ),
        normalised_rewards(
            "slime.ray.rollout.RolloutManager._post_process_rewards",
            _post_process_rewards,
            "std_level",
            formerly=("slime.ray.buffer.RolloutController.post_process_rewards",),
            imports=(TYPES,),
            stand_ins=(SELF, ARGS),
            fixed={"group_layout": "consecutive"},
            accepts={"std_level": (None, "group")},
        ),
        *log_probs.BINDINGS,
        *rewards.BINDINGS,
        *rollouts.BINDINGS,
        *steps.BINDINGS,
        *balancing.BINDINGS,
    ),
    unbound={
        **balancing.UNBOUND,
        f"{CP}.*": "slices and gathers of context-parallel ranks, which the losses that are bound are made of",
        f"{LOSS}.apply_opd_kl_to_advantages": "a difference of log-probs, times a coefficient, beside the advantages",
        f"{LOSS}.sft_loss_function": "loss_function, which is bound, is measured with it",
        f"{LOSS}.*": "recording of log-probs, and options of the engine",
        "slime.ray.buffer.*": "it hands out samples in their order",
        "slime.utils.mask_utils.*": "parts of the three masks of a chat that are bound, or what asks one of them",
        "slime.rollout.agent_rollout.*": "it asks a service for trajectories",
        "slime.rollout.sglang_example.*": "it asks an engine of SGLang",
        "slime.rollout.sglang_rollout.*": "it asks an engine of SGLang",
        "slime.ray.rollout.*": "it starts servers, and averages metrics for display",
        "slime.rollout._fanout_test_helpers.compact_generate": "a generation function for tests",
        "slime.rollout._fanout_test_helpers.grpo_normalize_by_group_index": "a recipe calls it without an adapter",
        "slime.utils.types.Sample.from_dict": "a recipe calls it without an adapter",
        "slime.rollout.fully_async_rollout.generate_rollout_fully_async": "_generate_rollout_async, bound, in a loop",
        "slime.rollout.rm_hub.ifbench.*": "it asks the data set's own package, which is not installed",
        "slime.rollout.rm_hub.remote_rm": "it asks a service",
        "slime.rollout.rm_hub.*": "parts of the graders that are bound, or many of them at once",
        "slime.rollout.filter_hub.base_types.*": "it hands on what a filter says, which is bound",
        f"{PPO}.compute_log_probs": "a kernel of Megatron-LM, which is not installed",
        f"{PPO}.compute_entropy_from_logits": (
            "beside that kernel, over the ranks of a process group; now one with log-probs, which are bound"
        ),
        "slime.backends.fsdp_utils.actor.gather_log_probs_packed": (
            "get_logprob_and_entropy_with_cp, which is bound, asks it"
        ),
        "slime.backends.fsdp_utils.actor.selective_log_softmax_raw": (
            "get_logprob_and_entropy_with_cp, which is bound, asks it"
        ),
        "slime.backends.fsdp_utils.actor.*": "sharding of a model, and its optimizer's devices",
        "slime.backends.megatron_utils.data.process_rollout_data": (
            "until July 2025 rewards were normalised in it, between a buffer of Ray's and Megatron's ranks; today's "
            "_post_process_rewards is bound"
        ),
        f"{PPO}.chunked_discounted_returns": "vanilla_gae and chunked_gae, which it is the parts of, are bound",
        **{path: reason for reason, paths in _ASIDE.items() for path in paths.split()},
    },
)
