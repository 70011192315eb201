"""Microbatch packing: rows that are put together until a budget of tokens is full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import replaced
from sentinel.contracts.contract import Choose, Contract, Input, Observed, per_token


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``parts``: for each microbatch the places of its rows in the batch."""
    import torch

    parts = [list(part) for part in call(**inputs)["parts"]]
    lengths = (inputs["attention_mask"] != 0).sum(-1)
    places = torch.tensor([row for part in parts for row in part], dtype=torch.int64)
    largest = max((int(lengths[part].sum()) for part in parts), default=0)
    return {
        "times": torch.bincount(places, minlength=len(lengths)).float(),
        "excess": float(max(largest - inputs["max_tokens_per_microbatch"], 0)),
        "microbatches": len(parts),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A packing: every row is in one part, and no part is above the budget. Each row on its own is one."""
    return {"parts": [[row] for row in range(len(inputs["attention_mask"]))]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Rows of at least one token, and a budget that each fits in."""
    mask = inputs["attention_mask"]
    filled = mask.array() != 0
    filled[:, 0] |= ~filled.any(-1)
    inputs["attention_mask"] = replaced(mask, filled.astype(int))
    inputs["max_tokens_per_microbatch"] = max(inputs["max_tokens_per_microbatch"], int(np.shape(filled)[-1]))
    return inputs


MICROBATCH_PACKING = Contract(
    name="microbatch_packing",
    summary="microbatches of as many rows as a budget of tokens has room for",
    source="bin packing (Johnson et al., 1974): every item in one bin, and no bin above its capacity",
    inputs=(
        per_token("attention_mask", "1 where a token is no padding", "mask", dtype="int64"),
        Input(
            "max_tokens_per_microbatch",
            "integer",
            "most tokens of a microbatch; no row has more",
            choices=(100, 5, 6, 8),
        ),
    ),
    observes=(
        Observed("times", "in how many microbatches each row is", ("batch",)),
        Observed("excess", "tokens of the largest microbatch above the budget"),
        Observed("microbatches", "how many there are; a packing may take more than it must", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"max_token_len": "max_tokens_per_microbatch"},
    laws=("the_oracle_agrees", "nothing_else_is_touched"),
    mask="attention_mask",
    arrange=_arrange,
)
