"""Bindings for SkyRL (https://github.com/NovaSky-AI/SkyRL).

SkyRL's workers need Ray, GPUs and Megatron, which do not affect the results of these boundaries. The boundaries use
SkyRL's own configuration, batches and iterators, and the small stand-ins that each binding declares.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel import PackageRoot, Registry, Target

from . import batches, containers, driver, functions, rewards, rollouts, tensors, workers
from .shared import MOVED, PPO

#: Batches are float32, and models are bfloat16 or float32.
#: https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/train/dataset/preprocess.py#L214
#: https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/backends/skyrl_train/workers/model_wrapper.py#L158
_DTYPES = ("float32", "bfloat16")


#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "*.tinker.api.*", "*.fused_linear_logprob_triton.*", "*.skyrl_train.patches.*", "*.ulysses.monkey_patch.*",
    "*.weight_sync.*", "*.benchmarks.*", "*.remote_inference_client.*", "*.vllm_metrics_scraper.*", "*.tracking.*",
    "skyrl.utils.log.*",
)  # fmt: skip

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
        PackageRoot("skyrl/skyrl", "skyrl"),  # the package's location for three days in February 2026
        PackageRoot("skyrl-gym/skyrl_gym", "skyrl-gym"),
        PackageRoot("skyrl-train/skyrl_train", "skyrl-train"),  # before the package moved into skyrl
    ),
    moved=MOVED,
    pypi="skyrl",
    registries=(
        Registry("register_policy_loss", f"{PPO}.ppo_policy_loss", "PolicyLossRegistry"),
        Registry("register_advantage_estimator", f"{PPO}.compute_grpo_outcome_advantage", "AdvantageEstimatorRegistry"),
    ),
    # torch._dynamo is preloaded, because torch imports it on the first call of a function with torch.compile.
    preload=("torch._dynamo", "tensordict", "omegaconf", "loguru", "requests"),
    bindings=(
        *driver.BINDINGS,
        *containers.BINDINGS,
        *workers.BINDINGS,
        *rollouts.BINDINGS,
        *rewards.BINDINGS,
        *functions.BINDINGS,
        *batches.BINDINGS,
        *(replace(binding, dtypes=_DTYPES) for binding in tensors.BINDINGS),
    ),
    no_signal=_NO_SIGNAL,
)
