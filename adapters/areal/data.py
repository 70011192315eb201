"""Bindings for AReaL's datasets, samplers, and functions that distribute rows and tokens over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS, WORDS, balanced_partition, chat
from sentinel.binding.kit import torch

_DATASET, _LOADER, _ROLLOUTS = "areal.dataset", "areal.utils.dataloader", "areal.infra.dist_rollout"
_DATA, _SEQPACK = "areal.utils.data", "areal.utils.seqpack"
_CONTEXT, _ARGUMENTS = "areal.engine.megatron_utils.packed_context_parallel", "areal.api.cli_args"

# -- trained tokens ----------------------------------------------------------------------------------------------------


class _Rows(kit.Rows):
    """A list of rows with the methods of Hugging Face's ``Dataset`` that AReaL's datasets use."""

    def remove_columns(self, names: Sequence[str]) -> _Rows:
        return type(self)([{name: value for name, value in row.items() if name not in names} for row in self])


#: A limit that no sequence exceeds, so that AReaL's filter by length runs and keeps all rows.
_LONGEST = 1000


def _loaded(boundary: Any, row: Mapping[str, Any], *tokenizer: Any) -> Mapping[str, Any]:
    """Return the row that AReaL's dataset makes of this row."""
    with kit.swap(boundary.module, "load_dataset", lambda *_, **__: _Rows([dict(row)])):
        (made,) = boundary.function("path", "train", *tokenizer, _LONGEST)
    found: Mapping[str, Any] = made
    return found


def _texts(inputs: Mapping[str, Any]) -> tuple[Any, str, str]:
    """Return the tokenizer, the text before the last answer, and the answer. The dataset adds the end token."""
    tokenizer, messages = chat(inputs)
    return tokenizer, tokenizer.written(messages[:-1], add_generation_prompt=True), messages[-1]["content"]


def _of_question(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    tokenizer, question, answer = _texts(inputs)
    made = _loaded(boundary, {"question": question, "answer": answer}, tokenizer)
    return {"token_ids": made["input_ids"], "loss_mask": made["loss_mask"]}


class _Processor:
    """A stand-in for the processor of a model that takes images. There are no images."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.image_processor = tokenizer, kit.stand_in(image_processor_type="Qwen2VLImageProcessor")

    def __call__(self, text: Sequence[str], **_: Any) -> dict[str, Any]:
        ids = torch.tensor([self.tokenizer.encode(text[0])])
        return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "pixel_values": torch.zeros(0, 1)}


def _of_picture(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    tokenizer, question, answer = _texts(inputs)
    made = _loaded(boundary, {"problem": question, "answer": answer, "images": []}, _Processor(tokenizer))
    return {"token_ids": made["input_ids"], "loss_mask": made["loss_mask"]}


def _of_pair(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen side of a pair, or no tokens if the mask of the rejected side is wrong. The answers of both
    sides have no common words.
    """
    tokenizer, question, answer = _texts(inputs)
    made = _loaded(boundary, {"chosen": question + answer, "rejected": f"{question}w40.0 w40.1"}, tokenizer)
    start = len(tokenizer.encode(question))
    if made["rejected_loss_mask"] != [0] * start + [1] * 3:
        return {"token_ids": [], "loss_mask": []}
    return {"token_ids": made["chosen_ids"], "loss_mask": made["chosen_loss_mask"]}


# -- the order of samples ----------------------------------------------------------------------------------------------


def _interleaved(ranks: Sequence[Sequence[int]]) -> list[int]:
    """Return the samples of all ranks, of which each rank has every n-th."""
    return [sample for turn in zip_longest(*ranks) for sample in turn if sample is not None]


def _all_of(samples: list[int], size: int) -> list[int]:
    """Return the samples of an epoch, or numbers of no sample if they are too few or too many."""
    return samples if len(samples) == size else [-1] * size


def _sampled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the samples that AReaL's sampler for evaluation draws on two ranks."""
    samples = range(inputs["size"])
    samplers = [
        boundary.module.EvalDistributedSampler(samples, 2, rank, shuffle=True, seed=inputs["seed"]) for rank in range(2)
    ]
    drawn: list[int] = []
    for epoch in range(inputs["epochs"]):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        told = [len(sampler) == len([*sampler]) for sampler in samplers]
        drawn += _all_of(_interleaved([[*sampler] for sampler in samplers]) if all(told) else [], inputs["size"])
    return {"drawn": drawn}


def _batched(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the samples that AReaL's data loaders for evaluation yield on two ranks, in batches of two."""
    from torch.utils.data import DataLoader

    made = boundary.imported[_ARGUMENTS].ValidDatasetConfig
    config = made(path="", type="sft", batch_size=4, shuffle=True, drop_last=False, num_workers=0)
    drawn: list[int] = []
    with kit.swap(boundary.module, "StatefulDataLoader", DataLoader), kit.keep_random_state():
        loaders = [boundary.function(range(inputs["size"]), rank, 2, config) for rank in range(2)]
        for epoch in range(inputs["epochs"]):
            for loader in loaders:
                loader.sampler.set_epoch(epoch)
            drawn += _all_of(_interleaved([[*chain.from_iterable(loader)] for loader in loaders]), inputs["size"])
    return {"drawn": drawn}


# -- rows over ranks ---------------------------------------------------------------------------------------------------


def _reordered(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import numpy

    size = len(inputs["lengths"]) // inputs["parts"]
    order, _ = boundary.function(numpy.array(inputs["lengths"]), size)
    return {"parts": [order[start : start + size].tolist() for start in range(0, len(order), size)]}


def _trajectories(lengths: Sequence[int], first: int) -> list[dict[str, Any]]:
    """Return trajectories of one row, padded to different widths. Each token is the trajectory's number."""
    return [
        {
            "input_ids": torch.nn.functional.pad(torch.full((1, length), first + place), (0, 1 + place % 3)),
            "attention_mask": torch.nn.functional.pad(torch.ones(1, length, dtype=torch.int64), (0, 1 + place % 3)),
        }
        for place, length in enumerate(lengths)
    ]


def _numbers(lengths: Sequence[int], part: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of a part's whole trajectories, which have no padding."""
    tokens = [one["input_ids"][0].tolist() for one in part]
    return [ids[0] for ids in tokens if ids and ids == ids[:1] * lengths[ids[0]]]


def _redistributed(through: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Redistribute trajectories over ranks with AReaL. At first, each rank has equally many consecutive ones, of which
    the last may be empty.

    :param through: the method of AReaL's coordinator that is called; empty for the function below it.
    """
    lengths, count = inputs["lengths"], inputs["parts"]
    lengths = [*lengths, *[0] * (-len(lengths) % count)]
    share, module = len(lengths) // count, boundary.imported[_ROLLOUTS]

    def work(rank: int) -> list[int]:
        own = _trajectories(lengths[rank * share : (rank + 1) * share], rank * share)
        if not through:
            return _numbers(lengths, module.redistribute_trajectories(own).data)
        trainer = kit.stand_in(
            config=kit.stand_in(mb_spec=kit.stand_in(packing_algorithm="kk" if len(lengths) % 2 else "ffd")),
            **dict.fromkeys(("data_parallel_group", "cpu_group", "context_and_model_parallel_group")),
            current_data_parallel_head=lambda: rank, is_data_parallel_head=lambda: True,
        )  # fmt: skip
        engine = kit.stand_in(**dict.fromkeys(("rollout_batch", "prepare_batch"), lambda *_, **__: own))
        coordinator = module.DistRolloutCoordinator(engine, trainer)
        method = getattr(coordinator, through)
        return _numbers(lengths, method(own) if through == _WHOLE else method(own, None))

    platform = kit.stand_in(synchronize=lambda: None, current_device=lambda: boundary.device)
    with kit.swap_all(module, current_platform=platform, broadcast_tensor_container=kit.return_first):
        return {"parts": kit.on_ranks(count, work)}


_WHOLE = "_broadcast_and_redistribute_trajectories"
_COORDINATOR = f"{_ROLLOUTS}.DistRolloutCoordinator"


# -- tokens over context-parallel ranks --------------------------------------------------------------------------------

_CP = 2


@contextmanager
def _on_context_ranks(module: Any) -> Iterator[None]:
    """Replace Megatron's parallel state by that of two context-parallel ranks."""

    def gather(value: Any, **_: Any) -> list[Any]:
        parts = [torch.empty_like(value) for _ in range(_CP)]
        torch.distributed.all_gather(parts, value)
        return parts

    state = kit.stand_in(
        get_tensor_model_parallel_world_size=lambda: 1,
        get_context_parallel_world_size=lambda: _CP,
        get_context_parallel_rank=lambda: torch.distributed.get_rank(),
        get_context_parallel_group=lambda: None,
    )
    own = {"mpu": state, "dist_F": kit.stand_in(all_gather=gather), "PackedSeqParams": kit.stand_in}
    with kit.swap_all(module, **own):
        yield


def _own_chunks(column: Any, ends: Any, rank: int) -> Any:
    """Return a rank's tokens: of each sequence in four chunks, the rank's chunk from the start and that from the end.

    Megatron-LM splits sequences in this way so that causal attention takes equally long on all ranks.
    """
    parts = [column[start:end].chunk(2 * _CP) for start, end in zip(ends.tolist(), ends[1:].tolist())]
    return torch.cat([torch.cat([part[rank], part[2 * _CP - 1 - rank]]) for part in parts])


def _over_context(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split packed sequences over context-parallel ranks with AReaL, and reassemble them. The result is empty if a rank
    has other tokens than in Megatron-LM.
    """
    samples, module = inputs["samples"], boundary.imported[_CONTEXT]
    lengths = [len(sample["input_ids"]) for sample in samples]
    room = [-(-length // (2 * _CP)) * 2 * _CP for length in lengths]
    ends = torch.tensor([0, *room]).cumsum(0)
    packed = {
        name: torch.cat(
            [torch.nn.functional.pad(one[name], (0, more - len(one[name]))) for one, more in zip(samples, room)]
        )
        for name in samples[0]
    }

    def work(rank: int) -> tuple[bool, dict[str, Any]]:
        ids, _ = module.preprocess_packed_seqs_context_parallel(packed["input_ids"], ends)
        split = {name: module.split_packed_seqs_for_context_parallel(column, ends) for name, column in packed.items()}
        right = [torch.equal(split[name], _own_chunks(column, ends, rank)) for name, column in packed.items()]
        whole = {name: module.reassemble_cp_packed_logprobs(column, ends) for name, column in split.items()}
        hidden = module.postprocess_packed_seqs_context_parallel(ids[..., None], ends, True)
        whole["input_ids"] = hidden[..., 0] if torch.equal(ids[0], split["input_ids"]) else whole["input_ids"][:0]
        return all(right), whole

    with _on_context_ranks(module):
        answers = kit.on_ranks(_CP, work)
    if not all(right for right, _ in answers):
        return {"samples": []}
    whole = answers[-1][1]
    return {
        "samples": [
            {name: column[start : start + length] for name, column in whole.items()}
            for start, length in zip(ends.tolist(), lengths)
        ]
    }


def _headed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pad packed tokens, shift them into labels, and pack the labels and other columns again with AReaL."""
    samples, module = inputs["samples"], boundary.imported[_MEGATRON]
    lengths = [len(sample["input_ids"]) for sample in samples]
    ends, most = torch.tensor([0, *lengths]).cumsum(0), max(lengths)
    whole = {}
    for name in samples[0]:
        rows = [torch.nn.functional.pad(one[name], (0, most - len(one[name]))) for one in samples]
        whole[name] = module._repack_padded_lm_head_output(torch.stack(rows, 1).flatten(), ends, most)
    packed = torch.cat([sample["input_ids"] for sample in samples])
    labels = module._padded_lm_head_labels(packed, ends, most)
    following = module._repack_padded_lm_head_output(labels.flatten(), ends, most)
    # A token is the label of the token before it. The first token of a sequence is no label.
    inner = torch.ones(len(packed), dtype=torch.bool)
    inner[ends[:-1]] = False
    whole["input_ids"] = torch.where(inner, following.roll(1), whole["input_ids"])
    parts = zip(ends.tolist(), ends[1:].tolist())
    return {"samples": [{name: column[start:end] for name, column in whole.items()} for start, end in parts]}


def _spread(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pad packed token ids with AReaL. The other columns of a sample are returned if its length is right."""
    samples = inputs["samples"]
    lengths = [len(sample["input_ids"]) for sample in samples]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    ids, mask, found, _ = boundary.function(torch.cat([sample["input_ids"] for sample in samples]), ends)
    made = [{**sample, "input_ids": row[there]} for sample, row, there in zip(samples, ids, mask)]
    return {"samples": made if found.tolist() == lengths else []}


def _unzigzagged(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Restore with AReaL the order of tokens that were divided over context-parallel ranks."""
    samples = inputs["samples"]
    lengths = [len(sample["input_ids"]) for sample in samples]
    room = [-(-length // (2 * _CP)) * 2 * _CP for length in lengths]
    ends = torch.tensor([0, *room]).cumsum(0)
    order = boundary.function(int(ends[-1]), _CP, ends, torch.device("cpu"))
    whole = {}
    for name in samples[0]:
        rows = [torch.nn.functional.pad(one[name], (0, more - len(one[name]))) for one, more in zip(samples, room)]
        packed = torch.cat(rows)
        whole[name] = torch.cat([_own_chunks(packed, ends, rank) for rank in range(_CP)])[order]
    parts = zip(ends.tolist(), lengths)
    return {"samples": [{name: one[start : start + n] for name, one in whole.items()} for start, n in parts]}


_MEGATRON, _LIGHTNING = "areal.engine.megatron_engine", "areal.models.mcore.lightning_attention"
_ONE_ANSWER = {"trains": "last", "max_tokens": None, "apart": False, "skipped": "none"}
_SPLITS: Mapping[str, Any] = {
    "layouts": {
        "input_ids": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]},
        "logprobs": {"kind": "tensor", "dtype": "float32", "shape": ["tokens"]},
        "loss_mask": {"kind": "tensor", "dtype": "int32", "shape": ["tokens"]},
    }
}
_LOADS = StandIn("load_dataset", "returns the scenario's row instead of a dataset from the hub")
_STATE = StandIn("mpu", "Megatron's parallel state of two context-parallel ranks")
_BROADCAST = StandIn("broadcast_tensor_container", "returns its input, because each rank has a group of its own")

BINDINGS = (
    *(
        Binding(path, "trained_tokens", call=call, stand_ins=(WORDS, _LOADS), requires=(path,), fixed=_ONE_ANSWER)
        for path, call in (
            (f"{_DATASET}.gsm8k.get_gsm8k_sft_dataset", _of_question),
            (f"{_DATASET}.hhrlhf.get_hhrlhf_dpo_dataset", _of_pair),
            (f"{_DATASET}.clevr_count_70k.get_clevr_count_70k_sft_dataset", _of_picture),
            (f"{_DATASET}.geometry3k.get_geometry3k_sft_dataset", _of_picture),
        )
    ),
    Binding(
        f"{_LOADER}.EvalDistributedSampler.__init__", "epoch_order", call=_sampled,
        requires=(f"{_LOADER}.EvalDistributedSampler",),
    ),
    Binding(
        f"{_LOADER}.create_dataloader", "epoch_order", call=_batched, imports=(_ARGUMENTS,), fixed={"seed": 0},
        requires=(f"{_LOADER}.EvalDistributedSampler",),
        stand_ins=(StandIn("StatefulDataLoader", "torch's DataLoader, the base class of torchdata's"),),
    ),
    balanced_partition(
        f"{_SEQPACK}.reorder_to_balanced_batches", call=_reordered, fixed={"equal_size": True},
        formerly=("areal.utils.datapack.reorder_to_balanced_batches",),
    ),
    *(
        balanced_partition(
            path, call=partial(_redistributed, through), fixed={"equal_size": False},
            imports=(_ROLLOUTS,), stand_ins=(RANKS, _BROADCAST), requires=(path, _ROLLOUTS),
        )
        for path, through in (
            (f"{_ROLLOUTS}.redistribute_trajectories", ""),
            (f"{_DATA}.all_gather_tensor_container", ""),
            (f"{_COORDINATOR}.{_WHOLE}", _WHOLE),
            (f"{_COORDINATOR}.rollout_batch", "rollout_batch"),
            (f"{_COORDINATOR}.prepare_batch", "prepare_batch"),
        )
    ),
    *(
        Binding(path, "collation", call=call, fixed=_SPLITS, requires=(path,), imports=(path.rpartition(".")[0],))
        for path, call in (
            (f"{_MEGATRON}._padded_lm_head_labels", _headed), (f"{_MEGATRON}._repack_padded_lm_head_output", _headed),
            (f"{_CONTEXT}._reconstruct_padded_2d", _spread), (f"{_LIGHTNING}._build_zigzag_undo_indices", _unzigzagged),
        )
    ),
    *(
        Binding(
            f"{_CONTEXT}.{name}", "collation", call=_over_context, fixed=_SPLITS, imports=(_CONTEXT,),
            requires=(f"{_CONTEXT}.{name}", f"{_CONTEXT}.reassemble_cp_packed_logprobs"), stand_ins=(RANKS, _STATE),
        )
        for name in (
            "preprocess_packed_seqs_context_parallel", "split_packed_seqs_for_context_parallel",
            "_build_cp_reassemble_indices", "reassemble_cp_packed_logprobs", "postprocess_packed_seqs_context_parallel",
        )
    ),
)  # fmt: skip
