"""Advantage normalisation: token-level advantages, centred and scaled over the tokens that count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import TOKENS, Contract, Observed, dialect, per_token, token_mask
from sentinel.contracts.normalisation import LAWS_OF_TOKENS, NORMALISATION_INPUTS, lay_out_groups, normalised


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A token that does not count has no advantage; where a boundary means to leave something there, it is left out."""
    import torch

    found = call(**inputs)["normalised"]
    valid = inputs["response_mask"] != 0
    left = 0.0 if inputs["masked_output"] == "any" else float(torch.where(valid, 0.0, found).abs().sum())
    return {"normalised": torch.where(valid, found, 0.0), "left_on_masked": left}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``(A_it - mean) / (std + epsilon)`` over the group's or the batch's tokens that count."""
    return {"normalised": normalised(inputs["advantages"], inputs["response_mask"] != 0, inputs)}


ADVANTAGE_NORMALISATION = Contract(
    name="advantage_normalisation",
    summary="token-level advantages relative to those of the group's or the batch's tokens that count",
    source="What Matters in On-Policy RL (arXiv:2006.05990), section 3.3; REINFORCE++ (arXiv:2501.03262), equation 7",
    inputs=(
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(),
        *NORMALISATION_INPUTS,
        dialect(
            "masked_output", "zero", "what a token that does not count comes out with: zero, or any (nobody reads it)"
        ),
    ),
    observes=(
        Observed("normalised", "advantage of each token that counts, normalised; 0 elsewhere", TOKENS),
        Observed("left_on_masked", "sum of magnitudes that tokens that do not count come out with"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    group="group",
    aliases={"loss_mask": "response_mask", "uid": "group", "index": "group"},
    laws=LAWS_OF_TOKENS,
    arrange=lay_out_groups,
)
