"""Bindings for the functions that lay out verl's batches for Megatron: as packed or padded rows, split over ranks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS
from sentinel.binding.kit import torch

_UTIL = "verl.models.mcore.util"


def _score_on_ranks(boundary: Any, rows: Any, ranks: int, score: Any, **layout: Any) -> Any:
    """Lay out token ids with verl on each rank, score the tokens there, and return the scores of the first rank.

    :param score: returns the scores, given the ids, the ids of the next tokens, and the position ids.
    """
    module, form = boundary.module, boundary.path.split("_")[-2]
    before, after = (
        boundary.function if side in boundary.path else getattr(module, f"{side}process_{form}_engine")
        for side in ("pre", "post")
    )

    def work(rank: int) -> Any:
        following = before(rows, need_roll=True, **layout)[0]
        if form == "bshd":
            ids, mask, places = before(rows, **layout)
            return after(score(ids, following, places), mask)
        ids, parameters, places = before(rows, **layout)
        undone = {name: value for name, value in layout.items() if name == "cp_layout"}
        return after(score(ids, following, places), parameters, rows, len(rows), **undone)

    parallel = kit.make_single_rank_mpu(get_context_parallel_world_size=ranks)
    parallel.get_context_parallel_rank = lambda: torch.distributed.get_rank()
    names = {"PackedSeqParams": kit.stand_in, "_packed_seq_params_supports": lambda _: True, "mpu": parallel}
    names |= {"_PACKED_SEQ_PARAMS_HAS_CP_PARTITION_MODE": True}
    # The real logger has the method warning_once only if transformers has been imported.
    with kit.swap_all(module, logger=kit.stand_in(warning_once=lambda *_: None), **names):
        return kit.on_ranks(ranks, work)[0]


def _recompute(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return log-probs and entropies that pass through verl's layouts, averaged over the layouts.

    A log-prob is looked up by the id of the next token, and an entropy by the token's row and position id.
    """
    table, width = kit.prepend_prompt(inputs["log_probs"].detach()), inputs["log_probs"].shape[1] + 1
    valid = kit.prepend_prompt(inputs["response_mask"]) != 0
    ends = (valid * torch.arange(1, width + 1)).amax(-1).clamp(min=1)
    ids = 1 + torch.arange(table.numel()).reshape(table.shape)
    rows = torch.nested.as_nested_tensor([row[:end] for row, end in zip(ids, ends)], layout=torch.jagged)
    entropies = torch.cat((inputs["entropies"].detach(), table[:, :1] * 0), 1)

    before = getattr(boundary.module, boundary.path.rpartition(".")[2].replace("post", "pre"))
    takes = inspect.signature(before).parameters

    def score(ids: Any, following: Any, places: Any) -> Any:
        chosen = table.flatten()[(following - 1).clamp(min=0)]
        return torch.stack((chosen, entropies[(ids - 1).clamp(min=0) // width, places.clamp(max=width - 1)]), -1)

    layouts: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {})]
    if "thd" in boundary.path:
        layouts.append((2, {"cp_layout": "contiguous"}))
        # With several ranks, the zigzag layout cannot pad a last row to more than twice its length.
        more = [name for name in ("min_local_rows", "pad_to_length_bucket") if name in takes]
        layouts += [(2, {"cp_layout": "contiguous", name: 64}) for name in more]
    if "use_fp8_padding" in takes:
        layouts.append((1, {"use_fp8_padding": True}))
    made = [_score_on_ranks(boundary, rows, ranks, score, **layout) for ranks, layout in layouts]
    scores = sum(torch.nested.to_padded_tensor(one, 0.0, (len(valid), width, 2)) for one in made) / len(made)
    return {"log_probs": scores[:, :-1, 0], "entropy": scores[:, :-1, 1]}


def _lay_out(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Distribute token ids to two ranks with verl, join the ranks again, and return the ids of each row."""
    rows, layout = inputs["arguments"]["input_ids"], inputs["arguments"].get("layout", {})
    ids = torch.nested.as_nested_tensor([*map(torch.tensor, rows)], layout=torch.jagged)
    joined = _score_on_ranks(boundary, ids, 2, lambda own, *_: own, **layout)
    return {"returned": [row.tolist() for row in joined.unbind()]}


def _score_packed_on_ranks(boundary: Any, table: Any, ids: Any, attended: Any, ranks: int, padded: bool) -> Any:
    """Lay out token ids and the ids of the next tokens with verl on each rank, look up each token's scores there, and
    return the scores of the first rank, [rows, tokens, scores].

    :param table: [ids, next ids] -> the scores of a token.
    """
    module = boundary.module
    before, after = module.preprocess_packed_seqs, module.postprocess_packed_seqs
    following = ids.roll(-1, 1)

    def work(rank: int) -> Any:
        packed, parameters = before(ids, attended, use_fp8_padding=padded)
        labels, _ = before(following, attended, use_fp8_padding=padded)
        return after(table(packed, labels), parameters, attended, *ids.shape)

    parallel = kit.make_single_rank_mpu(get_context_parallel_world_size=ranks)
    parallel.get_context_parallel_rank = lambda: torch.distributed.get_rank()
    with kit.swap_all(module, mpu=parallel, PackedSeqParams=kit.stand_in):
        return kit.on_ranks(ranks, work)[0]


def _recompute_packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return log-probs and entropies that pass through verl's layout of padded rows, averaged over the layouts."""
    table, width = kit.prepend_prompt(inputs["log_probs"].detach()), inputs["log_probs"].shape[1] + 1
    entropies = torch.cat((inputs["entropies"].detach(), table[:, :1] * 0), 1)
    valid = kit.prepend_prompt(inputs["response_mask"]) != 0
    ends = (valid * torch.arange(1, width + 1)).amax(-1, keepdim=True).clamp(min=1)
    ids = 1 + torch.arange(table.numel()).reshape(table.shape)

    def score(packed: Any, labels: Any) -> Any:
        numbers = ((one - 1).clamp(min=0) for one in (labels, packed))
        return torch.stack([values.flatten()[places] for values, places in zip((table, entropies), numbers)], -1)

    attended = torch.arange(width)[None] < ends
    layouts = [(ranks, padded) for ranks in (1, 2) for padded in (False, True)]
    scores = sum(_score_packed_on_ranks(boundary, score, ids, attended, *layout) for layout in layouts) / len(layouts)
    return {"log_probs": scores[:, :-1, 0], "entropy": scores[:, :-1, 1]}


_MODEL = StandIn("model", "a table of log-probs and entropies, in which tokens are looked up by their id and position")
_WHOLE = {"micro_batch_size": None, "max_tokens_per_microbatch": None, "padding_microbatches": 0}
BINDINGS = (
    *(
        Binding(
            f"{_UTIL}.{side}process_{form}_engine", "recomputed_log_probs", call=_recompute, stand_ins=(_MODEL, RANKS),
            fixed=_WHOLE, requires=(f"{_UTIL}.preprocess_{form}_engine({parameter})",),
        )
        for form, parameter in (("thd", "cp_layout"), ("bshd", "forced_max_seqlen"))
        for side in ("pre", "post")
    ),
    Binding(
        f"{_UTIL}.preprocess_thd_engine", "call", call=_lay_out, stand_ins=(RANKS,),
        requires=(f"{_UTIL}.preprocess_thd_engine",),
    ),
    *(
        Binding(
            f"{_UTIL}.{side}process_packed_seqs", "recomputed_log_probs", call=_recompute_packed,
            stand_ins=(_MODEL, RANKS), fixed=_WHOLE,
            requires=(f"{_UTIL}.preprocess_packed_seqs(use_fp8_padding)",),
        )
        for side in ("pre", "post")
    ),
)  # fmt: skip
