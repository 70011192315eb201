"""Router replay: a mixture of experts trains on the routes that its rollout took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Look at each router when the model runs on a microbatch: does it replay, and whose routes?

    ``model_calls`` of the adapter: one per microbatch in order, ``{"tokens": int, "routers": [{"action": str | None,
    "routes_of": microbatch whose routes are set, or None, "rows": number of routes}]}``.
    """
    outputs = call(**inputs)
    calls = outputs["model_calls"]
    replaying = [[router for router in one["routers"] if router["action"] is not None] for one in calls]
    return {
        "stale_replay": [
            any(router["routes_of"] != index for router in routers) for index, routers in enumerate(replaying)
        ],
        "wrong_size": [
            any(router["rows"] != one["tokens"] for router in routers) for one, routers in zip(calls, replaying)
        ],
        "actions": [sorted({router["action"] or "none" for router in one["routers"]}) for one in calls],
        "left_over": outputs["left_over"],
    }


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
        ),
        Input("max_tokens_per_microbatch", "integer", "token budget of one microbatch"),
        Input(
            "padding_microbatches", "integer", "microbatches that the slowest data-parallel rank has more than this one"
        ),
    ),
    observes=(
        Observed(
            "stale_replay", "for each microbatch, the padding ones last: whether a router replays another one's routes"
        ),
        Observed("wrong_size", "for each microbatch: whether a router replays routes for another number of tokens"),
        Observed("actions", "for each microbatch: what the routers were told to do"),
        Observed("left_over", "whether a router is still told to replay when the step is over"),
    ),
    measure=_measure,
)
