"""Bindings for NeMo-RL's batch class, and for its algorithms that pack sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect
from sentinel.binding import kit
from sentinel.binding.families import LAYOUTS, Container
from sentinel.binding.kit import torch

from .shared import BATCH, BATCHES, MAIN


def _batch(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    rows = {name: column if isinstance(column, torch.Tensor) else list(column) for name, column in fields.items()}
    return boundary.imported[BATCHES].BatchedDataDict(rows)


def _read(batch: Any, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a batch's columns and the scenario's metadata, because NeMo-RL's batches have no metadata."""
    return dict(batch.items()), inputs["meta"]


#: Fields with media: each row has a tensor of its own length, or several segments of tensors.
_MEDIA = ("images", "segments")


def _media_batch(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Make a batch with media. The segments of a row are merged, as NeMo-RL does for the turns of a chat."""
    packed = boundary.imported[BATCHES].PackedTensor
    batch = _batch(boundary, fields, meta)
    batch["images"] = packed(list(fields["images"]), dim_to_pack=0)
    rows = [packed([row[:1], row[1:]], dim_to_pack=0).enable_deduplication() for row in fields["segments"]]
    batch["segments"] = packed.concat([packed.merge_segments([row]) for row in rows])
    return batch


def _read_media(batch: Any, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a batch's columns. A batch without some of its media, or with media in another order, has no rows."""
    columns, whole = dict(batch.items()), batch.get_multimodal_dict(as_tensors=True)
    for name in _MEDIA:
        rows = [columns[name].slice([row]).as_tensor() for row in range(len(columns[name]))]
        counts = columns[name].logical_segment_counts_by_row()
        if not torch.equal(torch.cat(rows), whole[name]) or len(counts) != len(rows):
            return {"number": []}, {}
        columns[name] = rows
    return columns, inputs["meta"]


def _apply(method: str, boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    """Apply a method of NeMo-RL's batch class, which applies a method of its media to the fields with media."""
    places, count = list(inputs["order"]), inputs["count"]
    if method == "reorder_data":
        batch.reorder_data([places.index(place) for place in range(len(places))])
        return [batch]
    if method == "select_indices":
        return [batch.select_indices(torch.tensor(places))]
    size = batch.size // count
    if method == "chunk" and size >= count:  # otherwise, NeMo-RL raises an exception
        return [batch.chunk(rank, count) for rank in range(count)]
    if method == "slice":
        return [batch.slice(place * size, (place + 1) * size) for place in range(count)]
    return list(batch.shard_by_batch_size(count))


def _join_media(boundary: Any, inputs: Mapping[str, Any], _: Any) -> Sequence[Any]:
    made = boundary.imported[BATCHES].BatchedDataDict
    starts = [sum(inputs["sizes"][:place]) for place in range(len(inputs["sizes"]))]
    parts = []
    for start, size in zip(starts, inputs["sizes"]):
        own = {name: column[start : start + size] for name, column in inputs["fields"].items()}
        parts.append(_media_batch(boundary, own, inputs["meta"]))
    return [made.from_batches(parts, allow_missing_packed_tensors=True)]


def _chunks(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    return [boundary.function(batch, rank, inputs["count"]) for rank in range(inputs["count"])]


def _reorder(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    """Reorder a batch. NeMo-RL's function takes the new position of each row, which is the inverse of ``order``."""
    order = list(inputs["order"])
    boundary.function(batch, [order.index(place) for place in range(len(order))])
    return [batch]


def _cut_equally(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    count = inputs["count"]
    size = batch.size // count
    if "microbatch_size" in boundary.parameters:
        return list(boundary.function(batch, size))
    if "batch_idx" in boundary.parameters:
        return [boundary.function(batch, place, size) for place in range(count)]
    return [boundary.function(batch, place * size, (place + 1) * size) for place in range(count)]


def _selected(boundary: Any, inputs: Mapping[str, Any], batch: Any) -> Sequence[Any]:
    return [boundary.function(batch, list(inputs["order"]))]


def _split_shard(options: str, iterator: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split a data-parallel shard into microbatches with the method ``iterator`` of NeMo-RL's batch class."""
    lengths, budget = kit.lengths_of(inputs), inputs["max_tokens_per_microbatch"]
    fields = {"input_ids": inputs["attention_mask"], "input_lengths": torch.tensor(lengths)}
    batch = boundary.owner({**fields, "number": torch.arange(len(lengths))})
    settings = {
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
        "max_tokens_per_microbatch": budget,
        "sequence_length_round": 1,
        "sequence_length_pad_multiple": 1,
        "algorithm": "modified_first_fit_decreasing",
    }
    shards, _ = batch.shard_by_batch_size(1, **{options: settings})
    batch = shards[0].get_batch(0, len(lengths))
    return {"parts": [part["number"].tolist() for part in getattr(batch, iterator)()]}


#: NeMo-RL's name of each packing algorithm.
_ALGORITHMS = {"next_fit": "concatenative", "any": "first_fit_shuffle"}


def _pack(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    name = _ALGORITHMS.get(inputs["algorithm"], inputs["algorithm"])
    numbers = {"min_bin_count": inputs["least"], "bin_count_multiple": inputs["stages"]}
    limits = {option: number for option, number in numbers.items() if number > 1}
    get_packer = boundary.module.get_packer
    if missing := [option for option in limits if option not in get_packer.__code__.co_varnames]:
        raise AbsentError(f"this version's packers have no option {missing[0]}")
    packer = get_packer(name, inputs["max_tokens_per_microbatch"], **limits)
    with kit.keep_random_state():  # one algorithm shuffles with Python's global generator
        return {"parts": [part for part in packer.pack(kit.lengths_of(inputs)) if part]}


_PACKERS = "nemo_rl.data.packing.algorithms"
_DECREASING, _MODIFIED = "first_fit_decreasing", "modified_first_fit_decreasing"
_PACKED = "nemo_rl.data.multimodal_utils.PackedTensor"
_LAYOUTS = {**LAYOUTS, **{name: {"kind": "ragged", "shape": []} for name in _MEDIA}}
_WITH_MEDIA = Container(
    _media_batch, _read_media,
    {
        "imports": (BATCHES,), "fixed": {"remainder": 0, "layouts": _LAYOUTS},
        "requires": (f"{_PACKED}.merge_segments", f"{_PACKED}.logical_segment_counts_by_row"),
    },
)  # fmt: skip
_CONTAINER = Container(_batch, _read, {"imports": (BATCHES,), "fixed": {"remainder": 0}})
BINDINGS = (
    *(
        _WITH_MEDIA.surgery(f"{_PACKED}.{path}", kind, partial(_apply, method))
        for path, kind, method in (
            ("slice", "reorder", "reorder_data"), ("_row_segment_indices", "reorder", "select_indices"),
            ("as_tensor", "cut", "chunk"), ("merge_segments", "cut", "slice"),
            ("logical_segment_counts_by_row", "cut", "shard_by_batch_size"),
        )
    ),
    _WITH_MEDIA.surgery(f"{_PACKED}.concat", "join", _join_media),
    _CONTAINER.surgery(f"{BATCH}.chunk", "cut", _chunks),
    _CONTAINER.surgery(f"{BATCH}.repeat_interleave", "repeat", kit.apply_count),
    _CONTAINER.surgery(f"{BATCH}.reorder_data", "reorder", _reorder),
    _CONTAINER.joining(f"{BATCH}.from_batches"),
    _CONTAINER.surgery(f"{BATCH}.shard_by_batch_size", "cut", kit.cut_parts),
    *(
        _CONTAINER.surgery(f"{BATCH}.{name}", "cut", _cut_equally)
        for name in ("slice", "get_batch", "make_microbatch_iterator")
    ),
    _CONTAINER.surgery(f"{BATCH}.select_indices", "reorder", _selected),
    *(
        Binding(
            f"{BATCH}.{method}", "microbatch_packing", call=partial(_split_shard, options, f"make_{iterator}"),
            requires=(f"{BATCH}.make_{iterator}",),
        )
        for options, iterator in (
            ("dynamic_batching_args", "microbatch_iterator_with_dynamic_shapes"),
            ("sequence_packing_args", "microbatch_iterator_for_packable_sequences"),
        )
        for method in ("shard_by_batch_size", f"make_{iterator}")
    ),
    *(
        Binding(
            f"{_PACKERS}.{name}", "microbatch_packing", call=_pack, requires=(f"{_PACKERS}.get_packer",),
            accepts={"algorithm": algorithms, "stages": (1, 1, 2, 3), "least": (1, 1, 2, 3)},
            dialects=(
                Dialect(
                    "leftovers", "worst_fit", "the remaining rows go to the emptiest microbatch",
                    f"{MAIN}/data/packing/algorithms.py#L635",
                ),
            ),
        )
        for name, algorithms in (
            ("get_packer", ("any", "next_fit", _DECREASING, _MODIFIED)),
            ("SequencePacker.pack", ("any", "next_fit", _DECREASING, _MODIFIED)),
            ("ConcatenativePacker._pack_implementation", ("next_fit",)),
            ("FirstFitPacker._pack_implementation", (_DECREASING, "any")),
            ("ModifiedFirstFitDecreasingPacker._pack_implementation", (_MODIFIED,)),
        )
    ),
)  # fmt: skip
