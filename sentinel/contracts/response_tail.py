"""Response tails: of numbers that an engine gives for prompt and response, those of the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``tails``: a list of numbers for each sample."""
    import torch

    tails = [[float(value) for value in row] for row in call(**inputs)["tails"]]
    return {
        "lengths": torch.tensor([len(row) for row in tails]),
        "values": torch.tensor([value for row in tails for value in row], dtype=torch.float64),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The last n of a row, n being the length of the response; of no response nothing."""
    rows = zip(inputs["values"], inputs["response_lengths"])
    return {"tails": [row[len(row) - length :] for row, length in rows]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Every number is another one; responses may be empty, prompts are not."""
    values, lengths = [], []
    for row in range(choose.integer(1, 3)):
        prompt, response = choose.integer(1, 3), choose.integer(0, 3)
        values.append([-0.5 * (1 + place) - 8.0 * row for place in range(prompt + response)])
        lengths.append(response)
    return {**inputs, "values": values, "response_lengths": lengths}


RESPONSE_TAIL = rule(
    name="response_tail",
    summary="of one number a token of prompt and response, those of the response",
    source="a field with one number for each response token has as many as there are",
    inputs=(
        Input("values", "any", "one number for each token of prompt and response, ragged", choices=([],)),
        Input("response_lengths", "any", "tokens of each response", choices=([],)),
    ),
    observes=(
        Observed("lengths", "how many numbers each sample gets", ("samples",)),
        Observed("values", "the numbers of all samples, one after the other", ("kept",)),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
