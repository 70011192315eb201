"""Faults in ROLL's functions: boundary, contract and edit. The laws of the contract must detect each fault."""

from collections.abc import Mapping
from typing import Any

from twins import Edit

_BATCHES, _REMOTES = "roll.distributed.scheduler.protocol.DataProto", "roll.distributed.scheduler.remote_protocol"
_SCHEDULERS, _LOOP = "roll.distributed.scheduler", "roll.distributed.scheduler.user_defined_rollout_loop"
_STRATEGIES, _FUNCTIONALS = "roll.distributed.strategy", "roll.utils.functionals"
_AGENTS, _METRICS = "roll.pipeline.agentic", "roll.utils.metrics.metrics_manager.MetricsManager"
_MEGATRON = f"{_STRATEGIES}.megatron_strategy.MegatronInferStrategy"


def _fault(
    boundary: str,
    contract: str,
    old: str,
    new: str,
    depth: int = 2,
    options: Mapping[str, Any] | None = None,
) -> tuple[str, str, Edit, Mapping[str, Any]]:
    """Return a fault in the module of the boundary, whose last ``depth`` names are no modules.

    :param options: the scenario's options, without which the fault has no effect.
    """
    module = boundary.rsplit(".", depth)[0]
    return boundary, contract, (f"{module.replace('.', '/')}.py", old, new), options or {}


_SET = "assert self._batch is not None\n                if key in self._non_tensor_batch:\n" + (
    "                    del self._non_tensor_batch[key]\n                self._batch[key] = value"
)
_RESULTS = "results = collate_fn_to_dict_list(losses_reduced)\n        return results"
FAULTS = (
    _fault(
        f"{_REMOTES}.RowRemoteBatch.select_idxs", "row_surgery",
        "[self._row_ids[i] for i in index_list]", "[self._row_ids[i] for i in sorted(index_list)]",
    ),
    _fault(
        f"{_REMOTES}.ColumnRemoteBatch.union", "row_surgery",
        "self.fields[field] = value", "self.fields[field] = next(iter(self.fields.values()))",
    ),
    _fault(f"{_BATCHES}.update", "row_surgery", _SET, f"{_SET}.flip(0)"),
    _fault(
        f"{_BATCHES}.materialize_concat", "row_surgery", "in enumerate(data_refs) if ref.collected",
        "in enumerate(data_refs)",
    ),
    _fault(
        f"{_BATCHES}.to_remote", "row_surgery", "data_dict.update(data._non_tensor_batch)", "pass",
    ),
    _fault(
        f"{_FUNCTIONALS}.divide_by_chunk_size", "row_surgery", "split_data.append(data[start_index:end_index])",
        "split_data.append(data[:size])", 1,
    ),
    _fault(
        f"{_SCHEDULERS}.generate_scheduler.ReplayBuffer.get_batch", "rollout_collection",
        "while collected_samples < expected_samples and self.finished",
        "while collected_samples <= expected_samples and self.finished",
    ),
    _fault(
        f"{_SCHEDULERS}.rollout_scheduler.GroupQueue.put", "rollout_collection",
        "elif self.group_filter.filter(", "elif not self.group_filter.filter(",
    ),
    _fault(
        f"{_SCHEDULERS}.generate_scheduler.DynamicSamplingScheduler.get_next_dataset_item", "minibatch_iteration",
        "dataset_item = self.dataset[next(self.dataset_iter)]\n            logger",
        "next(self.dataset_iter)\n            dataset_item = self.dataset[0]\n            logger",
    ),
    _fault(
        f"{_SCHEDULERS}.generate_scheduler.DynamicSamplingScheduler.collect_items_as_batch", "mean_of_parts",
        'score/mean"] = torch.mean(sequence_score)', 'score/mean"] = torch.median(sequence_score)',
    ),
    _fault(
        f"{_SCHEDULERS}.reward_scheduler.RewardScheduler.compute_rewards", "row_surgery",
        'grouped_data[domain].batch["prompt_id"]\n', 'grouped_data[domain].batch["prompt_id"].flip(0)\n',
    ),
    _fault(f"{_LOOP}.query_filter", "group_filter", "torch.std(rewards) <= std", "torch.std(rewards) > std", 1),
    _fault(
        f"{_LOOP}.query_filter", "difficulty_filter", "torch.mean(rewards) <= threshold_down",
        "torch.mean(rewards) >= threshold_down", 1,
    ),
    _fault(
        f"{_LOOP}.UserDefinedRolloutLoop.process_new_prompt", "collation", "[req[[idx]] for idx", "[req[[0]] for idx",
    ),
    _fault(
        f"{_LOOP}.postprocess_output_data", "collation", "output_logprobs=output_logprobs,\n",
        "output_logprobs=output_logprobs[::-1],\n", 1,
    ),
    _fault(
        "roll.datasets.sampler.BatchStratifiedSampler.__iter__", "minibatch_iteration", "start = i * num",
        "start = 0 * num",
    ),
    _fault(
        f"{_STRATEGIES}.fsdp2_strategy.FSDP2InferStrategy.forward_step", "recomputed_log_probs",
        f"{_RESULTS}\n\n    def get_feature_on_cp_rank",
        f"losses_reduced.reverse()\n        {_RESULTS}\n\n    def get_feature_on_cp_rank",
        options={"micro_batch_size": 1},
    ),
    _fault(
        f"{_STRATEGIES}.hf_strategy.HfInferStrategy.forward_step", "recomputed_log_probs",
        "losses_reduced.append(loss_reduced)", "losses_reduced.insert(0, loss_reduced)",
        options={"micro_batch_size": 1},
    ),
    _fault(
        f"{_STRATEGIES}.fsdp2_strategy.FSDP2TrainStrategy.op_compute_language_loss", "supervised_loss",
        "padded_labels = labels\n        start_index = cp_middle",
        "padded_labels = labels.flip(1)\n        start_index = cp_middle",
    ),
    _fault(
        f"{_STRATEGIES}.strategy.InferenceStrategy.op_compute_language_loss_from_logits", "supervised_loss",
        "targets = targets[..., 1:]", "targets = targets[..., :-1]",
    ),
    _fault(
        f"{_STRATEGIES}.strategy.InferenceStrategy.op_compute_gather_by_teacher_indices", "distillation_loss",
        "torch.gather(student_logits, dim=-1, index=teacher_indices)", "student_logits",
    ),
    _fault(
        f"{_MEGATRON}.op_compute_gather_by_teacher_indices", "distillation_loss",
        "vocab_start = tp_rank * local_vocab_size", "vocab_start = 0 * local_vocab_size",
    ),
    _fault(
        f"{_MEGATRON}.op_compute_language_loss", "supervised_loss", "loss = losses.clone() / batch_num_tokens",
        "loss = losses.clone() / loss_mask.sum()",
    ),
    _fault(
        "roll.pipeline.distill.distill_worker.TeacherWorker.forward_func", "distillation_loss",
        "kd_temperature=self.pipeline_config.kd_temperature,\n            teacher",
        "kd_temperature=1,\n            teacher",
    ),
    _fault(
        "roll.pipeline.distill.distill_worker.StudentWorker.loss_func_for_eval", "supervised_loss",
        "gpt_loss = gpt_loss / batch_num_tokens\n        student_metrics = {\n            \"student",
        "student_metrics = {\n            \"student",
    ),
    _fault(
        "roll.third_party.megatron.tensor_parallel._VocabParallelEntropy.forward", "token_log_probs",
        "entropy = logits_max + normalized", "entropy = normalized",
    ),
    _fault(
        "roll.third_party.megatron.util.preprocess_packed_seqs", "recomputed_log_probs",
        "= input_ids[i, attention_mask[i]]\n                continue",
        "= input_ids[i, attention_mask[i]].flip(0)\n                continue", 1,
    ),
    _fault(
        "roll.utils.context_parallel.rmpad_ulysses.ulysses_pad_and_slice_inputs", "recomputed_log_probs",
        "position_ids_rmpad[..., start:end]", "position_ids_rmpad[..., : end - start]", 1,
    ),
    _fault(
        f"{_FUNCTIONALS}.extract_real_results_from_routed", "recomputed_log_probs",
        "torch.argsort(real_positions)", "torch.arange(len(real_positions))", 1,
    ),
    _fault(
        f"{_FUNCTIONALS}.merge_ref_log_probs_compat", "recomputed_log_probs", "teacher_mask & ~filled",
        "teacher_mask & filled", 1,
    ),
    _fault(
        f"{_AGENTS}.agentic_pipeline.compute_train_data_metrics", "batch_report",
        '"critic/returns/mean": masked_mean(returns', '"critic/returns/mean": masked_mean(advantages', 1,
    ),
    _fault(
        f"{_AGENTS}.agentic_pipeline.get_episode_scores", "mean_of_parts",
        'episode_scores = traj_batch.non_tensor_batch["episode_scores"][0]',
        'episode_scores = len(traj_batch)', 1,
    ),
    _fault(
        f"{_METRICS}.add_domain_all_metrics", "batch_report", "self.add_values_metrics(batch=domain_batch)",
        "self.add_values_metrics(batch=next(iter(batch_grouped.values())))",
    ),
    _fault(
        f"{_METRICS}.add_group_metrics", "mean_of_parts", "max_adv_per_group = torch.max(",
        "max_adv_per_group = torch.min(",
    ),
    _fault(
        f"{_FUNCTIONALS}.concatenate_input_and_output", "collation",
        "sequences = torch.cat((repeated_input_ids, output_ids)",
        "sequences = torch.cat((repeated_input_ids.flip(0), output_ids)", 1,
    ),
    _fault(
        f"{_FUNCTIONALS}.separate_prompt_response", "collation", "attention_mask.bool() & response_mask.bool()",
        "response_mask.bool()", 1,
    ),
    _fault(
        f"{_FUNCTIONALS}.get_pad_mask", "response_masks", "pad_mask = pad_mask | first",
        "pad_mask = pad_mask & first", 1, options={"eos_token_id": 0},
    ),
    _fault(
        f"{_AGENTS}.env_manager.token_mask_utils.messages_to_tokens_and_masks", "trained_tokens",
        "token_ids = token_ids[len(system_token_ids_mock):]\n            if message", "if message", 1,
    ),
    _fault(
        "roll.pipeline.rlvr.rewards.multiple_choice_boxed_rule_reward_worker.MultipleChoiceBoxedRuleRewardWorker"
        ".compute_rewards",
        "rule_reward", "multiple_choice_boxed_reward > 0.5", "multiple_choice_boxed_reward > 1.5",
    ),
)  # fmt: skip
