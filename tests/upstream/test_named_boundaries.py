"""The boundaries that carry training signal, as upstream named them in August 2026: each is bound, or has a reason.

No upstream code is needed: it is the adapters' tables that are read.
"""

from __future__ import annotations

import pytest

from sentinel.recipes.catalog import bundled_catalog

#: target -> module or class -> its boundaries.
NAMED = {
    "verl": {
        "verl.trainer.ppo.core_algos": (
            "agg_loss compute_value_loss compute_entropy_loss kl_penalty compute_gae_advantage_return "
            "compute_grpo_outcome_advantage compute_grpo_vectorized_outcome_advantage compute_gdpo_outcome_advantage "
            "compute_grpo_passk_outcome_advantage compute_reinforce_plus_plus_outcome_advantage "
            "compute_reinforce_plus_plus_baseline_outcome_advantage compute_rloo_outcome_advantage "
            "compute_rloo_vectorized_outcome_advantage compute_opo_outcome_advantage compute_remax_outcome_advantage "
            "compute_gpg_outcome_advantage compute_optimal_token_baseline_advantage "
            "compute_multi_turn_optimal_token_baseline_advantage compute_policy_loss_vanilla "
            "compute_policy_loss_dppo_tv compute_policy_loss_dppo_kl compute_policy_loss_gspo compute_policy_loss_sapo "
            "compute_policy_loss_gpg compute_policy_loss_clip_cov compute_policy_loss_kl_cov "
            "compute_policy_loss_geo_mean compute_policy_loss_dro compute_policy_loss_cispo "
            "compute_policy_loss_bypass_mode"
        ),
        "verl.trainer.ppo.ray_trainer": "apply_kl_penalty compute_advantage compute_response_mask",
        "verl.trainer.ppo.rollout_corr_helper": (
            "compute_rollout_correction_and_rejection_mask compute_rollout_correction_weights "
            "compute_rollout_rejection_mask"
        ),
        "verl.utils.torch_functional": "masked_mean masked_sum masked_var masked_whiten logprobs_from_logits",
        "verl.utils.groupwise": "group_mean_std",
        "verl.utils.seqlen_balancing": "rearrange_micro_batches",
        "verl.protocol": "pad_dataproto_to_divisor unpad_dataproto",
        "verl.protocol.DataProto": "chunk concat reorder select_idxs",
        "verl.workers.reward_manager.naive.NaiveRewardManager": "__call__",
        "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop": "_call_tool _handle_processing_tools_state",
    },
    "roll": {
        "roll.utils.functionals": (
            "agg_loss compute_approx_kl masked_mean masked_sum masked_var masked_normalize masked_whiten "
            "response_level_masked_whiten compute_reinforce_return compute_gae_advantage_return reward_norm "
            "group_reward_norm difficulty_mask compute_token_reward reward_postprocess get_sample_level_mask "
            "apply_kl_penalty compute_advantage batch_balance"
        ),
        "roll.pipeline.agentic.utils": (
            "compute_discounted_returns agentic_reward_norm agentic_compute_advantage compute_segment_masked_mean"
        ),
        "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker": (
            "_compute_ppo_loss _compute_tis_loss _compute_topr_loss _compute_cispo_loss _compute_kimi15_loss"
        ),
        "roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker": (
            "_compute_ppo_loss _compute_tis_loss _compute_topr_loss _compute_cispo_loss _compute_kimi15_loss"
        ),
    },
    "areal": {
        "areal.trainer.ppo.actor.PPOActor": "_compute_advantages",
        "areal.utils.functional": (
            "masked_normalization ppo_actor_loss_fn sapo_loss_fn cispo_loss_fn ppo_critic_loss_fn "
            "apply_rejection_sampling reward_overlong_penalty gather_logprobs gather_logprobs_entropy"
        ),
        "areal.utils.data": (
            "split_padded_tensor_dict_into_mb_list pack_tensor_dict pad_packed_tensor_dict concat_padded_tensors"
        ),
        "areal.utils.data.Normalization": "__call__",
        "areal.utils.data.KLEstimator": "_compute_approx_kl",
    },
    "slime": {
        "slime.utils.ppo_utils": (
            "compute_approx_kl compute_opsm_mask compute_gspo_kl compute_policy_loss compute_cispo_loss "
            "get_grpo_returns get_reinforce_plus_plus_returns get_reinforce_plus_plus_baseline_advantages "
            "get_advantages_and_returns_batch vanilla_gae chunked_gae calculate_log_probs_and_entropy"
        ),
        "slime.backends.megatron_utils.loss": (
            "compute_advantages_and_returns vanilla_tis_function icepop_function policy_loss_function"
        ),
        "slime.backends.megatron_utils.cp_utils": "get_sum_of_sample_mean",
        "slime.ray.rollout.RolloutManager": "_post_process_rewards",
    },
    "skyrl": {
        "skyrl.backends.skyrl_train.utils.ppo_utils": (
            "compute_approx_kl masked_var masked_whiten ppo_policy_loss gspo_policy_loss sapo_policy_loss "
            "compute_policy_loss_cispo dppo_policy_loss compute_policy_loss_clip_cov compute_policy_loss_kl_cov "
            "rollout_is_policy_loss reduce_loss apply_loss_reduction_to_advantages_minibatch "
            "compute_grpo_outcome_advantage compute_rloo_outcome_advantage "
            "compute_reinforce_plus_plus_outcome_advantage compute_gae_advantage_return compute_maxrl_advantage"
        ),
        "skyrl.backends.skyrl_train.utils.torch_utils": "masked_mean",
        "skyrl.backends.skyrl_train.utils.off_policy_correction_utils": (
            "compute_tis_ratio compute_outlier_token_mask compute_token_mask compute_sequence_mask"
        ),
        "skyrl.backends.skyrl_train.workers.worker_utils.TokenBasedBatchIterator": "_create_padding_microbatch",
        "skyrl.train.trainer.RayPPOTrainer": "convert_to_training_input",
    },
}


@pytest.mark.parametrize("name", NAMED)
def test_each_is_bound_or_has_a_reason(name: str) -> None:
    target = bundled_catalog().targets[name]
    paths = [f"{owner}.{function}" for owner, functions in NAMED[name].items() for function in functions.split()]
    assert [path for path in paths if target.binding(path) is None and not target.reason_against(path)] == []


@pytest.mark.parametrize("name", NAMED)
def test_no_reason_speaks_of_what_is_bound(name: str) -> None:
    target = bundled_catalog().targets[name]
    assert [path for path in target.unbound if target.binding(path) is not None] == []


@pytest.mark.parametrize("name", NAMED)
def test_what_nobody_named_has_no_reason(name: str) -> None:
    assert not bundled_catalog().targets[name].reason_against("nowhere.at.all")
