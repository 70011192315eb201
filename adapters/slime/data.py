"""Bindings for slime's functions that build samples, draw prompts and pack batches."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MASKED_STATISTICS, MPU, WORDS, chat, skipped_turn
from sentinel.binding.kit import torch

from .balancing import schedule_of
from .shared import ARGS, CP, MAIN, SELF, TYPES, joined, one_rank, shards

_DATA, _ROLLOUT = "slime.backends.megatron_utils.data", "slime.ray.rollout"
_DISTILLATION = "slime.rollout.on_policy_distillation"
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
    """Convert a sample of the scenario to slime's class ``Sample``, without a loss mask if all tokens are trained."""
    kind, ids, flags = boundary.imported[TYPES].Sample, sample["tokens"].tolist(), _flags(sample)
    fields = {"tokens": ids, "response_length": len(ids) - 1, "index": index, "reward": float(index)}
    fields |= {"loss_mask": flags if 0 in flags else None, "rollout_log_probs": sample["log_probs"][1:].tolist()}
    metadata = {"round_number": _ROUND + index, "source_name": str(index)}
    metadata |= {"raw_reward": _raw_reward(index)} if index % 2 else {}  # only some sources have raw rewards
    return kind(**fields, **_of_engine(ids), multimodal_train_inputs=_picture(ids, index), metadata=metadata)


_ROUND = 7


def _raw_reward(index: int) -> float:
    return index + 0.5 * (index % 2)


def _nucleus(token: int) -> list[int]:
    """Return the tokens that top-p keeps at the position of a token."""
    return [token, *range(token % 3)]


def _of_engine(ids: Sequence[int]) -> dict[str, Any]:
    """Return a sample's data of the engine: the tokens that top-p kept at each position of the response, and the expert
    of each token but the last. They follow from the token ids.
    """
    kept = [_nucleus(token) for token in ids[1:]]
    return {
        "rollout_top_p_token_ids": [token for tokens in kept for token in tokens],
        "rollout_top_p_token_offsets": [sum(map(len, kept[:count])) for count in range(len(ids))],
        "rollout_routed_experts": [[[token]] for token in ids[:-1]],
    }


def _picture(ids: Sequence[int], index: int) -> dict[str, Any] | None:
    """Return the picture of a sample. The second sample has none."""
    return {"pixels": torch.tensor(ids)[:, None]} if index != 1 else None


def _plain(value: Any) -> Any:
    """Convert tensors, also in a dictionary, to lists."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _appended(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Build samples with slime by appending the tokens of each response one by one. After each token, convert the
    sample to a dictionary and back. Untrained tokens have no log-prob.
    """
    kind, read = boundary.imported[TYPES].Sample, []
    args = kit.stand_in(num_layers=1, moe_router_topk=1, sglang_speculative_algorithm=None)
    grows = "routed_experts_start_len" in kit.source_of(kind._apply_meta_info)
    for place, sample in enumerate(inputs["samples"]):
        ids, flags, logs = sample["tokens"].tolist(), _flags(sample), sample["log_probs"][1:].tolist()
        made, expected = kind(tokens=ids[:1]), dict[str, Any]()
        for count, (flag, log) in enumerate(zip(flags, logs), 1):
            answer = _answered(ids[: count + 1], made.rollout_routed_experts, grows) if flag and place % 2 == 0 else {}
            made.append_response_tokens(
                args if answer else None,
                tokens=torch.tensor(ids[count : count + 1]),
                trainable=bool(flag),
                log_probs=[log] if flag else None,
                meta_info=answer or None,
            )
            made = kind.from_dict(_plain({**made.to_dict(), "note": count}))
            expected["note"] = count
        given = [log if flag else 0.0 for flag, log in zip(flags, logs)]
        expected["effective_response_length"] = sum(flags)
        if place % 2 == 0 and flags:
            known = 1 + max(at for at, flag in enumerate(flags) if flag)
            expected |= _replayed(ids, flags)
            expected["rollout_routed_experts"] = [[[token]] for token in ids[:known]]
        kept = all(_plain(getattr(made, name)) == value for name, value in expected.items())
        kept = kept and list(made.rollout_log_probs or ()) == given
        read.append(_read(sample, made.tokens, made.loss_mask or (), logs if kept else [0.0] * len(logs)))
    return {"samples": read}


def _answered(ids: Sequence[int], known: Any, grows: bool) -> dict[str, Any]:
    """Return the engine's data of the last token: the tokens that top-p kept, and the experts of the tokens before it.

    :param grows: whether the engine sends only the experts of tokens for which none are known.
    """
    start, nucleus = len(known) if grows and known is not None else 0, _nucleus(ids[-1])
    tokens = {"top_p_token_ids": nucleus, "top_p_token_offsets": [0, len(nucleus)]}
    return {**tokens, "routed_experts": list(ids[start:-1]), "routed_experts_start_len": start}


def _replayed(ids: Sequence[int], flags: Sequence[int]) -> dict[str, Any]:
    """Return the tokens that top-p kept at each position of a response; none at the positions of untrained tokens."""
    kept = [_nucleus(token) if flag else [] for token, flag in zip(ids[1:], flags)]
    ends = [sum(map(len, kept[:count])) for count in range(len(ids))]
    names = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets")
    return dict(zip(names, ([token for tokens in kept for token in tokens], ends)))


def _trained_on(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert samples to slime's training data, and read the samples from the microbatches of each rank.

    With two samples, a teacher returns the log-probs as rewards. With three samples, slime removes a fourth one, so its
    loss mask must be 0.
    """
    samples = [_made(boundary, sample, place) for place, sample in enumerate(inputs["samples"])]
    count, module, found = len(samples), boundary.imported[_DATA], dict[int, dict[str, Any]]()
    if count == 3:
        samples.append(_made(boundary, inputs["samples"][0], count))
        samples[-1].remove_sample = True
    for data in _shares(boundary, samples, taught=count == 2):
        with one_rank():
            module.mpu.get_virtual_pipeline_model_parallel_world_size = lambda: None
            (iterator,) = module.get_data_iterator(data)
        for _ in data["micro_batch_indices"]:
            batch = iterator.get_next([*_COLUMNS, *_REPLAYED, "round_number", "source_names", "teacher_log_probs"])
            for at, index in enumerate(map(int, batch["sample_indices"])):
                row = {name: column[at] for name, column in batch.items() if column is not None}
                if index < count:
                    found[index] = _row(inputs["samples"][index], row, data["raw_reward"][index])
                elif any(row["loss_masks"]):
                    return {"samples": []}
    return {"samples": [found.get(place, {}) for place in range(count)]}


_COLUMNS = ("tokens", "loss_masks", "rollout_log_probs", "sample_indices", "rewards", "rollout_mask_sums")
_REPLAYED = (*_of_engine([0]), "multimodal_train_inputs")


def _shares(boundary: Any, samples: list[Any], taught: bool) -> list[dict[str, Any]]:
    """Distribute samples over ranks with slime, and return the training data of each rank.

    :param taught: whether a teacher returns the sample's log-probs, which slime's distillation stores.
    """
    count, ranks = len(samples), 1 if len(samples) % 2 else 2
    lengths = [len(sample.tokens) for sample in samples]
    schedule = schedule_of(lengths, ranks, max(lengths), None, balanced="all" if taught else "")
    args = kit.stand_in(
        **vars(schedule["args"]),
        **dict.fromkeys(("advantage_estimator", "reward_key", "load_debug_rollout_data")),
        global_batch_size=count,
        rollout_top_p=0.5,
        use_rollout_routing_replay=min(lengths) > 1,  # slime rejects samples without experts
        rollout_data_transport="nixl" if taught else "object-store",
    )
    manager = kit.stand_in(args=args, train_parallel_config=schedule["train_parallel_config"], data_source=None)
    manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = None
    if taught:
        manager.custom_reward_post_process_func = boundary.imported[_DISTILLATION].post_process_rewards
        for sample in samples:
            logs = [(log, 6) for log in sample.rollout_log_probs]
            sample.reward = {"meta_info": {"input_token_logprobs": [(None, 5), *logs]}}
    manager.generate_rollout = lambda *_, **__: [[sample] for sample in samples]
    owner = boundary.imported[_ROLLOUT].RolloutManager
    manager._post_process_rewards = owner._post_process_rewards.__get__(manager)
    with kit.swap(boundary.imported[_ROLLOUT], "ray", kit.stand_in(put=kit.return_first)):
        drawn, _ = owner._get_rollout_data(manager, 0)
        made = owner._convert_samples_to_train_data(manager, drawn)
        return [box.inner for box in owner._split_train_data_by_dp(manager, made)]


def _row(sample: Mapping[str, Any], row: Mapping[str, Any], raw_reward: float) -> dict[str, Any]:
    """Return a sample's tokens, loss mask and log-probs from its row of slime's training data. If another field of the
    row is wrong, return an empty dictionary.
    """
    index, ids, logs = int(row["sample_indices"]), sample["tokens"].tolist(), sample["log_probs"][1:]
    taught = "teacher_log_probs" in row
    expected = {
        "rewards": 0.0 if taught else float(index),
        "rollout_mask_sums": sum(_flags(sample)),
        "round_number": _ROUND + index,
        "multimodal_train_inputs": _plain(_picture(ids, index)),
        **_of_engine(ids),
    }
    expected |= {"source_names": str(index)} if "source_names" in row else {}  # since July 2026
    expected |= {"teacher_log_probs": logs.tolist()} if taught else {}
    whole = all(_plain(row[name]) == value for name, value in expected.items())
    whole = whole and ((taught and not index % 2) or raw_reward == _raw_reward(index))
    return _read(sample, row["tokens"], row["loss_masks"], row["rollout_log_probs"]) if whole else {}


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
        on_cpu = nullcontext() if hasattr(module, "accelerator") else kit.on_cpu(module)
        with one_rank(rank, context_parallel=ranks), kit.swap_all(module, **stands), on_cpu:
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
    """Slice each sample for two context-parallel ranks with slime, and rejoin the slices.

    The second sample has only one rank. The third sample's log-probs are a list, and a function pads its tokens.
    """
    samples, module, read = inputs["samples"], boundary.module, []
    for place, sample in enumerate(samples):
        length, parts, ranks = len(sample["tokens"]), [], 1 if place == 1 else 2
        of_response, pad = (sample["log_probs"][1:].tolist(), _pad) if place == 2 else (sample["log_probs"][1:], 0)
        for rank in range(ranks):
            with one_rank(rank, context_parallel=ranks):
                logs = module.slice_log_prob_with_cp(of_response, length, length - 1)
                parts.append((module.slice_with_cp(sample["tokens"], pad), torch.as_tensor(logs)))
        size = len(parts[0][0]) // 2
        firsts, lasts = [part[0][:size] for part in parts], [part[0][size:] for part in parts]
        ids = torch.cat([*firsts, *reversed(lasts)])[:length]
        (logs,) = joined([[part[1]] for part in parts], shards([length - 1], ranks))
        read.append(_read(sample, ids, _flags(sample), logs))
    return {"samples": read}


def _pad(tokens: Any, count: int) -> Any:
    return torch.nn.functional.pad(tokens, (0, count))


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
            source.add_samples([])
            drawn += [*groups[:1], *source.get_samples(len(groups) - 1)]
    labels = [int(one.label) if one.label == other.label else -1 for one, other in drawn]
    return {"drawn": labels[: size * epochs]}


def flagged_chat(inputs: Mapping[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """Return the tokenizer and the messages of a scenario, with slime's flags of the answers that are not trained."""
    (tokenizer, messages), skipped = chat(inputs), skipped_turn(inputs)
    flags = {} if skipped is None else {skipped: {"step_loss_mask": 0}}
    return tokenizer, [{**message, **flags.get(place, {})} for place, message in enumerate(messages)]


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Split a message's content into a text, and a plain string, between which there is a picture."""
    first, _, rest = message["content"].partition(" ")
    parts = [{"type": "text", "text": first}, {"type": "image"}, *([rest] if rest else [])]
    return {**message, "content": parts}


#: The values of ``skipped`` in the contract of trained tokens.
SKIPPED = ("none", "first", "last")
#: The number of tokens that a processor adds for pictures, before the first answer.
_OF_PICTURES = 3


def _masked(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask that slime makes of a chat.

    The kind of the tokenizer is another one with each number of messages. Only ``qwen`` can have a default system
    message.
    """
    tokenizer, messages = flagged_chat(inputs)
    if boundary.owner is not None:
        kinds = ("qwen", "qwen3", "qwen3_5")
        kind = "qwen" if inputs["default_system"] else kinds[len(messages) % 3]
        if not hasattr(boundary.owner, f"gen_multi_turn_loss_mask_{kind}"):
            kind = "qwen"
        generator = boundary.owner(tokenizer, kind)
        if "input_ids" in boundary.parameters:
            ids, _ = generator.get_loss_mask(messages)
            ids = [*range(_OF_PICTURES), *ids]
            ids, mask = boundary.function(generator, [_in_parts(message) for message in messages], ids)
            if any(mask[:_OF_PICTURES]):
                return {"token_ids": None, "loss_mask": []}
            ids, mask = ids[_OF_PICTURES:], mask[_OF_PICTURES:]
        else:
            ids, mask = boundary.function(generator, messages)
        return {"token_ids": ids, "loss_mask": mask}
    if not hasattr(boundary.module, "load_tokenizer"):
        raise AbsentError("in this version, supervised rollouts load the tokenizer with transformers")
    if "get_samples" not in kit.source_of(boundary.function):
        raise AbsentError("in this version, supervised rollouts draw examples, not samples")
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
        for name in ("_convert_samples_to_train_data", "_split_train_data_by_dp", "_get_rollout_data")
    ),
    *((f"{_DATA}.{name}", _trained_on) for name in ("get_data_iterator", "DataIterator.get_next")),
    (f"{_DATA}.get_batch", _packed), *((f"{CP}.slice_{name}with_cp", _shared) for name in ("", "log_prob_")),
)  # fmt: skip
_SCHEDULE = "slime.utils.dp_schedule.build_dp_schedule(rollout_indices)"
BINDINGS = (
    *(
        Binding(
            path, "collation", call=call, fixed=_LAYOUTS, stand_ins=(ARGS, SELF, MPU, _STORE),
            imports=(TYPES, *((_ROLLOUT, _DATA, _DISTILLATION) if call is _trained_on else ())),
            requires=(path, _SCHEDULE, f"{_DATA}.DataIterator", f"{TYPES}.Sample.append_response_tokens"),
        )
        for path, call in _SAMPLES
    ),
    *(
        Binding(
            path, "epoch_order", call=_drawn, imports=(TYPES, "slime.utils.data", _SOURCE),
            stand_ins=(ARGS, StandIn("random", "torch's generator with the same seed, as in a DistributedSampler")),
            requires=(path, _DATASET, f"{_SOURCE}.RolloutDataSourceWithBuffer", f"{_SOURCE}.pop_first"),
        )
        for path in (
            f"{_SOURCE}.RolloutDataSource.get_samples", f"{_SOURCE}.RolloutDataSourceWithBuffer.get_samples",
            f"{_SOURCE}.RolloutDataSourceWithBuffer.add_samples", f"{_SOURCE}.pop_first", f"{_DATASET}.shuffle",
        )
    ),
    *(
        Binding(
            path, "trained_tokens", call=_masked, imports=(TYPES,), stand_ins=(WORDS,), requires=(path, *needed),
            fixed={"trains": "all", "max_tokens": None}, accepts={"skipped": skipped}, dialects=(_DOUBLE,),
        )
        for path, skipped, needed in (
            (f"{_MASKS}.get_loss_mask", SKIPPED, ()), (_SFT, SKIPPED, ("slime.utils.processing_utils.load_tokenizer",)),
            (f"{_MASKS}.get_loss_mask_with_multimodal_alignment", SKIPPED[:1], ()),
        )
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
