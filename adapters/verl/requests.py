"""verl: what an engine is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, StandIn
from sentinel.worker.kit import stand_in

_LOOP = "verl.experimental.agent_loop.agent_loop"
_PROTOCOL = "verl.protocol"

_SELF = StandIn("self", "the real worker holds a client of an engine; the method reads its configuration alone")
_RUN = StandIn("_run_agent_loop", "keeps the sampling parameters that it is given; no response is sampled")


def _asked(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that an agent's loop gets for one prompt, with the options of a rollout."""
    import torch

    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    agent = stand_in(default_agent_loop="single_turn_agent")
    config = {**{name: inputs[name] for name in names}, "calculate_log_probs": False, "agent": agent}
    asked: dict[str, Any] = {}

    async def run(sampling_params: Mapping[str, Any], *_: Any, **__: Any) -> None:
        asked.update(sampling_params)

    worker = object.__new__(boundary.owner)
    worker.rollout_config = stand_in(**config)
    worker.config = stand_in(actor_rollout_ref=stand_in(rollout=worker.rollout_config))  # older ones'
    worker._run_agent_loop = run
    worker._postprocess = lambda outputs, **_: outputs
    batch = boundary.imported[_PROTOCOL].DataProto.from_dict(tensors={"prompts": torch.zeros(1, 1)})
    asyncio.run(boundary.function(worker, batch))
    return asked


BINDINGS = (
    Binding(
        f"{_LOOP}.AgentLoopWorker.generate_sequences",
        "sampling_request",
        call=_asked,
        imports=(_PROTOCOL,),
        stand_ins=(_SELF, _RUN),
        requires=(f"{_LOOP}.AgentLoopWorker.generate_sequences",),  # workers have a method of this name
        accepts={"max_new_tokens": (None,), "top_p": (1.0, 0.9), "top_k": (50, 20), "repetition_penalty": (1.0, 1.1)},
    ),
)

UNBOUND = {f"{_LOOP}.*": "a register of loops, and what is traced of them"}
