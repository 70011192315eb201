"""Bindings for NeMo-RL's alignment of student and teacher tokens, for distillation between tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

_ALIGNER = "nemo_rl.algorithms.x_token.token_aligner.TokenAligner"


def _align(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Align the student's and the teacher's tokens of a text, in a batch with a shorter text."""
    sides, marks = [list(inputs[side]) for side in ("student", "teacher")], ("\u0120", "\u2581")

    def tokenizer(tokens: Sequence[str], mark: str) -> Any:
        words = ["<pad>", *(token.replace(" ", mark) for token in tokens)]
        return kit.stand_in(convert_ids_to_tokens=lambda ids: [words[number] for number in ids])

    made = boundary.owner(*(tokenizer(*each) for each in zip(sides, marks)), "")
    ids = [torch.arange(1, 2 + len(tokens)) % (1 + len(tokens)) for tokens in sides]
    rows = [torch.stack([row, row * (torch.arange(len(row)) < 1)]) for row in ids]
    masks = {f"{side}_attention_mask": row != 0 for side, row in zip(("student", "teacher"), rows)}
    found = boundary.owner.align(made, *rows, **masks)
    return {
        **{f"{side}_chunks": getattr(found, f"{side}_chunk_id")[0, :-1].tolist() for side in ("student", "teacher")},
        "exact": found.student_exact_partition_mask[0, :-1].tolist(),
        # Minus 1, because the padding counts as a correct chunk.
        "correct": int((found.pair_is_correct & found.pair_valid)[0].sum()) - 1,
    }


BINDINGS = tuple(
    Binding(
        f"{_ALIGNER}.{method}", "token_alignment", call=_align, requires=(f"{_ALIGNER}.{method}",),
        stand_ins=(StandIn("tokenizers", "return the scenario's tokens for their numbers"),),
    )
    for method in (
        "align", "_pairs_to_batch", "_align_single", "_remap_pairs_to_original", "_align_with_anchors", "_align_dp",
        "_shift_pairs", "_alignment_mask", "_post_process_alignment", "_combine_consecutive_misaligned",
        "_flatten_chunk", "_build_pair_strings", "_drop_padding",
    )
)  # fmt: skip
