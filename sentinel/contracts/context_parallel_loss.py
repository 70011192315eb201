"""Context-parallel losses: the loss of a sequence whose tokens are spread over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule
from sentinel.values.literals import tensor


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` goes through all ranks, and returns the ``loss`` that the ranks have together."""
    return {"loss": float(call(**inputs)["loss"])}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The mean over the sequence's tokens; on how many ranks they are is not in it."""
    return {"loss": inputs["losses"].mean()}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """A response behind a prompt."""
    inputs["losses"] = tensor([choose.one_of((1.0, 2.0, 0.5)) for _ in range(choose.integer(1, 6))], "float32")
    inputs["prompt_length"] = choose.integer(1, 5)
    return inputs


CONTEXT_PARALLEL_LOSS = rule(
    name="context_parallel_loss",
    summary="the mean loss of a sequence's tokens, which context-parallel ranks share",
    source="data and context parallelism are implementations of one sum (Megatron-LM, arXiv:2104.04473)",
    inputs=(
        Input("losses", "any", "loss of each response token: tensor [tokens]", choices=((),)),
        Input("prompt_length", "integer", "tokens of the prompt, which the ranks share too", choices=(4,)),
        Input("context_parallel_size", "integer", "ranks", choices=(1, 2, 4)),
        Input("per_token", "boolean", "whether losses are summed and divided by all tokens", choices=(True, False)),
    ),
    observes=(Observed("loss", "the loss of the sequence"),),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
