"""From rollouts to the training batch: what the driver hands to its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    refusal = outputs["refusal"]
    return {
        "accepted": refusal is None,
        "refusal": refusal,
        "names_the_option": refusal is not None and inputs["option"] in refusal["message"],
        "rollout_log_probs": outputs["rollout_log_probs"],
    }


TRAINING_INPUT = Contract(
    name="training_input",
    summary="the training batch that the driver makes of rollouts, or its refusal",
    source=(
        "what an option needs and rollouts lack is missed on the driver, by the option's name, not deep inside a worker"
    ),
    inputs=(
        Input("prompt_token_ids", "any", "token ids of each prompt, ragged"),
        Input("response_token_ids", "any", "token ids of each response, ragged"),
        Input("rewards", "any", "reward of each response token, ragged"),
        Input("loss_masks", "any", "1 where a response token counts, ragged"),
        Input("rollout_log_probs", "any", "rollout log-prob of each response token, ragged; null: none", default=None),
        Input("configuration", "mapping", "dotted option -> value", default={}),
        Input("option", "string", "the option that a clear refusal names"),
    ),
    observes=(
        Observed("accepted", "whether a batch was made"),
        Observed("refusal", "type and message of the error, where it was not"),
        Observed("names_the_option", "whether that message names the option"),
        Observed("rollout_log_probs", "those of the batch; null where it has none", ("batch", "tokens")),
    ),
    measure=_measure,
)
