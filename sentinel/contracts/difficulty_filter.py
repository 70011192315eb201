"""Difficulty filters: prompts that are too hard or too easy for the policy are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, REQUIRED, Input, Observed, dialect, knob, per_row, rule
from sentinel.contracts.normalisation import lay_out_groups, rows_of


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"kept": call(**inputs)["kept"]}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """1 for each row of a group with ``low < mean reward < high``."""
    import torch

    kept = torch.zeros(len(inputs["group"]), dtype=torch.float64)
    for rows in rows_of(inputs["group"]).values():
        unfiltered = len(rows) == 1 and inputs["group_of_one"] == "kept"
        kept[rows] = float(unfiltered or inputs["low"] < inputs["rewards"][rows].mean() < inputs["high"])
    return {"kept": kept}


DIFFICULTY_FILTER = rule(
    name="difficulty_filter",
    summary="the responses that are trained on: those to prompts of medium difficulty",
    source="PRIME (arXiv:2502.01456), online prompt filtering: prompts whose accuracy is within a range",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        Input("group", "labels", "the prompt that each response answers", shape=("batch",)),
        Input("group_layout", "string", "any, consecutive, or equal (and of one size)", default="any"),
        knob("low", "a prompt whose mean is not above is too hard", (0.125, 0.375), REQUIRED),
        knob("high", "one whose mean is not below is too easy", (0.875, 0.625), REQUIRED),
        dialect("group_of_one", "filtered", "a response without others to the same prompt: filtered, or kept"),
    ),
    observes=(Observed("kept", "1 for a response that is trained on", ("batch",), "decision"),),
    measure=_measure,
    oracle=_oracle,
    group="group",
    laws=("groups_are_isolated", "order_does_not_matter", "twins_agree", "every_knob_counts", *AS_DEFINED),
    arrange=lay_out_groups,
)
