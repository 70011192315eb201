"""Rollout episodes: turns of a policy and its environment, as one response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns the ``loss_mask`` of the response's tokens, and whether it says that it was ``cut``."""
    import torch

    outputs = call(**inputs)
    mask = torch.as_tensor(list(outputs["loss_mask"]), dtype=torch.int64)
    return {"loss_mask": mask, "cut": bool(outputs["cut"])}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the policy said, with what it heard between two turns; what comes after its last turn, it never answers.
    A response has no more tokens than there is room for, and says so where it had to be cut."""
    mask: list[int] = []
    for said, heard in zip(inputs["said"], inputs["heard"]):
        mask += [1] * said + [0] * heard
    whole = mask[: len(mask) - inputs["heard"][-1]]
    room = inputs["max_tokens"]
    return {"loss_mask": whole[:room], "cut": len(whole) > room}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """A word and EOS at least in every turn; the environment may say something with the last one, too. The limit is
    that of an episode of one turn: in a conversation it is the engine's, for each turn."""
    turns = choose.integer(1, inputs["turns"])
    inputs["said"] = [choose.integer(2, 4) for _ in range(turns)]
    inputs["heard"] = [choose.integer(1, 2) for _ in range(turns - 1)] + [choose.integer(0, 2)]
    inputs["turns"] = turns
    if turns > 1 or inputs["heard"][-1]:
        inputs["max_tokens"] = 100
    return inputs


ROLLOUT_EPISODE = rule(
    name="rollout_episode",
    summary="the response that turns of a policy and its environment make",
    source="a response is what the policy said, and what it heard before that; n tokens are within a limit of n",
    inputs=(
        Input("said", "any", "tokens that the policy says in each turn, EOS among them", choices=([],)),
        Input("heard", "any", "tokens that the environment answers to each turn, the last one included", choices=([],)),
        Input("turns", "integer", "how many turns there may be", choices=(1, 2, 3)),
        Input("max_tokens", "integer", "most tokens of a response", choices=(100, 2, 4)),
    ),
    observes=(
        Observed("loss_mask", "for each token of the response: 1 the policy's, 0 the environment's", ("response",)),
        Observed("cut", "whether the response is said to have reached its limit"),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
