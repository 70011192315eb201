"""SkyRL: an update of the policy by the FSDP worker, from a batch through its microbatches to the gradient."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, Dialect, StandIn
from sentinel.worker.drift import AbsentError
from sentinel.worker.kit import stand_in

from .shared import (
    BACKEND,
    CODE,
    CONFIG,
    CUDA,
    GYM,
    MODEL,
    PPO,
    RAY,
    STRATEGY,
    WORKING,
    OneProcess,
    batch_fields,
    configuration_of,
    current_device,
    is_averaged_inside,
    no_ray,
    ppo_line,
    training_batch,
)

_ALGORITHM = "trainer.algorithm"


class _Table:
    """Stand-in model: answers the rows of a table of log-probs that the first token of each sequence names."""

    def __init__(self, log_probs: Any) -> None:
        self._log_probs = log_probs

    def train(self) -> None:
        pass

    def __call__(self, sequences: Any, *_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
        import torch

        return self._log_probs[sequences[:, 0]], {"entropy": torch.zeros(sequences.shape)}


def _options(inputs: Mapping[str, Any], rows: int) -> dict[str, Any]:
    clips = {"eps_clip_low": inputs["eps_clip_low"], "eps_clip_high": inputs["eps_clip_high"]}
    if inputs["dual_clip"] is not None:
        clips |= {"policy_loss_type": "dual_clip", "clip_ratio_c": inputs["dual_clip"]}
    kl = inputs["ref_log_probs"] is not None
    chosen = {**clips, "use_kl_loss": kl, "use_entropy_loss": False, "kl_loss_coef": inputs["kl_coef"]}
    options = {f"{_ALGORITHM}.{name}": value for name, value in chosen.items()}
    options[f"{_ALGORITHM}.kl_estimator_type"] = inputs["kl_estimator"]
    options["trainer.micro_train_batch_size_per_gpu"] = inputs["micro_batch_size"] or rows
    if inputs["max_tokens_per_microbatch"] is not None:
        options["trainer.max_tokens_per_microbatch"] = inputs["max_tokens_per_microbatch"]
    return options


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All microbatches of a step on one rank. The driver has divided the advantages by what the loss is averaged over,
    so that the worker adds up (``apply_loss_reduction_to_advantages_minibatch``)."""
    import torch

    if is_averaged_inside(boundary.imported[PPO]):
        raise AbsentError("not in this version: the worker averages over each microbatch, and optim_step over them all")
    log_probs, mask = inputs["log_probs"], inputs["response_mask"] != 0
    rows, tokens = log_probs.shape
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)
    fields = batch_fields(
        log_probs,
        mask.to(log_probs.dtype),
        action_log_probs=inputs["old_log_probs"],
        advantages=inputs["advantages"] / lengths / rows,
        attention_mask=torch.nn.functional.pad(mask, (1, 0), value=True).long(),
        response_mask=mask.long(),
        sequences=torch.arange(rows)[:, None].expand(rows, tokens + 1).clone(),
    )
    if inputs["ref_log_probs"] is not None:
        fields["base_action_log_probs"] = inputs["ref_log_probs"]
    by_tokens = hasattr(boundary.imported[CONFIG].TrainerConfig, "max_tokens_per_microbatch")
    if inputs["max_tokens_per_microbatch"] is not None and not by_tokens:
        raise AbsentError("not in this version: a microbatch has a number of rows, and none of tokens")
    settings = configuration_of(boundary, _options(inputs, rows)).trainer
    worker = stand_in(
        cfg=settings,
        model=_Table(log_probs),
        strategy=OneProcess(),
        optimizer=None,
        scheduler=stand_in(get_last_lr=lambda: [0.0]),
        mesh_rank=stand_in(dp_size=1),
        device_mesh=stand_in(get_group=lambda name: None),
        _micro_batches_accumulated=0,
    )
    worker._forward_backward_micro = types.MethodType(boundary.owner._forward_backward_micro, worker)
    with no_ray(boundary), current_device(log_probs.device.type):
        worker.policy_loss_fn = boundary.imported[PPO].PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
        answer = boundary.function(worker, training_batch(boundary, fields))
    # Newer workers return a record of metrics and outputs, older ones put the outputs among the metrics.
    told = getattr(answer, "metrics", answer)
    outputs = getattr(answer, "loss_fn_outputs", None) or told.get("loss_fn_outputs")
    rows_told = [torch.tensor(output["logprobs"], dtype=log_probs.dtype) for output in outputs or ()]
    said = [torch.nn.functional.pad(row, (tokens - len(row), 0)) for row in rows_told]
    return {
        "gradient": torch.zeros_like(log_probs) if log_probs.grad is None else log_probs.grad,
        "pg_loss": told["policy_loss"],
        "kl_loss": told.get("policy_kl"),
        "told_log_probs": torch.stack(said) if said else None,
    }


BINDINGS = (
    Binding(
        f"{BACKEND}.workers.worker.PolicyWorkerBase.forward_backward",
        "policy_update",
        call=_update,
        imports=WORKING,
        stand_ins=(
            StandIn("self", "the real worker's constructor starts Ray and GPUs; the step reads these attributes alone"),
            *(GYM, RAY, STRATEGY, MODEL, CUDA),
        ),
        fixed={"loss_agg_mode": "seq-mean-token-mean", "dp_size": 1, "loss_scale_factor": None},
        accepts={"response_mask": ("full", "left"), "kl_estimator": ("k1", "k2", "k3")},
        dtypes=("float32",),
        dialects=(
            Dialect(
                "empty_rows",
                "counted",
                "sequence means are averaged over the batch, whose size is its number of rows, empty ones included",
                f"{CODE}/backends/skyrl_train/utils/ppo_utils.py#L1192",
            ),
            Dialect("kl_clamp", 10.0, "k3 is cut to [-10, 10]", ppo_line(118), {"kl_estimator": ("k3",)}),
            Dialect(
                "log_ratio_clamp",
                20.0,
                "safe_exp_delta cuts a log-ratio to [-20, 20] against overflow",
                f"{CODE}/backends/skyrl_train/utils/torch_utils.py#L191",
            ),
        ),
    ),
)
