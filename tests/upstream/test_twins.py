"""Laws detect faults in real code: in a copy of each target's main, one line of each boundary is changed.

``test_bindings_agree.py`` shows that the laws hold for the unchanged code.
"""

import random
import re
from collections.abc import Iterator

import pytest
from binding_kit import MAIN, Open, each_twin, target_of
from twins import Edit

from sentinel.contracts.choices import Choices
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects

#: A file; boundaries in it, with a contract if they have several; the text to replace, and its replacement.
EDITS = """
--- verl/workers/engine/utils.py
@@ verl.workers.engine.fsdp.transformer_impl.FSDPEngine.forward_backward_batch
- model_output[key] = restore_dynamic_batch(model_output[key], indices)
+ model_output[key] = model_output[key]
--- verl/protocol.py
@@ verl.protocol.DataProto.chunk
- non_tensor_batch_lst[i][key] = non_tensor_lst[i]
+ non_tensor_batch_lst[i][key] = non_tensor_lst[-1 - i]
@@ verl.protocol.DataProto.split
- return [self[i : i + split_size] for i in range(0, len(self), split_size)]
+ return [self[i : i + split_size] for i in range(0, len(self) - split_size + 1, split_size)]
@@ verl.protocol.DataProto.concat
- np.concatenate(val, axis=0)
+ np.concatenate(val[::-1], axis=0)
@@ verl.protocol.DataProto.reorder
- self.batch = self.batch[indices]⏎        self.non_tensor_batch = {key: val[indices_np]
+ self.batch = self.batch[indices]⏎        self.non_tensor_batch = {key: val
@@ verl.protocol.DataProto.repeat
- repeated_non_tensor_batch[key] = np.repeat(val, repeat_times, axis=0)⏎            else:
+ repeated_non_tensor_batch[key] = np.tile(val, repeat_times)⏎            else:
@@ verl.protocol.DataProto.sample_level_repeat
- repeat_times = torch.tensor(repeat_times)⏎
+ repeat_times = torch.tensor(repeat_times) + 1⏎
@@ verl.protocol.DataProto.make_iterator
- for _ in range(epochs):
+ for _ in range(1):
@@ verl.protocol.pad_dataproto_to_divisor
- padding_protos.append(data[:take_size])
+ padding_protos.append(data[-take_size:])
@@ verl.protocol.unpad_dataproto
- data = data[:-pad_size]
+ data = data[pad_size:]
--- verl/utils/tensordict_utils.py
@@ verl.utils.tensordict_utils.chunk_tensordict
- list(tensors[i * chunk_size : (i + 1) * chunk_size])
+ list(tensors[:chunk_size])
@@ verl.utils.tensordict_utils.concat_tensordict
- nested_tensors_to_concat = [td[key] for td in data]
+ nested_tensors_to_concat = [td[key] for td in data[::-1]]
@@ verl.utils.tensordict_utils.index_select_tensor_dict
- selected_tensors = [tensor_lst[idx] for idx in indices]
+ selected_tensors = [tensor_lst[idx] for idx in sorted(indices)]
@@ verl.utils.tensordict_utils.pad_to_divisor
- padding_protos.append(data[:take_size])
+ padding_protos.append(data[-take_size:])
@@ verl.utils.tensordict_utils.unpad
- data = data[:-pad_size]
+ data = data[pad_size:]
@@ verl.utils.tensordict_utils.make_iterator
- for _ in range(epochs):
+ for _ in range(1):
--- verl/utils/seqlen_balancing.py
@@ verl.utils.seqlen_balancing.get_seqlen_balanced_partitions
- sorted_partitions[i] = sorted(partition)
+ sorted_partitions[i] = sorted(partition)[i:]
@@ verl.utils.seqlen_balancing.karmarkar_karp
- self.sets[i].merge(other.sets[self.k - 1 - i])
+ self.sets[i].merge(other.sets[0])
@@ verl.utils.seqlen_balancing.get_group_balanced_partitions
- sample_indices.extend(groups[group_idx][0])
+ sample_indices.extend(groups[group_idx][0][:1])
@@ verl.utils.seqlen_balancing.prepare_dynamic_batch
- non_tensors = {key: value[batch_idx] for
+ non_tensors = {key: value[: len(batch_idx)] for
@@ verl.utils.seqlen_balancing.restore_dynamic_batch
- torch.tensor(get_reverse_idx(indices), dtype=torch.long)
+ torch.tensor(indices, dtype=torch.long)
--- verl/workers/utils/losses.py
@@ verl.utils.dataset.multiturn_sft_dataset.MultiTurnSFTDataset.__getitem__ trained_tokens
- torch.roll(loss_mask_flatten, shifts=-1, dims=0)
+ torch.roll(loss_mask_flatten, shifts=-2, dims=0)
--- verl/trainer/ppo/ray_trainer.py
@@ verl.trainer.ppo.ray_trainer.RayPPOTrainer._balance_batch
- global_idx = torch.tensor([j for partition in global_partition_lst for j in partition])
+ global_idx = torch.tensor([j for partition in global_partition_lst for j in partition]).clamp(min=1)
@@ verl.trainer.ppo.ray_trainer.RayPPOTrainer._update_actor training_step
- batch.meta_info["multi_turn"] = rollout_config.multi_turn.enable⏎        # TODO: Make
+ batch.batch["advantages"] = batch.batch["advantages"].flip(0)⏎        # TODO: Make
--- verl/experimental/agent_loop/agent_loop.py
@@ verl.experimental.agent_loop.agent_loop.AgentLoopWorker.generate_sequences sampling_request
- temperature=config.temperature,⏎            top_p=config.top_p,
+ temperature=1.0,⏎            top_p=config.top_p,
--- verl/experimental/agent_loop/single_turn_agent_loop.py
@@ verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop.run rollout
- response_logprobs[: self.response_length] if response_logprobs else None
+ response_logprobs[::-1][: self.response_length] if response_logprobs else None
--- verl/workers/rollout/llm_server.py
@@ verl.workers.rollout.llm_server.FullyAsyncLLMServerClient.generate rollout
- prompt_ids=prompt_ids + final_output.token_ids,
+ prompt_ids=prompt_ids,
--- verl/trainer/ppo/core_algos.py
@@ verl.trainer.ppo.core_algos.get_kl_controller
- np.clip(current_kl / target - 1, -0.2, 0.2)
+ np.clip(current_kl / target - 1, -0.2, 0.3)
--- verl/utils/torch_functional.py
@@ verl.utils.torch_functional.get_constant_schedule_with_warmup
- float(max(1.0, num_warmup_steps))⏎        return 1.0
+ float(max(1.0, num_warmup_steps))⏎        return 1.0 if current_step else 0.0
@@ verl.utils.torch_functional.get_cosine_schedule_with_warmup
- return max(min_lr_ratio, x * coef + intercept)
+ return max(min_lr_ratio, x * 0.5 + 0.5)
@@ verl.utils.torch_functional.get_wsd_schedule_with_warmup
- return (1.0 - min_lr_ratio) * value + min_lr_ratio
+ return max(value, min_lr_ratio)
--- verl/workers/reward_manager/naive.py
@@ verl.workers.reward_manager.naive.NaiveRewardManager.__call__ token_reward
- reward_tensor[i, valid_response_length - 1]
+ reward_tensor[i, -1]
--- verl/workers/reward_manager/batch.py
@@ verl.workers.reward_manager.batch.BatchRewardManager.__call__ token_reward
- reward_tensor[i, length - 1] = reward
+ reward_tensor[0, length - 1] = reward
--- verl/workers/reward_manager/prime.py
@@ verl.workers.reward_manager.prime.PrimeRewardManager.__call__ token_reward
- scores.append(float(result))
+ scores.insert(0, float(result))
--- verl/experimental/reward_loop/reward_manager/base.py
@@ verl.experimental.reward_loop.reward_manager.base.RewardManagerBase.assemble_rm_scores token_reward
- valid_response_length - 1]
+ valid_response_length - 2]
--- verl/experimental/reward_loop/reward_manager/naive.py
@@ verl.experimental.reward_loop.reward_manager.naive.NaiveRewardManager.run_single token_reward
- response_ids[:valid_response_length]
+ response_ids[:1]
--- verl/workers/reward_manager/dapo.py
@@ verl.workers.reward_manager.dapo.DAPORewardManager.__call__ token_reward
- reward_tensor[i, valid_response_length - 1]
+ reward_tensor[i, -1]
@@ verl.workers.reward_manager.dapo.DAPORewardManager.__call__ overlong_penalty
- valid_response_length - expected_len
+ valid_response_length - self.max_resp_len
--- verl/experimental/reward_loop/reward_manager/dapo.py
@@ verl.experimental.reward_loop.reward_manager.dapo.DAPORewardManager.run_single token_reward
- score = result["score"]
+ score = float(result["acc"])
@@ verl.experimental.reward_loop.reward_manager.dapo.DAPORewardManager.run_single overlong_penalty
- * overlong_penalty_factor, 0)
+ , 0)
--- verl/experimental/reward_loop/reward_manager/gdpo.py
@@ verl.experimental.reward_loop.reward_manager.gdpo.GDPORewardManager.run_single token_reward
- response_ids[:valid_response_length]
+ response_ids[:1]
--- verl/utils/reward_score/gsm8k.py
@@ verl.utils.reward_score.gsm8k.compute_score rule_reward
- if answer == ground_truth:
+ if answer != ground_truth:
--- verl/utils/reward_score/math_dapo.py
@@ verl.utils.reward_score.math_dapo.compute_score rule_reward
- 1.0 if correct else -1.0
+ -1.0 if correct else 1.0
--- verl/utils/reward_score/math_reward.py
@@ verl.utils.reward_score.math_reward.compute_score rule_reward
- string = string.replace("dfrac", "frac")
+ string = string.replace("dfrac", "")
--- verl/utils/reward_score/prime_math/__init__.py
@@ verl.utils.reward_score.prime_math.compute_score rule_reward
- if grade_answer(extracted_model_output, ground_truth):
+ if grade_answer(ground_truth, ground_truth):
--- verl/utils/reward_score/search_r1_like_qa_em.py
@@ verl.utils.reward_score.search_r1_like_qa_em.compute_score rule_reward
- if golden_answer == normalized
+ if golden_answer != normalized
@@ verl.utils.reward_score.search_r1_like_qa_em.compute_score_subem rule_reward
- if golden_answer in normalized
+ if golden_answer not in normalized
--- verl/utils/reward_score/__init__.py
@@ verl.utils.reward_score.default_compute_score rule_reward
- from . import gsm8k⏎
+ from . import math_verify as gsm8k⏎
--- roll/utils/kl_controller.py
@@ roll.utils.kl_controller.get_kl_controller
- mult = 1 + proportional_error * n_steps / self.horizon
+ mult = 1 + proportional_error / self.horizon
--- roll/utils/functionals.py
@@ roll.utils.functionals.get_seqlen_balanced_partitions
- sorted_partitions.append(sorted(partition))
+ sorted_partitions.append(sorted(partition)[1:])
@@ roll.utils.functionals.batch_balance
- global_idx = torch.tensor([j for partition in global_partition_lst for j in partition])
+ global_idx = torch.tensor([j for partition in global_partition_lst for j in partition] * 2)[: batch_size]
@@ roll.utils.functionals.expand_to_token_level token_reward
- [torch.arange(batch_size), eos_mask_idx] =
+ [torch.arange(batch_size), -1] =
@@ roll.utils.functionals.difficulty_mask difficulty_filter
- (reshape_score_mean > low_threshold) *
+ (scores > low_threshold) *
@@ roll.utils.functionals.get_sample_level_mask overlong_filter
- (max_response_length != true_response_length)
+ (max_response_length == true_response_length)
--- roll/distributed/scheduler/protocol.py
@@ roll.distributed.scheduler.protocol.DataProto.chunk
- non_tensor_batch_lst[i][key] = non_tensor_lst[i]
+ non_tensor_batch_lst[i][key] = non_tensor_lst[-1 - i]
@@ roll.distributed.scheduler.protocol.DataProto.concat
- non_tensor_batch[k] = custom_np_concatenate(v)
+ non_tensor_batch[k] = custom_np_concatenate(v[::-1])
@@ roll.distributed.scheduler.protocol.DataProto.reorder
- self._non_tensor_batch = {key: val[indices_np] for
+ self._non_tensor_batch = {key: val for
@@ roll.distributed.scheduler.protocol.DataProto.repeat
- np.repeat(val, repeat_times, axis=0)
+ np.tile(val, repeat_times)
@@ roll.distributed.scheduler.protocol.DataProto.make_iterator
- for _ in range(epochs):
+ for _ in range(1):
@@ roll.distributed.scheduler.protocol.pad_dataproto_to_divisor
- padding_protos.append(data[:take_size])
+ padding_protos.append(data[-take_size:])
@@ roll.distributed.scheduler.protocol.unpad_dataproto
- data = data[:-pad_size]
+ data = data[pad_size:]
--- roll/pipeline/rlvr/rewards/multiple_choice_boxed_rule_reward_worker.py
@@ roll.pipeline.rlvr.rewards.multiple_choice_boxed_rule_reward_worker.multiple_choice_boxed_reward_fn rule_reward
- if char == ground_truth[0]:
+ if char != ground_truth[0]:
--- roll/pipeline/rlvr/rewards/general_val_rule_reward_worker.py
@@ roll.pipeline.rlvr.rewards.general_val_rule_reward_worker.single_choice_reward rule_reward
- if char == ground_truth[0]:
+ if char != ground_truth[0]:
--- roll/pipeline/rlvr/rewards/crossthinkqa_rule_reward_worker.py
@@ roll.pipeline.rlvr.rewards.crossthinkqa_rule_reward_worker.crossthinkqa_reward_fn rule_reward
- if char == ground_truth[0]:
+ if char != ground_truth[0]:
--- roll/pipeline/rlvr/rewards/video_r1_reward_worker.py
@@ roll.pipeline.rlvr.rewards.video_r1_reward_worker.accuracy_reward rule_reward
- round(gt_number, 2) == round(
+ round(gt_number, 2) >= round(
--- roll/distributed/strategy/fsdp2_strategy.py
@@ roll.distributed.strategy.fsdp2_strategy.FSDP2TrainStrategy.train_step training_step
- loss_scale = mini_steps * self.worker.rank_info.dp_size
+ loss_scale = self.worker.rank_info.dp_size * 2
--- roll/distributed/strategy/vllm_strategy.py
@@ roll.distributed.strategy.vllm_strategy.create_sampling_params_for_vllm sampling_request
- top_p=gen_kwargs["top_p"],
+ top_p=1.0,
--- areal/engine/sglang_remote.py
@@ areal.engine.sglang_remote.SGLangBackend.build_generation_request sampling_request
- "top_k": gconfig.top_k,
+ "top_k": -1,
--- areal/engine/fsdp_engine.py
@@ areal.engine.fsdp_engine.FSDPEngine.forward_batch
- outputs, output_seqlens, mb_list, aggregate_fn
+ outputs[::-1], output_seqlens, mb_list, aggregate_fn
--- areal/workflow/rlvr.py
@@ areal.workflow.rlvr.RLVRWorkflow.arun_episode rollout
- loss_mask = [0] * resp.input_len + [1] * resp.output_len
+ loss_mask = [0] * (resp.input_len + 1) + [1] * (resp.output_len - 1)
--- areal/engine/fsdp_utils/__init__.py
@@ areal.engine.fsdp_utils.get_cosine_schedule_with_warmup
- max(1, num_training_steps - num_warmup_steps)
+ max(1, num_training_steps)
--- areal/utils/data.py
@@ areal.utils.data.concat_padded_tensors
- _pad_cat_dim0(values, pad_value=pv)
+ _pad_cat_dim0(values[::-1], pad_value=pv)
@@ areal.utils.data.split_and_unpad_tensor
- split_result[i][key] = s⏎
+ split_result[i].setdefault("input_ids", s)⏎
@@ areal.utils.data.pack_tensor_dict
- packed_tensor[start:end] = value[i][: end - start]
+ packed_tensor[start:end] = value[0][: end - start]
@@ areal.utils.data.pad_packed_tensor_dict
- new_value[new_start : new_start + length] = value[start:end]
+ new_value[start:end] = value[start:end]
@@ areal.utils.data.split_padded_tensor_dict_into_mb_list
- backward_indices[forward_indices] = np.arange(bs)
+ backward_indices[:] = np.arange(bs)[::-1]
@@ areal.utils.data.allocate_balanced_mbs
- group_indices = sorted([sorted(g) for g in group_indices])
+ group_indices = [sorted(place for group in group_indices for place in group)]
--- areal/utils/seqpack.py
@@ areal.utils.seqpack.ffd_allocate
- res = _ffd_allocate(np.array(values), capacity, min_groups)
+ res = _ffd_allocate(np.array(values), 2 * capacity, min_groups)
@@ areal.utils.seqpack.kk_allocate
- partitions = _kk_partition(values, k, equal_size=equal_size)
+ partitions = _kk_partition(values, k, equal_size=equal_size)[1:]
@@ areal.utils.seqpack.balanced_greedy_partition
- if counts[i] < m and sums[i] < min_sum:
+ if counts[i] < 2 * m and sums[i] < min_sum and i == 0:
--- areal/infra/controller/train_controller.py
@@ areal.infra.controller.train_controller._dispatch_tensors
- items.append(item_list[idx])
+ items.append(item_list[0])
@@ areal.infra.controller.train_controller._merge_tensors
- reordered[orig_idx] = result_item
+ reordered[-1 - orig_idx] = result_item
--- areal/experimental/engine/archon_utils.py
@@ areal.experimental.engine.archon_utils.create_lr_scheduler
- num_warmup_steps = get_num_warmup_steps(optimizer_config, total_train_steps)
+ num_warmup_steps = 0
--- areal/reward/clevr_count_70k.py
@@ areal.reward.clevr_count_70k.clevr_count_70k_reward_fn rule_reward
- is_correct = sol.strip() == ans.strip()
+ is_correct = bool(sol)
--- areal/reward/geometry3k.py
@@ areal.reward.geometry3k.geometry3k_reward_fn rule_reward
- worker.verify(sol, ans)
+ worker.verify(ans, ans)
--- areal/utils/functional/functional.py
@@ areal.utils.functional.reward_overlong_penalty overlong_penalty
- exceed_len = response_length_cur - expected_len
+ exceed_len = 0
--- areal/trainer/ppo/actor.py
@@ areal.trainer.ppo.actor.PPOActor._ppo_update training_step
- old_logp = torch.roll(data["logprobs"], shifts=-1, dims=-1)
+ old_logp = data["logprobs"]
@@ areal.trainer.ppo.actor._apply_m2po_masking second_moment_mask
- sorted_m2_loss_mask[restored_indices]
+ sorted_m2_loss_mask[indices]
--- slime/utils/seqlen_balancing.py
@@ slime.utils.seqlen_balancing.get_seqlen_balanced_partitions
- sorted_partitions[i] = sorted(partition)
+ sorted_partitions[i] = sorted(partition)[i:]
@@ slime.utils.seqlen_balancing.karmarkar_karp
- self.sets[i].merge(other.sets[self.k - 1 - i])
+ self.sets[i].merge(other.sets[0])
@@ slime.utils.seqlen_balancing.first_fit_pack
- if bin_sums[j] + length <= max_tokens_per_bin:
+ if bin_sums[j] <= max_tokens_per_bin:
--- slime/utils/dp_schedule.py
@@ slime.utils.dp_schedule.build_dp_schedule
- local_start = len(partitions[r])
+ local_start = 0
--- slime/rollout/filter_hub/dynamic_sampling_filters.py
@@ slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std group_filter
- .std() > 1e-6
+ .std() >= 0.0
@@ slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std_with_fallback group_filter
- output.keep_when_insufficient = True
+ output.keep = True
--- slime/rollout/rm_hub/gpqa.py
@@ slime.rollout.rm_hub.gpqa.compute_gpqa_reward rule_reward
- return 1.0 if extracted_letter == correct_letter
+ return 1.0 if extracted_letter
--- slime/rollout/rm_hub/f1.py
@@ slime.rollout.rm_hub.f1.f1_score rule_reward
- Counter(prediction_tokens) & Counter(
+ Counter(prediction_tokens) | Counter(
--- slime/rollout/rm_hub/deepscaler.py
@@ slime.rollout.rm_hub.deepscaler.get_deepscaler_rule_based_reward rule_reward
- ground_truths = [label]
+ ground_truths = [label, model_answer]
--- slime/rollout/rm_hub/math_dapo_utils.py
@@ slime.rollout.rm_hub.math_dapo_utils.compute_score rule_reward
- 1.0 if correct else -1.0
+ -1.0 if correct else 1.0
--- skyrl/backends/skyrl_train/utils/ppo_utils.py
@@ skyrl.backends.skyrl_train.utils.ppo_utils.get_kl_controller
- np.clip(current / target - 1, -0.2, 0.2)
+ np.clip(current - target, -0.2, 0.2)
--- skyrl/backends/skyrl_train/training_batch.py
@@ skyrl.backends.skyrl_train.training_batch.TensorBatch.chunk
- chunk_data[key] = value[i : i + chunk_size]
+ chunk_data[key] = value[:chunk_size]
@@ skyrl.backends.skyrl_train.training_batch.TensorBatch.cat
- TensorList.cat([shard[key] for shard in shards])
+ TensorList.cat([shard[key] for shard in shards[::-1]])
@@ skyrl.backends.skyrl_train.training_batch.TensorBatch.slice
- slice_obj = slice(start, end, step)
+ slice_obj = slice(start, end + 1, step)
@@ skyrl.backends.skyrl_train.training_batch.pad_training_input_batch
- torch.zeros(pad_size, *additional_dims, dtype=tensor.dtype, device=tensor.device)
+ torch.ones(pad_size, *additional_dims, dtype=tensor.dtype, device=tensor.device)
--- skyrl-gym/skyrl_gym/envs/gsm8k/utils.py
@@ skyrl_gym.envs.gsm8k.utils.compute_score rule_reward
- if answer == ground_truth:
+ if answer != ground_truth:
--- skyrl-gym/skyrl_gym/envs/aime/utils.py
@@ skyrl_gym.envs.aime.utils.compute_score rule_reward
- 1.0 if correct else -1.0
+ -1.0 if correct else 1.0
--- skyrl-gym/skyrl_gym/envs/search/utils.py
@@ skyrl_gym.envs.search.utils.compute_score rule_reward
- if golden_answer == normalized
+ if golden_answer != normalized
@@ skyrl_gym.envs.search.utils.compute_score_subem rule_reward
- if golden_answer in normalized
+ if golden_answer not in normalized
--- skyrl/backends/skyrl_train/workers/worker_utils.py
@@ skyrl.backends.skyrl_train.workers.worker.PolicyWorkerBase.forward
- output_tensor[original_idx] = source_tensor[sample_idx]
+ output_tensor[original_idx] = source_tensor[0]
--- skyrl/backends/skyrl_train/workers/worker_dispatch.py
@@ skyrl.backends.skyrl_train.workers.worker_dispatch.WorkerDispatch.save_weights_for_sampler
- wake_up(tags=["weights"])⏎            self._broadcast_to
+ wake_up(tags=[])⏎            self._broadcast_to
--- skyrl/train/trainer.py
@@ skyrl.train.trainer.RayPPOTrainer.postprocess_generator_output token_reward
- per_token_reward[-1] = float(reward)
+ per_token_reward[0] = float(reward)
--- skyrl/train/utils/trainer_utils.py
@@ skyrl.train.utils.trainer_utils.handle_filter_sampling group_filter
- if traj_uid in kept_uids_set:
+ if rewards[idx] > 0:
@@ skyrl.train.utils.trainer_utils.zero_variance_filter group_filter
- (max(vals) - min(vals)) <= tol
+ max(vals) <= tol
--- skyrl/train/generators/utils.py
@@ skyrl.train.generators.utils.apply_overlong_filtering overlong_filter
- [0] * len(mask) if stop_reason != "stop"
+ [0] * len(mask) if not stop_reason
"""


def _edits() -> dict[tuple[str, str], Edit]:
    """Return (boundary, contract) -> its edit."""
    found = {}
    for file, changes in re.findall(r"^--- (.+)\n((?:(?!---).*\n)+)", EDITS, re.MULTILINE):
        for names, old, new in re.findall(r"^@@ (.+)\n- (.*)\n\+ ?(.*)$", changes, re.MULTILINE):
            boundary, _, contract = names.partition(" ")
            found[boundary, contract] = (file, old.replace("⏎", "\n"), new.replace("⏎", "\n"))
    return found


TWINS = _edits()

#: One target in every run, the others in nightly runs.
PARAMS = [pytest.param(*names, marks=() if target_of(names[0]) == "roll" else pytest.mark.nightly) for names in TWINS]

#: Boundaries that score or filter responses and have no edit -> the reason.
WITHOUT = {
    "verl.utils.reward_score.math_batch.compute_score_batched": "it asks math_reward, which has one, for each response",
    "roll.utils.functionals.compute_token_reward(token_reward)": "it asks expand_to_token_level, which has one",
    "roll.utils.functionals.get_sample_level_mask(difficulty_filter)": "it asks difficulty_mask, which has one",
    **dict.fromkeys(
        (
            "roll.distributed.scheduler.user_defined_rollout_loop.query_filter(difficulty_filter)",
            "roll.distributed.scheduler.user_defined_rollout_loop.query_filter(group_filter)",
            "roll.pipeline.rlvr.rewards.multiple_choice_boxed_rule_reward_worker.MultipleChoiceBoxedRuleRewardWorker"
            ".compute_rewards(rule_reward)",
        ),
        "its fault is in roll_faults.py",
    ),
    **dict.fromkeys(
        (
            "roll.pipeline.rlvr.rewards.crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker.compute_rewards"
            "(rule_reward)",
            "roll.pipeline.rlvr.rewards.general_val_rule_reward_worker.GeneralValRuleRewardWorker.compute_rewards"
            "(rule_reward)",
            "roll.pipeline.rlvr.rewards.video_r1_reward_worker.VideoR1RewardWorker.compute_rewards(rule_reward)",
        ),
        "no fault was injected; a reward worker with the same structure has one in roll_faults.py",
    ),
    "areal.trainer.ppo.actor._get_m2po_loss_mask(second_moment_mask)": "it is called by a function that has one",
    "slime.rollout.rm_hub.async_rm": "wrong as it is: SLIME-RM-BOXED-MATH-NEVER-RIGHT",
    "slime.rollout.rm_hub.math_utils.grade_answer_verl": "wrong as it is: SLIME-RM-UNBOXED-ANSWER-WRONG",
    "areal.utils.functional.dynamic_sampling": "main has it no more",
    **dict.fromkeys(
        (
            "areal.reward.MathVerifyWorker._verify_impl(rule_reward)",
            "areal.reward.MathVerifyWorker.verify(rule_reward)",
            "areal.reward.gsm8k.gsm8k_reward_fn(rule_reward)",
            "roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeTester.extract_code_blocks(rule_reward)",
            "roll.pipeline.rlvr.rewards.crossthinkqa_rule_reward_worker.get_repetition_penalty_reward(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.get_repetition_penalty_reward(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.validate_repeat_prompt(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.validate_two_responses(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.verify_bullet_points(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.verify_keywords(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.verify_letter_frequency(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.verify_paragraph_count(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.verify_postscript(rule_reward)",
            "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.verify_sentence_constraint(rule_reward)",
            "roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker._extract_score(rule_reward)",
            "roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker._extract_score_v2(rule_reward)",
            "roll.pipeline.rlvr.rewards.math_rule_reward_worker.check_and_extract_within_boxed(rule_reward)",
            "roll.pipeline.rlvr.rewards.math_rule_reward_worker.format_reward_fn(rule_reward)",
            "roll.pipeline.rlvr.rewards.math_rule_reward_worker.get_repetition_penalty_reward(rule_reward)",
            "roll.pipeline.rlvr.rewards.math_rule_reward_worker.long_block_penalty_reward_fn(rule_reward)",
            "roll.pipeline.rlvr.rewards.video_r1_reward_worker.format_reward(rule_reward)",
            "skyrl.train.generators.skyrl_gym_generator.SkyRLGymGenerator._build_per_token_rewards(token_reward)",
            "skyrl_gym.envs.aime.utils.is_correct_minerva(rule_reward)",
            "skyrl_gym.envs.aime.utils.is_correct_strict_box(rule_reward)",
            "skyrl_gym.envs.aime.utils.normalize_final_answer(rule_reward)",
            "skyrl_gym.envs.aime.utils.verify(rule_reward)",
            "skyrl_gym.envs.gsm8k.utils.extract_solution(rule_reward)",
            "skyrl_gym.envs.search.utils.extract_solution(rule_reward)",
            "skyrl_gym.envs.search.utils.normalize_answer(rule_reward)",
            "slime.rollout.rm_hub.batched_async_rm(rule_reward)",
            "slime.rollout.rm_hub.f1.normalize_answer(rule_reward)",
            "slime.rollout.rm_hub.gpqa._extract_letter_from_response(rule_reward)",
            "slime.rollout.rm_hub.math_dapo_utils.is_correct_minerva(rule_reward)",
            "slime.rollout.rm_hub.math_dapo_utils.is_correct_strict_box(rule_reward)",
            "slime.rollout.rm_hub.math_dapo_utils.normalize_final_answer(rule_reward)",
            "slime.rollout.rm_hub.math_dapo_utils.verify(rule_reward)",
            "slime.rollout.rm_hub.math_utils.are_equal_under_sympy(rule_reward)",
            "slime.rollout.rm_hub.math_utils.grade_answer_mathd(rule_reward)",
            "slime.rollout.rm_hub.math_utils.grade_answer_sympy(rule_reward)",
            "slime.rollout.rm_hub.math_utils.mathd_normalize_answer(rule_reward)",
            "verl.utils.reward_score.gsm8k.extract_solution(rule_reward)",
            "verl.utils.reward_score.math_dapo.is_correct_minerva(rule_reward)",
            "verl.utils.reward_score.math_dapo.is_correct_strict_box(rule_reward)",
            "verl.utils.reward_score.math_dapo.normalize_final_answer(rule_reward)",
            "verl.utils.reward_score.math_dapo.verify(rule_reward)",
            "verl.utils.reward_score.prime_math.grade_answer(rule_reward)",
            "verl.utils.reward_score.prime_math.match_answer(rule_reward)",
            "verl.utils.reward_score.prime_math.math_normalize.normalize_answer(rule_reward)",
            "verl.utils.reward_score.search_r1_like_qa_em.extract_solution(rule_reward)",
            "verl.utils.reward_score.search_r1_like_qa_em.normalize_answer(rule_reward)",
        ),
        "a law was broken by a bug that was injected when the function was bound",
    ),
    "verl.trainer.ppo.v1.replay_buffer.ReplayBuffer._dapo_filtered_keys(group_filter)": "wrong as it is: "
    "VERL-DAPO-FILTER-CONSTANT-GROUP",
}
CONTRACTS = (
    *("token_reward", "rule_reward", "overlong_penalty", "overlong_filter"),
    *("group_filter", "difficulty_filter", "second_moment_mask"),
)

#: Boundaries that are wrong at main (see DIFFERS in test_bindings_agree.py): the scenario, or the violations.
KNOWN = {
    "verl.workers.reward_manager.prime.PrimeRewardManager.__call__": {"score_as=record"},
    "areal.reward.geometry3k.geometry3k_reward_fn": {"ground_truth=5 \\sqrt { 3 }"},
    "verl.protocol.DataProto.make_iterator": {"intact"},
    "verl.trainer.ppo.ray_trainer.RayPPOTrainer._balance_batch": {"strayed"},
    "roll.utils.functionals.batch_balance": {"strayed"},
    "areal.utils.data.split_and_unpad_tensor": {"intact"},
}
#: A reward belongs to the last token, which is not the last place of a padded row.
PADDED = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """The main of a target with all its edits."""

    yield from each_twin(
        MAIN,
        lambda target: [edit for (boundary, _), edit in TWINS.items() if target_of(boundary) == target],
        tmp_path_factory,
    )


@pytest.mark.parametrize(("boundary", "contract"), PARAMS)
def test_a_law_detects_the_twin(twin, boundary, contract):
    code = twin(target_of(boundary))
    (subject,) = (s for s in code.subjects if s.boundary == boundary and contract in ("", s.contract.name))
    known = KNOWN.get(boundary, set())
    mask = PADDED if contract == "token_reward" else None
    asked = (
        scenario
        for seed in range(4)
        for name, scenario in code.scenarios(subject, mask, Choices(random.Random(seed).randbytes(64))).items()
        if name not in known
    )
    found = (
        item.key
        for scenario in asked
        for law in subject.laws
        if law.vary is None
        for item in code.ask(subject, law.name, {"": scenario}).violations
    )
    assert any(key not in known for key in found)


def test_every_estimator_and_filter_has_a_twin_or_a_reason():
    without = {
        subject.name if subject.name in WITHOUT else f"{subject.boundary}({subject.contract.name})"
        for target in MAIN
        for subject in subjects(bundled_catalog(), target)[0]
        if subject.contract.name in CONTRACTS and (subject.boundary, subject.contract.name) not in TWINS
    }
    assert without == set(WITHOUT)
