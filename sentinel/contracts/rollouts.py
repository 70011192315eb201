"""Rollouts: what an engine and an environment are asked for, and what becomes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, REQUIRED, Choose, Input, Observed, knob, rule

# -- truncation --------------------------------------------------------------------------------------------------------


def _measure_truncation(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``token_ids``, those that are left, in their order and without padding or a note that something
    is missing, and the ``loss_mask`` beside them."""
    import torch

    outputs = call(**inputs)
    mask = outputs.get("loss_mask")
    return {
        "token_ids": torch.as_tensor(list(outputs["token_ids"]), dtype=torch.int64),
        "loss_mask": None if mask is None else torch.as_tensor(list(mask), dtype=torch.int64),
    }


def _oracle_truncation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is too long, ``side`` loses the surplus and the other end stays. Padding changes none of it."""
    surplus = max(len(inputs["token_ids"]) - inputs["max_length"], 0)

    def left_of(values: Any) -> Any:
        return values[surplus:] if inputs["side"] == "left" else values[: len(values) - surplus]

    mask = inputs["loss_mask"]
    return {"token_ids": left_of(inputs["token_ids"]), "loss_mask": None if mask is None else left_of(mask)}


def _arrange_truncation(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Tokens that all differ: a prompt, and an answer that is trained on."""
    prompt, answer = choose.integer(0, 4), choose.integer(1, 4)
    inputs["token_ids"] = [65 + place for place in range(prompt + answer)]
    inputs["loss_mask"] = [0] * prompt + [1] * answer
    return inputs


TRUNCATION = rule(
    name="truncation",
    summary="what is left of a sequence of tokens or letters that is longer than there is room for",
    source="truncation sides as tokenizers define them: `left` loses the beginning, `right` loses the end",
    inputs=(
        Input("token_ids", "any", "the sequence; of a text, the code points of its letters", choices=([],)),
        Input("loss_mask", "any", "1 where a token is trained on; null where the boundary has none", default=None),
        Input("max_length", "integer", "how many of them there is room for", choices=(3, 1, 2, 5)),
        knob("side", "the end that loses tokens: left or right", ("right", "left"), REQUIRED),
        Input(
            "padded",
            "boolean",
            "whether what is shorter than max_length is filled up to it; the padding is no part of the answer",
            default=False,
            choices=(False, True),
        ),
    ),
    observes=(
        Observed("token_ids", "the tokens that are left, in their order", ("kept",)),
        Observed("loss_mask", "the loss mask of these", ("kept",)),
    ),
    measure=_measure_truncation,
    oracle=_oracle_truncation,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_truncation,
)


# -- sampling requests -------------------------------------------------------------------------------------------------


_PARAMETERS = {
    "temperature": ("divisor of the logits", (1.0, 0.7, 1.5)),
    "top_p": ("probability of the tokens that are sampled from", (1.0, 0.9)),
    "top_k": ("number of the tokens that are sampled from", (50, 20)),
    "max_new_tokens": ("most tokens of a response", (8, 4)),
    "repetition_penalty": ("divisor of the logits of tokens that were there already", (1.0, 1.1)),
}


def _measure_sampling_request(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a boundary has no option for is not looked at."""
    outputs = call(**inputs)
    return {name: None if inputs[name] is None else outputs.get(name) for name in _PARAMETERS}


def _oracle_sampling_request(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As configured."""
    return {name: inputs[name] for name in _PARAMETERS}


SAMPLING_REQUEST = rule(
    name="sampling_request",
    summary="the sampling parameters of a request to an inference engine",
    source="log-probs and samples are of the distribution that the configuration names, whoever is asked for them",
    inputs=tuple(
        knob(
            name,
            f"{meaning}; null where the boundary has no such option",
            values,
            REQUIRED if name == "temperature" else None,
            kind="number",
        )
        for name, (meaning, values) in _PARAMETERS.items()
    ),
    observes=tuple(Observed(name, f"the request's {meaning}") for name, (meaning, _) in _PARAMETERS.items()),
    measure=_measure_sampling_request,
    oracle=_oracle_sampling_request,
    law="every_knob_counts",
    laws=("the_oracle_agrees", "every_knob_counts", "nothing_else_is_touched"),
)
