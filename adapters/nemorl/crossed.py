"""Bindings for NeMo-RL's distillation from teachers with other tokenizers.

The teacher's tokens are the student's in another order, and each chunk of text is one token. Then the loss is that of a
teacher with the student's tokenizer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import policy_loss
from sentinel.binding.kit import torch

from .parallel import PARALLEL, SHARDS, cut, on_shards, pad
from .shared import BATCHES, LOSSES, PREPARED

_UTILS, _POLICY = "nemo_rl.algorithms.x_token.loss_utils", "nemo_rl.models.policy.utils"
_FN = f"{LOSSES}.CrossTokenizerDistillationLossFn"

_OPTIONS: Mapping[str, Any] = {
    "gold_loss": False, "xtoken_loss": False, "uncommon_topk": 4, "exact_token_match_only": False,
    "kl_loss_weight": 1.0, "ce_loss_scale": 0.0, "dynamic_loss_scaling": False, "kd_loss_mode": "sum",
    "normalize_teacher_by_vocab": False, "alpha": 1.0, "sum_weights_metric": None,
}  # fmt: skip


def _order(size: int) -> Any:
    """Return the student's token for each of the teacher's tokens."""
    return torch.arange(size).roll(1)


def _file(size: int, strict: bool) -> Any:
    """Make the file of the projection: the teacher's token for each of the student's tokens, and no second one."""
    places = torch.stack([_order(size).argsort(), torch.full((size,), -1)], 1)
    weights = torch.tensor([1.0 if strict else 0.75, 0.0]).expand(size, 2)
    return {"indices": places, "likelihoods": weights}


def _shards_of(name: str, logits: Any, splits: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return the records that describe a teacher's logits, and the memory to which they refer.

    :param splits: True if the teacher has ranks, each with a part of the vocabulary and of the tokens.
    """
    rows, tokens, size = logits.shape
    whole = {"full_seq_len": tokens, "full_vocab_size": size}
    cuts = [(0, tokens // 2), (tokens // 2, tokens)] if splits else [(0, tokens)]
    parts = [(0, size // 2), (size // 2, size)] if splits else [(0, size)]
    memory, entries = {}, [{"teacher_shards": list[Any]()} for _ in range(rows)]
    for (start, end), (first, last) in ((one, other) for one in cuts for other in parts):
        own, key = logits[:, start:end, first:last], f"{name} {start} {first}"
        memory[key] = torch.stack([own + 7, own])  # the second buffer contains this microbatch
        for row, entry in enumerate(entries):
            place = {"buf_idx": 1, "sample_index_in_buf": row, "payload_ipc": key, "global_seq_start": start}
            shape = {"actual_shape": (end - start, last - first), "vocab_start_index": first, "vocab_end_index": last}
            entry["teacher_shards"].append({**place, **shape, **whole})
    return entries, memory


def _teachers(way: str, logits: Any, ids: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the logits of the teachers, which together have the given logits, and the options of the loss."""
    if way == "averaged":
        offset = torch.arange(logits.shape[-1]) / 4.0
        return [logits + offset, logits - 3 * offset], {
            "kd_loss_mode": "averaged_logits",
            "teacher_weights": [3.0, 1.0],
        }
    if way == "selected":  # the first teacher finds the student's tokens unlikely
        worse = logits - 8.0 * torch.nn.functional.one_hot(ids.roll(-1, 1), logits.shape[-1])
        return [worse, logits], {"kd_loss_mode": "select_teacher"}
    if way.startswith("weighed by "):
        return [logits, logits + 1], {"sum_weights_metric": way.removeprefix("weighed by ")}
    return [logits], {"kl_loss_weight": 2.0, "teacher_weights": [0.5]}


def _distil(way: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the loss of distillation. The ``way`` selects the kind of teachers, or how their logits are combined."""
    losses, utils, prepares = (boundary.imported[name] for name in (LOSSES, _UTILS, PREPARED))
    mask, size = inputs["response_mask"] != 0, inputs["logits"].shape[-1]
    windows = inputs["context_parallel_size"]
    spread = (inputs["logits"].amax(-1) - inputs["logits"].amin(-1))[mask]
    if way == "projected" and len(spread) and spread.max() > 10 * inputs["temperature"]:
        raise AbsentError("NeMo-RL adds 1e-10 to the student's probabilities; the scenario has a smaller probability")
    crossed, splits = way in ("projected", "gold", "relaxed"), "split" in way or windows > 1
    # The logits at the last position of a sequence predict no token.
    whole, teacher = (
        pad(torch.nn.functional.pad(inputs[name], (0, 0, 0, 1)), 2 * windows) for name in ("logits", "teacher_logits")
    )
    counted = pad(torch.nn.functional.pad(kit.prepend_prompt(mask.long()), (0, 0)), 1)
    counted = torch.nn.functional.pad(counted, (0, whole.shape[1] - counted.shape[1]))
    ids = teacher.argmax(-1).roll(1, 1)
    several, options = _teachers(way, teacher.detach(), ids)
    count = len(several)
    options = {
        **_OPTIONS, "temperature": inputs["temperature"], "vocab_topk": size, "reverse_kl": inputs["beta"] == 1,
        "gold_loss": way in ("gold", "relaxed"), "xtoken_loss": way == "relaxed", "student_vocab_size": size,
        "teacher_vocab_sizes": [size + crossed] * count,
        "projection_matrix_paths": ["projection" if crossed else None] * count,
        "teacher_weights": [1.0] * count, "teacher_gold_loss": [None] * count, "teacher_xtoken_loss": [None] * count,
        **options,
    }  # fmt: skip
    loss = losses.CrossTokenizerDistillationLossFn(options)
    memory: dict[str, Any] = {}
    columns: dict[str, Any] = {"input_ids": ids, "token_mask": counted, "sample_mask": torch.ones(len(mask))}
    for place, own in enumerate(several):
        own = own[..., _order(size)] if crossed else own
        # One more token: either padding of the teacher's output layer, or a token that the student does not have.
        unlikely = own.amin() - 30 if crossed else torch.tensor(3.0)
        own = torch.cat([own, unlikely.expand(*own.shape[:-1], 1)], -1)
        columns[f"teacher_{place}_full_logits_ipc"], more = _shards_of(f"teacher {place}", own, splits)
        memory |= more
    if crossed:
        # Each valid token is a chunk of its own. Other tokens are in no chunk, as the unaligned tokens of a text.
        chunks = torch.where(counted != 0, torch.arange(counted.shape[1]) - 1, -1)
        valid = (counted[:, 1:] != 0) & (chunks[:, 1:] >= 0)
        pairs = {"student_chunk_id": chunks, "teacher_chunk_id": chunks, "pair_valid": valid, "pair_is_correct": valid}
        columns |= {f"alignment_0_{name}": column for name, column in pairs.items()}
    tokens = mask.sum() if inputs["batch_num_tokens"] is None else torch.tensor(inputs["batch_num_tokens"])
    counts = {"global_valid_seqs": None, "global_valid_toks": tokens.float()}

    def work(own: Any, place: Any) -> tuple[Any, Any]:
        names = ("input_ids", "token_mask")
        mine = {**columns, **{name: cut(columns[name], place.window, windows) for name in names if windows > 1}}
        data = boundary.imported[BATCHES].BatchedDataDict(mine)
        groups = {"vocab_parallel_group": place.tp_group, "context_parallel_group": place.cp_group}
        made, data = prepares.prepare_loss_input(own, data, loss, vocab_parallel_rank=place.part, **groups)
        with kit.swap(loss, "_compute_ce", lambda *_: torch.tensor(0.0)):
            part = loss(data=data, **counts, **made)[0] / inputs["temperature"] ** 2
        total = part.detach().clone()
        torch.distributed.all_reduce(total, group=place.cp_group)
        return total, part * windows  # unlike other losses, each rank has the loss of its own tokens

    saved = io.BytesIO()
    torch.save(_file(size, way != "relaxed"), saved)

    def load(*_: Any, **__: Any) -> Any:
        saved.seek(0)
        return load_file(saved)

    load_file = torch.load
    for name in ("_SPARSE_PROJECTION_CACHE", "_TOPK_PROJECTION_CACHE", "_EXACT_TOKEN_MAP_CACHE"):
        getattr(utils, name).clear()
    alone = kit.swap(boundary.imported[_POLICY], "rebuild_cuda_tensor_from_ipc", lambda key, _: memory[key])
    there = kit.stand_in(path=kit.stand_in(exists=lambda _: True), PathLike=object)
    world = kit.swap(torch.distributed, "group", kit.stand_in(WORLD="all ranks"))
    with world, alone, kit.on_cpu(utils), kit.swap(utils, "os", there), kit.swap(torch, "load", load):
        total, [gradient] = on_shards(boundary.imported[PARALLEL], [whole], windows, work, inputs["vocabulary_ranks"])
    return {"loss": kit.attach_gradient(float(total), whole, gradient)}


def _supervise(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the student's cross entropy, which NeMo-RL adds to the distillation."""
    mask = inputs["response_mask"]
    # Replace log-probs that finite logits cannot give, and NaN or infinity on masked tokens.
    log_probs = torch.where(torch.isfinite(inputs["log_probs"]) & (inputs["log_probs"] < 0), inputs["log_probs"], -1.0)
    logits = torch.nn.functional.pad(kit.two_token_logits(log_probs), (0, 0, 0, 1))
    tokens = inputs["batch_num_tokens"]
    count = torch.tensor(float((mask != 0).sum() if tokens is None else tokens))
    data = {"input_ids": kit.prepend_prompt(torch.ones_like(mask, dtype=torch.int64))}
    data |= {"token_mask": kit.prepend_prompt(mask), "sample_mask": torch.ones(len(mask))}
    return {"loss": boundary.function(kit.make_unbuilt(boundary.owner), logits, data, count)}


_IPC = StandIn("CUDA memory", "the teacher's logits are in this process; the projection is a file in memory")
_COMMON: dict[str, Any] = {
    "imports": (LOSSES, _UTILS, PREPARED, PARALLEL, BATCHES, _POLICY),
    "stand_ins": (_IPC, SHARDS),
    "requires": (f"{_UTILS}.prepare_xtoken_cross_tokenizer_loss_input", f"{_POLICY}.rebuild_cuda_tensor_from_ipc"),
}
_RANKED: Mapping[str, tuple[Any, ...]] = {"context_parallel_size": (1, 2), "vocabulary_ranks": (1, 2)}
BINDINGS = (
    *(
        Binding(
            path, "distillation_loss", call=partial(_distil, way),
            # The loss of chunks is a mean over the chunks of the batch. On several ranks, it would differ: NeMo-RL then
            # counts each chunk once per rank, so that the loss is divided by the number of ranks.
            fixed={"batch_num_tokens": None} if way in ("projected", "gold", "relaxed") else {},
            accepts={"beta": (0.0, 1.0), **(_RANKED if way in ("same", "split") else {})}, **_COMMON,
        )
        for path, way in (
            *((f"{_FN}.{name}", "same") for name in ("__call__", "_direct_topk_kl", "_sum_kd")),
            (f"{_UTILS}.assemble_teacher_logits_from_shards", "split"),
            (f"{_UTILS}.prepare_xtoken_cross_tokenizer_loss_input", "projected"),
            *((f"{_FN}.{name}", "projected") for name in ("_compute_p_kl", "_compute_teacher_kd")),
            (f"{_UTILS}.slice_sparse_projection_cols", "projected"), (f"{_UTILS}.chunk_average_log_probs", "projected"),
            (f"{_FN}._compute_gold", "gold"), (f"{_UTILS}.build_exact_token_map", "relaxed"),
            (f"{_FN}._averaged_logits_kd", "averaged"), (f"{_FN}._direct_full_vocab_kl", "averaged"),
            (f"{_FN}._select_teacher_kd", "selected"), (f"{_FN}._compute_dynamic_weights", "weighed by ce"),
            (f"{_FN}._teacher_weight_score", "weighed by entropy"),
            (f"{_FN}._teacher_score_inputs", "weighed by max_prob"),
        )
    ),
    policy_loss(
        f"{_FN}._compute_ce", _supervise, "cross_entropy", (), mode="token-mean", requires=(f"{_FN}._compute_ce",),
    ),
)  # fmt: skip
