"""Bindings for SkyRL's small functions: vocabulary-parallel log-probs, padding, metrics, parts of reward rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import LAYOUTS, MPU, RANKS, aggregated, microbatch_packing, rule_reward
from sentinel.binding.kit import torch

from .containers import BATCHES, LAYOUT
from .shared import BATCH, TORCH, WORKER_UTILS

_TRAIN = "skyrl.backends.skyrl_train"
_MODEL, _MEGATRON = (f"{_TRAIN}.distributed.megatron.{name}" for name in ("model_utils", "megatron_utils"))
_DRAFT, _ULYSSES = f"{_TRAIN}.mtp.soft_ce", f"{_TRAIN}.distributed.ulysses.utils"
_GYM = "skyrl_gym.envs"
_FLOATS, _ROWS, _SINGLE = ("float32", "float64"), ("full", "right"), ("float32",)

# -- log-probs and losses ----------------------------------------------------------------------------------------------


def _entropy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs = boundary.module.logprobs_from_logits_v2(inputs["logits"], inputs["token_ids"])
    size = (2,) if "chunk_size" in boundary.parameters else ()  # the number of tokens in a chunk
    return {"log_probs": log_probs, "entropy": boundary.function(inputs["logits"].log_softmax(-1), False, *size)}


def _on_shards(call: Callable[..., Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return log-probs that two simulated ranks compute, each with half of the vocabulary.

    Both ranks return the same values. Gradients are computed on the ranks, because the backward pass may need
    collectives.
    """
    logits, cut = inputs["logits"], (inputs["logits"].shape[-1] + 1) // 2
    if logits.shape[-1] < 2:
        raise AbsentError("the scenario's vocabulary has only one token; two ranks need one token each")
    ends = ((0, cut), (cut, logits.shape[-1]))

    def work(rank: int) -> tuple[Any, Any]:
        part = logits[..., slice(*ends[rank])].detach().requires_grad_()
        told = call(boundary, part, inputs["token_ids"].clone(), *ends[rank])
        return told.detach(), torch.autograd.grad(told.sum(), part)[0]

    (told, one), (_, other) = kit.on_ranks(2, work)
    slopes = torch.cat([one, other], -1)
    return {"log_probs": told + (slopes * (logits - logits.detach())).sum(-1), "entropy": None}


def _call_shifting(boundary: Any, logits: Any, ids: Any, start: int, end: int) -> Any:
    # The function shifts the ids itself, so a prompt token precedes them.
    pad = torch.nn.functional.pad
    return boundary.function(pad(logits, (0, 0, 0, 1)), pad(ids, (1, 0)), start, end, None)


def _draft_divergence(boundary: Any, inputs: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the divergence of a draft model: SkyRL's cross-entropy minus the entropy of the teacher."""
    mask, count = inputs["response_mask"], inputs["batch_num_tokens"]
    valid, total = mask != 0, None if count is None else torch.tensor(float(count))
    student, teacher = (torch.where(valid[..., None], inputs[name], 0.0) for name in ("logits", "teacher_logits"))
    loss = boundary.invoke(
        {}, student, teacher.detach(), mask.to(student.dtype), global_normalization_factor=total, **options
    )
    certain = teacher.log_softmax(-1)
    entropies = torch.where(valid, -(certain.exp() * certain).sum(-1), 0.0)
    return {"loss": loss - entropies.sum() / max(int(valid.sum()) if count is None else count, 1)}


def _of_all_words(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return _draft_divergence(boundary, inputs, k=inputs["logits"].shape[-1])


def _average(reduces: Callable[..., Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask, count = inputs["response_mask"], inputs["batch_num_tokens"]
    # Masked losses are set to 0, because they must be finite.
    losses = torch.where(mask != 0, inputs["loss_mat"], 0.0)
    return {
        "loss": reduces(boundary, losses, mask.to(losses.dtype), None if count is None else torch.tensor(float(count)))
    }


def _logits(path: str, call: Callable[..., Any], **more: Any) -> Binding:
    more["fixed"] = {"temperature": 1.0, "with_entropy": False, **more.get("fixed", {})}
    return Binding(path, "token_log_probs", call=call, **{"dtypes": _SINGLE, **more})


_MEAN = {name: value for name, value in aggregated("token-mean").items() if name != "batch_num_tokens"}
_LOSSES = (
    _logits(f"{TORCH}.chunked_cross_entropy_from_log_probs", _entropy, fixed={"with_entropy": True}, dtypes=_FLOATS),
    _logits(f"{_MODEL}.from_parallel_logits_to_logprobs", partial(_on_shards, _call_shifting), stand_ins=(RANKS,)),
    *(
        _logits(
            f"{_MODEL}.{name}.{method}",
            partial(_on_shards, lambda boundary, *told, options=options: boundary.owner.apply(*told, *options, None)),
            stand_ins=(RANKS,),
        )
        for name, options in (("DistributedLogprob", ()), ("ChunkedDistributedLogprob", (2,)))
        for method in ("forward", "backward")
    ),
    *(
        Binding(
            f"{_DRAFT}.{name}", "distillation_loss", call=call, fixed={"beta": 0.0, "temperature": 1.0},
            accepts={"response_mask": _ROWS}, dtypes=_SINGLE,
        )
        for name, call in (("draft_soft_ce", _draft_divergence), ("draft_soft_ce_topk", _of_all_words))
    ),
    *(
        Binding(
            f"{_DRAFT}.{name}", "loss_aggregation", call=partial(_average, reduces), fixed={**_MEAN, "weights": None},
            dtypes=_SINGLE,
        )
        for name, reduces in (
            ("_masked_mean_or_global", lambda boundary, losses, mask, total: boundary.function(losses, mask, total)),
            (
                "_chunked_masked_loss",
                lambda boundary, losses, mask, total: boundary.function(
                    lambda part: part * 1, (losses,), mask, 2, total
                ),
            ),
        )
    ),
)  # fmt: skip

# -- metrics and rewards -----------------------------------------------------------------------------------------------


def _reduced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"mean": boundary.function({"score": [value for part in inputs["parts"] for value in part]})["score"]}


def _average_episodes(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return SkyRL's mean of a metric that only some episodes have, or NaN if SkyRL does not report the metric."""
    values = [value for part in inputs["parts"] for value in part]
    told = boundary.function([{"name": "text"} if value is None else {"score": value} for value in values])
    return {"mean": told.get("score", float("nan"))}


def _token_rewards(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    generator, mask = kit.make_unbuilt(boundary.owner, custom_chat_template=None), inputs["response_mask"] != 0
    rows = []
    for row, reward in zip(mask, inputs["rewards"].tolist()):
        length = int(row.sum())
        told = boundary.function(generator, [(reward, length - 1)], [5] * length, False) if length else []
        rows.append([*told, *[0.0] * (len(row) - length)])
    return {"token_level_rewards": torch.tensor(rows, dtype=inputs["rewards"].dtype)}


_HASHES, _TAGS = (
    ("#### {answer}", "So:\n#### {answer}"),
    ("<answer>{answer}</answer>", "I see. <answer> {answer} </answer>"),
)
_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_REWARDS = (
    Binding(f"{WORKER_UTILS}.reduce_metrics", "mean_of_parts", call=_reduced, fixed={"missing": False}),
    *(
        Binding(path, "mean_of_parts", call=_average_episodes)
        for path in (
            "skyrl_gym.metrics.default_aggregate_metrics", f"{_GYM}.base_text_env.BaseTextEnv.aggregate_metrics",
        )
    ),
    Binding(
        "skyrl.train.generators.skyrl_gym_generator.SkyRLGymGenerator._build_per_token_rewards", "token_reward",
        call=_token_rewards, fixed={"score_as": None}, accepts={"response_mask": _ROWS}, dtypes=_SINGLE,
    ),
    rule_reward(f"{_GYM}.aime.utils.normalize_final_answer", "bare", notations="minerva", call=kit.apply_normaliser),
    rule_reward(f"{_GYM}.aime.utils.is_correct_minerva", *_LINES, notations="minerva"),
    rule_reward(f"{_GYM}.aime.utils.is_correct_strict_box", "boxed"),
    rule_reward(f"{_GYM}.aime.utils.verify", *_LINES, notations="minerva"),
    rule_reward(f"{_GYM}.gsm8k.utils.extract_solution", *_HASHES, notations="thousands", call=kit.apply_extractor),
    rule_reward(f"{_GYM}.search.utils.normalize_answer", "bare", notations="questions", call=kit.apply_normaliser),
    rule_reward(f"{_GYM}.search.utils.extract_solution", *_TAGS, call=kit.apply_extractor),
)  # fmt: skip

# -- padding, packing, batches -----------------------------------------------------------------------------------------


def _remove_left_padding(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the left padding of rows with SkyRL. If the boundary is ``recover_left_padding``, also restore it."""
    ids, mask = kit.lay_out([sample["tokens"] for sample in inputs["samples"]], left=True)
    mask = mask.bool()
    with kit.swap(boundary.module, "mpu", kit.make_single_rank_mpu()):
        moved, there, _ = boundary.module.remove_left_padding(ids, mask, ids)
    if boundary.path.endswith("recover_left_padding"):
        moved, there = boundary.function(moved, there, mask, ids.shape[1]), mask
    return {"samples": [{"tokens": row[kept]} for row, kept in zip(moved, there)]}


def _collate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        {
            "input_ids": sample["input_ids"].tolist(), "loss_mask": (sample["loss_mask"] + 1000).tolist(),
            "attention_mask": [1] * len(sample["input_ids"]), "num_actions": len(sample["loss_mask"]),
        }
        for sample in inputs["samples"]
    ]  # fmt: skip
    batch = boundary.function(rows, kit.stand_in(pad_token_id=0))
    ids = [row[there != 0] for row, there in zip(batch["sequences"], batch["attention_mask"])]
    masks = [row[row != 0] - 1000 for row in batch["loss_mask"]]
    return {"samples": [dict(zip(("input_ids", "loss_mask"), pair)) for pair in zip(ids, masks)]}


def _pack_bins(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    packer = boundary.owner(inputs["max_tokens_per_microbatch"])
    return {"parts": boundary.function(packer, kit.lengths_of(inputs))}


def _in_zeros(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values = inputs["values"]
    rows = [*values, values.new_zeros(inputs["length"])]
    return {"padded": boundary.function(rows, side=inputs["side"])[:-1]}


def _in_numpy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, length = inputs["values"], max(inputs["length"], inputs["values"].shape[1])
    if values.dtype == torch.bfloat16:
        raise AbsentError("numpy has no bfloat16")
    return {"padded": torch.from_numpy(boundary.function(values.tolist(), length, values.numpy().dtype))}


def _sliced(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    size = len(batch) // inputs["count"]
    return [boundary.function(batch, slice(part * size, (part + 1) * size)) for part in range(inputs["count"])]


def _selected(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    return [boundary.function(batch, [*batch], [*batch.metadata])]


def _select_entries(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    columns = {"response_ids": "tokens", "rewards": "number", "loss_masks": "flags", "stop_reasons": "label"}
    lists = {theirs: list(inputs["fields"][ours]) for theirs, ours in columns.items()}
    told = boundary.function(
        {**lists, "prompt_token_ids": lists["response_ids"], "rollout_metrics": None}, [*inputs["order"]]
    )
    found = {ours: told[theirs] for theirs, ours in columns.items()}
    return {
        "parts": [{name: column if name == "label" else torch.stack(column) for name, column in found.items()}],
        "metas": [inputs["meta"]],
    }


_TOKENS = {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]}
_ENTRIES = ("number", "tokens", "flags", "label")
_ONE = {"count": 1, "layouts": LAYOUT}
_BATCHES = (
    *(
        Binding(
            f"{_MEGATRON}.{name}", "collation", call=_remove_left_padding, fixed={"layouts": {"tokens": _TOKENS}},
            stand_ins=(MPU,),
        )
        for name in ("remove_left_padding", "recover_left_padding")
    ),
    Binding(
        "skyrl.train.sft_trainer.collate_sft_batch", "collation", call=_collate,
        fixed={"layouts": {"input_ids": _TOKENS, "loss_mask": _TOKENS}},
    ),
    *(
        microbatch_packing(f"skyrl.train.dataset.bin_packing.{name}._pack_implementation", _pack_bins)
        for name in ("FirstFitDecreasing", "Balanced")
    ),
    Binding(
        f"{_ULYSSES}._pad_tensor", "column_padding", fixed={"side": "right"}, accepts={"pad_value": (0,)},
        call=partial(
            kit.call_padding_to_multiple,
            lambda boundary, values, size: boundary.function(values, 1, size - values.shape[1]),
        ),
    ),
    Binding(
        "skyrl.train.dataset.replay_buffer.zero_pad_sequences", "column_padding", call=_in_zeros,
        accepts={"pad_value": (0,)},
    ),
    Binding(
        "skyrl.backends.utils.pad_batch", "column_padding", call=_in_numpy, fixed={"side": "right"},
        accepts={"pad_value": (0,)},
    ),
    BATCHES.surgery(
        f"{BATCH}.TensorBatch.__getitem__", "cut", _sliced, fixed={"layouts": LAYOUT}, accepts={"remainder": (0,)},
    ),
    BATCHES.surgery(f"{BATCH}.TensorBatch.select", "cut", _selected, fixed=_ONE, accepts={"remainder": (0,)}),
    Binding(
        "skyrl.train.generators.utils.slice_generator_output", "row_surgery", call=_select_entries,
        fixed={"surgery": "reorder", "layouts": {name: LAYOUTS[name] for name in _ENTRIES}},
        stand_ins=(StandIn("output", "lists with one entry per response, as in a generator's output"),),
    ),
)  # fmt: skip

BINDINGS = (*_LOSSES, *_REWARDS, *_BATCHES)
