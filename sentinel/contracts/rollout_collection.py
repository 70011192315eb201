"""Rollout collection: a batch that is taken of the rollouts that are done, and what is left for the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``taken`` and ``left``: rollouts by their number, which is the order that they end in."""
    import torch

    outputs = call(**inputs)
    taken, left = ([int(number) for number in outputs[name]] for name in ("taken", "left"))
    places = torch.tensor([*taken, *left], dtype=torch.int64)
    return {
        "times": torch.bincount(places, minlength=inputs["completed"]),
        "size": len(taken),
        "taken": taken,
        "left": left,
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of as many as are needed; what is not in it is still there."""
    done = range(inputs["completed"])
    return {"taken": done[: inputs["needed"]], "left": done[inputs["needed"] :]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """No less than a batch: nothing else is to be waited for."""
    inputs["completed"] = inputs["needed"] + choose.integer(0, 4)
    return inputs


ROLLOUT_COLLECTION = rule(
    name="rollout_collection",
    summary="a batch that is taken of the rollouts that are done, and what is left for the next",
    source="a queue: what is put in is taken out once",
    inputs=(
        Input("completed", "integer", "rollouts that are done", choices=(0,)),
        Input("needed", "integer", "rollouts of a batch", choices=(2, 1, 3)),
    ),
    observes=(
        Observed("times", "how often each rollout is in the batch or among what is left", ("rollouts",)),
        Observed("size", "rollouts of the batch"),
        Observed("taken", "which these are", role="other"),
        Observed("left", "what is left", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
