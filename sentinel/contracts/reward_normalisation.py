"""Reward normalisation: the rewards of a batch of responses, centred and scaled within groups or the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Observed, knob, per_row, rule
from sentinel.contracts.normalisation import LAWS_OF_TOKENS, NORMALISATION_INPUTS, lay_out_groups, normalised


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"normalised": call(**inputs)["normalised"]}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``clip((r_i - mean) / (std + epsilon))``: see :func:`sentinel.contracts.normalisation.normalised`."""
    import torch

    rewards = inputs["rewards"]
    result = normalised(rewards, torch.ones_like(rewards, dtype=torch.bool), inputs)
    clip = inputs["clip"]
    return {"normalised": result if clip is None else result.clamp(-clip, clip)}


#: Laws about a mask, which rewards do not have.
_OF_MASKS = ("masked_values_have_no_influence", "a_rejected_row_is_an_absent_row", "padding_is_invisible")

REWARD_NORMALISATION = rule(
    name="reward_normalisation",
    summary="the rewards that training sees, from those of the task, relative to the group or the batch",
    source="GRPO (arXiv:2402.03300), section 4.1.2; Dr. GRPO (arXiv:2503.20783); RLOO (arXiv:2402.14740), section 3.3",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        *NORMALISATION_INPUTS,
        knob("clip", "bound of the |normalised reward|; left out, none", (None, 1.0, 0.25)),
    ),
    observes=(Observed("normalised", "reward of each response, normalised", ("batch",)),),
    measure=_measure,
    oracle=_oracle,
    group="group",
    aliases={"scores": "rewards", "uid": "group", "index": "group"},
    laws=tuple(law for law in LAWS_OF_TOKENS if law not in _OF_MASKS),
    arrange=lay_out_groups,
)
