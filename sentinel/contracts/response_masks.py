"""Response masks: which tokens of what an engine generated are the policy's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule

#: Ids of ordinary tokens; the special ones are below.
_WORDS = 10


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` gets the batch padded as frameworks have it (``prompts`` on the left, ``responses`` on the right) and
    returns ``response_mask`` of the response columns, and of the prompt columns if it has them."""
    import torch

    pad = inputs["pad_token_id"]
    prompts, responses = inputs["prompt_token_ids"], inputs["response_token_ids"]
    before = max(map(len, prompts))
    left = [[pad] * (before - len(row)) + list(row) for row in prompts]
    right = [list(row) + [pad] * (inputs["response_length"] - len(row)) for row in responses]
    outputs = call(
        prompts=torch.tensor(left),
        prompt_mask=torch.tensor([[0] * (before - len(row)) + [1] * len(row) for row in prompts]),
        responses=torch.tensor(right),
        lengths=torch.tensor([len(row) for row in responses]),
        **{name: inputs[name] for name in ("eos_token_id", "pad_token_id", "response_length")},
    )
    mask = outputs["response_mask"]
    return {
        "response_mask": mask[:, -inputs["response_length"] :].to(torch.int64),
        "counted_prompt_tokens": int(mask[:, : -inputs["response_length"]].sum()),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Every token that the policy chose, its EOS too, and nothing behind it."""
    import torch

    places = torch.arange(inputs["response_length"])
    return {"response_mask": (places[None, :] < inputs["lengths"][:, None]).to(torch.int64)}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """A response ends with EOS, or fills the whole length; no other token of it is special."""
    length, eos = inputs["response_length"], inputs["eos_token_id"]
    prompts, responses = [], []
    for _ in range(choose.integer(1, 3)):
        prompts.append([_WORDS + place for place in range(choose.integer(1, 3))])
        words = choose.integer(0, length)
        responses.append([_WORDS + 5 + place for place in range(words)] + [eos] * (words < length))
    return {**inputs, "prompt_token_ids": prompts, "response_token_ids": responses}


RESPONSE_MASKS = rule(
    name="response_masks",
    summary="the mask of the tokens that the policy chose, from what an engine generated",
    source="REINFORCE (Williams, 1992): every action has a term, and the decision to stop is an action",
    inputs=(
        Input("prompt_token_ids", "any", "token ids of each prompt, ragged", choices=([],)),
        Input(
            "response_token_ids", "any", "token ids of each response, ragged, with the EOS that ends it", choices=([],)
        ),
        Input("response_length", "integer", "columns that responses have", choices=(4, 2, 6)),
        Input("eos_token_id", "integer", "id of the end of a response", default=1, choices=(1, 0)),
        Input(
            "pad_token_id", "integer", "id of padding; many tokenizers have one id for both", default=0, choices=(0,)
        ),
    ),
    observes=(
        Observed("response_mask", "1 where the policy chose a token, its EOS among them", ("batch", "columns")),
        Observed("counted_prompt_tokens", "how many tokens of prompts the mask counts"),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
