"""Bindings for slime's functions that build samples, draw prompts and pack batches."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MASKED_STATISTICS, MPU, WORDS, chat
from sentinel.binding.kit import torch

from .balancing import schedule_of
from .shared import ARGS, CP, MAIN, SELF, TYPES, joined, one_rank, shards

_DATA, _ROLLOUT = "slime.backends.megatron_utils.data", "slime.ray.rollout"
_SOURCE, _DATASET = "slime.rollout.data_source", "slime.utils.data.Dataset"
_MASKS, _SFT = "slime.utils.mask_utils.MultiTurnLossMaskGenerator", "slime.rollout.sft_rollout.generate_rollout"

#: The columns of a sample, whose first token is the prompt. An odd number in the scenario's loss mask means 1 in slime.
_LAYOUTS = {
    "layouts": {
        name: {"kind": "tensor", "dtype": dtype, "shape": ["tokens"]}
        for name, dtype in (("tokens", "int64"), ("loss_mask", "int64"), ("log_probs", "float32"))
    }
}
_STORE = StandIn("ray", "holds the parts of a batch in this process")


def _flags(sample: Mapping[str, Any]) -> list[int]:
    return [int(value) % 2 for value in sample["loss_mask"][1:]]


def _read(sample: Mapping[str, Any], tokens: Any, mask: Any, log_probs: Any) -> dict[str, Any]:
    """Return a sample's tokens, loss mask and log-probs, as slime stored them. A wrong loss mask is returned as zeros.

    The prompt's mask value and log-prob come from the scenario, because slime does not store them.
    """
    same = [int(value) for value in mask] == _flags(sample)
    of_response = torch.as_tensor(log_probs, dtype=torch.float32)
    return {
        "tokens": torch.as_tensor(tokens).long(),
        "loss_mask": sample["loss_mask"] if same else sample["loss_mask"] * 0,
        "log_probs": torch.cat([sample["log_probs"][:1], of_response]),
    }


def _made(boundary: Any, sample: Mapping[str, Any], index: int) -> Any:
    """Convert a sample of the scenario to slime's class ``Sample``."""
    ids = sample["tokens"].tolist()
    fields = {"tokens": ids, "response_length": len(ids) - 1, "loss_mask": _flags(sample)}
    fields |= {"index": index, "reward": float(index), "rollout_log_probs": sample["log_probs"][1:].tolist()}
    return boundary.imported[TYPES].Sample(**fields)


def _appended(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Build samples with slime by appending the tokens of each response one by one. After each token, convert the
    sample to a dictionary and back. Untrained tokens have no log-prob.
    """
    kind, read = boundary.imported[TYPES].Sample, []
    for sample in inputs["samples"]:
        ids, flags, logs = sample["tokens"].tolist(), _flags(sample), sample["log_probs"][1:].tolist()
        made = kind(tokens=ids[:1])
        for token, flag, log in zip(ids[1:], flags, logs):
            made.append_response_tokens(tokens=[token], trainable=bool(flag), log_probs=[log] if flag else None)
            made = kind.from_dict(made.to_dict())
        given = [log if flag else 0.0 for flag, log in zip(flags, logs)]
        kept = list(made.rollout_log_probs or ()) == given and made.effective_response_length == sum(flags)
        read.append(_read(sample, made.tokens, made.loss_mask or (), logs if kept else [0.0] * len(logs)))
    return {"samples": read}


def _trained_on(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert samples to slime's training data, and read the samples from the microbatches of each rank."""
    samples = [_made(boundary, sample, place) for place, sample in enumerate(inputs["samples"])]
    count, ranks = len(samples), 1 if len(samples) % 2 else 2
    names = dict.fromkeys(("advantage_estimator", "reward_key"))
    lengths = [len(sample.tokens) for sample in samples]
    schedule = schedule_of(lengths, ranks, max(lengths), None)
    args = kit.stand_in(**vars(schedule["args"]), **names, global_batch_size=count)
    none = ("custom_reward_post_process_func", "custom_convert_samples_to_train_data_func")
    manager = kit.stand_in(args=args, train_parallel_config=schedule["train_parallel_config"], **dict.fromkeys(none))
    owner = boundary.imported[_ROLLOUT].RolloutManager
    manager._post_process_rewards = owner._post_process_rewards.__get__(manager)
    store = kit.stand_in(put=kit.return_first)
    with kit.swap(boundary.imported[_ROLLOUT], "ray", store):
        made = owner._convert_samples_to_train_data(manager, samples)
        boxes = owner._split_train_data_by_dp(manager, made)
    found: dict[int, dict[str, Any]] = {}
    for box in boxes:
        data = box.inner
        module = boundary.imported[_DATA]
        with one_rank():
            module.mpu.get_virtual_pipeline_model_parallel_world_size = lambda: None
            (iterator,) = module.get_data_iterator(data)
        for _ in data["micro_batch_indices"]:
            keys = ("tokens", "loss_masks", "rollout_log_probs", "sample_indices", "rewards", "rollout_mask_sums")
            batch = iterator.get_next(keys)
            for ids, mask, logs, index, reward, total in zip(*(batch[key] for key in keys)):
                whole = reward == float(index) and int(total) == int(sum(mask))
                found[int(index)] = _read(inputs["samples"][int(index)], ids, mask, logs) if whole else {}
    return {"samples": [found.get(place, {}) for place in range(count)]}


def _packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack samples into one microbatch with slime, and read each sample at the offset that slime returns. If the number
    of samples is even, each of two ranks has a contiguous part of the microbatch.
    """
    samples = inputs["samples"]
    lengths = [len(sample["tokens"]) for sample in samples]
    rollout = {
        "tokens": [sample["tokens"] for sample in samples],
        "loss_masks": [torch.tensor(_flags(sample)) for sample in samples],
        "total_lengths": lengths,
        "response_lengths": [length - 1 for length in lengths],
    }
    pictures = [{"pixels": sample["tokens"][:, None]} if place != 1 else None for place, sample in enumerate(samples)]
    rollout["multimodal_train_inputs"] = pictures
    shown = torch.cat([picture["pixels"] for picture in pictures if picture is not None])
    module, read = boundary.module, []
    ranks = 2 if len(samples) % 2 == 0 and "allgather_cp" in boundary.parameters else 1
    options: dict[str, Any] = {"pad_multiplier": 1, "allgather_cp": True} if ranks > 1 else {"pad_multiplier": 8}
    batches = list[Any]()
    device = {name: partial(kit.return_first, "cpu") for name in ("device", "current_device")}
    stands = {"accelerator": kit.stand_in(**device), "PackedSeqParams": kit.stand_in}
    for rank in range(ranks):
        with one_rank(rank, context_parallel=ranks), kit.swap_all(module, **stands):
            iterator = module.DataIterator(rollout, [list(range(len(samples)))])
            batches.append(boundary.function(iterator, list(rollout), **options))
    ids, masks = (torch.cat([batch[name][0] for batch in batches]) for name in ("tokens", "full_loss_masks"))
    # Versions without pictures return the list as it is.
    stored = [batch["multimodal_train_inputs"] for batch in batches]
    if any(isinstance(made, dict) and not torch.equal(made["pixels"], shown) for made in stored):
        return {"samples": [{} for _ in samples]}
    starts = batches[0]["packed_seq_params"].cu_seqlens_q.tolist()
    for sample, start, length in zip(samples, starts, lengths):
        mask = masks[start : start + length]
        # slime stores the mask of a token at the position before the token
        own = mask[:-1] if not mask[-1] else mask * 0 - 1
        read.append(_read(sample, ids[start : start + length], own, sample["log_probs"][1:]))
    return {"samples": read}


def _shared(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Slice each sample for two context-parallel ranks with slime, and rejoin the slices."""
    samples, module, read = inputs["samples"], boundary.module, []
    for sample in samples:
        length, parts = len(sample["tokens"]), []
        for rank in range(2):
            with one_rank(rank, context_parallel=2):
                ids = module.slice_with_cp(sample["tokens"], 0)
                parts.append((ids, module.slice_log_prob_with_cp(sample["log_probs"][1:], length, length - 1)))
        size = len(parts[0][0]) // 2
        (first, _), (second, _) = parts
        ids = torch.cat([first[:size], second[:size], second[size:], first[size:]])[:length]
        (logs,) = joined([[part[1]] for part in parts], shards([length - 1], 2))
        read.append(_read(sample, ids, _flags(sample), logs))
    return {"samples": read}


def _drawn(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of the prompts in the order in which slime's data source draws them.

    Prompts are drawn three at a time, and each prompt has two samples. torch draws the permutations, as in the
    contract's definition.
    """
    kind, module = boundary.imported[TYPES].Sample, boundary.imported["slime.utils.data"]
    size, epochs = inputs["size"], inputs["epochs"]
    samples = [kind(prompt="", label=str(number)) for number in range(size)]
    dataset = kit.make_unbuilt(
        module.Dataset, origin_samples=samples, samples=samples, seed=inputs["seed"], epoch_id=-1
    )
    args = kit.stand_in(n_samples_per_prompt=2, rollout_shuffle=True, buffer_filter_path=None)
    state = dict.fromkeys(("epoch_id", "sample_group_index", "sample_index", "sample_offset"), 0)
    source_of = boundary.imported[_SOURCE]
    source = kit.make_unbuilt(source_of.RolloutDataSourceWithBuffer, args=args, dataset=dataset, **state)
    source.buffer, source.buffer_filter = [], source_of.pop_first
    generator = torch.Generator()

    def shuffle(places: list[int]) -> None:
        places[:] = torch.randperm(len(places), generator=generator).tolist()

    with kit.swap(module, "random", kit.stand_in(seed=generator.manual_seed, shuffle=shuffle)):
        dataset.shuffle(0)
        drawn: list[Any] = []
        while len(drawn) < size * epochs:
            groups = source.get_samples(min(3, size))
            source.add_samples(groups[1:])  # as after an interruption
            drawn += [*groups[:1], *source.get_samples(len(groups) - 1)]
    labels = [int(one.label) if one.label == other.label else -1 for one, other in drawn]
    return {"drawn": labels[: size * epochs]}


def _masked(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask that slime makes of a chat."""
    tokenizer, messages = chat(inputs)
    if boundary.owner is not None:
        generator = boundary.owner(tokenizer, "qwen")
        if "input_ids" in boundary.parameters:
            ids, _ = generator.get_loss_mask(messages)
            ids, mask = boundary.function(generator, messages, ids)
        else:
            ids, mask = boundary.function(generator, messages)
        return {"token_ids": ids, "loss_mask": mask}
    sample = boundary.imported[TYPES].Sample(prompt=messages, metadata={})
    args = Namespace(rollout_global_dataset=True, rollout_batch_size=1, hf_checkpoint="", loss_mask_type="qwen")
    loads = {name: partial(kit.return_first, tokenizer) for name in ("load_tokenizer", "load_processor")}
    fresh = dict.fromkeys(("TOKENIZER", "PROCESSOR", "MASK_GENERATOR"))
    with kit.swap_all(boundary.module, **loads, **fresh, SAMPLE_PRINTED=True):
        boundary.function(args, 0, kit.stand_in(get_samples=lambda _: [[sample]]))
    before = [0] * (len(sample.tokens) - len(sample.loss_mask))
    return {"token_ids": sample.tokens, "loss_mask": [*before, *sample.loss_mask]}


def _whitened(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Whiten values that are distributed over two ranks, or are on one rank if the number of rows is odd."""
    values, mask, count = inputs["values"], inputs["response_mask"], 1 if len(inputs["values"]) % 2 else 2
    options = {"shift_mean": inputs["shift_mean"], "epsilon": inputs["epsilon"]}
    made = kit.on_ranks(count, lambda rank: boundary.function(values[rank::count], mask[rank::count], **options))
    return torch.stack(made, 1).flatten(0, 1)


def _divided(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack rows into microbatches, and split the largest microbatch with slime."""
    lengths, module = kit.lengths_of(inputs), boundary.module
    parts = module.first_fit_pack(lengths, inputs["max_tokens_per_microbatch"])
    module.expand_bins_by_splitting(parts, len(parts) + 1, lengths)
    return {"parts": parts}


_DOUBLE = Dialect(
    "after_the_end", "counted", "the newline after the end of an answer is trained too",
    f"{MAIN}/utils/mask_utils.py#L68",
)  # fmt: skip
_SAMPLES: Sequence[tuple[str, Any]] = (
    *((f"{TYPES}.Sample.{name}", _appended) for name in ("append_response_tokens", "from_dict")),
    *(
        (f"{_ROLLOUT}.RolloutManager.{name}", _trained_on)
        for name in ("_convert_samples_to_train_data", "_split_train_data_by_dp")
    ),
    *((f"{_DATA}.{name}", _trained_on) for name in ("get_data_iterator", "DataIterator.get_next")),
    (f"{_DATA}.get_batch", _packed), *((f"{CP}.slice_{name}with_cp", _shared) for name in ("", "log_prob_")),
)  # fmt: skip
_SCHEDULE = "slime.utils.dp_schedule.build_dp_schedule(rollout_indices)"
BINDINGS = (
    *(
        Binding(
            path, "collation", call=call, fixed=_LAYOUTS, stand_ins=(ARGS, SELF, MPU, _STORE),
            imports=(TYPES, *((_ROLLOUT, _DATA) if call is _trained_on else ())),
            requires=(path, _SCHEDULE, f"{_DATA}.DataIterator", f"{TYPES}.Sample.append_response_tokens"),
        )
        for path, call in _SAMPLES
    ),
    *(
        Binding(
            path, "epoch_order", call=_drawn, imports=(TYPES, "slime.utils.data", _SOURCE),
            stand_ins=(ARGS, StandIn("random", "torch's generator with the same seed, as in a DistributedSampler")),
            requires=(path, f"{_SOURCE}.RolloutDataSourceWithBuffer"),
        )
        for path in (
            f"{_SOURCE}.RolloutDataSource.get_samples", f"{_SOURCE}.RolloutDataSourceWithBuffer.get_samples",
            f"{_SOURCE}.RolloutDataSourceWithBuffer.add_samples", f"{_SOURCE}.pop_first", f"{_DATASET}.shuffle",
        )
    ),
    *(
        Binding(
            path, "trained_tokens", call=_masked, imports=(TYPES,), stand_ins=(WORDS,), requires=(path,),
            fixed={"trains": "all", "max_tokens": None}, dialects=(_DOUBLE,),
        )
        for path in (f"{_MASKS}.get_loss_mask", f"{_MASKS}.get_loss_mask_with_multimodal_alignment", _SFT)
    ),
    Binding(
        "slime.utils.distributed_utils.distributed_masked_whiten", "masked_statistics", outputs=("result",),
        call=_whitened, fixed={"statistic": "whiten", **MASKED_STATISTICS.lacking("shift_mean", "epsilon")},
        dtypes=("float32",),
    ),
    *(
        Binding(
            f"slime.utils.seqlen_balancing.{name}", "microbatch_packing", call=_divided,
            requires=("slime.utils.seqlen_balancing.expand_bins_by_splitting",),
            accepts={"attention_mask": ("full", "right")},
        )
        for name in ("expand_bins_by_splitting", "_split_bin_by_tokens")
    ),
)  # fmt: skip
