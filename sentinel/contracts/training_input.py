"""From rollouts to the training batch: what the driver hands to its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import TOKENS, Choose, Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    refusal = outputs["refusal"]
    return {
        "accepted": refusal is None,
        "refusal": refusal,
        "names_the_option": refusal is not None and inputs["option"] in refusal["message"],
        "rollout_log_probs": outputs["rollout_log_probs"],
    }


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """A few rollouts, with log-probs or without, under a configuration that needs log-probs or one that does not."""
    rows = choose.integer(1, 3)
    lengths = [(choose.integer(1, 3), choose.integer(1, 4)) for _ in range(rows)]
    inputs["prompt_token_ids"] = [[10 + place for place in range(prompt)] for prompt, _ in lengths]
    inputs["response_token_ids"] = [[20 + place for place in range(response)] for _, response in lengths]
    inputs["rewards"] = [[0.0] * (response - 1) + [1.0] for _, response in lengths]
    inputs["loss_masks"] = [[1] * response for _, response in lengths]
    if choose.integer(0, 1):
        inputs["rollout_log_probs"] = [[-0.25 * (1 + place) for place in range(length)] for _, length in lengths]
    inputs["configuration"] = {**inputs["configuration"], **inputs["needing"]}
    return inputs


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without log-probs, what needs them is refused; else they stand where the responses stand, aligned right."""
    import torch

    given = inputs["rollout_log_probs"]
    if not given:
        missed = {"type": "", "message": inputs["option"]} if inputs["needing"] else None
        return {"refusal": missed, "rollout_log_probs": None}
    tokens = max(map(len, given))
    rows = [[0.0] * (tokens - len(row)) + list(row) for row in given]
    return {"refusal": None, "rollout_log_probs": torch.tensor(rows, dtype=torch.float64)}


TRAINING_INPUT = Contract(
    name="training_input",
    summary="the training batch that the driver makes of rollouts, or its refusal",
    source=(
        "what an option needs and rollouts lack is missed on the driver, by the option's name, not deep inside a worker"
    ),
    inputs=(
        Input("prompt_token_ids", "any", "token ids of each prompt, ragged", choices=([],)),
        Input("response_token_ids", "any", "token ids of each response, ragged", choices=([],)),
        Input("rewards", "any", "reward of each response token, ragged", choices=([],)),
        Input("loss_masks", "any", "1 where a response token counts, ragged", choices=([],)),
        Input("rollout_log_probs", "any", "rollout log-prob of each response token, ragged; null: none", default=None),
        Input("configuration", "mapping", "dotted option -> value", default={}),
        Input(
            "needing",
            "mapping",
            "what a search adds to the configuration: options that need the rollouts' log-probs; empty: nothing does",
            default={},
        ),
        Input("option", "string", "the option that a clear refusal names", default=""),
    ),
    observes=(
        Observed("accepted", "whether a batch was made"),
        Observed("refusal", "type and message of the error, where it was not", role="other"),
        Observed("names_the_option", "whether that message names the option", role="other"),
        Observed("rollout_log_probs", "those of the batch; null where it has none", TOKENS),
    ),
    measure=_measure,
    oracle=_oracle,
    laws=("the_oracle_agrees", "nothing_else_is_touched"),
    arrange=_arrange,
)
