"""What makes rollouts and batches of them: the oracles by hand, and what the measurement makes of broken twins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from contract_kit import measured

# -- turns -------------------------------------------------------------------------------------------------------------


# -- masks of responses ------------------------------------------------------------------------------------------------

#: Two prompts of 1 and 2 tokens; a response that ends with EOS, and one that fills its three columns.
GENERATED: Mapping[str, Any] = {
    "prompt_token_ids": [[8], [8, 9]],
    "response_token_ids": [[5, 0], [5, 6, 7]],
    "response_length": 3,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def test_the_end_of_a_response_is_a_token_of_it() -> None:
    seen = measured("response_masks", **GENERATED)
    assert seen == {"response_mask": [[1, 1, 0], [1, 1, 1]], "counted_prompt_tokens": 0}


def test_what_a_boundary_is_given_is_padded_on_both_sides() -> None:
    given: dict[str, Any] = {}

    def not_padding(**inputs: Any) -> dict[str, Any]:
        given.update(inputs)
        whole = torch.cat((inputs["prompts"], inputs["responses"]), dim=-1)
        return {"response_mask": whole != inputs["pad_token_id"]}

    seen = measured("response_masks", not_padding, **GENERATED)
    assert given["prompts"].tolist() == [[0, 8], [8, 9]]
    assert given["prompt_mask"].tolist() == [[0, 1], [1, 1]]
    assert given["responses"].tolist() == [[5, 0, 0], [5, 6, 7]]
    assert seen == {"response_mask": [[1, 0, 0], [1, 1, 1]], "counted_prompt_tokens": 3}


# -- samples of prompts ------------------------------------------------------------------------------------------------


# -- batches of rollouts -----------------------------------------------------------------------------------------------


# -- what engines are asked, and answer --------------------------------------------------------------------------------


def test_a_request_says_what_the_configuration_says() -> None:
    given = {"temperature": 0.7, "top_p": 0.9}
    assert measured("sampling_request", **given)["temperature"] == 0.7
    seen = measured("sampling_request", lambda **_: {"temperature": 0, "top_k": 5}, **given)
    assert (seen["temperature"], seen["top_p"], seen["top_k"]) == (0, None, None)


# -- groups ------------------------------------------------------------------------------------------------------------


# -- records -----------------------------------------------------------------------------------------------------------


# -- episodes ----------------------------------------------------------------------------------------------------------
