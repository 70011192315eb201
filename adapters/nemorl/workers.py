"""Bindings for NeMo-RL's workers, which train on a batch or compute its log-probs. The model is a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS, aggregated
from sentinel.binding.kit import torch

from .shared import ALGORITHMS, BATCHES, LOSSES, MAIN

_WORKERS, _AUTOMODEL = "nemo_rl.models.policy.workers", "nemo_rl.models.automodel"
_V1, _V2 = f"{_WORKERS}.dtensor_policy_worker", f"{_WORKERS}.dtensor_policy_worker_v2"
_VALUES = "nemo_rl.models.value.workers.dtensor_value_worker_v2"
_BUDGET = "max_tokens_per_microbatch"
_MCORE, _MEGATRON = f"{_WORKERS}.megatron_policy_worker", "nemo_rl.models.megatron"
_MODULES = (f"{_AUTOMODEL}.data", f"{_AUTOMODEL}.train", "nemo_rl.models.dtensor.parallelize", "nemo_rl.utils.nsys")


#: Maximum difference of log-probs for which the ratio and its square are finite in every dtype.
_LARGEST = 40.0


class _Optimizer:
    """A stand-in optimizer that sums the gradients of all steps and changes no parameter."""

    def __init__(self, table: Any) -> None:
        self._table, self.gradient = table, torch.zeros_like(table)
        self.param_groups = [{"lr": 0.5}]
        self.grad_norms_by_group: dict[str, float] = {}
        self.steps = 0

    def zero_grad(self) -> None:
        self._table.grad = None

    def step(self) -> tuple[bool, float, float]:
        own = torch.zeros_like(self._table) if self._table.grad is None else self._table.grad
        self.gradient += own
        self.steps += 1
        return True, float(own.norm()), 0.0


def _make_batch(boundary: Any, inputs: Mapping[str, Any], **columns: Any) -> Any:
    """Make a batch of whole sequences whose token ids are indices of the model's table."""
    mask = inputs["response_mask"] != 0
    ids = torch.tensor(kit.token_ids(torch.ones_like(mask)))
    ends = (mask * torch.arange(1, mask.shape[1] + 1)).amax(-1) + 1
    there = torch.arange(ids.shape[1]) < ends[:, None]
    named = {name: kit.prepend_prompt(column) for name, column in columns.items()}
    counts = {"token_mask": kit.prepend_prompt(mask.long()), "sample_mask": mask.any(-1).float()}
    batch = {"input_ids": ids * there, "input_lengths": ends, **counts, **named}
    return boundary.imported[BATCHES].BatchedDataDict(batch)


def _split_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the driver's options for splitting a batch by tokens, or {} if the batch is split by rows."""
    budget = inputs[_BUDGET]
    if budget is None:
        return {}
    width = inputs["response_mask"].shape[1] + 1
    options = {"input_key": "input_ids", "input_lengths_key": "input_lengths", "sequence_length_round": 1}
    options[_BUDGET] = max(budget, width)
    if not _packs(inputs):
        return {"dynamic_batching_args": options}
    packing = {"algorithm": "modified_first_fit_decreasing", "sequence_length_pad_multiple": 1}
    return {"sequence_packing_args": {**options, **packing}}


def _packs(inputs: Mapping[str, Any]) -> bool:
    """Return True if the scenario packs sequences into one row, and False if a microbatch has several rows."""
    return inputs[_BUDGET] is not None and inputs["micro_batch_size"] is not None


def _make_worker(boundary: Any, inputs: Mapping[str, Any], ranks: int, makes: Callable[[Any], Any]) -> Any:
    """Make the worker of a data-parallel rank without running its constructor.

    :param makes: function that returns a model for the scenario, and the table that is the model's parameter.
    """
    model, table = makes(inputs)
    mesh = kit.stand_in(get_group=lambda: None)
    packs, dynamic = _packs(inputs), inputs[_BUDGET] is not None and not _packs(inputs)
    rows = len(inputs["response_mask"])
    size = inputs["micro_batch_size"] or rows // ranks
    cfg = {
        "train_global_batch_size": rows,
        "train_micro_batch_size": size,
        "logprob_batch_size": size,
        "logprob_chunk_size": 2 if inputs["micro_batch_size"] else None,
        "dynamic_batching": {"enabled": dynamic},
        "sequence_packing": {"enabled": packs, "train_mb_tokens": 0},
        "dtensor_cfg": {"sequence_parallel": False},
        "megatron_cfg": {"empty_unused_memory_level": 0, **_ONE_DEVICE},
        "make_sequence_length_divisible_by": 1,
        "max_total_sequence_length": inputs["response_mask"].shape[1] + 1,
    }
    return kit.make_unbuilt(
        boundary.owner,
        cfg=cfg,
        _policy_like_cfg=cfg,
        model=model,
        optimizer=_Optimizer(table),
        scheduler=kit.stand_in(step=lambda **_: None, get_lr=lambda _: 0.5, get_wd=lambda: 0.25),
        timer=kit.stand_in(start=lambda _: None, stop=lambda _: None),
        tokenizer=kit.stand_in(eos_token_id=0),
        dp_size=ranks,
        cp_size=1,
        tp_size=1,
        dtype=inputs["log_probs"].dtype,
        max_grad_norm=None,
        **dict.fromkeys(("dp_mesh", "cp_mesh", "tp_mesh", "dp_cp_mesh", "device_mesh"), mesh),
        **dict.fromkeys(("sampling_params", "moe_mesh")),
        enable_seq_packing=packs,
        **dict.fromkeys(("is_gemma3", "_is_reward_model", "autocast_enabled"), False),
        allow_flash_attn_args=True,
        **(_megatron_attributes(model) if _MEGATRON in boundary.imported else {}),
    )


_OF_MEGATRON = (_MEGATRON, f"{_MEGATRON}.data", f"{_MEGATRON}.train", f"{ALGORITHMS}.loss.utils")
_ONE_DEVICE = dict.fromkeys(("tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size"), 1)
_ONE_DEVICE |= {"sequence_parallel": False, "fp8_cfg": None}


def _megatron_attributes(model: Any) -> dict[str, Any]:
    """Return attributes that only Megatron's workers have, and stand-ins for methods that call Megatron."""
    model.zero_grad_buffer = lambda: None
    names = ("_copy_main_params_to_param_buffer", "_set_moe_grad_scale_func", "_set_mtp_grad_scale_func")
    names += ("_collect_mtp_metrics", "_compute_moe_grad_scale", "_get_model_extra_state_dict")
    names += ("_uses_mxfp8_overlap_shared_param_buffer",)
    off = ("delegate_pack_to_model", "delegate_mtp_loss_mask_to_model", "model_slices_context_parallel_inputs")
    off += ("should_disable_forward_pre_hook", "_first_train_step_forward_pre_hook_disabled", "_router_replay_enabled")
    return {
        **dict.fromkeys(names, lambda *_: None),
        **dict.fromkeys((*off, "defer_fp32_logits"), False),
        **dict.fromkeys(("media_placeholder_token_id", "draft_model")),
        "_get_model_config": kit.stand_in,
        "mcore_state": kit.stand_in(straggler_timer=None),
    }


def _schedule(forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, **more: Any) -> list[Any]:
    """Run the microbatches in order and average their losses, as Megatron's schedule without pipelining does."""
    reports = []
    for _ in range(num_microbatches):
        outputs, compute = forward_step_func(data_iterator, lambda **named: model(**named).logits)
        loss, report = compute(outputs)
        if not more["forward_only"]:
            (loss / num_microbatches).backward()
        reports.append(report)
    return reports


def _megatron_functions() -> dict[str, Any]:
    """Return stand-ins for the functions of Megatron that NeMo-RL imports. Each data-parallel rank has one device."""
    own = lambda *_: (torch.distributed.get_rank(),)  # noqa: E731
    groups = dict.fromkeys(("get_context_parallel_group", "get_tensor_model_parallel_group"), own)
    first = iter(range(1_000_000))
    return {
        **groups,
        **dict.fromkeys(("get_context_parallel_rank", "get_tensor_model_parallel_rank"), lambda *_: 0),
        "get_context_parallel_world_size": lambda *_: 1,
        "PackedSeqParams": kit.stand_in,
        "PipelineOffloadManager": kit.stand_in(OFFLOAD_MGR=None),
        "get_model_config": lambda _: kit.stand_in(fine_grained_activation_offloading=False),
        "get_forward_backward_func": lambda: _schedule,
        "get_ltor_masks_and_position_ids": lambda data, **_: (None, None, None),
        "parallel_state": kit.make_single_rank_mpu(get_data_parallel_group=None),
        "get_rerun_state_machine": lambda: kit.stand_in(
            should_run_forward_backward=lambda _, left=iter((True, False)): next(left)
        ),
        "get_pg_collection": lambda _: kit.stand_in(mp=None),
        **dict.fromkeys(
            ("logical_and_across_model_parallel_group", "reduce_max_stat_across_model_parallel_group"),
            lambda value, **_: value,
        ),
        **dict.fromkeys(
            ("broadcast_loss_metrics_from_last_stage", "broadcast_tensors_from_last_stage"), lambda value: value
        ),
        "is_pipeline_last_stage": lambda **_: True,
        **dict.fromkeys(("get_pipeline_model_parallel_group", "get_pipeline_model_parallel_last_rank"), lambda: None),
        "broadcast_tensor": lambda value, *_: value,
        "time": kit.stand_in(perf_counter=lambda: float(next(first))),
        "get_capture_context": lambda *_: (nullcontext(), None),
    }


def _make_policy(inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    model = kit.token_table(inputs["log_probs"].detach())
    return model, model.model.table


def _make_critic(inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Make a model that returns a value at each position. The value is that of the next token."""
    body = kit.token_table(inputs["log_probs"].detach(), scores=True).model

    class Critic(type(body)):  # type: ignore[misc]
        def forward(self, input_ids: Any, **_: Any) -> Any:
            return kit.stand_in(logits=super().forward(input_ids)[..., None])

    body.__class__ = Critic
    return body, body.table


def _run_on_ranks(boundary: Any, count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call ``work`` on simulated ranks, on the CPU and with stand-ins for Megatron."""
    imported = boundary.imported
    used = [
        module for module in (boundary.module, *map(imported.get, (*_MODULES, *_OF_MEGATRON))) if module is not None
    ]
    with ExitStack() as alone:
        alone.enter_context(kit.on_cpu(*used))
        names = {"get_train_context": lambda **_: nullcontext()}
        if _MEGATRON in imported:
            names |= _megatron_functions()
        for module in used:
            alone.enter_context(kit.swap_all(module, **names))
        alone.enter_context(kit.swap(boundary.module.torch.distributed, "broadcast_object_list", lambda *_, **__: None))
        if _MODULES[1] in imported:
            alone.enter_context(kit.swap(imported[_MODULES[1]], "to_local_if_dtensor", kit.return_first))
        alone.enter_context(kit.swap(boundary.module, "scale_grads_and_clip_grad_norm", lambda *_, **__: 0.0))
        alone.enter_context(kit.swap(imported[BATCHES].BatchedDataDict, "to", lambda self, _: self))
        return kit.on_ranks(count, work)


def _train(
    boundary: Any, inputs: Mapping[str, Any], batch: Any, loss: Any, makes: Callable[[Any], Any]
) -> tuple[Any, list[Any]]:
    """Train one worker per rank. Return their joint gradient, and a list of their reports.

    FSDP averages gradients over ranks; Megatron adds them up.
    """
    count = inputs["dp_size"] or 1
    shards = batch.shard_by_batch_size(count, batch_size=len(inputs["response_mask"]), **_split_options(inputs))
    shards = shards[0] if isinstance(shards, tuple) else shards
    workers = [_make_worker(boundary, inputs, count, makes) for _ in range(count)]
    # An evaluation before the update has no effect. Its loss is the same; with several ranks, the loss is reported
    # otherwise: a known bug, NEMORL-REPORTED-LOSS-TIMES-RANKS.
    alone = True
    if inputs["micro_batch_size"] is None:
        before = _run_on_ranks(
            boundary, count, lambda rank: boundary.function(workers[rank], shards[rank], loss, eval_mode=True)
        )
    reports = _run_on_ranks(boundary, count, lambda rank: boundary.function(workers[rank], shards[rank], loss))
    if inputs["micro_batch_size"] is None:
        same = count > 1 or torch.allclose(before[0]["global_loss"], reports[0]["global_loss"], equal_nan=True)
        alone = same and all(worker.optimizer.steps == 1 for worker in workers)
    adds = _MEGATRON in boundary.imported
    gradient = sum(worker.optimizer.gradient for worker in workers)[:, 1:-1] / (1 if adds else count)
    return gradient if alone else gradient + float("nan"), reports


def _update_policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    losses, mask = boundary.imported[LOSSES], inputs["response_mask"]
    old = inputs["old_log_probs"]
    if ((inputs["log_probs"] - old).abs() * (mask != 0)).max() > _LARGEST:
        raise AbsentError("NeMo-RL's loss overflows: a known bug, NEMORL-PPO-OVERFLOWED-RATIO-NAN-GRADIENT")
    batch = _make_batch(boundary, inputs, advantages=inputs["advantages"], prev_logprobs=old, generation_logprobs=old)
    options = {"ratio_clip_min": inputs["eps_clip_low"], "ratio_clip_max": inputs["eps_clip_high"]}
    options |= {"ratio_clip_c": inputs["dual_clip"], "reference_policy_kl_penalty": 0.0}
    loss = losses.ClippedPGLossFn(
        losses.ClippedPGLossConfig(**options, token_level_loss=inputs["loss_agg_mode"] == "token-mean")
    )
    total, reports = _train(boundary, inputs, batch, loss, _make_policy)
    return {"gradient": total, "pg_loss": reports[0]["global_loss"].sum(), "kl_loss": None}


def _update_critic(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    losses = boundary.imported[LOSSES]
    batch = _make_batch(boundary, inputs, values=inputs["values"], returns=inputs["returns"])
    loss = losses.MseValueLossFn(losses.MseValueLossConfig(cliprange=inputs["cliprange_value"]))
    uncut = {"log_probs": inputs["vpreds"], "dp_size": 1, **dict.fromkeys(("micro_batch_size", _BUDGET))}
    gradient, reports = _train(boundary, {**inputs, **uncut}, batch, loss, _make_critic)
    return {"loss": kit.attach_gradient(reports[0]["global_loss"].sum(), inputs["vpreds"], gradient)}


def _recompute(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    batch, order = _make_batch(boundary, inputs), None
    if dynamic := _split_options(inputs):
        (batch,), order = batch.shard_by_batch_size(1, **dynamic)
    if boundary.path.startswith(_CRITIC) and _packs(inputs):
        raise AbsentError(
            "NeMo-RL's worker returns packed values as one row; the contract needs a row for each sequence"
        )
    worker = _make_worker(boundary, inputs, 1, _make_critic if "Value" in boundary.path else _make_policy)
    made = _run_on_ranks(boundary, 1, lambda _: boundary.function(worker, data=batch))[0]
    if order is not None:
        made.reorder_data(order)
    return {"log_probs": made["values" if "values" in made else "logprobs"][:, 1:]}


def _score_by_top_k(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs from the top-k logits of a worker, where k is the size of the vocabulary.

    If there are several rows, they are packed.
    """
    logits = inputs["logits"]
    size, packs = logits.shape[-1], len(logits) > 1
    cut = {"micro_batch_size": 1 if packs else None, _BUDGET: 8 if packs else None}
    whole = {"response_mask": torch.ones(logits.shape[:2]), "log_probs": logits, **cut}
    batch, order = _make_batch(boundary, whole), None
    if packs:
        (batch,), order = batch.shard_by_batch_size(1, **_split_options(whole))
    worker = _make_worker(boundary, whole, 1, _make_policy)
    made = _run_on_ranks(boundary, 1, lambda _: boundary.function(worker, data=batch, k=size))[0]
    if order is not None:
        made.reorder_data(order)
    values, places = (made[name][:, :-1] for name in ("topk_logits", "topk_indices"))
    known = torch.full_like(values, float("-inf")).scatter(-1, places.clamp(max=size - 1), values)
    return {"log_probs": known.log_softmax(-1).gather(-1, inputs["token_ids"][..., None])[..., 0], "entropy": None}


def _worker_of(boundary: Any) -> Any:
    """Return what a boundary of NeMo-RL's worker would have, for a boundary of the driver that calls this worker."""
    path = _CRITIC if "Value" in boundary.path else _SECOND
    module, _, name = path.rpartition(".")
    there = {"imported": boundary.imported, "path": path, "module": boundary.imported[module]}
    return kit.stand_in(owner=getattr(boundary.imported[module], name), **there)


def _make_driver(
    kind: Any, worker: Any, inputs: Mapping[str, Any], ranks: int, makes: Callable[[Any], Any]
) -> tuple[Any, list[Any]]:
    """Make NeMo-RL's driver of workers without running its constructor. Return it with the workers of its ranks."""
    workers = [_make_worker(worker, inputs, ranks, makes) for _ in range(ranks)]
    for one in workers:
        one.use_reference_model = nullcontext

    def run(name: str, data: Sequence[Any], common_kwargs: Any = None, **_: Any) -> list[Any]:
        ask = getattr(worker.owner, name)
        return _run_on_ranks(worker, ranks, lambda rank: ask(workers[rank], data=data[rank], **(common_kwargs or {})))

    split, budget = _split_options(inputs), dict.fromkeys(("logprob_mb_tokens", "train_mb_tokens"), 0)
    for options in split.values():
        budget = dict.fromkeys(budget, options[_BUDGET])
    sizes = {"train_global_batch_size": len(inputs["response_mask"]), "train_micro_batch_size": None}
    # NeMo-RL packs the whole batch of a rank into microbatches of one packed row.
    sizes["train_micro_batch_size"] = inputs["micro_batch_size"] or sizes["train_global_batch_size"] // ranks
    driver = kit.make_unbuilt(
        kind, **split, cfg={**sizes, "dynamic_batching": budget, "sequence_packing": budget}, flops_tracker=None,
        use_dynamic_batches="dynamic_batching_args" in split, use_sequence_packing="sequence_packing_args" in split,
        sharding_annotations=kit.stand_in(get_axis_size=lambda _: ranks), debug_payload_metrics=False,
        worker_group=kit.bookkeeping(run_all_workers_sharded_data=run, get_all_worker_results=kit.return_first),
        sequence_length_pad_multiple=1, _micro_batch_size=None,
    )  # fmt: skip
    return driver, workers


def _drive_policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Update the policy with NeMo-RL's driver, which splits the batch over the workers of the data-parallel ranks."""
    losses, mask, old = boundary.imported[LOSSES], inputs["response_mask"], inputs["old_log_probs"]
    if ((inputs["log_probs"] - old).abs() * (mask != 0)).max() > _LARGEST:
        raise AbsentError("NeMo-RL's loss overflows: a known bug, NEMORL-PPO-OVERFLOWED-RATIO-NAN-GRADIENT")
    batch = _make_batch(boundary, inputs, advantages=inputs["advantages"], prev_logprobs=old, generation_logprobs=old)
    options = {"ratio_clip_min": inputs["eps_clip_low"], "ratio_clip_max": inputs["eps_clip_high"]}
    options |= {"ratio_clip_c": inputs["dual_clip"], "reference_policy_kl_penalty": 0.0}
    config = losses.ClippedPGLossConfig(**options, token_level_loss=inputs["loss_agg_mode"] == "token-mean")
    ranks, worker = inputs["dp_size"] or 1, _worker_of(boundary)
    driver, workers = _make_driver(boundary.owner, worker, inputs, ranks, _make_policy)
    report = boundary.function(driver, batch, losses.ClippedPGLossFn(config))
    gradient = sum(one.optimizer.gradient for one in workers)[:, 1:-1] / ranks
    return {"gradient": gradient, "pg_loss": report["loss"].sum(), "kl_loss": None}


def _drive_critic(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    losses = boundary.imported[LOSSES]
    batch = _make_batch(boundary, inputs, values=inputs["values"], returns=inputs["returns"])
    loss = losses.MseValueLossFn(losses.MseValueLossConfig(cliprange=inputs["cliprange_value"]))
    ranks = 1 if len(batch["input_ids"]) % 2 else 2
    whole = {**inputs, "log_probs": inputs["vpreds"], "micro_batch_size": None, _BUDGET: None}
    driver, workers = _make_driver(boundary.owner, _worker_of(boundary), whole, ranks, _make_critic)
    report = boundary.function(driver, batch, loss)
    gradient = sum(one.optimizer.gradient for one in workers)[:, 1:-1] / ranks
    return {"loss": kit.attach_gradient(report["loss"].sum(), inputs["vpreds"], gradient)}


def _drive_forward(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs or values with NeMo-RL's driver, which splits the batch over ranks and restores its order."""
    batch, worker = _make_batch(boundary, inputs), _worker_of(boundary)
    if "Value" in boundary.path and _packs(inputs):
        raise AbsentError(
            "NeMo-RL's worker returns packed values as one row; the contract needs a row for each sequence"
        )
    if "Teacher" in boundary.path:  # it has no dynamic batches
        inputs = {**inputs, "micro_batch_size": inputs["micro_batch_size"] or 1}
    ranks, makes = 1 if len(batch["input_ids"]) % 2 else 2, _make_critic if "Value" in boundary.path else _make_policy
    driver, _ = _make_driver(boundary.owner, worker, inputs, ranks, makes)
    made = boundary.function(driver, batch) if "_shard" not in boundary.path else driver.get_logprobs(batch)
    (values,) = (made[name] for name in ("values", "logprobs", "reference_logprobs") if name in made)
    return {"log_probs": values[:, 1:]}


class _Immediately:
    """A stand-in for a thread pool, which calls each function at once."""

    def __init__(self, max_workers: int) -> None:
        self.workers = max_workers

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        """Do nothing, because all calls have returned."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return _Done(function(*arguments))


class _Done:
    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


def _ask_teachers(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute teachers' log-probs with NeMo-RL's collector. Two of three agents have the same teacher."""
    batch, worker, kind = _make_batch(boundary, inputs), _worker_of(boundary), boundary.imported[_TEACHERS]
    rows = len(batch["input_ids"])
    if (inputs["log_probs"][inputs["response_mask"] != 0] > -1e-4).any():
        raise AbsentError("NeMo-RL computes log-probs in float32; the scenario has one that is too close to 0")
    names = [("a", "b", "c")[row % 3] for row in range(rows)]
    teachers = {}
    for place, name in enumerate(("a", "c")):
        whole = {**inputs, "log_probs": inputs["log_probs"] * (1 + place), "micro_batch_size": 1}
        teachers[name], _ = _make_driver(kind.TeacherWorkerGroup, worker, whole, 2, _make_policy)
    collector = kit.make_unbuilt(
        boundary.owner, teacher_worker_groups=teachers, alias_to_group_alias={"a": "a", "b": "a", "c": "c"},
        on_policy_distillation_cfg={
            "teacher_model_by_agent_name": {"a": "one", "b": "one"}, "default_teacher_alias": "c",
        },
        _teacher_locks={name: nullcontext() for name in teachers},
    )  # fmt: skip
    pool = kit.stand_in(ThreadPoolExecutor=_Immediately, as_completed=list)
    with kit.swap(boundary.module, "concurrent", kit.stand_in(futures=pool)):
        made, _ = boundary.function(collector, batch["input_ids"], [{"name": name} for name in names],
                                    batch["input_lengths"])  # fmt: skip
    factors = torch.tensor([1.0 + (name == "c") for name in names])[:, None]
    return {"log_probs": made[:, 1:] / factors}


_MODEL = StandIn("model", "a table of log-probs, in which the forward pass looks up its input tokens")
_MESH = StandIn("meshes, optimizer, timer", "one device per rank; the optimizer adds up gradients")
_FIRST, _SECOND = f"{_V1}.DTensorPolicyWorkerImpl", f"{_V2}.DTensorPolicyWorkerV2Impl"
_CRITIC = f"{_VALUES}.DTensorValueWorkerV2Impl"
_DRIVER, _VALUE_DRIVER = "nemo_rl.models.policy.lm_policy.Policy", "nemo_rl.models.value.lm_value.Value"
_TEACHERS = "nemo_rl.models.policy.teacher_worker_group"
_COLLECTOR = f"{ALGORITHMS}.async_utils.trajectory_collector.AsyncTrajectoryCollector"
_THIRD = f"{_MCORE}.MegatronPolicyWorkerImpl"
_MCORE_CRITIC = "nemo_rl.models.value.workers.megatron_value_worker.MegatronValueWorkerImpl"


def _common(path: str) -> dict[str, Any]:
    imports = ("nemo_rl.utils.nsys", *_OF_MEGATRON) if path in (_THIRD, _MCORE_CRITIC) else _MODULES
    return {
        "imports": (BATCHES, LOSSES, *imports),
        "stand_ins": (_MODEL, _MESH, RANKS),
        "requires": (f"{ALGORITHMS}.grpo._initial_grpo_save_state",),
    }


def _of_driver(path: str, *imports: str) -> dict[str, Any]:
    common = _common(path)
    return {**common, "imports": (*common["imports"], _V2, _VALUES, *imports), "requires": (*common["requires"], path)}


_NO_KL: Mapping[str, Any] = {
    **dict.fromkeys(("ref_log_probs", "entropies", "loss_scale_factor")),
    **dict.fromkeys(("kl_coef", "entropy_coef"), 0.0),
}  # fmt: skip
BINDINGS = (
    Binding(
        f"{_DRIVER}.train", "policy_update", call=_drive_policy, fixed=_NO_KL, **_of_driver(f"{_DRIVER}.train"),
        accepts={"dual_clip": (None, 3.0), "loss_agg_mode": ("token-mean", "seq-mean-token-mean")},
    ),
    Binding(
        f"{_VALUE_DRIVER}.train", "value_loss", call=_drive_critic, fixed=aggregated("token-mean"),
        **_of_driver(f"{_VALUE_DRIVER}.train"),
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", f"{MAIN}/algorithms/loss/loss_functions.py"),
        ),
    ),
    *(
        Binding(path, "recomputed_log_probs", call=_drive_forward, fixed={"entropies": None}, **_of_driver(path))
        for path in (
            f"{_DRIVER}.get_logprobs", f"{_DRIVER}.get_reference_policy_logprobs", f"{_DRIVER}._shard_for_logprob",
            f"{_VALUE_DRIVER}.get_values", f"{_TEACHERS}.TeacherWorkerGroup.get_logprobs",
        )
    ),
    Binding(
        f"{_COLLECTOR}._compute_teacher_logprobs", "recomputed_log_probs", call=_ask_teachers,
        fixed={"entropies": None, "micro_batch_size": None},
        **_of_driver(f"{_COLLECTOR}._compute_teacher_logprobs", _TEACHERS),
    ),
    *(
        Binding(
            f"{path}.train", "policy_update", call=_update_policy, **_common(path),
            fixed=_NO_KL,
            accepts={"dual_clip": (None, 3.0), "loss_agg_mode": ("token-mean", "seq-mean-token-mean")},
        )
        for path in (_FIRST, _SECOND, _THIRD)
    ),
    *(Binding(
        f"{path}.train", "value_loss", call=_update_critic, **_common(path), fixed=aggregated("token-mean"),
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", f"{MAIN}/algorithms/loss/loss_functions.py"),
        ),
    ) for path in (_CRITIC, _MCORE_CRITIC)),
    *(
        Binding(
            f"{path}.get_topk_logits", "token_log_probs", call=_score_by_top_k, **_common(path),
            fixed={"temperature": 1.0, "with_entropy": False},
        )
        for path in (_FIRST, _SECOND, _THIRD)
    ),
    *(
        Binding(
            f"{path}.{method}", "recomputed_log_probs", call=_recompute, fixed={"entropies": None}, **_common(path),
        )
        for path, method in (
            (_FIRST, "get_logprobs"), (_SECOND, "get_logprobs"), (_THIRD, "get_logprobs"), (_CRITIC, "get_values"),
            (_MCORE_CRITIC, "get_values"),
        )
    ),
)  # fmt: skip
