"""Router replay: a mixture of experts trains on the routes that its rollout took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.contract import Choose, Contract, Input, Observed
from sentinel.values.literals import from_array


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Look at each router when the model runs on a microbatch: does it replay, and whose routes?

    ``model_calls`` of the adapter: one per microbatch in order, ``{"tokens": int, "routers": [{"action": str | None,
    "routes_of": microbatch whose routes are set, or None, "rows": number of routes}]}``.
    """
    outputs = call(**inputs)
    calls = outputs["model_calls"]
    stale, wrong = _stale(calls), _wrong_size(calls)
    return {
        "stale_replay": stale,
        "wrong_size": wrong,
        "stale_microbatches": sum(stale),
        "wrong_size_microbatches": sum(wrong),
        "actions": [sorted({router["action"] or "none" for router in one["routers"]}) for one in calls],
        "left_over": outputs["left_over"],
    }


def _replaying(call: Mapping[str, Any]) -> list[Any]:
    return [router for router in call["routers"] if router["action"] is not None]


def _stale(calls: list[Any]) -> list[bool]:
    return [any(router["routes_of"] != index for router in _replaying(one)) for index, one in enumerate(calls)]


def _wrong_size(calls: list[Any]) -> list[bool]:
    return [any(router["rows"] != one["tokens"] for router in _replaying(one)) for one in calls]


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """R3, section 3: a router that replays does so with the routes of the very tokens that it is given; so no call of
    the model is one with another microbatch's routes, and none is told to replay when the step is over."""
    return {"model_calls": [], "left_over": False}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    shape = [choose.integer(1, 3), choose.integer(2, 4), choose.integer(1, 2), choose.integer(1, 2)]
    experts = np.array(choose.integers(int(np.prod(shape)), 0, 7), np.int64).reshape(shape)
    inputs["expert_indices"] = from_array(experts, "int64")
    return inputs


ROUTER_REPLAY = Contract(
    name="router_replay",
    summary="whose routes the routers replay while the model runs on each microbatch, padding microbatches included",
    source="R3, Rollout Routing Replay (arXiv:2510.11370): a token is trained on the experts of its own rollout",
    inputs=(
        Input(
            "expert_indices",
            "tensor",
            "expert that the rollout chose",
            dtype="int64",
            shape=("batch", "tokens", "layers", "top-k"),
            choices=(None,),  # a search makes them in arrange: no domain holds expert numbers
        ),
        Input("max_tokens_per_microbatch", "integer", "token budget of one microbatch", choices=(4, 8, 100)),
        Input(
            "padding_microbatches",
            "integer",
            "microbatches that the slowest data-parallel rank has more than this one",
            choices=(0, 1, 2),
        ),
    ),
    observes=(
        Observed(
            "stale_replay",
            "for each microbatch, the padding ones last: whether a router replays another one's routes",
            role="other",
        ),
        Observed(
            "wrong_size",
            "for each microbatch: whether a router replays routes for another number of tokens",
            role="other",
        ),
        Observed("stale_microbatches", "in how many microbatches a router replays another one's routes"),
        Observed("wrong_size_microbatches", "in how many a router replays routes for another number of tokens"),
        Observed("actions", "for each microbatch: what the routers were told to do", role="other"),
        Observed("left_over", "whether a router is still told to replay when the step is over"),
    ),
    measure=_measure,
    oracle=_oracle,
    laws=("the_oracle_agrees",),
    arrange=_arrange,
)
