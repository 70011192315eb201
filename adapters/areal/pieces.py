"""Bindings for functions that other bound functions call. Their contracts check them through the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel import Binding

_ACTOR, _GAE = "areal.trainer.ppo.actor", "areal.trainer.ppo.gae"
_LAMBDAS, _DATA = "areal.trainer.ppo.lambda_fn", "areal.utils.data"
_FUNCTIONAL = "areal.utils.functional.functional"
_SGLANG = "areal.engine.sglang_remote"
_RLVR, _VISION = "areal.workflow.rlvr", "areal.workflow.vision_rlvr"

#: Caller and contract of a binding -> the module and the path in it of the caller, and the functions it is to check.
_PIECES: Mapping[tuple[str, str], tuple[str, str, Sequence[str]]] = {
    (f"{_ACTOR}.PPOActor._compute_advantages", "advantage_step"): (
        _ACTOR, "PPOActor._compute_advantages",
        (
            f"{_ACTOR}.PPOActor._compute_gae_lambda", f"{_GAE}._validate_turn_ids", f"{_GAE}._compute_turn_level_gae",
            f"{_GAE}._build_gae_lambda_context", f"{_LAMBDAS}.vapo_length_adaptive_gae",
            f"{_LAMBDAS}.resolve_gae_lambda_fn",
        ),
    ),
    (f"{_ACTOR}.grpo_loss_fn", "decoupled_loss"): (
        _ACTOR, "grpo_loss_fn",
        (
            f"{_ACTOR}.compute_prox_logp_approximations", f"{_ACTOR}._resolve_proximal_logp",
            "areal.utils.constants.ProxLogpMethod.skips_forward_pass",
        ),
    ),
    (f"{_ACTOR}._apply_m2po_masking", "second_moment_mask"): (
        _ACTOR, "_apply_m2po_masking", (f"{_ACTOR}._get_m2po_loss_mask",),
    ),
    (f"{_DATA}.Normalization.__call__", "advantage_normalisation"): (
        _DATA, "Normalization.__call__",
        (f"{_DATA}.Normalization._compute_mean", f"{_DATA}.Normalization._compute_std"),
    ),
    ("areal.utils.functional.ppo_actor_loss_fn", "policy_loss"): (
        _FUNCTIONAL, "ppo_actor_loss_fn", (f"{_FUNCTIONAL}._compute_sequence_level_ratio_and_advantages",),
    ),
    ("areal.utils.functional.ppo_critic_loss_fn", "value_loss"): (
        _FUNCTIONAL, "ppo_critic_loss_fn", (f"{_FUNCTIONAL}._huber_loss",),
    ),
    ("areal.utils.functional.apply_rejection_sampling", "importance_weight"): (
        _FUNCTIONAL, "apply_rejection_sampling", (f"{_FUNCTIONAL}._check_bounds",),
    ),
    (f"{_DATA}.concat_padded_tensors", "collation"): (
        _DATA, "concat_padded_tensors", (f"{_DATA}._pad_cat_dim0", f"{_DATA}.get_batch_size"),
    ),
    (f"{_DATA}.concat_batch", "collation"): (_DATA, "concat_batch", (f"{_DATA}._unpad_splits",)),
    (f"{_DATA}.pad_sequences_to_tensors", "collation"): (
        _DATA, "pad_sequences_to_tensors", (f"{_DATA}._make_attention_mask",),
    ),
    ("areal.experimental.engine.archon_utils.create_lr_scheduler", "learning_rate"): (
        "areal.experimental.engine.archon_utils", "create_lr_scheduler",
        ("areal.utils.lr_scheduler.get_num_warmup_steps",),
    ),
    ("areal.infra.remote_inf_engine.RemoteInfEngine.agenerate", "rollout"): (
        "areal.infra.remote_inf_engine", "RemoteInfEngine.agenerate",
        (f"{_SGLANG}.SGLangBackend.parse_generation_response",),
    ),
    (f"{_RLVR}.RLVRWorkflow.arun_episode", "rollout"): (
        _RLVR, "RLVRWorkflow.arun_episode",
        (f"{_RLVR}.RLVRWorkflow._collect_samples", f"{_RLVR}.RLVRWorkflow._compute_rewards"),
    ),
    (f"{_VISION}.VisionRLVRWorkflow.arun_episode", "rollout"): (
        _VISION, "VisionRLVRWorkflow.arun_episode",
        (f"{_VISION}.VisionRLVRWorkflow._collect_samples", f"{_VISION}.VisionRLVRWorkflow._compute_rewards"),
    ),
}  # fmt: skip


def _through(module: str, caller: str, call: Any, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function that calls the boundary."""
    found = boundary.imported[module]
    *owners, name = caller.split(".")
    owner = getattr(found, owners[0]) if owners else None
    path, function = f"{module}.{caller}", getattr(owner or found, name)
    made: dict[str, Any] = call(replace(boundary, path=path, module=found, owner=owner, function=function), inputs)
    return made


def pieces_of(bindings: Sequence[Binding]) -> Iterator[Binding]:
    """Make a binding for each function that one of these bound functions calls."""
    for binding in bindings:
        module, caller, paths = _PIECES.get((binding.boundary, binding.contract), ("", "", ()))
        for path in paths:
            yield replace(
                binding,
                boundary=path,
                formerly=(),
                call=partial(_through, module, caller, binding.call),
                imports=(*binding.imports, module),
                requires=(*binding.requires, path, module),
            )
