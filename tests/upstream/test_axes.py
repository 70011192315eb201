"""Axes of contracts reach further lines of real code: a fault in such a line is detected by a scenario of its axis, and
not by the simplest scenario.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from binding_kit import MAIN, Bound, Open, each_twin, target_of
from roll_faults import FAULTS
from twins import Edit

from sentinel.contracts.choices import Choices

_ROLL, _ROLL_DATA = "roll/utils/functionals.py", "roll.distributed.scheduler.protocol.DataProto"
_WRAPPER, _LAYOUT = (
    f"skyrl/backends/skyrl_train/{path}.py"
    for path in ("workers/megatron/megatron_model_wrapper", "distributed/megatron/model_utils")
)
_MEGATRON = f"{_WRAPPER.removesuffix('.py').replace('/', '.')}.MegatronModelWrapper"
_WORKER = "skyrl.backends.skyrl_train.workers.worker"
_AREAL, _AREAL_DATA = "areal/trainer/ppo/actor.py", "areal/utils/data.py"
_GRPO = "areal.trainer.ppo.actor.grpo_loss_fn"
_VERL_TRAINER, _VERL_FILE = "verl.trainer.ppo.ray_trainer", "verl/trainer/ppo/ray_trainer.py"
_SLIME, _SLIME_FILE = "slime.backends.megatron_utils.loss", "slime/backends/megatron_utils/loss.py"
_TRAJECTORY = "slime/agent/trajectory.py"
_COLLATOR = "roll.datasets.collator.DataCollatorWithPaddingForMM.__call__"
#: The lines after the edited one, of which there are two in the file.
_FORCED = '                forward_args.update({"force_vit_image": True})\n\n            sync'


#: The laws that compare a boundary with expected values: of outputs, and of a contract that has only metrics.
_LAWS, _OF_METRICS = {"the_oracle_agrees", "fields_survive_surgery"}, {"metrics_tell_the_truth"}


@dataclass(frozen=True)
class Axis:
    """A fault in a line that only runs with ``options``, which is empty for a binding that has no axis.

    ``mask`` is the mask of the four responses, or None if all tokens are valid.
    """

    boundary: str
    contract: str
    edit: Edit
    options: Mapping[str, Any] = field(default_factory=dict)
    mask: Sequence[Sequence[int]] | None = None


AXES = (
    Axis(
        "roll.utils.functionals.compute_advantage",
        "distilled_advantage",
        (_ROLL, "kld_i[subset_idx] = kld_subset", "kld_i[: len(subset_idx)] = kld_subset"),
        {"second_coefficient": 0.5, "routed": True},
    ),
    Axis(
        "roll.pipeline.agentic.utils.agentic_compute_advantage",
        "distilled_advantage",
        ("roll/pipeline/agentic/utils.py", "advantages = -total_weighted_kld", "advantages = total_weighted_kld"),
        {"pure": True},
    ),
    Axis(
        "roll.distributed.strategy.fsdp2_strategy.FSDP2TrainStrategy.train_step",
        "policy_update",
        ("roll/pipeline/base_worker.py", "self._logprobs_cache[sample_uuid])", "self._logprobs_cache[first_uuid])"),
        {"keeps_old_log_probs": True},
    ),
    Axis(
        "roll.distributed.strategy.fsdp2_strategy.FSDP2TrainStrategy.train_step",
        "policy_update",
        (
            "roll/distributed/strategy/fsdp2_strategy.py",
            f"multi_modal_data[key], dim=0).to(input_ids.device)\n{_FORCED}",
            f"multi_modal_data[key][::-1], dim=0)\n{_FORCED}",
        ),
        {"with_images": True},
    ),
    Axis(
        _COLLATOR,
        "collation",
        ("roll/datasets/collator.py", "audios.extend(video_audios)", "audios.extend(video_audios[:0])"),
        {"form": "sound"},
    ),
    Axis(
        _COLLATOR,
        "collation",
        (
            "roll/datasets/collator.py",
            "prompt.replace(self.video_placeholder, self.video_token)",
            "prompt.replace(self.video_placeholder, self.image_token)",
        ),
        {"form": "files"},
    ),
    Axis(
        "roll.utils.dynamic_batching.dynamic_batching_shard",
        "microbatch_packing",
        ("roll/utils/dynamic_batching.py", "new_mb2 = [split_point, split_end]", "new_mb2 = [split_start, split_end]"),
        {"stages": 2},
    ),
    Axis(
        "roll.pipeline.agentic.utils.compute_response_level_rewards",
        "reward_normalisation",
        (
            "roll/pipeline/agentic/utils.py",
            "+ pipeline_config.step_reward_weight",
            "- pipeline_config.step_reward_weight",
        ),
        {"rewards_of": "both"},
    ),
    Axis(
        "roll.utils.functionals.postprocess_generate",
        "collation",
        (_ROLL, "new_routed_experts[i, :routed", "new_routed_experts[0, :routed"),
    ),
    Axis(
        f"{_ROLL_DATA}.rename",
        "row_surgery",
        (
            "roll/distributed/scheduler/protocol.py",
            "zip(old_keys, new_keys):\n                self._batch.rename_key_",
            "zip(old_keys, new_keys[::-1]):\n                self._batch.rename_key_",
        ),
    ),
    Axis(
        "areal.engine.fsdp_utils.grad.clip_grad_by_total_norm_fp32",
        "loop_update",
        ("areal/engine/fsdp_utils/grad.py", "max_norm / (total_norm + 1.0e-6)", "max_norm / (1 + total_norm)"),
        {"max_norm": 0.25},
    ),
    Axis(
        "areal.engine.fsdp_utils.grad.get_grad_norm_fp32",
        "loop_update",
        ("areal/engine/fsdp_utils/grad.py", "total_norm += grad_norm**norm_type", "total_norm += grad_norm"),
        {"max_norm": 0.25, "offloads": True},
        [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]],
    ),
    Axis(
        "areal.models.tree_attn.functional._compute_transition_logprob_entropy",
        "policy_update",
        (
            "areal/models/tree_attn/functional.py",
            "pred_logit = logits[pred_pos : pred_pos + 1]\n",
            "pred_logit = logits[label_pos : label_pos + 1]\n",
        ),
    ),
    Axis(
        "areal.models.tree_attn.tree.get_packed_tree_position_ids",
        "recomputed_log_probs",
        ("areal/models/tree_attn/tree.py", "clamp_min(ancestor_counts - 1, 0)", "clamp_min(ancestor_counts, 0)"),
    ),
    Axis(
        "areal.models.tree_attn.tree._build_attention_mask",
        "recomputed_log_probs",
        (
            "areal/models/tree_attn/tree.py",
            "global_cols = row_start + local_cols",
            "global_cols = row_start + local_rows",
        ),
    ),
    Axis(
        "areal.models.fsdp.ulysses.ulysses_prepare_inputs",
        "recomputed_log_probs",
        (
            "areal/models/fsdp/ulysses.py",
            "torch.roll(padded_input_ids, shifts=-1, dims=-1)",
            "torch.roll(padded_input_ids, shifts=1, dims=-1)",
        ),
    ),
    Axis(
        "areal.trainer.ppo.critic.PPOCritic._ppo_update",
        "value_loss",
        (
            "areal/trainer/ppo/critic.py",
            'target_value = input_data["returns"].float()',
            'target_value = input_data["values"].float()',
        ),
    ),
    Axis(
        "areal.trainer.dpo.dpo_engine.DPOEngine._train_dpo",
        "preference_update",
        (
            "areal/trainer/dpo/dpo_engine.py",
            "return _dpo_valid_pairs(x).count_nonzero().float()",
            "return x['cu_seqlens'][-1]",
        ),
        {"micro_batch_size": 1},
        [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]],
    ),
    Axis(
        "areal.utils.dataloader.EvalDistributedSampler.__init__",
        "epoch_order",
        ("areal/utils/dataloader.py", "self.total_size = len(dataset)", "pass"),
        {"size": 5},
    ),
    Axis(
        "areal.dataset.gsm8k.get_gsm8k_sft_dataset",
        "trained_tokens",
        (
            "areal/dataset/gsm8k.py",
            'prompt_token = tokenizer.encode(sample["question"])',
            'prompt_token = tokenizer.encode(sample["question"])[1:]',
        ),
    ),
    Axis(
        "areal.infra.dist_rollout.redistribute_trajectories",
        "balanced_partition",
        ("areal/infra/dist_rollout.py", "group_indices[dist.get_rank(group=group)]", "group_indices[0]"),
    ),
    Axis(
        "areal.utils.seqpack.reorder_to_balanced_batches",
        "balanced_partition",
        ("areal/utils/seqpack.py", "bin_seqlens[idx] += seqlens[i]", "bin_seqlens[idx] -= seqlens[i]"),
    ),
    Axis(
        "areal.workflow.multi_turn.MultiTurnWorkflow.arun_episode",
        "rollout_episode",
        ("areal/workflow/multi_turn.py", "loss_mask += [0] * input_len", "loss_mask += [1] * input_len"),
        {"turns": 3},
    ),
    Axis(
        "areal.experimental.openai.cache.InteractionCache.apply_reward_discount",
        "discounted_return",
        (
            "areal/experimental/openai/cache.py",
            "current_reward * turn_discount + interaction",
            "current_reward + interaction",
        ),
        {"gamma": 0.5},
    ),
    Axis(
        "areal.engine.megatron_utils.packed_context_parallel._build_cp_reassemble_indices",
        "collation",
        (
            "areal/engine/megatron_utils/packed_context_parallel.py",
            "indices[full_start + seq_len - (j + 1) * half_chunk + k]",
            "indices[full_start + half_chunk * (cp_size + j) + k]",
        ),
    ),
    Axis(
        "areal.engine.megatron_engine._padded_lm_head_labels",
        "collation",
        (
            "areal/engine/megatron_engine.py",
            "return torch.roll(padded_ids, shifts=-1, dims=-1).transpose",
            "return torch.roll(padded_ids, shifts=-2, dims=-1).transpose",
        ),
    ),
    Axis(
        "areal.engine.vllm_remote.VLLMBackend.parse_score_response",
        "recomputed_log_probs",
        (
            "areal/engine/vllm_remote.py",
            "sliced = prompt_logprobs[-target_len:]",
            "sliced = prompt_logprobs[:target_len]",
        ),
    ),
    Axis(
        _GRPO,
        "decoupled_loss",
        (_AREAL, "version_gap / version_diff,", "version_gap / (version_diff + 1),"),
        {"proximal": "interpolated", "staleness": 4},
    ),
    Axis(
        _GRPO,
        "distilled_loss",
        (_AREAL, "rkl_reward = teacher_logp - logprobs", "rkl_reward = teacher_logp + logprobs"),
        {"rl_weight": 0.0},
    ),
    Axis(
        "areal.trainer.ppo.actor.PPOActor._ppo_update",
        "policy_update",
        (_AREAL_DATA, "[multi_modal_input[i] for i in group_index]", "[multi_modal_input[0] for i in group_index]"),
        {"with_images": True},
    ),
    Axis(
        "areal.utils.data.concat_padded_tensors",
        "collation",
        (_AREAL_DATA, "result[mm_key] = merged_multi_modal", "result[mm_key] = merged_multi_modal[::-1]"),
        {"form": "media"},
    ),
    Axis(
        "areal.engine.vllm_remote.VLLMBackend.build_generation_request",
        "sampling_request",
        ("areal/engine/vllm_remote.py", "base64_img = next(images)", "base64_img = req.image_data[0]"),
    ),
    Axis(
        f"{_MEGATRON}.forward",
        "recomputed_log_probs",
        (_WRAPPER, "= sequences[attention_mask]\n", "= sequences[attention_mask].flip(0)\n"),
        {"packed": True},
    ),
    Axis(
        f"{_MEGATRON}.forward",
        "recomputed_log_probs",
        (
            _LAYOUT,
            "all_log_probs.append(log_probs)\n\n        # Defer",
            "all_log_probs.append(2 * log_probs)\n\n        # Defer",
        ),
        {"fused_head": True},
    ),
    Axis(
        f"{_MEGATRON}.forward_backward_mini_batch",
        "policy_update",
        (_LAYOUT, "grad_logits = softmax_output.neg_()", "grad_logits = softmax_output"),
        {"fused_head": True, "packed": True},
    ),
    Axis(
        f"{_MEGATRON}.forward_backward_mini_batch",
        "supervised_update",
        (_WRAPPER, "loss = policy_loss * grad_sum_correction_factor\n", "loss = policy_loss * 3 * num_microbatches\n"),
    ),
    Axis(
        f"{_WORKER}.PolicyWorkerBase._forward_micro_with_loss",
        "supervised_update",
        (
            f"{_WORKER.replace('.', '/')}.py",
            '"loss": policy_loss.item(),\n            "resp',
            '"loss": 0.0,\n            "resp',
        ),
    ),
    Axis(
        f"{_WORKER}.CriticWorkerBase.forward_backward",
        "value_loss",
        (f"{_WORKER.replace('.', '/')}.py", "scale = 1.0 / self._micro", "scale = 0.5 / self._micro"),
    ),
    Axis(
        f"{_WORKER}.CriticWorkerBase.forward",
        "critic_values",
        (f"{_WORKER.replace('.', '/')}.py", 'value = value.to("cpu")', 'value = value.to("cpu").flip(0) * 2'),
    ),
    Axis(
        "skyrl.train.generators.utils._merge_single_trajectory",
        "collation",
        (
            "skyrl/train/generators/utils.py",
            'acc_loss_mask = list(gen_out["loss_masks"][i])',
            'acc_loss_mask = list(gen_out["loss_masks"][0])',
        ),
    ),
    Axis(
        "skyrl.train.generators.skyrl_gym_generator.SkyRLGymGenerator.generate",
        "collation",
        (
            "skyrl/train/generators/skyrl_gym_generator.py",
            "rewards.append(step_output.reward)",
            "rewards.append(output.step_outputs[0].reward)",
        ),
    ),
    Axis(
        "skyrl.train.dataset.preprocess.convert_prompts_responses_to_batch_tensors",
        "collation",
        (
            "skyrl/train/dataset/preprocess.py",
            "padded[sample_index, left_pad:route_end] = sample_indices",
            "padded[sample_index, : len(sample_indices)] = sample_indices",
        ),
    ),
    Axis(
        "verl.trainer.ppo.v1.utils.MetricsAggregator.get_aggregated_metrics",
        "mean_of_parts",
        ("verl/trainer/ppo/v1/utils.py", "return values[-1]", "return values[0] + 1"),
        {"statistic": "last"},
    ),
    Axis(
        "verl.experimental.fully_async_policy.detach_utils.MetricsAggregator.get_aggregated_metrics",
        "mean_of_parts",
        (
            "verl/experimental/fully_async_policy/detach_utils.py",
            'aggregated["global_seqlen/max"] - aggregated',
            '1 + aggregated["global_seqlen/max"] - aggregated',
        ),
        {"statistic": "range"},
    ),
    Axis(
        "verl.utils.metric.utils.reduce_metrics",
        "mean_of_parts",
        ("verl/utils/metric/utils.py", "metrics[key] = np.max(val)", "metrics[key] = np.min(val)"),
        {"statistic": "max"},
    ),
    Axis(
        f"{_VERL_TRAINER}.compute_spec_decode_metrics",
        "mean_of_parts",
        (_VERL_FILE, "(a / d) if d > 0", "(a / (d + 1)) if d > 0"),
    ),
    Axis(
        f"{_VERL_TRAINER}.compute_advantage",
        "group_advantage",
        (_VERL_FILE, '= data.batch["reward_baselines"]', '= 1 + data.batch["reward_baselines"]'),
        {"estimator": "remax"},
    ),
    Axis(
        f"{_VERL_TRAINER}.compute_advantage",
        "generalised_advantage",
        (_VERL_FILE, "            lam=lam,", "            lam=gamma,"),
        {"lam": 0.5},
    ),
    Axis(
        "verl.trainer.ppo.v1.utils.compute_advantage_for_multi_trajectories",
        "group_advantage",
        ("verl/trainer/ppo/v1/utils.py", "[session_key][0] < index", "[session_key][0] > index"),
    ),
    # With one token per response, whitening over tokens equals whitening over responses.
    Axis(
        "verl.trainer.ppo.core_algos.compute_gdpo_outcome_advantage",
        "group_advantage",
        ("verl/trainer/ppo/core_algos.py", "new_advantage += weights[i]", "new_advantage += 3 * weights[i]"),
        {"components": 2},
        [[1, 0, 0]] * 4,
    ),
    Axis(
        "verl.models.mcore.util.preprocess_packed_seqs",
        "recomputed_log_probs",
        ("verl/models/mcore/util.py", "d = input_ids[i, attention_mask[i]]", "d = input_ids[0, attention_mask[i]]"),
    ),
    Axis(
        "verl.workers.reward_manager.naive.NaiveRewardManager.__call__",
        "token_reward",
        (
            "verl/workers/reward_manager/abstract.py",
            'return data.batch["rm_scores"]',
            'return 2 * data.batch["rm_scores"]',
        ),
        {"score_as": None},
    ),
    Axis(
        "verl.utils.model.extract_multi_modal_inputs",
        "collation",
        ("verl/utils/model.py", "[batch_data[i] for i in indices if", "[batch_data[1] for i in indices if"),
    ),
    Axis(
        "verl.utils.seqlen_balancing.rearrange_micro_batches",
        "microbatch_packing",
        (
            "verl/utils/seqlen_balancing.py",
            "num_micro_batches = roundup_divisible(num_micro_batches, num_batches_divided_by)",
            "pass",
        ),
        {"stages": 2},
    ),
    Axis(
        "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead.prepare_model_inputs",
        "token_log_probs",
        (
            "verl/workers/engine/fsdp/transformer_impl.py",
            "verl_F.calculate_sum_pi_squared_from_logits(logits_rmpad)",
            "2 * verl_F.calculate_sum_pi_squared_from_logits(logits_rmpad)",
        ),
    ),
    Axis(
        f"{_SLIME}._allgather_cp_redistribute",
        "token_log_probs",
        (
            _SLIME_FILE,
            "F.pad(value, (resp_start, response_length - resp_end))",
            "F.pad(value, (response_length - resp_end, resp_start))",
        ),
        {"context_parallel_size": 2},
    ),
    Axis(
        f"{_SLIME}._allgather_cp_redistribute",
        "critic_values",
        (
            _SLIME_FILE,
            "logits_chunk = logits[s - chunk_start : e - chunk_start]",
            "logits_chunk = logits[s - chunk_start : e - chunk_start].flip(0)",
        ),
        {"context_parallel_size": 2},
    ),
    Axis(
        f"{_SLIME}._build_topp_keep_mask",
        "token_log_probs",
        (_SLIME_FILE, "length = logits_offset[half][1] -", "length = logits_offset[half][1] - 1 -"),
        {"context_parallel_size": 2, "top_p": 0.5},
    ),
    Axis(
        f"{_SLIME}._fill_topp_mask_rows",
        "token_log_probs",
        (_SLIME_FILE, "s - logit_global_start,\n", "0,\n"),
        {"context_parallel_size": 2, "top_p": 0.5},
    ),
    Axis(
        f"{_SLIME}.loss_function",
        "policy_update",
        (_SLIME_FILE, "torch.exp(log_probs - old_log_probs)", "torch.exp(old_log_probs - log_probs)"),
        {"unbiased_kl": True, "kl_coef": 0.5},
    ),
    Axis(
        f"{_SLIME}.policy_loss_function",
        "policy_loss",
        (
            _SLIME_FILE,
            "old_log_probs = [log_prob.detach() for log_prob in log_probs]",
            "old_log_probs = [log_prob.detach() + 1 for log_prob in log_probs]",
        ),
        {"on_policy": True},
    ),
    Axis(
        f"{_SLIME}.compute_advantages_and_returns",
        "discounted_return",
        (
            _SLIME_FILE,
            'rollout_data["advantages"], rollout_data["returns"]\n',
            'rollout_data["kl"], rollout_data["kl"]\n',
        ),
    ),
    Axis(
        "slime.agent.trajectory.TrajectoryManager.get_trajectory",
        "collation",
        (
            _TRAJECTORY,
            "self.loss_mask[response_start:] = [0] * len(tail)",
            "self.loss_mask[response_start:] = [1] * len(tail)",
        ),
        {"history": "retokenised"},
    ),
    Axis(
        "slime.agent.trajectory._SampleBuilder.to_sample",
        "collation",
        (_TRAJECTORY, "rewritten_node.turn = None\n", "pass\n"),
        {"history": "rewritten"},
    ),
    Axis(
        "slime.rollout.sglang_rollout.generate_and_rm_group",
        "rollout",
        (
            "slime/rollout/sglang_rollout.py",
            "sample.loss_mask = [0] * sample.response_length",
            "sample.loss_mask = [1] * sample.response_length",
        ),
        {"stale": "masked", "interrupted": True},
    ),
    Axis(
        "slime.rollout.sglang_rollout.generate_and_rm",
        "rollout",
        (
            "slime/utils/types.py",
            "torch.cat([base_token_ids, token_ids])",
            "torch.cat([token_ids, base_token_ids])",
        ),
        {"interrupted": True},
    ),
    Axis(
        "slime.ray.rollout.RolloutManager._convert_samples_to_train_data",
        "collation",
        (
            "slime/ray/rollout.py",
            "sample.loss_mask = [0] * sample.response_length",
            "sample.loss_mask = [1] * sample.response_length",
        ),
    ),
    Axis(
        "slime.rollout.rm_hub.batched_async_rm",
        "rule_reward",
        (
            "slime/rollout/rm_hub/__init__.py",
            "load_function(sample.custom_rm_path)\n        return await",
            "load_function(sample.custom_rm_path)\n        return 1 - await",
        ),
        {"rule": "own_of_sample"},
    ),
    Axis(
        "slime.rollout.rm_hub.gpqa.compute_gpqa_reward",
        "rule_reward",
        (
            "slime/rollout/rm_hub/gpqa.py",
            "if 0 <= idx < len(valid_letters):\n            correct_letter = valid_letters[idx]",
            "if 0 <= idx < len(valid_letters):\n            correct_letter = valid_letters[idx - 1]",
        ),
        {"rule": "numbers"},
    ),
    Axis(
        "slime.utils.mask_utils.MultiTurnLossMaskGenerator.gen_multi_turn_loss_mask_qwen3_5",
        "trained_tokens",
        (
            "slime/utils/mask_utils.py",
            'if message.get("step_loss_mask", 1) != 1:\n                continue',
            'if message.get("step_loss_mask", 1) == 2:\n                continue',
        ),
        {"skipped": "first"},
    ),
    Axis(
        "slime.backends.megatron_utils.data.get_batch",
        "collation",
        (
            "slime/backends/megatron_utils/data.py",
            "loss_masks.chunk(cp_size, dim=0)[cp_rank]",
            "loss_masks.chunk(cp_size, dim=0)[0]",
        ),
    ),
    Axis(
        "roll.distributed.strategy.megatron_strategy.MegatronInferStrategy.forward_step",
        "recomputed_log_probs",
        (
            "roll/distributed/strategy/megatron_strategy.py",
            "cu_seqlens_padded.append(cu_seqlens_padded[-1] + padded_seq_len)",
            "cu_seqlens_padded.append(cu_seqlens_padded[-1] + padded_seq_len - 1)",
        ),
        {"packed": True},
    ),
    *(Axis(*fault) for fault in FAULTS),
)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """The main of a target with the faults of all its axes."""

    yield from each_twin(
        MAIN, lambda target: [axis.edit for axis in AXES if target_of(axis.boundary) == target], tmp_path_factory
    )


def _detected(code: Bound, axis: Axis, options: Mapping[str, Any]) -> bool:
    subject = code.subject(axis.boundary, axis.contract)
    names = {law.name for law in subject.laws}
    laws = sorted(names & _LAWS or names & _OF_METRICS)
    for seed in range(8):
        choose = Choices(random.Random(seed).randbytes(64))
        scenario = code.scenarios(subject, mask=axis.mask, choose=choose, options=options)["plain"]
        trials = [code.ask(subject, law, {"": scenario}) for law in laws]
        assert not any(trial.refused for trial in trials)
        if any(trial.violations for trial in trials):
            return True
    return False


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: f"{axis.boundary.rpartition('.')[2]}-{axis.contract}")
def test_only_the_axis_reaches_the_fault(twin, axis):
    code = twin(target_of(axis.boundary))
    assert _detected(code, axis, axis.options)
    assert not (axis.options and _detected(code, axis, {}))
