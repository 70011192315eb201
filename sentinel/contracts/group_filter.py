"""Dynamic sampling: prompts whose responses are all as good as each other are left out, with all their responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, Choose, Input, Observed, dialect, per_row, rule
from sentinel.contracts.normalisation import lay_out_groups, rows_of
from sentinel.values.literals import tensor

#: Rewards whose mean over some rows of them is not what floats make of it.
_ROUNDED = (0.1, 0.9)


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns the ``numbers`` of the rows that come out, and the ``rewards`` that come out beside them."""
    import torch

    outputs = call(**inputs)
    numbers = list(outputs["numbers"])
    intact = numbers == sorted(set(numbers)) and list(outputs["rewards"]) == inputs["rewards"][numbers].tolist()
    kept = torch.tensor([float(row in numbers) for row in range(len(inputs["group"]))])
    return {"kept": kept, "intact": intact}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All rows of a group of which two rewards differ: the others have an advantage of 0."""
    rewards = inputs["rewards"]
    parts = rows_of(inputs["group"]).values()
    kept = [part for part in parts if len(set(rewards[part].tolist())) > 1]
    kept += [part for part in parts if len(part) == 1 and inputs["group_of_one"] == "kept"]
    if not kept and inputs["none_left"] == "all":
        kept = list(parts)
    numbers = sorted(row for part in kept for row in part)
    return {"numbers": numbers, "rewards": rewards[numbers].tolist()}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Groups in the layout that the boundary needs; the last is often all alike, and then often no sum of halves."""
    inputs = lay_out_groups(inputs, choose)
    rewards = inputs["rewards"]
    if choose.integer(0, 2) < 2:
        values = rewards.array().tolist()
        last = rows_of(inputs["group"])[inputs["group"][-1]]
        same = choose.one_of((values[last[0]], *_ROUNDED))
        alike = [same if row in last else value for row, value in enumerate(values)]
        inputs["rewards"] = tensor(alike, rewards.dtype)
    return inputs


GROUP_FILTER = rule(
    name="group_filter",
    summary="the responses that are trained on: those to prompts whose rewards are not all alike",
    source="DAPO (arXiv:2503.14476), section 3.2, equation 11: dynamic sampling leaves out what has no advantage",
    inputs=(
        per_row("rewards", "reward of each response", "reward", dtype="float64"),
        Input("group", "labels", "the prompt that each response answers", shape=("batch",)),
        Input(
            "group_layout",
            "string",
            "which labels the boundary can be given: any, consecutive, equal (consecutive, and of one size)",
            default="any",
        ),
        dialect("group_of_one", "dropped", "a response without others to differ from: dropped, or kept"),
        dialect("none_left", "none", "what comes out where no group is kept: none, or all"),
    ),
    observes=(
        Observed("kept", "1 for a response that comes out", ("batch",), "decision"),
        Observed("intact", "whether those come out once each, in their order, beside their own rewards"),
    ),
    measure=_measure,
    oracle=_oracle,
    group="group",
    laws=("groups_are_isolated", "order_does_not_matter", "twins_agree", *AS_DEFINED),
    arrange=_arrange,
)
