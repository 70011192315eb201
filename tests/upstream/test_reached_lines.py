"""Scenarios reach code behind options: with one changed line there, a boundary disagrees with the oracle.

Each case lists the inputs that turn the option on. Without the change, the boundary agrees in the same scenarios.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from binding_kit import Bound, Open, each_twin, once_each, opened

from sentinel.contracts.choices import Choices

#: "main in August 2026" of each target.
MAIN = {
    "nemorl": "7ea279abfbeb698b092856d0dab61e7cf39bc909",
    "openrlhf": "3c3be6234e0cb353e76bb8019947db9dfe99fca7",
}
LOSS = "nemo_rl/algorithms/loss/loss_functions.py"
PG = "nemo_rl.algorithms.loss.loss_functions.ClippedPGLossFn.__call__"
DPO = "nemo_rl.algorithms.loss.loss_functions.DPOLossFn.__call__"
DISTIL = "nemo_rl.algorithms.loss.utils.prepare_loss_input"
GAE = "nemo_rl.algorithms.advantage_estimator.GeneralizedAdvantageEstimator.compute_advantage"
CHUNKED = "nemo_rl.distributed.model_utils.ChunkedDistributedLogprobWithSampling.forward"
SYNC = "nemo_rl.algorithms.grpo_sync.grpo_train_sync"
MODELS, MEGATRON = "nemo_rl.distributed.model_utils", "nemo_rl.models.megatron.data"
CROSSED = "nemo_rl.algorithms.loss.loss_functions.CrossTokenizerDistillationLossFn"
ROLLOUTS, ENVIRONMENTS = "nemo_rl.experience.rollouts", "nemo_rl.environments"
COLLECTOR = "nemo_rl.algorithms.async_utils.trajectory_collector.AsyncTrajectoryCollector"
BOUNDS = {"mode": "mask", "threshold_low": 0.9, "threshold_high": 1.25}
MAKER = "openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker.compute_advantages_and_returns"
AGENT = "openrlhf.utils.agent"

#: Boundary, contract, inputs, file, the text to replace, and its replacement.
CASES: tuple[tuple[str, str, Mapping[str, Any], str, str, str], ...] = (
    (
        PG, "importance_weight", {"level": "kept_by_mean", **BOUNDS}, LOSS,
        "* seq_kept_mask.unsqueeze(-1)", "* (seq_kept_mask * 0 + 1).unsqueeze(-1)",
    ),
    (
        PG, "policy_loss", {"algorithm": "ppo", "on_policy": True}, LOSS,
        "log_ratios = curr_logprobs - curr_logprobs.detach()",
        "log_ratios = 2 * (curr_logprobs - curr_logprobs.detach())",
    ),
    (
        PG, "rollout_kl", {"kl_estimator": "k3", "off_policy": True}, LOSS,
        "curr_logprobs_unfiltered - generation_logprobs", "curr_logprobs_unfiltered - prev_logprobs",
    ),
    (
        PG, "rollout_kl", {"kl_estimator": "k3", "mean_over": "tokens"}, LOSS,
        "kl = masked_mean(\n                    kl, mask,", "kl = masked_mean(\n                    2 * kl, mask,",
    ),
    (
        DPO, "preference_loss", {"averaged": True}, LOSS,
        "rewards = rewards / token_mask.sum(-1).clamp(min=1)", "rewards = rewards / token_mask.sum(-1).clamp(min=9)",
    ),
    (
        DPO, "preference_loss", {"nll_weight": 0.5, "nll_over": "sums"}, LOSS,
        "loss = -torch.sum(next_token_logprobs * mask, dim=-1)",
        "loss = -torch.mean(next_token_logprobs * mask, dim=-1)",
    ),
    (
        DISTIL, "distillation_loss", {"beta": 0.25}, LOSS,
        "+ (1.0 - self.mixed_kl_weight) * kl_reverse", "+ self.mixed_kl_weight * kl_reverse",
    ),
    (
        DISTIL, "distillation_loss", {"beta": 1.0, "top_k": 2, "outside": -100.0}, LOSS,
        "H_rest - self.log_infinitesimal * P_rest", "H_rest + self.log_infinitesimal * P_rest",
    ),
    (
        GAE, "generalised_advantage", {"length_alpha": 2.0}, "nemo_rl/algorithms/advantage_estimator.py",
        "lam = 1.0 - 1.0 / (self.length", "lam = 1.0 - 0.5 / (self.length",
    ),
    (
        CHUNKED, "token_log_probs", {"top_p": 0.6}, "nemo_rl/algorithms/logits_sampling_utils.py",
        "top_p_keep_mask_chunk = probs_sum > 1 - top_p", "top_p_keep_mask_chunk = probs_sum > top_p",
    ),
    (
        SYNC, "training_loop", {"filters_truncated": True}, "nemo_rl/algorithms/grpo_sync.py",
        'lm[driver_carry["truncated"]] = 0', 'lm[driver_carry["truncated"]] = 1',
    ),
    (
        "nemo_rl.algorithms.grpo.grpo_train", "training_loop", {"filters_constant_groups": True},
        "nemo_rl/algorithms/grpo.py", "non_zero_std_mask = std != 0.0", "non_zero_std_mask = std >= 0.0",
    ),
    (
        "nemo_rl.algorithms.grpo.async_grpo_train", "training_loop", {"stop_value": 0.5}, "nemo_rl/algorithms/grpo.py",
        "if value < stop_threshold:", "if value >= 0:",
    ),
    (
        "nemo_rl.algorithms.sft.sft_train", "training_loop", {"time_limit": 2, "epochs": 2}, "nemo_rl/utils/timer.py",
        "if elapsed_time + average_iteration_time >= self", "if elapsed_time - average_iteration_time >= self",
    ),
    (
        "nemo_rl.algorithms.async_utils.replay_buffer.ReplayBufferImpl.sample", "rollout_buffer",
        {"restored": "resumed"}, "nemo_rl/algorithms/async_utils/replay_buffer.py",
        "if target >= current_step", "if target > current_step",
    ),
    (
        "nemo_rl.algorithms.async_utils.staleness_sampler.WindowedSampler.select", "rollout_buffer",
        {"selects": "newest", "needed": 1}, "nemo_rl/algorithms/async_utils/staleness_sampler.py",
        "current_train_weight - self._buffer.start_weight_list[i],", "self._buffer.start_weight_list[i],",
    ),
    (
        "nemo_rl.data.packing.algorithms.get_packer", "microbatch_packing",
        {"algorithm": "modified_first_fit_decreasing"}, "nemo_rl/data/packing/algorithms.py",
        "(self.bin_capacity - ffd_bin_sizes[0])", "(self.bin_capacity - ffd_bin_sizes[-1])",
    ),
    (
        "nemo_rl.data.packing.algorithms.get_packer", "microbatch_packing", {"least": 3},
        "nemo_rl/data/packing/algorithms.py", "target_bin_count = max(", "target_bin_count = min(",
    ),
    (
        f"{MODELS}.from_parallel_logits_to_logprobs", "token_log_probs", {"context_parallel_size": 2},
        "nemo_rl/distributed/model_utils.py", "[cp_rank, (2 * cp_size - cp_rank - 1)], device",
        "[cp_rank, (2 * cp_size - cp_rank - 2)], device",
    ),
    (
        f"{MODELS}.from_parallel_logits_to_logprobs_packed_sequences", "token_log_probs", {"context_parallel_size": 2},
        "nemo_rl/distributed/model_utils.py", "seq_targets.roll(shifts=-1, dims=0)", "seq_targets.roll(-2, 0)",
    ),
    (
        f"{MODELS}.from_parallel_hidden_states_to_logprobs", "token_log_probs", {},
        "nemo_rl/distributed/model_utils.py", "used_grad_output = grad_output[", "used_grad_output = 2 * grad_output[",
    ),
    (
        f"{MODELS}.cp_shift_next", "critic_values", {"context_parallel_size": 3}, "nemo_rl/distributed/model_utils.py",
        "gathered[cp_rank + 1] if", "gathered[cp_rank] if",
    ),
    (
        DISTIL, "distillation_loss", {"context_parallel_size": 2, "beta": 1.0, "top_k": 2, "outside": -100.0},
        "nemo_rl/distributed/model_utils.py", "H_all = H_all[:, :-pad_len]", "H_all = H_all[:, pad_len:]",
    ),
    (
        f"{MEGATRON}.process_microbatch", "collation", {"context_parallel_size": 2, "total": 48},
        "nemo_rl/models/megatron/data.py", "running_seq_len += padded_seq_len", "running_seq_len += seq_len",
    ),
    (
        f"{MEGATRON}._fill_routed_experts_padding", "collation", {}, "nemo_rl/models/megatron/data.py",
        "padding_mask = seq_positions >= seq", "padding_mask = seq_positions > seq",
    ),
    (
        "nemo_rl.models.value.workers.megatron_value_worker._unpack_value_sequences", "critic_values",
        {"context_parallel_size": 2}, "nemo_rl/models/value/workers/megatron_value_worker.py",
        "full[start:end] = allgather", "full[start:end] = 2 * allgather",
    ),
    (
        f"{CROSSED}._compute_p_kl", "distillation_loss", {"beta": 0.0}, LOSS,
        "proj_chunks = proj_chunks / (proj_chunks", "proj_chunks = proj_chunks / (2 * proj_chunks",
    ),
    (
        f"{CROSSED}._select_teacher_kd", "distillation_loss", {"beta": 0.0}, LOSS,
        "best = int(min(range", "best = int(max(range",
    ),
    (
        f"{CROSSED}._averaged_logits_kd", "distillation_loss", {"beta": 1.0}, LOSS,
        "f.float() * (self.teacher_weights[i] / total_w)", "f.float() * (self.teacher_weights[0] / total_w)",
    ),
    (
        "nemo_rl.algorithms.x_token.loss_utils.assemble_teacher_logits_from_shards", "distillation_loss",
        {"beta": 0.0, "context_parallel_size": 2}, "nemo_rl/algorithms/x_token/loss_utils.py",
        "overlap_seq_start - student_seq_start,", "overlap_seq_start - teacher_seq_start,",
    ),
    (
        f"{ROLLOUTS}.run_async_multi_turn_rollout", "rollout_episode", {"turns": 3, "max_tokens": 100},
        "nemo_rl/experience/rollouts.py", "current_extra_env_info = env_output.metadata[0]", "pass",
    ),
    (
        f"{ROLLOUTS}.calculate_rewards", "rollout_episode", {"turns": 2, "max_tokens": 100},
        "nemo_rl/experience/rollouts.py", "reward_dict[name][active_indices] += r", "reward_dict[name] += r",
    ),
    (
        f"{ENVIRONMENTS}.math_environment.HFVerifyWorker.verify", "rule_reward", {},
        "nemo_rl/environments/math_environment.py", "score = float(ret_score)", "score = float(not ret_score)",
    ),
    (
        f"{ENVIRONMENTS}.code_jaccard_environment.CodeJaccardEnvironment.step", "rule_reward", {},
        "nemo_rl/environments/code_jaccard_environment.py", "self.workers[i].verify.remote(\n                chunk,",
        "self.workers[i].verify.remote(\n                chunk[::-1],",
    ),
    (
        "nemo_rl.models.value.lm_value.Value.get_values", "recomputed_log_probs", {"max_tokens_per_microbatch": 8},
        "nemo_rl/models/value/lm_value.py", "values.reorder_data(unsorted_data_indices)", "pass",
    ),
    (
        f"{COLLECTOR}._compute_teacher_logprobs", "recomputed_log_probs", {},
        "nemo_rl/algorithms/async_utils/trajectory_collector.py", "result[indices] = logprobs",
        "result[sorted(indices, reverse=True)] = logprobs",
    ),
    (
        "nemo_rl.data.multimodal_utils.PackedTensor._row_segment_indices", "row_surgery", {"count": 3},
        "nemo_rl/data/multimodal_utils.py", "segment_indices.append(physical_remap[physical_index])",
        "segment_indices.append(0)",
    ),
    (
        "nemo_rl.models.megatron.train.TopkLogitsPostProcessor.__call__", "token_log_probs",
        {"context_parallel_size": 2}, "nemo_rl/models/megatron/train.py", "out_vals[i, :seq_len, :] = topk_vals_full",
        "out_vals[i, :seq_len, :] = 2 * topk_vals_full",
    ),
    (
        "nemo_rl.models.policy.workers.dtensor_policy_worker_v2.DTensorPolicyWorkerV2Impl.train", "policy_update",
        {"micro_batch_size": None}, "nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py",
        "if not eval_mode:\n                    grad_norm =", "if True:\n                    grad_norm =",
    ),
    (
        "openrlhf.models.loss.PolicyLoss.forward", "importance_weight", {"level": "token", **BOUNDS},
        "openrlhf/models/loss.py", "mask = (vllm_is >= low_threshold) & (", "mask = (vllm_is >= low_threshold) | (",
    ),
    (
        "openrlhf.models.loss.PolicyLoss.forward", "importance_weight", {"level": "kept_by_mean", **BOUNDS},
        "openrlhf/models/loss.py", "seq_mask.unsqueeze(-1) * vllm_is * loss", "vllm_is * loss",
    ),
    (
        "openrlhf.models.actor.Actor.forward", "token_log_probs", {"with_entropy": True}, "openrlhf/models/actor.py",
        "entropy[:, :-1])", "entropy[:, 1:])",
    ),
    (
        "openrlhf.models.actor.Actor.forward", "token_log_probs", {"packed": True, "with_entropy": False},
        "openrlhf/models/ring_attn_utils.py", "torch.roll(sequences, shifts=-1, dims=1)",
        "torch.roll(sequences, shifts=-2, dims=1)",
    ),
    (
        "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer.ppo_train", "policy_update", {"importance_weight_cap": 2.0},
        "openrlhf/trainer/ray/ppo_actor.py", "rollout_log_probs=experience.rollout_log_probs,",
        "rollout_log_probs=experience.rollout_log_probs.flip(0),",
    ),
    (
        MAKER, "generalised_advantage", {"lam": 0.5, "gamma": 1.0},
        "openrlhf/trainer/ppo_utils/experience_maker.py", "args.algo.advantage.lambd,", "args.algo.advantage.gamma,",
    ),
    (
        MAKER, "advantage_normalisation", {"std_level": None}, "openrlhf/trainer/ppo_utils/experience_maker.py",
        "rstd = 1\n", "rstd = 2\n",
    ),
    (
        MAKER, "reward_normalisation", {"std_level": None, "leave_one_out": False, "clip": 0.5},
        "openrlhf/models/utils.py",
        "max=reward_clip_range[1])", "max=2 * reward_clip_range[1])",
    ),
    (
        f"{AGENT}.MultiTurnAgentExecutor.execute", "rollout_episode", {"turns": 3, "max_tokens": 100},
        "openrlhf/utils/agent.py", "rollout_log_probs.extend([0.0] * len(feedback_tokens))",
        "rollout_log_probs.extend([0.5] * len(feedback_tokens))",
    ),
    (
        f"{AGENT}.SingleTurnAgentExecutor.execute", "rollout_episode", {"turns": 1, "max_tokens": 100},
        "openrlhf/utils/agent.py", 'reward=rewards_info.get("rewards"),', 'reward=2 * rewards_info.get("rewards"),',
    ),
    (
        "openrlhf.trainer.ppo_utils.experience.split_experience_batch", "row_surgery", {},
        "openrlhf/trainer/ppo_utils/experience.py", "d[k] = v[i]", "d[k] = v[0]",
    ),
    (
        "openrlhf.datasets.sft_dataset.SFTDataset.__getitem__", "trained_tokens", {"apart": True, "trains": "last"},
        "openrlhf/datasets/sft_dataset.py",
        "apply_chat_template(prompt_message + response_message, tokenize=False)[len",
        "apply_chat_template(prompt_message + response_message, tokenize=False)[5 + len",
    ),
    (
        "openrlhf.datasets.reward_dataset.RewardDataset.__getitem__", "trained_tokens", {"apart": True},
        "openrlhf/datasets/reward_dataset.py", "data[prompt_key] + data[chosen_key], tokenize=False)[len",
        "data[prompt_key] + data[chosen_key], tokenize=False)[5 + len",
    ),
    (
        "openrlhf.trainer.sft_trainer.SFTTrainer.fit", "training_loop",
        {"validation_period": 1, "equivalent_options": 1},
        "openrlhf/trainer/sft_trainer.py", 'self._tensorboard.add_scalar(f"eval/{k}", v, steps)',
        'self._tensorboard.add_scalar(f"eval/{k}", v, steps + 1)',
    ),
)  # fmt: skip
PARAMS = [pytest.param(*case[:3], id=f"{case[0]}-{case[1]}-{place}") for place, case in enumerate(CASES)]


def _target(boundary: str) -> str:
    return "nemorl" if boundary.startswith("nemo_rl") else "openrlhf"


@pytest.fixture(scope="module")
def code() -> Iterator[Open]:
    yield from once_each(lambda target: opened(target, MAIN[target]))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """The main of a target with all changes."""

    yield from each_twin(
        MAIN, lambda target: [case[3:] for case in CASES if _target(case[0]) == target], tmp_path_factory
    )


def _disagreements(bound: Bound, boundary: str, contract: str, inputs: Mapping[str, Any]) -> list[str]:
    """Return the differences from the oracle in eight scenarios with these inputs."""
    found = []
    for subject in bound.subjects:
        free = all(subject.binding.fixed.get(name, value) == value for name, value in inputs.items())
        if (subject.boundary, subject.contract.name) != (boundary, contract) or not free:
            continue
        for seed in range(8):
            choose = Choices(random.Random(seed).randbytes(4096))
            scenario = bound._arranged(subject, {**bound._plain(subject, None), **inputs}, choose)
            trial = bound.ask(subject, "the_oracle_agrees", {"": scenario})
            found += [item.detail for item in trial.violations]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("boundary", "contract", "inputs"), PARAMS)
def test_the_oracle_detects_a_slip_behind_an_option(code, twin, boundary, contract, inputs):
    assert _disagreements(code(_target(boundary)), boundary, contract, inputs) == []
    assert _disagreements(twin(_target(boundary)), boundary, contract, inputs) != []
