"""Bindings for the batches that NeMo-RL packs for Megatron's models, and for values and logits of packed batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .parallel import PARALLEL, SHARDS, Place, join, on_shards, pad, weighted_sum, weights_of
from .shared import BATCHES, MAIN

_DATA, _VALUES = "nemo_rl.models.megatron.data", "nemo_rl.models.value.workers.megatron_value_worker"
_LAYERS, _TOP = 2, 2

#: Divisor of a packed batch's length -> the options that need it.
_OPTIONS: Mapping[int, Mapping[str, Any]] = {
    1: {},
    16: {"fp8_cfg": {"enabled": True, "fp8_recipe": "tensorwise"}},
    32: {"fp8_cfg": {"enabled": True, "fp8_recipe": "mxfp8"}},
    128: {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
}


def _make_batch(boundary: Any, samples: Any) -> tuple[Any, Any]:
    """Make a padded batch whose routes, masks and numbers differ for each token. Return it with the lengths."""
    ids = torch.nn.utils.rnn.pad_sequence([sample["token_ids"] for sample in samples], batch_first=True)
    lengths = torch.tensor([len(sample["token_ids"]) for sample in samples])
    numbers = torch.nn.utils.rnn.pad_sequence([sample["logprobs"] for sample in samples], batch_first=True)
    # A route is a pair of different experts; padding of the batch has routes too.
    routes = ids[..., None, None] + torch.arange(_LAYERS)[:, None] + 7 * torch.arange(1, 1 + _TOP)
    columns = {"input_ids": ids, "input_lengths": lengths, "mtp_loss_mask": numbers, "routed_experts": routes}
    columns["media_token_validity_mask"] = ids % 2 == 0
    return boundary.imported[BATCHES].BatchedDataDict(columns), lengths


def _joined(parts: Any, starts: Any, lengths: Any) -> list[tuple[Any, Any]]:
    """Return the tokens and the padding of each sequence, from the parts of all ranks."""
    sequences = []
    for first, end, length in zip(starts, starts[1:], lengths.tolist()):
        own = [part[:, first // len(parts) : end // len(parts)] for part in parts]
        whole = join(own)[0]
        sequences.append((whole[:length], whole[length:]))
    return sequences


def _is_padded_well(made: Any, inputs: Mapping[str, Any], unit: int) -> bool:
    """Return True if the length of the packed batch is the one that the options require."""
    size = made.input_ids.shape[1]
    # Each context-parallel rank has two chunks, and without such ranks, two tensor-parallel ranks share the sequence.
    divisor = inputs["multiple"] * unit if inputs["multiple"] > 1 else 1
    wanted = -(-(inputs["total"] or 0) // divisor) * divisor
    return bool(size == made.cu_seqlens_padded[-1] and size % divisor == size % unit == 0) and size in (
        (wanted,) if inputs["total"] else (size,)
    )


def _pack(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack samples for the model on context-parallel ranks, and read them back from the parts of all ranks."""
    module, samples, windows = boundary.imported[_DATA], inputs["samples"], inputs["context_parallel_size"]
    batch, lengths = _make_batch(boundary, samples)
    config = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": windows == 1,
        "pipeline_model_parallel_size": 2 if inputs["total"] else 1,
        "context_parallel_size": windows,
        **_OPTIONS[inputs["multiple"]],
    }
    unit = 2 * windows
    if windows == 1 and inputs["multiple"] == 1 and not inputs["total"]:
        unit, config["sequence_parallel"] = 1, False  # no padding at all
    names = ("pad_individual_seqs_to_multiple_of", "pad_packed_seq_to_multiple_of", "pad_full_seq_to")
    padding = dict(zip(names, module._get_pack_sequence_parameters_for_megatron(config, unit, inputs["total"] or 0)))
    delegates = boundary.path.endswith("_prepare_vlm_batch_for_megatron")
    if delegates:
        batch = boundary.imported[BATCHES].BatchedDataDict({name: batch[name] for name in _OF_TOKENS})
        padding.pop("pad_packed_seq_to_multiple_of")
    made = []
    for rank in range(windows):
        names = {"get_context_parallel_rank": rank, "get_context_parallel_world_size": windows}
        replaced = {name: lambda value=value: value for name, value in names.items()}
        verifies = {"r3_trace_verify_forward_enabled": lambda: True}
        with kit.swap_all(module, PackedSeqParams=kit.stand_in, **replaced, **verifies):
            options = {"delegate_pack_to_model": delegates, "delegate_mtp_loss_mask_to_model": delegates}
            made.append(module.process_microbatch(batch, "input_lengths", pack_sequences=True, **padding, **options))
    read = _read_rows(made[0], lengths) if delegates else _read_parts(made, lengths)
    if read is None or (not delegates and not _is_padded_well(made[0], inputs, unit)):
        return {"samples": []}
    others = [sample["tag"] for sample in samples]
    return {"samples": [{"token_ids": ids, "logprobs": own, "tag": tag} for (ids, own), tag in zip(read, others)]}


_OF_TOKENS = ("input_ids", "input_lengths", "mtp_loss_mask")


def _read_rows(made: Any, lengths: Any) -> list[tuple[Any, Any]] | None:
    """Return the ids and numbers of the rows that a model packs itself; None if rows and packed ids differ."""
    packed = made.input_ids[0].split((made.cu_seqlens_padded[1:] - made.cu_seqlens_padded[:-1]).tolist())
    rows = []
    for place, (own, length) in enumerate(zip(packed, lengths.tolist())):
        row = made.input_ids_cp_sharded[place, : len(own)]
        whole = made.attention_mask[place].sum() == len(own)
        if not torch.equal(row, own) or row[length:].any() or not whole:
            return None
        rows.append((row[:length], made.mtp_loss_mask[place, :length]))
    return rows


def _read_parts(made: Any, lengths: Any) -> list[tuple[Any, Any]] | None:
    """Return the ids and numbers of all ranks' packed sequences; None if their routes or masks are wrong."""
    starts = made[0].cu_seqlens_padded.tolist()
    ids, numbers, routes, media = (
        _joined([getattr(part, name) for part in made], starts, lengths)
        for name in ("input_ids_cp_sharded", "mtp_loss_mask", "routed_experts_cp_sharded", "media_token_validity_mask")
    )
    wholes = _joined([made[0].input_ids], starts, lengths)
    for (own, rest), (experts, unused), (flags, _), (whole, _) in zip(ids, routes, media, wholes):
        wanted = own[:, None, None] + torch.arange(_LAYERS)[:, None] + 7 * torch.arange(1, 1 + _TOP)
        filled = torch.equal(unused, torch.arange(_TOP).expand(unused.shape).to(unused.dtype))
        right = torch.equal(experts, wanted) and torch.equal(flags, own % 2 == 0) and torch.equal(whole, own)
        if not filled or not right or rest.any():
            return None
    return [(own, mine) for (own, _), (mine, _) in zip(ids, numbers)]


def _repair(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Process a batch that is not packed, and read it back. Its padding must get valid routes."""
    module = boundary.imported[_DATA]
    batch, lengths = _make_batch(boundary, inputs["samples"])
    replaced = {"get_context_parallel_rank": lambda: 0, "get_context_parallel_world_size": lambda: 1}
    replaced |= {"get_ltor_masks_and_position_ids": lambda data, **_: (None, None, None)}
    with kit.swap_all(module, **replaced, r3_trace_verify_forward_enabled=lambda: True):
        made = module.process_microbatch(batch)
    read = []
    for place, (sample, length) in enumerate(zip(inputs["samples"], lengths.tolist())):
        routes, kept = made.routed_experts[place], torch.equal(made.routed_experts, made.routed_experts_cp_sharded)
        filled = (routes[length:] == torch.arange(_TOP)).all()
        right = torch.equal(routes[:length], batch["routed_experts"][place, :length])
        row = {"token_ids": made.input_ids[place, :length], "logprobs": made.mtp_loss_mask[place, :length]}
        read.append({**row, "tag": sample["tag"]} if filled and right and kept else {})
    return {"samples": read}


def _shift_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Shift a critic's outputs right by one position, in sequences that are split over context-parallel ranks."""
    windows, outputs = inputs["context_parallel_size"], inputs["outputs"]
    whole, count = torch.cat([outputs, inputs["output_after"][:, None]], 1), outputs.shape[1]
    packs = boundary.path.endswith("_unpack_value_sequences")
    mask = inputs["response_mask"] != 0
    ends = (mask * torch.arange(1, count + 1)).amax(-1).tolist() if packs else [count] * len(whole)
    rows = [pad(whole[row : row + 1, : end + 1, None], 2 * windows) for row, end in enumerate(ends)]
    starts = torch.tensor([0, *(row.shape[1] for row in rows)]).cumsum(0)

    def shift(own: Any, place: Place) -> tuple[Any, Any]:
        if packs:
            made = boundary.function(own[..., 0], starts, count + 1, place.cp_group)
        else:
            data = {"returns": whole}
            made = boundary.function(own, data, context_parallel_group=place.cp_group)[0]["logits"]
        counted = torch.arange(count) < torch.tensor(ends)[:, None]
        return made, weighted_sum(made[:, 1 : count + 1] * counted)

    module = boundary.imported[PARALLEL]
    made, slopes = on_shards(module, rows if packs else [torch.cat(rows)], windows, shift)
    slopes = slopes if packs else list(slopes[0].split(1))
    slope = torch.zeros_like(outputs)
    for row, (end, own) in enumerate(zip(ends, slopes)):
        slope[row, :end] = own[0, :end, 0]
    slope = slope / weights_of(slope)
    return {"values": made[:, 1 : count + 1] + slope * (outputs - outputs.detach())}


_SAMPLES = {
    "layouts": {
        "token_ids": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]},
        "logprobs": {"kind": "tensor", "dtype": "float32", "shape": ["tokens"]},
        "tag": {"kind": "text"},
    }
}
_MODEL = StandIn("megatron", "the packed parameters are a record of their arguments; ranks are called in order")
BINDINGS = (
    *(
        Binding(
            f"{_DATA}.{name}", "collation", call=_pack, fixed=_SAMPLES, imports=(_DATA, BATCHES), stand_ins=(_MODEL,),
            requires=(f"{_DATA}._prepare_vlm_batch_for_megatron", f"{_DATA}._shard_routed_experts_for_cp"),
            accepts={"context_parallel_size": (1, 2, 3), "multiple": multiples, "total": (None, None, 48)},
        )
        for name, multiples in (
            ("process_microbatch", (1, 16, 32, 128)), ("_pack_sequences_for_megatron", (1, 1, 16)),
            ("_get_pack_sequence_parameters_for_megatron", (1, 16, 32, 128)),
            ("_shard_routed_experts_for_cp", (1, 1, 16)), ("_prepare_vlm_batch_for_megatron", (1,)),
        )
    ),
    *(
        Binding(
            f"{_DATA}.{name}", "collation", call=_repair, fixed=_SAMPLES, imports=(_DATA, BATCHES), stand_ins=(_MODEL,),
            requires=(f"{_DATA}._shard_routed_experts_for_cp",),
        )
        for name in ("_fill_routed_experts_padding", "_verify_r3_trace_cp_token_alignment")
    ),
    *(
        Binding(
            f"{_VALUES}.{name}", "critic_values", call=_shift_values, imports=(PARALLEL,), stand_ins=(SHARDS,),
            requires=(f"{_VALUES}.{name}",), accepts={"context_parallel_size": (1, 2, 3)},
            dialects=(
                Dialect(
                    "outside_the_mask", "any", "the function returns the value of every position",
                    f"{MAIN}/models/value/workers/megatron_value_worker.py#L143",
                ),
            ),
        )
        for name in ("_unpack_value_sequences", "_value_loss_prepare_fn")
    ),
)  # fmt: skip
