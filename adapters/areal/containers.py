"""Bindings for AReaL's functions that pad, pack, split, distribute and reassemble batches."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from sentinel import Binding
from sentinel.binding import kit
from sentinel.binding.families import RANKS, balanced_partition, microbatch_packing
from sentinel.binding.kit import torch

_DATA = "areal.utils.data"
_SEQPACK = "areal.utils.seqpack"
_CORE = "areal.engine.core.train_engine"
_ARGUMENTS = "areal.api.cli_args"
_CONTROLLER = "areal.infra.controller.train_controller"

Samples = Sequence[Mapping[str, Any]]

#: The per-token columns of a trajectory.
_TOKENS: Mapping[str, Any] = {
    "input_ids": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]},
    "logprobs": {"kind": "tensor", "dtype": "float32", "shape": ["tokens"]},
    "loss_mask": {"kind": "tensor", "dtype": "int32", "shape": ["tokens"]},
}
_LAYOUTS: Mapping[str, Any] = {"layouts": _TOKENS}
#: Columns with several numbers per token, such as the experts that a router chose.
_WIDE: Mapping[str, Any] = {
    "layouts": {**_TOKENS, "routed_experts": {"kind": "tensor", "dtype": "int32", "shape": ["tokens", 6]}}
}


def _trajectory(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of one sample, without padding."""
    rows = {name: value[None] for name, value in sample.items()}
    return {**rows, "attention_mask": torch.ones_like(rows["input_ids"], dtype=torch.bool)}


def _padded(samples: Samples) -> dict[str, Any]:
    """Return a batch of samples, padded with zeros on the right."""
    from torch.nn.utils.rnn import pad_sequence

    rows = [{name: value[0] for name, value in _trajectory(sample).items()} for sample in samples]
    return {name: pad_sequence([row[name] for row in rows], batch_first=True) for name in rows[0]}


def _rows(batch: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the samples of a padded batch without the padding."""
    mask, present = batch["attention_mask"].bool(), [name for name in names if name in batch]
    return [{name: batch[name][row][there] for name in present} for row, there in enumerate(mask)]


def _packed_rows(packed: Mapping[str, Any], names: Sequence[str], starts: Any, lengths: Sequence[int]) -> list[Any]:
    """Return the samples of a packed batch, given their lengths and their offsets in the batch."""
    there = [name for name in names if name in packed]
    return [{name: packed[name][at : at + length] for name in there} for at, length in zip(starts.tolist(), lengths)]


#: The column of a batch that has a dictionary of an image's tensors for each row.
_IMAGES = "multi_modal_input"


def _image(row: int) -> dict[str, Any]:
    return {"pixel_values": [[row + 0.5, 1.0]]}


def _with_images(samples: Samples, form: str) -> Samples:
    """Return the samples, each with its own image if the form is ``media``."""
    return samples if form == "plain" else [{**sample, _IMAGES: [_image(row)]} for row, sample in enumerate(samples)]


def _are_right(images: Sequence[Mapping[str, Any]], rows: Sequence[int | None]) -> bool:
    """Return True if the images are those of ``rows``. None stands for a row without an image."""
    wanted = [{} if row is None else {"pixel_values": torch.tensor(_image(row)["pixel_values"])} for row in rows]
    return len(images) == len(wanted) and all(
        set(one) == set(other) and all(torch.equal(torch.as_tensor(one[name]), other[name]) for name in other)
        for one, other in zip(images, wanted)
    )


def _concatenated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Join trajectories with AReaL. If the form is ``media``, the rows with even numbers have images."""
    samples, media = inputs["samples"], inputs["form"] == "media"
    parts: list[dict[str, Any]] = [_trajectory(sample) for sample in samples]
    for row, part in enumerate(parts if media else ()):
        part |= {"tags": [f"tag {row}"], _IMAGES: [{} if row % 2 else _image(row)]}
    batch = boundary.function(parts)
    if media and batch["tags"] != [f"tag {row}" for row in range(len(samples))]:
        return {"samples": []}
    owners = [None if row % 2 else row for row in range(len(samples))]
    if media and not _are_right(batch[_IMAGES], owners):
        return {"samples": []}
    return {"samples": _rows(batch, list(samples[0]))}


def _split(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split a padded batch with AReaL into trajectories of one row each."""
    samples = inputs["samples"]
    parts = boundary.function(_padded(samples), len(samples))
    return {"samples": [{name: part[name][0] for name in samples[0] if name in part} for part in parts]}


def _collated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate dataset rows with AReaL, either into one padded batch or into one trajectory per row."""
    samples = inputs["samples"]
    rows = [{**sample, "input_ids": sample["input_ids"].tolist()} for sample in samples]
    made = boundary.function(_with_images(rows, inputs["form"]))
    parts = made if isinstance(made, list) else [made]
    images = [image for part in parts for image in part.get(_IMAGES, ())]
    if inputs["form"] == "media" and not _are_right(images, range(len(samples))):
        return {"samples": []}
    return {"samples": [row for part in parts for row in _rows(part, list(samples[0]))]}


def _packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    samples = inputs["samples"]
    packed = boundary.function(_padded(samples))
    ends = packed["cu_seqlens"]
    return {"samples": _packed_rows(packed, list(samples[0]), ends[:-1], ends.diff().tolist())}


def _padded_pack(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pad a packed batch with AReaL: each sequence to a multiple of four tokens, and the batch to 256 tokens.

    Samples are read at the offsets in the returned batch. The result is empty if the offsets leave too little room for
    a sample, or if positions are wrong. Positions have three channels if the number of samples is even.
    """
    samples = inputs["samples"]
    lengths = [len(sample["input_ids"]) for sample in samples]
    packed = {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}
    packed["cu_seqlens"] = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    packed["max_seqlen"] = max(lengths)
    counted = torch.cat([torch.arange(length) for length in lengths])
    packed["position_ids"] = counted if len(samples) % 2 else torch.stack([counted, counted + 3, counted + 5], -1)
    # `invoke` omits the options that this version lacks: until January 2026, padding and its size were two options.
    align = {"seq_align_to": 4, "align_sequences": True, "align_to_multiple_of": 4}
    made, *_ = boundary.invoke({}, data=packed, pad_to_length=256, **align)
    ends = made["cu_seqlens"]
    rows = _packed_rows(made, list(samples[0]), ends[: len(samples)], lengths)
    room = ends.diff().tolist()
    whole = len(made["input_ids"]) == ends[-1] and all(has >= needs for has, needs in zip(room, lengths))
    places = torch.cat([torch.arange(length) + start for start, length in zip(ends, lengths)])
    whole = whole and torch.equal(made["position_ids"][places], packed["position_ids"])
    return {"samples": rows if whole else []}


def _microbatches(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split a batch into microbatches of eight tokens, and restore the row order with AReaL's ``backward_indices``."""
    samples = inputs["samples"]
    spec = boundary.imported[_ARGUMENTS].MicroBatchSpec(max_tokens_per_mb=8)
    made = boundary.function(_padded(samples), spec)
    rows = [row for part in made.mbs for row in _rows(part, list(samples[0]))]
    return {"samples": [rows[place] for place in made.backward_indices]}


def _allocated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    spec = boundary.imported[_ARGUMENTS].MicroBatchSpec(max_tokens_per_mb=inputs["max_tokens_per_microbatch"])
    return {"parts": boundary.function(spec, kit.lengths_of(inputs))}


def _dispatched(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Distribute trajectories over ranks with AReaL. Trajectories of one prompt stay together.

    The result is empty if the indices that AReaL returns do not match the trajectories of each rank.
    """
    lengths = inputs["lengths"]
    items = [{"attention_mask": torch.ones(1, length), "place": place} for place, length in enumerate(lengths)]
    size = len(lengths) // len(set(inputs["prompts"])) if inputs["prompts"] else 1
    dealt, places = boundary.invoke({}, items, inputs["parts"], group_size=size)
    parts = [[item["place"] for item in part] for part in dealt]
    return {"parts": parts if parts == places else []}


def _merged(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the results of all ranks with AReaL, in the order of the batch. Each trajectory has one row."""
    fields, order = inputs["fields"], iter(inputs["order"])
    dealt = [list(islice(order, size)) for size in inputs["sizes"]]
    rows = [{name: column[place] for name, column in fields.items()} for place in range(len(inputs["order"]))]
    answers = boundary.function([[rows[place] for place in part] for part in dealt], dealt)
    part: dict[str, Any] = {name: [row[name] for row in answers] for name in fields}
    stacked = {name: torch.stack(part[name]) for name, column in fields.items() if isinstance(column, torch.Tensor)}
    return {"parts": [{**part, **stacked}], "metas": [inputs["meta"]]}


def _rejoined(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Concatenate trajectories into a batch with metadata, and split the batch with this metadata."""
    samples, module = inputs["samples"], boundary.module
    batch, meta = module.concat_batch([_trajectory(sample) for sample in samples])
    return {"samples": [{name: part[name][0] for name in samples[0]} for part in module.split_batch(batch, meta)]}


def _passed_through(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack, align and reassemble a batch with AReaL's functions. The inputs of the model are used as its outputs."""
    samples, module, core = inputs["samples"], boundary.imported[_DATA], boundary.imported[_CORE]
    spec = boundary.imported[_ARGUMENTS].MicroBatchSpec(max_tokens_per_mb=8)
    made = module.split_padded_tensor_dict_into_mb_list(_padded(samples), spec)
    made.mbs = [module.pack_tensor_dict(part) for part in made.mbs]
    align = {"seq_align_to": 4}
    if "seq_align_to" not in inspect.signature(module.pad_mb_list).parameters:  # until January 2026
        align = {"align_sequences": True, "align_to_multiple_of": 4}
    made = module.unsqueeze_mb_list(module.pad_mb_list(made, pad_value=0.0, **align))
    lengths, columns = [len(sample["input_ids"]) for sample in samples], {}
    for name in samples[0]:
        outputs = [
            module.unpad_logits(
                part.padded_mb[name][0], part.padding_length, part.padded_mb["cu_seqlens"], part.old_cu_seqlens
            )
            for part in made
        ]
        columns[name] = core.reorder_and_pad_outputs(outputs, lengths, made)
    return {"samples": [{name: columns[name][row][:n] for name in columns} for row, n in enumerate(lengths)]}


def _paired(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate preference pairs with AReaL, and return the chosen answers of all correct pairs."""
    samples = inputs["samples"]
    rows = []
    for sample in samples:
        # The rejected answer is one additional token, followed by the chosen answer.
        row = {"chosen_ids": sample["input_ids"].tolist(), "rejected_ids": [9, *sample["input_ids"].tolist()]}
        row |= {
            "chosen_loss_mask": sample["loss_mask"].tolist(),
            "rejected_loss_mask": [0, *sample["loss_mask"].tolist()],
        }
        rows.append(row)
    made = boundary.function(rows)
    read = []
    for one, other, sample in zip(made[::2], made[1::2], samples):
        mask = one["loss_mask"][0].int() if "loss_mask" in one else sample["loss_mask"]
        same = torch.equal(other["input_ids"][0][1:], one["input_ids"][0]) and bool(one["attention_mask"].all())
        read.append(
            {"input_ids": one["input_ids"][0], "loss_mask": mask, "logprobs": sample["logprobs"]} if same else {}
        )
    return {"samples": read}


def _synced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return rank 1's microbatches, or an empty list if rank 0 has another number of microbatches.

    Rank 1 has the scenario's rows. Each row of rank 0 fills a microbatch, so rank 0 needs one microbatch for each row.
    """
    lengths, budget = kit.lengths_of(inputs), inputs["max_tokens_per_microbatch"]
    spec = boundary.imported[_ARGUMENTS].MicroBatchSpec(max_tokens_per_mb=budget)
    mine, other = kit.on_ranks(2, lambda rank: boundary.function(spec, [[budget] * len(lengths), lengths][rank]))
    return {"parts": other if len(mine) == len(other) else []}


def _grouped(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a workflow once for each sample with AReaL, which joins the trajectories. Every third run fails."""
    samples = inputs["samples"]
    answers = iter([each for place, one in enumerate(samples) for each in ([one, None] if place % 3 == 2 else [one])])
    size = len(samples) + len(samples) // 3

    async def run(*_: Any) -> Any:
        sample = next(answers)
        return None if sample is None else _trajectory(sample)

    workflow = boundary.owner(kit.stand_in(arun_episode=run), size, kit.make_silent_logger())
    made = kit.run_async(boundary.function(workflow, None, {}))
    return {"samples": _rows(made, list(samples[0]))}


_GROUPED = "areal.infra.remote_inf_engine.GroupedRolloutWorkflow"


def _by_ffd(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import numpy

    return {"parts": boundary.function(numpy.array(kit.lengths_of(inputs)), inputs["max_tokens_per_microbatch"], 1)}


def _by_kk(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"parts": boundary.function(inputs["lengths"], inputs["parts"], inputs["equal_size"])}


def _evaluated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return AReaL's evaluation loss: the mean of the microbatch losses, weighted by the number of samples."""
    parts, core = inputs["parts"], boundary.module
    count = 1 if len(parts) % 2 else 2

    def work(rank: int) -> Any:
        own = [torch.tensor(part, dtype=torch.float32) for part in parts[rank::count]]
        weigh = torch.tensor
        total = core.compute_total_loss_weight(kit.stand_in(mbs=own), lambda part: weigh(float(len(part))), 0)
        return core.aggregate_eval_losses([part.mean() * len(part) / total for part in own], 0)

    return {"mean": kit.on_ranks(count, work)[0]}


#: Required, because until August 2025, batches were TensorDicts, and packing and statistics were in the package realhf.
OWN = ("areal.utils.stats_tracker",)
BINDINGS = (
    *(
        Binding(
            f"{_DATA}.{name}",
            "collation",
            call=call,
            fixed=layouts,
            requires=requires,
            imports=(_ARGUMENTS,),
            accepts={"form": ("plain", "media")} if call in (_concatenated, _collated) else {},
        )
        for name, call, layouts, requires in (
            ("concat_padded_tensors", _concatenated, _WIDE, OWN),
            ("split_and_unpad_tensor", _split, _WIDE, ()),
            ("pack_tensor_dict", _packed, _WIDE, ()),
            ("pad_sequences_to_tensors", _collated, _LAYOUTS, OWN),
            ("collate_samples_to_list", _collated, _LAYOUTS, OWN),
            ("pad_packed_tensor_dict", _padded_pack, _LAYOUTS, OWN),
            ("split_padded_tensor_dict_into_mb_list", _microbatches, _LAYOUTS, OWN),
        )
    ),
    *(
        Binding(
            path,
            "collation",
            call=call,
            fixed=_LAYOUTS,
            imports=(_DATA, _CORE, _ARGUMENTS),
            requires=(path, *OWN, f"{_CORE}.reorder_and_pad_outputs"),
        )
        for path, call in (
            (f"{_DATA}.concat_batch", _rejoined),
            *(
                (f"{_DATA}.{name}", _passed_through)
                for name in (
                    "pad_mb_list",
                    "unpad_logits",
                    "unsqueeze_mb_list",
                    "unsqueeze_packed_tensor_dict",
                    "unpack_sequence",
                    "pad_and_stack_tensors_along_first_dim",
                    "reorder_list",
                    "MicroBatchList.__iter__",
                )
            ),
            (f"{_CORE}.reorder_and_pad_outputs", _passed_through),
            ("areal.trainer.rw_trainer.rw_modeling_collate_fn", _paired),
            ("areal.trainer.dpo_trainer.dpo_modeling_collate_fn", _paired),
        )
    ),
    Binding(
        f"{_GROUPED}.arun_episode",
        "collation",
        call=_grouped,
        fixed=_LAYOUTS,
        requires=(f"{_GROUPED}.arun_episode", f"{_GROUPED}.__init__(drop_incomplete_group)"),
    ),
    microbatch_packing(
        f"{_DATA}.allocate_balanced_mbs_synced", _synced, imports=(_ARGUMENTS,), requires=OWN, stand_ins=(RANKS,)
    ),
    microbatch_packing(f"{_SEQPACK}._ffd_allocate", _by_ffd, formerly=("areal.utils.datapack._ffd_allocate",)),
    balanced_partition(f"{_SEQPACK}._kk_partition", call=_by_kk, requires=(f"{_SEQPACK}._kk_partition",)),
    *(
        Binding(f"{_CORE}.{name}", "mean_of_parts", call=_evaluated, fixed={"missing": False}, stand_ins=(RANKS,))
        for name in ("compute_total_loss_weight", "aggregate_eval_losses")
    ),
    microbatch_packing(f"{_DATA}.allocate_balanced_mbs", _allocated, imports=(_ARGUMENTS,), requires=OWN),
    microbatch_packing(f"{_SEQPACK}.ffd_allocate", formerly=("areal.utils.datapack.ffd_allocate",), min_groups=1),
    microbatch_packing(f"{_SEQPACK}.kk_allocate", min_groups=1),
    balanced_partition(
        f"{_SEQPACK}.balanced_greedy_partition",
        formerly=("areal.utils.datapack.balanced_greedy_partition",),
        fixed={"equal_size": True},
    ),
    Binding(
        f"{_CONTROLLER}._dispatch_tensors",
        "balanced_partition",
        call=_dispatched,
        fixed={"keep_minibatches": False, "equal_size": True},
        accepts={"grouped": (False, True)},
    ),
    Binding(
        f"{_CONTROLLER}._merge_tensors",
        "row_surgery",
        call=_merged,
        requires=(f"{_CONTROLLER}._merge_tensors",),  # before March 2026, a batch had a container class of its own
        fixed={"surgery": "join"},
    ),
)
