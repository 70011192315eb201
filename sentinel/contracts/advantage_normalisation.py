"""Advantage normalisation: token-level advantages, centred and scaled over the tokens that count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed
from sentinel.contracts.normalisation import LAWS_OF_TOKENS, NORMALISATION_INPUTS, lay_out_groups, normalised


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at tokens that do not count is nobody's meaning: it is left out on both sides."""
    import torch

    return {"normalised": torch.where(inputs["response_mask"] != 0, call(**inputs)["normalised"], 0.0)}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``(A_it - mean) / (std + epsilon)`` over the group's or the batch's tokens that count."""
    return {"normalised": normalised(inputs["advantages"], inputs["response_mask"] != 0, inputs)}


ADVANTAGE_NORMALISATION = Contract(
    name="advantage_normalisation",
    summary="token-level advantages relative to those of the group's or the batch's tokens that count",
    source="What Matters in On-Policy RL (arXiv:2006.05990), section 3.3; REINFORCE++ (arXiv:2501.03262), equation 7",
    inputs=(
        Input("advantages", "tensor", "advantage of each token", shape=("batch", "tokens"), domain="advantage"),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts",
            shape=("batch", "tokens"),
            domain="mask",
            dtypes=("bool", "int64"),
        ),
        *NORMALISATION_INPUTS,
    ),
    observes=(
        Observed("normalised", "advantage of each token that counts, normalised; 0 elsewhere", ("batch", "tokens")),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    group="group",
    aliases={"loss_mask": "response_mask", "uid": "group", "index": "group"},
    laws=LAWS_OF_TOKENS,
    arrange=lay_out_groups,
)
