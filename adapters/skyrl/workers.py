"""SkyRL: the FSDP worker."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, Dialect, StandIn
from sentinel.worker.kit import stand_in

from .shared import (
    BACKEND,
    CODE,
    CUDA,
    GYM,
    K3_IS_CUT,
    MODEL,
    OPTION,
    PPO,
    RAY,
    SINGLE,
    STRATEGY,
    WORKER_UTILS,
    WORKING,
    WRAPPER,
    OneProcess,
    batch_fields,
    configuration_of,
    current_device,
    no_ray,
    training_batch,
)

ALGORITHM = "trainer.algorithm"
#: Without these the loss is the policy loss alone, which is 0 where all advantages are.
NO_OTHER_TERM = {f"{ALGORITHM}.use_kl_loss": False, f"{ALGORITHM}.use_entropy_loss": False}


def rollout_kl_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **NO_OTHER_TERM,
        f"{ALGORITHM}.use_rollout_kl_loss": True,
        f"{ALGORITHM}.rollout_kl_loss_coef": inputs["coefficient"],
        f"{ALGORITHM}.rollout_kl_estimator_type": inputs["kl_estimator"],
    }


def _fixed_model(log_probs: Any) -> Any:
    """Stand-in model of the FSDP worker: answers log-probs and an entropy of 0."""
    import torch

    model: Any = torch.nn.Module()
    entropy = {"entropy": torch.zeros(log_probs.shape[0], log_probs.shape[1] + 1, device=log_probs.device)}
    model.forward = lambda *_, **__: (log_probs, entropy)
    return model


def _fsdp_step(
    boundary: Any, options: Mapping[str, Any], log_probs: Any, fields: Mapping[str, Any], strategy: OneProcess
) -> Any:
    """One microbatch of weight 1 through the worker's forward and backward pass."""
    configuration = configuration_of(boundary, options)
    settings = configuration.trainer
    worker = stand_in(
        cfg=configuration if boundary.function.__name__ == "training_step" else settings,
        model=_fixed_model(log_probs),
        strategy=strategy,
        optimizer=None,
        scheduler=stand_in(get_last_lr=lambda: [0.0]),
        mesh_rank=stand_in(dp_size=1),
        device_mesh=stand_in(get_group=lambda name: None),
    )
    with no_ray(boundary), current_device(log_probs.device.type):
        worker.policy_loss_fn = boundary.imported[PPO].PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
        utils = boundary.imported[WORKER_UTILS]
        iterator = getattr(utils, "BaseBatchIterator", None) or utils.BatchIterator  # the only one, once
        experience = iterator.batch_to_experience(training_batch(boundary, fields))
        # Until December 2025 the step was told where it stood, and of how many microbatches.
        formerly = {"global_step": 0, "local_step": 0, "accumulation_steps": 1}
        return boundary.invoke({}, worker, experience, microbatch_weight=1.0, **formerly)


def _fsdp_rollout_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs, strategy = inputs["log_probs"], OneProcess()
    fields = batch_fields(log_probs, inputs["response_mask"], rollout_logprobs=inputs["rollout_log_probs"])
    status = _fsdp_step(boundary, rollout_kl_options(inputs), log_probs, fields, strategy)
    return {"rollout_kl": status["rollout_kl"], "loss": strategy.loss.detach()}


#: On first: what is off is what makes constants.
_TERMS = tuple(
    {f"{ALGORITHM}.use_kl_loss": kl, f"{ALGORITHM}.use_entropy_loss": entropy}
    for kl in (True, False)
    for entropy in (True, False)
)


def _fsdp_device(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The loss up to its backward pass; what follows only reads values, which a meta tensor does not have."""
    import torch

    class LossIsMade(Exception):
        pass

    class Stop(OneProcess):
        def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
            raise LossIsMade

    zeros = torch.zeros(2, 3)
    log_probs = torch.zeros(2, 3, device=inputs["device"], requires_grad=True)
    with contextlib.suppress(LossIsMade):
        fields = batch_fields(zeros, torch.ones(2, 3), rollout_logprobs=zeros.clone())
        _fsdp_step(boundary, inputs["configuration"], log_probs, fields, Stop())
    return {}


_FSDP = (
    StandIn("self", "the real worker's constructor starts Ray and GPUs; the step reads these attributes alone"),
    *(GYM, RAY, STRATEGY, MODEL, CUDA),
)


BINDINGS = (
    Binding(
        f"{BACKEND}.workers.worker.PolicyWorkerBase._forward_backward_micro",
        "rollout_kl",
        call=_fsdp_rollout_kl,
        imports=WORKING,
        stand_ins=_FSDP,
        requires=(OPTION,),
        dialects=K3_IS_CUT,
        dtypes=SINGLE,
        twins=(f"{WRAPPER}.MegatronModelWrapper.forward_backward_mini_batch",),
    ),
    Binding(
        f"{BACKEND}.workers.worker.PolicyWorkerBase._forward_backward_micro",
        "device_placement",
        formerly=(f"{BACKEND}.workers.worker.PolicyWorkerBase.training_step",),
        call=_fsdp_device,
        imports=WORKING,
        stand_ins=_FSDP,
        accepts={"configuration": _TERMS},
        dialects=(
            Dialect(
                "the_oracle_agrees",
                reason="where the KL or entropy term is off, a zero of no dimension stands in for it on the CPU, "
                "which PyTorch adds to a tensor on any device without a copy",
                link=f"{CODE}/backends/skyrl_train/workers/worker.py#L1067",
                where={"configuration": _TERMS[1:]},
            ),
        ),
    ),
)
