"""NeMo-RL's workers: updates and forward passes of a batch, with a table of log-probs as the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS
from sentinel.binding.kit import torch

from .shared import ALGORITHMS, BATCHES

_LOSSES = f"{ALGORITHMS}.loss.loss_functions"
_WORKERS, _AUTOMODEL = "nemo_rl.models.policy.workers", "nemo_rl.models.automodel"
_V1, _V2 = f"{_WORKERS}.dtensor_policy_worker", f"{_WORKERS}.dtensor_policy_worker_v2"
_MODULES = (f"{_AUTOMODEL}.data", f"{_AUTOMODEL}.train", "nemo_rl.models.dtensor.parallelize", "nemo_rl.utils.nsys")


#: The largest difference of log-probs whose ratio is finite in every dtype, and so is its square.
_LARGEST = 40.0


class _OnCpu:
    """torch, whose CUDA functions do nothing and whose tensors are on the CPU."""

    cuda = kit.stand_in(
        empty_cache=lambda: None,
        get_device_name=lambda *_: "cpu",
        nvtx=kit.stand_in(range_push=lambda _: None, range_pop=lambda: None),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, value: Any, device: Any = None, **options: Any) -> Any:
        return torch.tensor(value, **options)

    def autocast(self, **_: Any) -> Any:
        return nullcontext()


class _Optimizer:
    """Adds up the gradients of all steps, and changes no parameter."""

    def __init__(self, table: Any) -> None:
        self._table, self.gradient = table, torch.zeros_like(table)
        self.param_groups = [{"lr": 0.5}]

    def zero_grad(self) -> None:
        self._table.grad = None

    def step(self) -> None:
        self.gradient += torch.zeros_like(self._table) if self._table.grad is None else self._table.grad


def _sequences(boundary: Any, inputs: Mapping[str, Any], **columns: Any) -> Any:
    """Make a batch of whole sequences. Each token selects its entry of the table."""
    mask = inputs["response_mask"] != 0
    ids = torch.tensor(kit.token_ids(torch.ones_like(mask)))
    ends = (mask * torch.arange(1, mask.shape[1] + 1)).amax(-1) + 1
    there = torch.arange(ids.shape[1]) < ends[:, None]
    named = {name: kit.prepend_prompt(column) for name, column in columns.items()}
    counts = {"token_mask": kit.prepend_prompt(mask.long()), "sample_mask": mask.any(-1).float()}
    batch = {"input_ids": ids * there, "input_lengths": ends, **counts, **named}
    return boundary.imported[BATCHES].BatchedDataDict(batch)


def _dynamic(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which the driver shards a batch by numbers of tokens; empty if it does not."""
    budget = inputs["max_tokens_per_microbatch"]
    if budget is None:
        return {}
    names = {"input_key": "input_ids", "input_lengths_key": "input_lengths"}
    rounds = {
        "sequence_length_round": 1,
        "max_tokens_per_microbatch": max(budget, inputs["response_mask"].shape[1] + 1),
    }
    return {"dynamic_batching_args": {**names, **rounds}}


def _worker(boundary: Any, inputs: Mapping[str, Any], ranks: int) -> tuple[Any, Any]:
    """Make one rank's worker, and the table that is its model."""
    model = kit.token_table(inputs["log_probs"].detach())
    mesh = kit.stand_in(get_group=lambda: None)
    dynamic = inputs["max_tokens_per_microbatch"] is not None
    size = inputs["micro_batch_size"] or len(inputs["log_probs"]) // ranks
    cfg = {
        "train_global_batch_size": len(inputs["log_probs"]),
        "train_micro_batch_size": size, "logprob_batch_size": size,
        "dynamic_batching": {"enabled": dynamic},
        "sequence_packing": {"enabled": False},
        "dtensor_cfg": {"sequence_parallel": False},
    }
    worker = kit.make_unbuilt(
        boundary.owner,
        cfg=cfg,
        model=model,
        optimizer=_Optimizer(model.model.table),
        scheduler=kit.stand_in(step=lambda: None),
        timer=kit.stand_in(start=lambda _: None, stop=lambda _: None),
        tokenizer=kit.stand_in(eos_token_id=0),
        dp_size=ranks, cp_size=1, tp_size=1, dtype=inputs["log_probs"].dtype, max_grad_norm=None,
        **dict.fromkeys(("dp_mesh", "cp_mesh", "tp_mesh", "dp_cp_mesh", "device_mesh"), mesh),
        **dict.fromkeys(("sampling_params", "moe_mesh")),
        **dict.fromkeys(("enable_seq_packing", "is_gemma3", "_is_reward_model", "autocast_enabled"), False),
        allow_flash_attn_args=True,
    )
    return worker, model.model.table


def _on_ranks(boundary: Any, count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run a worker's method on simulated ranks, on the CPU."""
    with ExitStack() as alone:
        for module in (boundary.module, *(boundary.imported[name] for name in _MODULES if name in boundary.imported)):
            alone.enter_context(kit.swap_all(module, torch=_OnCpu(), get_train_context=lambda **_: nullcontext()))
        alone.enter_context(kit.swap(boundary.module, "scale_grads_and_clip_grad_norm", lambda *_, **__: 0.0))
        alone.enter_context(kit.swap(torch.Tensor, "cuda", lambda self: self))
        alone.enter_context(kit.swap(boundary.imported[BATCHES].BatchedDataDict, "to", lambda self, _: self))
        return kit.on_ranks(count, work)


def _updated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train a worker on each rank. FSDP averages the gradients over the ranks."""
    losses, count, mask = boundary.imported[_LOSSES], inputs["dp_size"], inputs["response_mask"]
    old = inputs["old_log_probs"]
    if ((inputs["log_probs"] - old).abs() * (mask != 0)).max() > _LARGEST:
        raise AbsentError("the loss overflows: NEMORL-PPO-OVERFLOWED-RATIO-NAN-GRADIENT")
    batch = _sequences(boundary, inputs, advantages=inputs["advantages"], prev_logprobs=old, generation_logprobs=old)
    options = {"ratio_clip_min": inputs["eps_clip_low"], "ratio_clip_max": inputs["eps_clip_high"]}
    options |= {"ratio_clip_c": inputs["dual_clip"], "reference_policy_kl_penalty": 0.0}
    loss = losses.ClippedPGLossFn(
        losses.ClippedPGLossConfig(**options, token_level_loss=inputs["loss_agg_mode"] == "token-mean")
    )
    shards = batch.shard_by_batch_size(count, batch_size=len(mask), **_dynamic(inputs))
    shards = shards[0] if isinstance(shards, tuple) else shards
    workers = [_worker(boundary, inputs, count) for _ in range(count)]
    reports = _on_ranks(boundary, count, lambda rank: boundary.function(workers[rank][0], shards[rank], loss))
    total = sum(worker.optimizer.gradient for worker, _ in workers) / count
    # the older worker reports its loss times the number of ranks
    told = None if count > 1 and boundary.module.__name__ == _V1 else reports[0]["global_loss"].sum()
    return {"gradient": total[:, 1:-1], "pg_loss": told, "kl_loss": None}


def _recomputed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    batch, order = _sequences(boundary, inputs), None
    if dynamic := _dynamic(inputs):
        (batch,), order = batch.shard_by_batch_size(1, **dynamic)
    worker = _worker(boundary, inputs, 1)[0]
    made = _on_ranks(boundary, 1, lambda _: boundary.function(worker, batch))[0]
    if order is not None:
        made.reorder_data(order)
    return {"log_probs": made["logprobs"][:, 1:]}


_MODEL = StandIn("model", "a table of log-probs, in which the forward pass looks up its input tokens")
_MESH = StandIn("meshes, optimizer, timer", "one device per rank; the optimizer adds up gradients")
_NEW = (f"{ALGORITHMS}.grpo._initial_grpo_save_state",)
BINDINGS = tuple(
    binding
    for path, imports in ((f"{_V1}.DTensorPolicyWorkerImpl", _MODULES), (f"{_V2}.DTensorPolicyWorkerV2Impl", _MODULES))
    for binding in (
        Binding(
            f"{path}.train", "policy_update", call=_updated, imports=(BATCHES, _LOSSES, *imports),
            stand_ins=(_MODEL, _MESH, RANKS), requires=_NEW,
            fixed={
                **dict.fromkeys(("ref_log_probs", "entropies", "loss_scale_factor")),
                **dict.fromkeys(("kl_coef", "entropy_coef"), 0.0),
            },
            accepts={"dual_clip": (None, 3.0), "loss_agg_mode": ("token-mean", "seq-mean-token-mean")},
        ),
        Binding(
            f"{path}.get_logprobs", "recomputed_log_probs", call=_recomputed, imports=(BATCHES, *imports),
            stand_ins=(_MODEL, _MESH, RANKS), requires=_NEW, fixed={"entropies": None},
        ),
    )
)  # fmt: skip
