"""Bindings for the update steps of verl's workers and model engines, with a table of log-probs as the model."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .containers import CONTAINER
from .shared import CONFIG, CPU, MAIN, MEMORY, MODEL, OPTIMIZER, SELF, Recorder, make_model

#: The aggregations of verl's losses.
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

_ACTOR = "verl.workers.actor.dp_actor"
_CRITIC = "verl.workers.critic.dp_critic"
_CORE = "verl.trainer.ppo.core_algos"
_PROTOCOL = "verl.protocol"


class Answer(dict[str, Any]):
    """The result of an actor's forward pass: a mapping for newer callers, and a pair for older callers."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self["entropys"], self["log_probs"]))


def _prepend_ones(mask: Any) -> Any:
    return torch.cat((torch.ones_like(mask[:, :1]), mask), dim=-1)


def _make_batch(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make a batch in which each row has one prompt token and a response. A token's id is the number of its row."""
    mask = inputs["response_mask"]
    rows, tokens = mask.shape
    ids = torch.arange(rows)[:, None].repeat(1, tokens + 1)
    batch = {
        "input_ids": ids,
        "responses": ids[:, 1:],
        "position_ids": torch.arange(tokens + 1)[None].repeat(rows, 1),
        "attention_mask": _prepend_ones(mask),
        "response_mask": mask,
        "old_log_probs": inputs["old_log_probs"],
        "advantages": inputs["advantages"],
    }
    if inputs["ref_log_probs"] is not None:
        batch["ref_log_prob"] = inputs["ref_log_probs"]
    return batch


def options(inputs: Mapping[str, Any]) -> Any:
    """Make the configuration of verl's actor. Each option is set under all names that verl has used for it."""
    import omegaconf

    rows, with_kl = len(inputs["response_mask"]), inputs["ref_log_probs"] is not None and bool(inputs["kl_coef"])
    estimators = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
    return omegaconf.OmegaConf.create(
        {
            "ppo_mini_batch_size": inputs["mini_batch_size"] or rows,
            **dict.fromkeys(
                ("ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size"), inputs["micro_batch_size"] or rows
            ),
            "use_dynamic_bsz": inputs["max_tokens_per_microbatch"] is not None,
            "ppo_max_token_len_per_gpu": inputs["max_tokens_per_microbatch"],
            "ppo_epochs": 1,
            "data_loader_seed": 1,
            "shuffle": False,
            **dict.fromkeys(("clip_ratio", "clip_ratio_low"), inputs["eps_clip_low"]),
            "clip_ratio_high": inputs["eps_clip_high"],
            "clip_ratio_c": inputs["dual_clip"] or 1e30,  # without dual_clip, a bound that no ratio reaches
            "entropy_coeff": inputs["entropy_coef"],
            "calculate_entropy": inputs["entropies"] is not None,
            "use_kl_loss": with_kl,
            "kl_loss_coef": inputs["kl_coef"],
            "kl_loss_type": estimators.get(inputs["kl_estimator"], inputs["kl_estimator"]),
            "loss_agg_mode": inputs["loss_agg_mode"],
            "loss_scale_factor": inputs["loss_scale_factor"],
            "policy_loss": {"loss_mode": "vanilla"},
            # In revisions that have this option, it makes the actor use the given old log-probs.
            "use_rollout_log_probs": True,
            "tis_imp_ratio_cap": -1,  # no truncated importance sampling, in revisions of autumn 2025
            "global_batch_info": {},
            "grad_clip": 1e30,
        }
    )


def mean_of(reported: Any) -> Any:
    """Return the mean of the values of a metric, as verl's trainer computes it, or None if ``reported`` is None."""
    import numpy

    return None if reported is None else float(numpy.mean(reported))


def _without_memory_logging(boundary: Any) -> contextlib.AbstractContextManager[Any]:
    # Only some versions have this logger, which measures the accelerator's memory.
    logger = getattr(boundary.module, "GPUMemoryLogger", None)
    return kit.swap(logger and sys.modules[logger.__module__], "_get_current_mem_info", lambda *_: ("0",) * 4)


def _require_options(boundary: Any, inputs: Mapping[str, Any]) -> None:
    """Raise AbsentError if the scenario sets an option that this version's code does not mention."""
    chosen = {
        "loss_agg_mode": inputs["loss_agg_mode"] != "token-mean",
        "clip_ratio_high": inputs["eps_clip_high"] != inputs["eps_clip_low"],
        "clip_ratio_c": inputs["dual_clip"] is not None,
    }
    code = "".join(map(kit.source_of, (boundary.module, boundary.imported[_CORE])))
    for option, is_chosen in chosen.items():
        if is_chosen and option not in code:
            raise AbsentError(f"this version's {boundary.module.__name__} has no option {option!r}")


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one policy update of verl's legacy FSDP actor on one rank."""
    import tensordict

    if hasattr(boundary.owner, "_make_minibatch_iterator"):
        raise AbsentError("this version's actor draws its mini-batches from a data loader, and has no KL loss")
    _require_options(boundary, inputs)
    model = make_model(inputs["log_probs"])
    recorder, entropies = Recorder(model), inputs["entropies"]

    def forward(micro_batch: Mapping[str, Any], *_: Any, **__: Any) -> Answer:
        rows = micro_batch["input_ids"][:, 0]
        entropy = torch.zeros_like(micro_batch["advantages"]) if entropies is None else entropies[rows]
        return Answer(log_probs=model.table[rows], entropys=entropy)

    actor = kit.make_unbuilt(
        boundary.owner,
        config=options(inputs),
        actor_module=model,
        actor_optimizer=recorder,
        _forward_micro_batch=forward,
        ulysses_sequence_parallel_size=1,
        use_prefix_grouper=False,
        scaler=None,
        _fsdp_gradient_divisor=1.0,
    )
    proto = boundary.imported[_PROTOCOL].DataProto
    batch = tensordict.TensorDict(_make_batch(inputs), batch_size=[len(inputs["response_mask"])])
    data = proto(batch=batch, meta_info={"temperature": 1.0})
    with (
        kit.swap(tensordict.TensorDict, "cuda", lambda self: self),
        kit.swap(torch.cuda, "current_device", lambda: "cpu" if boundary.device == "cpu" else 0),
        _without_memory_logging(boundary),
        kit.swap(boundary.module, "get_device_id", lambda: boundary.device),
    ):
        metrics = boundary.function(actor, data)
    kl_loss = metrics.get("actor/kl_loss") if actor.config.use_kl_loss else None
    return {
        "gradient": recorder.gradient,
        "pg_loss": mean_of(metrics.get("actor/pg_loss")),
        "kl_loss": mean_of(kl_loss),
        "entropy_gradient": arrived(entropies),
    }


def _recompute(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs and entropies that verl's legacy FSDP actor recomputes for a batch.

    A sequence has one prompt token and the valid response tokens.
    """
    import tensordict

    rows, names = len(inputs["response_mask"]), ("old_log_probs", "advantages", "ref_log_probs")
    tables = (inputs["entropies"], inputs["log_probs"])

    def forward(micro_batch: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        entropy, log_probs = (table[micro_batch["input_ids"][:, 0]] for table in tables)
        return Answer(log_probs=log_probs, entropys=entropy)

    batch = _make_batch({**inputs, **dict.fromkeys(names, inputs["log_probs"])})
    del batch["response_mask"]
    options = {"micro_batch_size": inputs["micro_batch_size"] or rows, "temperature": 1.0, "pad_token_id": 0}
    options |= {"use_dynamic_bsz": bool(inputs["max_tokens_per_microbatch"])}
    actor = kit.make_unbuilt(
        boundary.owner,
        actor_module=make_model(inputs["log_probs"]),
        _forward_micro_batch=forward,
        ulysses_sequence_parallel_size=1,
        use_prefix_grouper=False,
        config=kit.bookkeeping(calculate_sum_pi_squared=False),
    )
    data = boundary.imported[_PROTOCOL].DataProto(
        batch=tensordict.TensorDict(batch, batch_size=[rows]),
        meta_info={**options, "max_token_len": inputs["max_tokens_per_microbatch"]},
    )
    if "calculate_entropy=False" not in kit.source_of(boundary.module):
        raise AbsentError("this version's actor returns log-probs without entropies")
    with _without_memory_logging(boundary), kit.swap(boundary.module, "get_device_id", lambda: boundary.device):
        answer = boundary.function(actor, data, calculate_entropy=True)
    if isinstance(answer, Mapping):
        return {"log_probs": answer["log_probs"], "entropy": answer["entropys"]}
    return dict(zip(("log_probs", "entropy"), answer))


def arrived(entropies: Any, ranks: int = 1) -> Any:
    """Return the gradient of ``entropies``, divided by the number of ranks, or None if there are no entropies."""
    if entropies is None:
        return None
    return torch.zeros_like(entropies) if entropies.grad is None else entropies.grad / ranks


def _critic_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import tensordict

    mask, budget = inputs["response_mask"], inputs["max_tokens_per_microbatch"]
    scenario = {**inputs, **dict.fromkeys(("old_log_probs", "advantages"), inputs["outputs"]), "ref_log_probs": None}
    batch = {**_make_batch(scenario), "attention_mask": _prepend_ones(mask).long()}
    critic = kit.make_unbuilt(
        boundary.owner,
        critic_module=make_model(inputs["outputs"]),
        _forward_micro_batch=lambda micro_batch: inputs["outputs"][micro_batch["input_ids"][:, 0]],
        ulysses_sequence_parallel_size=1,
    )
    data = boundary.imported[_PROTOCOL].DataProto(
        batch=tensordict.TensorDict(batch, batch_size=[len(mask)]),
        meta_info={"micro_batch_size": len(mask), "use_dynamic_bsz": budget is not None, "max_token_len": budget},
    )
    with _without_memory_logging(boundary), kit.swap(boundary.module, "get_device_id", lambda: boundary.device):
        return {"values": boundary.function(critic, data)}


_UPDATES = (
    Binding(
        f"{_CRITIC}.DataParallelPPOCritic.compute_values", "critic_values", call=_critic_values, imports=(_PROTOCOL,),
        stand_ins=(SELF, MODEL, CPU, MEMORY),
        accepts={"response_mask": ("full", "right", "right"), "max_tokens_per_microbatch": (None, 8, 8)},
    ),
    Binding(
        f"{_ACTOR}.DataParallelPPOActor.compute_log_prob", "recomputed_log_probs", call=_recompute,
        imports=(_PROTOCOL,), stand_ins=(SELF, MODEL, CPU, MEMORY),
        accepts={"response_mask": ("full", "right", "right")},
    ),
    Binding(
        f"{_ACTOR}.DataParallelPPOActor.update_policy", "policy_update", call=_update, imports=(_PROTOCOL, _CORE),
        stand_ins=(SELF, MODEL, OPTIMIZER, CONFIG, CPU, MEMORY),
        # Searches draw clip ranges only for the loss itself, because many versions of the actor have one range and no
        # dual clip.
        accepts={
            "dp_size": (1,), "loss_agg_mode": AGGREGATIONS, "eps_clip_low": (0.2,), "eps_clip_high": (0.2,),
            "dual_clip": (None,),
        },
    ),
)  # fmt: skip


# -- the losses of verl's model engines, in the real loop of the FSDP engine, with a table of log-probs as the model ---

_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
_LOSSES = "verl.workers.utils.losses"
_TENSORDICT = "verl.utils.tensordict_utils"
_METRIC = "verl.utils.metric"
COLLATING = "verl.utils.dataset.dataset_utils"
#: The modules that :func:`learned` uses.
LEARNING = (_ENGINE, _TENSORDICT, _LOSSES, COLLATING)

ENGINE = StandIn("engine", "the real engine shards a model over a process group; its loop reads only these attributes")
RANKS = StandIn("all_reduce", "one process simulates one rank after the other, with the known sum over all ranks")


def _make_jagged(rows: list[Any]) -> Any:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def forward_backward(boundary: Any, data: Any, tokens: int, ranks: int, step: Callable[[Any], Any]) -> Any:
    """Run one rank's microbatches through the forward and backward pass of verl's FSDP engine.

    :param data: the rank's TensorDict.
    :param tokens: the number of valid tokens on all ranks.
    :param step: returns (loss, metrics) for a microbatch.
    """
    module = boundary.imported[_ENGINE]
    summed = kit.swap(torch.distributed, "all_reduce", lambda value, **_: value.fill_(tokens))
    with summed, kit.swap(module, "get_device_id", lambda: boundary.device):
        return _make_engine(module, ranks, step).forward_backward_batch(data, loss_function=None, forward_only=False)


def _make_engine(module: Any, ranks: int, step: Callable[[Any], Any], **more: Any) -> Any:
    """Make verl's FSDP engine without a model. ``step(microbatch)`` replaces the forward pass and the loss."""

    def forward_step(micro_batch: Any, loss_function: Any = None, forward_only: bool = False) -> Any:
        loss, metrics = step(micro_batch)
        return loss, {"model_output": {}, "loss": loss.detach().item(), "metrics": metrics}

    return kit.make_unbuilt(
        module.FSDPEngine,
        ulysses_sequence_parallel_size=1,
        scaler=None,
        get_data_parallel_group=lambda: None,
        get_data_parallel_size=lambda: ranks,
        _gradient_sync_context=lambda **_: contextlib.nullcontext(),
        forward_step=forward_step,
        **more,
    )


def _infer(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs and entropies that verl's engine recomputes for a batch without padding.

    A sequence has one prompt token and the valid response tokens.
    """
    lengths = kit.lengths_of(inputs, "response_mask")
    rows, budget = len(lengths), inputs["max_tokens_per_microbatch"]
    tables = {"log_probs": inputs["log_probs"], "entropy": inputs["entropies"]}

    def step(micro_batch: Any, **_: Any) -> Any:
        places = micro_batch["places"][:, 0].tolist()
        output = {
            name: _make_jagged([torch.nn.functional.pad(table[place, : lengths[place]], (0, 1)) for place in places])
            for name, table in tables.items()
        }
        return None, {"model_output": output, "loss": 0.0, "metrics": {}}

    data = _tensordict(
        boundary,
        {
            "places": torch.arange(rows)[:, None],
            "loss_mask": inputs["response_mask"],
            "input_ids": _make_jagged([torch.zeros(length + 1, dtype=torch.int64) for length in lengths]),
        },
        use_dynamic_bsz=budget is not None,
        max_token_len_per_gpu=budget,
        micro_batch_size_per_gpu=inputs["micro_batch_size"] or rows,
    )
    one = {"ulysses_sequence_parallel_size": 1, "get_data_parallel_group": lambda: None}
    engine = kit.make_unbuilt(boundary.owner, **one, get_data_parallel_size=lambda: 1, forward_step=step)
    with (
        kit.swap(torch.distributed, "all_reduce", lambda *_, **__: None),
        kit.swap(boundary.module, "get_device_id", lambda: boundary.device),
    ):
        made = boundary.function(engine, data, loss_function=None, forward_only=True)["model_output"]
    width = inputs["response_mask"].shape[1]
    return {
        name: torch.stack([torch.nn.functional.pad(row[:-1], (0, width + 1 - len(row))) for row in made[name].unbind()])
        for name in tables
    }


def _tensordict(boundary: Any, tensors: Mapping[str, Any], **plain: Any) -> Any:
    return boundary.imported[_TENSORDICT].get_tensordict(tensor_dict=dict(tensors), non_tensor_dict=plain)


def refuse_flash_attention(padding: Any) -> None:
    """Raise :class:`AbsentError` if this version's ``no_padding_2_padding`` needs flash-attn."""
    if padding is not None and "pad_input" in padding.__code__.co_names:
        raise AbsentError("this version needs flash-attn to pad log-probs (no_padding_2_padding calls pad_input)")


def _ppo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one policy update: apply verl's PPO loss to each rank's microbatches in the loop of the FSDP engine."""
    refuse_flash_attention(getattr(boundary.module, "no_padding_2_padding", None))
    model = make_model(inputs["log_probs"])
    recorder = Recorder(model)
    rows = len(inputs["response_mask"])
    size, ranks = inputs["mini_batch_size"] or rows, inputs["dp_size"]
    config = options(inputs)
    of_minibatches: dict[str, list[Any]] = {"pg_loss": [], "kl_loss": [], "entropy_loss": []}
    for start in range(0, rows, size):
        recorder.zero_grad()
        reported: list[Mapping[str, Any]] = []
        share = min(size, rows - start) // ranks
        for rank in range(ranks):
            part = slice(start + rank * share, start + (rank + 1) * share)
            reported.append(_run_rank(boundary, inputs, config, model, part, slice(start, start + size)))
        recorder.step(ranks)
        reduced = _reduce_metrics(boundary, reported)
        for name in of_minibatches:
            of_minibatches[name] += [reduced[key] for key in (f"actor/{name}", name) if key in reduced]
    metrics = {name: mean_of(values or None) for name, values in of_minibatches.items()}
    gradients = {"gradient": recorder.gradient, "entropy_gradient": arrived(inputs["entropies"], ranks)}
    return {**gradients, **metrics, "entropy": metrics["entropy_loss"]}


def _run_rank(
    boundary: Any, inputs: Mapping[str, Any], config: Any, model: Any, part: slice, batch: slice
) -> Mapping[str, Any]:
    """Run one rank on the rows ``part`` of the mini-batch ``batch``, and return the metrics of these rows."""
    mask = inputs["response_mask"]
    ids = torch.arange(len(mask))[:, None]
    width = mask.shape[1]
    tensors = {
        "prompts": ids,
        "responses": ids.repeat(1, width),
        "attention_mask": torch.ones((len(mask), width + 1), dtype=torch.int64),
        "response_mask": mask,
        "loss_mask": mask,
        "old_log_probs": inputs["old_log_probs"],
        "advantages": inputs["advantages"],
    }
    if inputs["ref_log_probs"] is not None:
        tensors["ref_log_prob"] = inputs["ref_log_probs"]
    tensors = {name: value[part] for name, value in tensors.items()}
    tensors["input_ids"] = _make_jagged([row.repeat(width + 1) for row in ids[part]])
    budget = inputs["max_tokens_per_microbatch"]
    data = _tensordict(
        boundary,
        tensors,
        global_batch_size=len(mask[batch]),
        use_dynamic_bsz=budget is not None,
        max_token_len_per_gpu=budget,
        micro_batch_size_per_gpu=inputs["micro_batch_size"] or len(tensors["prompts"]),
        max_response_len=width,
    )

    def step(micro_batch: Any) -> Any:
        places = micro_batch["prompts"][:, 0]
        after = torch.zeros(1)  # the last position predicts no response token
        tables = {"log_probs": model.table, "entropy": inputs["entropies"]}
        output = {
            name: _make_jagged([torch.cat((table[place], after.to(table))) for place in places])
            for name, table in tables.items()
            if table is not None
        }
        return boundary.function(config=config, model_output=output, data=micro_batch)

    tokens = int(mask[batch].sum())
    return dict(forward_backward(boundary, data, tokens, inputs["dp_size"], step)["metrics"])


def _reduce_metrics(boundary: Any, reported: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join the metrics of all ranks as verl's worker does, and reduce them as verl's trainer does."""
    metric = boundary.imported[_METRIC]
    joined: dict[str, Any] = {}
    for name in reported[0]:
        values = [metrics[name] for metrics in reported]
        kind = getattr(metric, "Metric", None)
        if kind is not None and isinstance(values[0], kind):
            joined[name] = kind.aggregate_dp(values) if hasattr(kind, "aggregate_dp") else kind.chain(values)
        else:
            joined[name] = [item for value in values for item in value]
    return dict(metric.reduce_metrics(joined))


def _value_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the loss of verl's critic on one micro-batch with its engine's global counts."""
    refuse_flash_attention(getattr(boundary.module, "no_padding_2_padding", None))
    mask = inputs["response_mask"]
    rows, width = mask.shape
    ids = torch.zeros((rows, width + 1), dtype=torch.int64)
    tensors = {
        "prompts": ids[:, :1],
        "responses": ids[:, 1:],
        "attention_mask": torch.ones_like(ids),
        "response_mask": mask,
        "values": inputs["values"],
        "returns": inputs["returns"],
    }
    counts = {name: inputs[name] for name in ("dp_size", "batch_num_tokens", "global_batch_size")}
    data = _tensordict(boundary, tensors, **{**counts, "dp_size": counts["dp_size"] or 1}, max_response_len=width)
    # The last position predicts no response token.
    output = {"values": _make_jagged([torch.nn.functional.pad(row, (0, 1)) for row in inputs["vpreds"]])}
    config = kit.stand_in(**{name: inputs[name] for name in ("cliprange_value", "loss_agg_mode", "loss_scale_factor")})
    loss, metrics = boundary.function(config=config, model_output=output, data=data)
    return {"loss": loss, "clip_fraction": metrics["critic/vf_clipfrac"]}


def _sft_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one update with verl's loss for supervised training."""
    mask, ranks = inputs["response_mask"], inputs["dp_size"]
    rows = len(mask)
    first = torch.full_like(mask[:, :1], int(inputs["first_counts"]))
    masks = torch.cat((first, mask), dim=-1)
    model = make_model(torch.cat((inputs["log_probs"], inputs["output_after"][:, None]), dim=-1))
    recorder = Recorder(model)
    losses: list[float] = []

    def step(micro_batch: Any) -> Any:
        output = _make_jagged([model.table[place] for place in micro_batch["places"][:, 0]])
        loss, _ = boundary.function(config=None, model_output={"log_probs": output}, data=micro_batch)
        value = float(loss.detach())
        # Multiply by the gradient that arrives at the loss, because the engine may scale the loss.
        loss.register_hook(lambda slope: losses.append(value * float(slope)))
        return loss, {}

    share, budget = rows // ranks, inputs["max_tokens_per_microbatch"]
    for start in range(0, rows, share):
        part = slice(start, start + share)
        data = _tensordict(
            boundary,
            {
                "places": torch.arange(rows)[part, None],
                "loss_mask": _make_jagged(list(masks[part])),
                "input_ids": _make_jagged(list(torch.zeros_like(masks[part]))),
            },
            global_batch_size=rows,
            use_dynamic_bsz=budget is not None,
            max_token_len_per_gpu=budget,
            micro_batch_size_per_gpu=inputs["micro_batch_size"] or share,
        )
        forward_backward(boundary, data, int(masks.sum()), ranks, step)
    recorder.step(ranks)
    return {
        "loss": sum(losses) / ranks,
        "gradient": recorder.gradient[:, :-1],
        "gradient_after": recorder.gradient[:, -1],
    }


def learned(boundary: Any, row: Mapping[str, Any]) -> Any:
    """Return a mask with 1 for each token of a dataset row that receives a gradient in verl.

    The batch contains the row twice, and the mask is that of the second copy. A position's gradient belongs to the next
    token. The last position predicts no token of the row, so its gradient counts for the first token.
    """
    collating = boundary.imported[COLLATING]
    batch = collating.SFTTensorCollator(collating.DatasetPadMode.NO_PADDING)([row, row])
    table = torch.zeros(2, len(row["input_ids"]), requires_grad=True)

    def step(micro_batch: Any) -> Any:
        log_probs = _make_jagged([table[place] for place in micro_batch["places"][:, 0]])
        return boundary.imported[_LOSSES].sft_loss(None, {"log_probs": log_probs}, micro_batch)

    cut = {"global_batch_size": 2, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1}
    data = _tensordict(boundary, {**batch, "places": torch.arange(2)[:, None]}, **cut)
    forward_backward(boundary, data, 2 * int(row["loss_mask"].sum()), 1, step)
    return (table.grad[1].roll(1) != 0).long()  # type: ignore[index]


def _engine_batches(boundary: Any, ids: Any, **plain: Any) -> Iterator[tuple[bool, slice, Any]]:
    """Yield two microbatches for verl's engine: (packed, rows, data).

    The first half of the rows is packed without padding; the other rows are padded. Each row of ``ids`` is a sequence.
    """
    rows, tokens = ids.shape
    half = (rows + 1) // 2
    for packed, part in ((True, slice(0, half)), (False, slice(half, rows))):
        count = len(ids[part])
        if count:
            batch = {
                "input_ids": _make_jagged([*ids[part]]),
                "position_ids": _make_jagged([torch.arange(tokens)] * count),
                "loss_mask": _make_jagged([torch.ones(tokens)] * count),
            }
            yield packed, part, _tensordict(boundary, batch, use_remove_padding=packed, **plain)


def _engine_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs and entropies that verl's engine computes from the scenario's logits.

    Each sequence has one prompt token. The token ids select the path: entropies are checkpointed, computed in chunks,
    or neither; the model returns logits or, as with fused kernels, log-probs and entropies; and packed rows are padded
    to a multiple of 8 tokens or not.
    """
    number, functional = int(inputs["token_ids"].sum()), boundary.module.verl_F
    fused = number % 2 == 1 and "use_fused_kernels" in kit.source_of(boundary.function)
    checkpointed, chunked = number // 2 % 3 == 1, number // 2 % 3 == 2
    chosen = {"entropy_checkpointing": checkpointed, "entropy_from_logits_with_chunking": chunked}
    config = kit.stand_in(entropy_from_logits_chunk_size=2, **chosen)
    entropies = functional.entropy_from_logits_with_chunking if chunked else functional.entropy_from_logits
    pads = number // 6 % 2 == 1 and "_get_packed_pad_size" in kit.source_of(boundary.function)
    padding = {"pad_to_length": pads, "pad_to_length_bucket": 8, "pass_packed_cu_seqlens": pads}
    one = {"use_ulysses_sp": False, "engine_config": config, **padding}
    engine = kit.make_unbuilt(boundary.owner, **one, compute_entropy_from_logits=entropies)
    ids = torch.nn.functional.pad(inputs["token_ids"], (1, 0))
    logits = torch.nn.functional.pad(inputs["logits"], (0, 0, 0, 1))  # nothing follows the last token
    takes = inspect.signature(engine.prepare_model_outputs).parameters  # for versions with distillation
    processor = {"logits_processor_func": None} if "logits_processor_func" in takes else {}
    plain = {"temperature": inputs["temperature"], "calculate_entropy": inputs["with_entropy"]}
    plain["calculate_sum_pi_squared"] = not fused
    parts = []
    for packed, part, micro_batch in _engine_batches(boundary, ids, use_fused_kernels=fused, **plain):
        model_inputs, output_args = boundary.invoke({}, engine, micro_batch)
        shape = (1, -1, logits.shape[-1]) if packed else logits[part].shape
        # A copy, because some versions divide the logits in place.
        own = logits[part].reshape(shape).clone()
        beyond = model_inputs["input_ids"].shape[-1] - own.shape[1] if packed else 0
        output = kit.Named(logits=torch.nn.functional.pad(own, (0, 0, 0, beyond)))
        if fused:
            labels = model_inputs.get("shift_labels")
            labels = model_inputs["input_ids"].roll(-1, -1) if labels is None else labels
            distribution = torch.log_softmax(output.logits / model_inputs["temperature"], -1)
            output.log_probs = distribution.gather(-1, labels[..., None])[..., 0]
            output.entropy = -(distribution.exp() * distribution).sum(-1)
        parts.append(engine.prepare_model_outputs(output, output_args, micro_batch, **processor))

    def of_responses(name: str) -> Any:
        return torch.stack([row[:-1] for part in parts for row in part[name].unbind()])

    log_probs = of_responses("log_probs")
    if "sum_pi_squared" in parts[0]:
        squares = (inputs["logits"].float() / inputs["temperature"]).softmax(-1).square().sum(-1)
        # No log-prob is right if the sums of squared probabilities, which a baseline needs, are wrong.
        right = torch.allclose(of_responses("sum_pi_squared").float(), squares, atol=0.02)
        log_probs = log_probs if right else log_probs - 1e6
    return {
        "log_probs": log_probs,
        "entropy": of_responses("entropy") if inputs["with_entropy"] else None,
    }


def _engine_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of response tokens that verl's engine reads from a critic. Each sequence has one prompt token.

    Critics with an even number of rows have a value head, as TRL's; other critics classify tokens.
    """
    table = torch.cat((inputs["outputs"], inputs["output_after"][:, None]), -1)
    has_head = len(table) % 2 == 0
    one = {"use_ulysses_sp": False, "pad_to_length": False, "module": kit.Named(**{"v_head": None} if has_head else {})}
    engine, rows = kit.make_unbuilt(boundary.owner, **one), []
    for packed, part, micro_batch in _engine_batches(boundary, torch.zeros_like(table).long(), temperature=1.0):
        _, output_args = engine.prepare_model_inputs(micro_batch)
        values = table[part].reshape(1, -1) if packed else table[part]
        output = (None, None, values) if has_head else kit.Named(logits=values[..., None])
        made = boundary.invoke({}, engine, output, output_args, micro_batch, logits_processor_func=None)
        rows += [row.flatten()[:-1] for row in made["values"].unbind()]  # some versions return [tokens, 1]
    return {"values": torch.stack(rows)}


_ENGINES = (
    Binding(
        f"{_ENGINE}.FSDPEngine.forward_backward_batch",
        "recomputed_log_probs",
        call=_infer,
        imports=(_TENSORDICT,),
        stand_ins=(ENGINE, MODEL, CPU, RANKS),
        accepts={"response_mask": ("full", "right", "right")},
    ),
    Binding(
        f"{_ENGINE}.FSDPEngineWithLMHead.prepare_model_inputs",
        "token_log_probs",
        call=_engine_log_probs,
        imports=(_TENSORDICT,),
        stand_ins=(ENGINE, MODEL),
    ),
    Binding(
        f"{_ENGINE}.FSDPEngineWithValueHead.prepare_model_outputs",
        "critic_values",
        call=_engine_values,
        imports=(_TENSORDICT,),
        stand_ins=(ENGINE, MODEL),
        dialects=(
            Dialect(
                "outside_the_mask",
                "any",
                "the values of all tokens are returned",
                f"{MAIN}/workers/engine/fsdp/transformer_impl.py#L1574",
            ),
        ),
    ),
    Binding(
        f"{_LOSSES}.sft_loss",
        "supervised_update",
        requires=(_ENGINE,),  # before #3422, verl's engine has neither this loop nor these batches
        call=_sft_loss,
        imports=(_ENGINE, _TENSORDICT),
        stand_ins=(ENGINE, MODEL, OPTIMIZER, CPU, RANKS),
        dialects=(
            Dialect(
                "first_token",
                "counted",
                "the mask is summed before it is shifted",
                f"{MAIN}/workers/engine/fsdp/transformer_impl.py#L706",
            ),
        ),
    ),
    Binding(
        f"{_LOSSES}.value_loss",
        "value_loss",
        requires=(_ENGINE,),
        call=_value_loss,
        imports=(_TENSORDICT,),
        stand_ins=(CONFIG, MODEL),
        accepts={"cliprange_value": (0.2, 0.6)},
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", f"{MAIN}/trainer/ppo/core_algos.py#L2174"),
        ),
    ),
    Binding(
        f"{_LOSSES}.ppo_loss",
        "policy_update",
        requires=(_ENGINE,),
        call=_ppo_loss,
        imports=(_ENGINE, _TENSORDICT, _METRIC),
        stand_ins=(ENGINE, MODEL, OPTIMIZER, CONFIG, CPU, RANKS),
        accepts={"loss_agg_mode": ("token-sum", *AGGREGATIONS)},
        dialects=(
            Dialect(
                "empty_rows",
                "counted",
                "the trainer counts all rows of a mini-batch as sequences, including empty rows",
                f"{MAIN}/trainer/ppo/ray_trainer.py#L1362",
            ),
            Dialect(
                "log_ratio_clamp",
                20.0,
                "the log-ratio is clamped to [-20, 20] for stability",
                f"{MAIN}/trainer/ppo/core_algos.py#L1256",
            ),
            Dialect(
                "kl_clamp",
                10.0,
                "k3 is clamped to [-10, 10]",
                f"{MAIN}/trainer/ppo/core_algos.py#L2244",
                {"kl_estimator": ("k3", "low_var_kl")},
            ),
        ),
    ),
)


_WORKER = "verl.workers.engine_workers"
_DISPATCH = "verl.single_controller.base.decorator"
_PADDING = "verl.workers.utils.padding"

_GROUP = StandIn("actor_rollout_wg", "the real group sends a part to each rank; here ranks are threads of one process")
_UNPAD = StandIn("unpad_input", "replaces flash-attn, which is not installed; returns the attended tokens in order")


def _dispatch(boundary: Any, inputs: Mapping[str, Any], actor: Any, models: Any, stages: Any, data: Any) -> Any:
    """Split the driver's batch over the ranks with verl, and run each rank on its part."""
    [parts], _ = boundary.imported[_DISPATCH]._split_args_kwargs_data_proto(len(models), data)
    parts = [part.unlock_() for part in parts]  # a rank receives unlocked data
    cuts: list[Any] = []
    stages += [("dispatch", parts), ("prepare_micro_batches", cuts)]
    size, budget = inputs["micro_batch_size"] or len(parts[0]), inputs["max_tokens_per_microbatch"]
    cut = {"use_dynamic_bsz": bool(budget), "max_token_len_per_gpu": budget, "micro_batch_size_per_gpu": size}

    def work(rank: int) -> None:
        def step(micro_batch: Any) -> Any:
            cuts.append(micro_batch)
            table = torch.nn.functional.pad(models[rank].table, (1, 0)).flatten()
            log_probs = [torch.cat((table[row[1:]], table.new_zeros(1))) for row in micro_batch["input_ids"].unbind()]
            return boundary.imported[_LOSSES].ppo_loss(actor, {"log_probs": _make_jagged(log_probs)}, micro_batch)

        def train_batch(mini_batch: Any) -> Any:
            boundary.imported[_TENSORDICT].assign_non_tensor(mini_batch, **cut)
            engine.train_batch(mini_batch, None)
            return _tensordict(boundary, {}, metrics={})

        engine = _make_engine(
            boundary.imported[_ENGINE],
            len(models),
            step,
            get_data_parallel_rank=lambda: rank,
            optimizer_zero_grad=lambda: None,
            optimizer_step=lambda: 0.0,
            is_mp_src_rank_with_outputs=lambda: True,
            train_mode=lambda **_: contextlib.nullcontext(),
        )
        profiler = kit.stand_in(step=lambda: None)
        worker = kit.stand_in(engine=engine, train_batch=train_batch, profiler=profiler, device_name=boundary.device)
        inspect.unwrap(boundary.imported[_WORKER].TrainingWorker.train_mini_batch)(worker, parts[rank])

    its_device = kit.swap(boundary.imported[_ENGINE], "get_device_id", lambda: boundary.device)
    with its_device, kit.swap(boundary.imported[_WORKER], "Timer", lambda **_: contextlib.nullcontext()):
        kit.on_ranks(len(models), work)
    return _tensordict(boundary, {}, metrics={"mfu": 0.0})


def _run_training_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one training step: call the functions that verl's driver calls, in the same order."""
    import omegaconf

    mask, ranks, named = inputs["response_mask"], inputs["dp_size"], kit.named_tokens(inputs)
    ids, rewards = named["input_ids"], named.pop("rewards")
    fields = {
        **named,
        "prompts": ids[:, :1],
        "responses": ids[:, 1:],
        "response_mask": mask,
        "token_level_rewards": rewards,
        "position_ids": torch.arange(ids.shape[1]).repeat(len(ids), 1),
        "old_log_probs": inputs["old_log_probs"],
        "uid": inputs["group"],
        "label": [f"row {row}" for row in range(len(ids))],
    }
    batch = CONTAINER(boundary, fields, {})
    actor = options(inputs)
    rollout = {"multi_turn": {"enable": False}, "temperature": 1.0, "n": 1}
    models = [make_model(inputs["log_probs"]) for _ in range(ranks)]
    stages: list[Any] = []
    update = partial(_dispatch, boundary, inputs, actor, models, stages)
    driver = kit.stand_in(
        _get_dp_size=lambda *_: ranks,
        actor_rollout_wg=kit.stand_in(world_size=ranks, update_actor=update),
        config=omegaconf.OmegaConf.create({"actor_rollout_ref": {"actor": actor, "rollout": rollout}}),
        use_prefix_grouper=False,
        use_legacy_worker_impl="disable",  # an option until #6067
    )
    boundary.owner._balance_batch(driver, batch, {})
    stages.append(("_balance_batch", [kit.read_columns(batch)]))
    batch = boundary.module.compute_advantage(batch, adv_estimator="grpo", norm_adv_by_std_in_grpo=False)
    stages.append(("compute_advantage", [kit.read_columns(batch)]))
    with kit.swap(boundary.imported[_PADDING], "unpad_input", kit.remove_padding):
        boundary.function(driver, batch)
    del fields["input_ids"], fields["position_ids"]  # not compared, because the step has unpadded them
    return {"gradient": kit.gradient_of_ranks([model.table for model in models]), "stages": stages, "rows": fields}


_DRIVERS = (
    Binding(
        "verl.trainer.ppo.ray_trainer.RayPPOTrainer._update_actor", "training_step",
        requires=(f"{_WORKER}.TrainingWorker.train_mini_batch",), call=_run_training_step,
        imports=(_PROTOCOL, _ENGINE, _TENSORDICT, _LOSSES, _WORKER, _DISPATCH, _PADDING),
        stand_ins=(SELF, _GROUP, ENGINE, MODEL, OPTIMIZER, CPU, _UNPAD),
        accepts={"loss_agg_mode": ("token-sum", *AGGREGATIONS)}, dialects=_ENGINES[-1].dialects,
    ),
)  # fmt: skip

BINDINGS = (*_UPDATES, *_ENGINES, *_DRIVERS)
