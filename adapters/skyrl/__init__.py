"""SkyRL (NovaSky-AI/SkyRL): how Sentinel's contracts bind to its boundaries.

Its workers want Ray, GPUs and Megatron. None of that decides what these boundaries compute, so they run on the
target's own configuration, batches and iterators, with the small stand-ins that each binding names.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.targets import PackageRoot, Registry, Target

from . import containers, driver, rewards, rollouts, tensors, workers
from .shared import MOVED, OFF_POLICY, PPO, WORKER_UTILS

#: A batch is float32, and a model bfloat16 or float32.
#: https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/train/dataset/preprocess.py#L214
#: https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/backends/skyrl_train/workers/model_wrapper.py#L158
_DTYPES = ("float32", "bfloat16")

_ONLY_NAMES = "it registers and looks up functions by name, and computes nothing"
_UNBOUND = {
    f"{OFF_POLICY}.off_policy_correction_enabled": "it reads four options",
    f"{OFF_POLICY}.apply_off_policy_correction": "it multiplies by what compute_off_policy_correction returns",
    f"{PPO}.register_advantage_estimator": _ONLY_NAMES,
    f"{PPO}.register_policy_loss": _ONLY_NAMES,
    f"{PPO}.sync_registries": _ONLY_NAMES,
    f"{PPO}.repopulate_all_registries": _ONLY_NAMES,
    f"{PPO}.compute_advantages_and_returns": "it calls an estimator, which is bound, by its name",
    f"{WORKER_UTILS}.*": "rows are dealt out to steps that are bound; metrics are averaged over ranks for display",
    "skyrl.train.generators.utils.get_rollout_metrics": "lengths and rewards of rollouts, averaged for display",
    "skyrl.train.generators.utils.get_response_ids_and_loss_mask_from_messages": "tokenize_chat_example asks it",
    "skyrl.train.generators.utils.*": "records of rollouts put together and taken apart; templates of chats",
    "skyrl.train.sft_trainer.collate_sft_*": "chats are bound in the batch that collate_sft_batch makes of them",
    "skyrl.train.sft_trainer.tokenize_sft_example": "a chat of two messages, which tokenize_chat_example is asked for",
    "*.get_vllm_sampling_params": "get_sampling_params_for_backend, which is bound, asks it",
    "*.get_sglang_sampling_params": "get_sampling_params_for_backend, which is bound, asks it",
    "*.aggregate_completion_usage_info": "counts of tokens for a client, as a service says them",
    "*.postprocess_completion_request": "the form of a client's request",
    "*.route_prompts_to_engines": "which engine is asked",
    **containers.UNBOUND,
    **rewards.UNBOUND,
    **tensors.UNBOUND,
    "skyrl.train.utils.utils.*": "beside validate_cfg it sets up processes and devices",
}

#: What carries no training signal, or runs on what is not there: reason -> paths.
_ASIDE = {
    "another backend, in JAX, which is not installed": "skyrl.tx.* *.backends.jax.* *.ray_jax.* *.tinker.loss_fns.*",
    "what a service and its clients say to each other": "*.tinker.api.* *.tinker.extra.* *.proto_serialization.* "
    "*.backends.renderer.* *.remote_inference_client.*",
    "kernels and attention of a model, and slots of its adapters": "*.fused_linear_logprob_triton.* "
    "*.skyrl_train.patches.* *.ulysses.monkey_patch.* *.adapter_store.* *.weight_sync.*",
    "what is measured, logged and shown": "*.benchmarks.* *.trajectory_logging.* *.vllm_metrics_scraper.* *.tracking.* "
    "skyrl.utils.log.*",
    "it sets a training up, or goes through its steps": "*Trainer.train *Trainer._run_training *Trainer.eval "
    "*Trainer.build_models *Trainer.__init__ *.train.evaluate.* *Trainer._run_generate* *Trainer.load_dataset "
    "*Trainer._load_and_tokenize *.WorkerDispatch.*",
    "it runs on Megatron's ranks; that package is not installed": "*.megatron_strategy.*optimizer_step "
    "*.model_utils.from_parallel_*packed* *.model_utils.AllGatherCPTensor.* *.get_megatron_optimizer_param_scheduler "
    "*.coerce_optimizer_dtype_kwargs *.megatron_worker.*.forward *.megatron_worker.*.optim_step *.mtp.grad_clip.* "
    "*.mtp.native_loss_patch.disable* *.mtp.adapter._Canon* *.mtp.adapter.project_* *.SeqAllToAll.backward "
    "*.patch_topk_router_expert_bias_padding_mask",
    "what a service is asked for, in records of pydantic, which is not imported": "*.TinkerEngine.process_optim_step "
    "*.skyrl_train_backend.*Backend._[fnpsv]* *.skyrl_train_backend.*Backend._[be]* *.SkyRLTrainBackend.optim_step "
    "*.skyrl_train_backend.*.sample *.SkyRLTrainBackend._to_training_batch *.SkyRLTrainBackend._aggregate* "
    "*.tinker.engine.prepare_*_batch",
    "it asks workers of Ray, and hands on what they answer": "*Trainer._execute_* *.train_critic_and_policy "
    "*.fwd_logprobs_values_reward *.SFTTrainer.train_step *.SFTTrainer._run_eval_one *.SFTTrainer._train_dummy",
    "a draft model's loss, over Megatron's shards of the vocabulary": "*._VocabParallelTopkSoftCE.*",
    "images, as a processor makes them": "*.SkyRLVLMGymGenerator._render_* *.SkyRLVLMGymGenerator.agent_loop",
    "where tensors lie, and shards of a model on several ranks": "*.TensorBatch.to *.TensorBatch.contiguous "
    "*.FSDPStrategy.backward *.fsdp2_clip_grad_norm_ *.FSDPPolicyWorkerBase.forward",
    "it sets or gives one attribute": "*.PackedDataCollator.tokenizer",
    "rows of datasets, which is not imported": "*._prompt_not_too_long *.PromptDataset.__init__ *.PromptDataset._read*",
    "it loads a data set that was tokenised before": "*.pretokenized.*",
    "a loader of torchdata's, which is not installed, and its place": "*._AsyncDataloader.[!n]* "
    "*.DataMixingSampler.__init__ *FullyAsyncRay*._build_train_dataloader* *.SFTTrainer.build_*_dataloader",
    "a model of transformers, which is not imported": "*.HFModelWrapper.* *.model_wrapper.*get_*",
    "an answer of an engine, in the engine's own form": "*.build_logprobs_content *.convert_vllm_prompt_logprobs",
}

TARGET = Target(
    name="skyrl",
    arguments={
        "response_mask": ("response_mask", "loss_mask", "mask"),
        "ref_log_probs": ("log_probs_base",),
        "rollout_log_probs": ("rollout_logprobs",),
        "kl_estimator": ("kl_estimator_type",),
        "lam": ("lambd",),
        "group": ("index",),
        "norm_by_std": ("grpo_norm_by_std",),
        "loss_mat": ("loss",),
        "values": ("values", "tensor"),
        "axis": ("dim",),
    },
    defaults=("skyrl.train.config.config.SkyRLTrainConfig",),
    repository="https://github.com/NovaSky-AI/SkyRL",
    roots=(
        PackageRoot("skyrl"),
        PackageRoot("skyrl/skyrl", "skyrl"),  # for three days of February 2026
        PackageRoot("skyrl-gym/skyrl_gym", "skyrl-gym"),
        PackageRoot("skyrl-train/skyrl_train", "skyrl-train"),  # until it moved into skyrl
    ),
    moved=MOVED,
    pypi="skyrl",
    registries=(
        Registry("register_policy_loss", f"{PPO}.ppo_policy_loss", "PolicyLossRegistry"),
        Registry("register_advantage_estimator", f"{PPO}.compute_grpo_outcome_advantage", "AdvantageEstimatorRegistry"),
    ),
    # torch imports its compiler on the first call of a function decorated with torch.compile.
    preload=("torch._dynamo", "tensordict", "omegaconf", "loguru", "requests"),
    bindings=(
        *driver.BINDINGS,
        *containers.BINDINGS,
        *workers.BINDINGS,
        *rollouts.BINDINGS,
        *rewards.BINDINGS,
        *(replace(binding, dtypes=_DTYPES) for binding in tensors.BINDINGS),
    ),
    unbound={**_UNBOUND, **{path: reason for reason, paths in _ASIDE.items() for path in paths.split()}},
)
