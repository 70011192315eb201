"""Define the contract of functions that align two tokenizations of one text."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, returned, rule

#: The ways to split one block of text: (student tokens, teacher tokens), the simplest first.
_BLOCKS = ((1, 1), (1, 2), (2, 1), (3, 1), (1, 3), (2, 2))


def _oracle_token_alignment(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Cut the text at each position where both tokenizers end a token. The tokens between two cuts form a chunk."""
    ends = [[len("".join(inputs[side][: place + 1])) for place in range(len(inputs[side]))] for side in _SIDES]
    cuts = sorted({*ends[0]} & {*ends[1]})
    chunks = [[sum(cut < end for cut in cuts) for end in own] for own in ends]
    alone = [sum(number == chunk for number in chunks[0]) == 1 == chunks[1].count(chunk) for chunk in chunks[0]]
    return {"student_chunks": chunks[0], "teacher_chunks": chunks[1], "exact": alone, "correct": len(cuts)}


_SIDES = ("student", "teacher")


def _arrange_token_alignment(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw blocks of text that the two tokenizers split differently. No letter occurs twice, so that there is only one
    alignment."""
    letters, sides = iter(string.ascii_letters), ([], [])  # type: tuple[Any, tuple[list[str], list[str]]]
    counts = (1, 1)
    for block in range(choose.integer(1, 7)):
        # After a (2, 2) block, only a (1, 1) block is drawn: any other block could join the chunk of the (2, 2) block.
        counts = choose.one_of(_BLOCKS) if counts != (2, 2) else (1, 1)
        text = [next(letters) for _ in range(3 if counts == (2, 2) else max(counts))]
        text[0] = f" {text[0]}" if block and choose.integer(0, 1) else text[0]
        for side, count in enumerate(counts):
            first = 1 + side if counts == (2, 2) else 1 if count > 1 else len(text)
            parts = ["".join(text[:first])] + ([*text[first:]] if counts != (2, 2) else ["".join(text[first:])])
            sides[side].extend(parts[:count] if count > 1 else ["".join(text)])
    return {**inputs, "student": sides[0], "teacher": sides[1]}


TOKEN_ALIGNMENT = rule(
    name="token_alignment",
    summary="the chunks of text in which two tokenizations of one text agree",
    source="Universal Logit Distillation (arXiv:2402.12030) and its successors compare tokens that spell the same text",
    inputs=(
        Input("student", "any", "tokens of the first tokenizer, as text; a space begins a word", choices=((),)),
        Input("teacher", "any", "tokens of the second tokenizer", choices=((),)),
    ),
    observes=(
        Observed("student_chunks", "for each token of the first side, the number of its chunk", ("student",)),
        Observed("teacher_chunks", "for each token of the second side, the number of its chunk", ("teacher",)),
        Observed(
            "exact", "for each token of the first side, whether one token of the second side equals it", ("student",)
        ),
        Observed("correct", "number of chunks whose text is the same on both sides"),
    ),
    measure=returned(student_chunks="integers", teacher_chunks="integers", exact="integers?", correct="number?"),
    oracle=_oracle_token_alignment,
    arrange=_arrange_token_alignment,
)
