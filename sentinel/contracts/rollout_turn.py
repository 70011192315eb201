"""A turn of a rollout: an observation (a tool's answer) behind what the policy said, in the room that is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns the ``response_mask`` of the tokens of the response so far, and whether it ``ended``."""
    import torch

    outputs = call(**inputs)
    mask = torch.as_tensor(list(outputs["response_mask"]), dtype=torch.int64)
    return {"response_mask": mask, "ended": bool(outputs["ended"])}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What fits is there, and is not trained on; a response without room for another token has ended."""
    said, heard, room = (inputs[name] for name in ("generated_tokens", "observation_tokens", "response_length"))
    there = heard if said + heard <= room else 0
    return {"response_mask": [1] * said + [0] * there, "ended": said + heard >= room}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Room for what the policy has said already."""
    inputs["response_length"] = max(inputs["response_length"], inputs["generated_tokens"])
    return inputs


ROLLOUT_TURN = rule(
    name="rollout_turn",
    summary="an observation that follows what the policy said, in the room that a response has",
    source="a limit of n tokens is kept by n tokens: what fits exactly fits",
    inputs=(
        Input("generated_tokens", "integer", "tokens that the policy said so far", choices=(3, 1, 2)),
        Input("observation_tokens", "integer", "tokens that the environment answers", choices=(2, 1, 3)),
        Input("response_length", "integer", "most tokens of a response, observations among them", choices=(8, 5, 4, 3)),
    ),
    observes=(
        Observed(
            "response_mask",
            "for each token of the response: 1 the policy's, 0 the environment's; an observation that does not fit is "
            "not there",
            ("response",),
        ),
        Observed("ended", "whether the response has no room left, or not enough"),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
