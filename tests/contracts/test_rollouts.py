"""What makes rollouts and batches of them: the oracles by hand, and what the measurement makes of broken twins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from contract_kit import measured

# -- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "mask", "ended"), [(1, [1, 1, 0], False), (2, [1, 1, 0, 0], True), (3, [1, 1], True)]
)
def test_what_fits_exactly_fits(heard: int, mask: list[int], ended: bool) -> None:
    seen = measured("rollout_turn", generated_tokens=2, observation_tokens=heard, response_length=4)
    assert seen == {"response_mask": mask, "ended": ended}


def test_an_observation_that_is_trained_on_is_seen() -> None:
    seen = measured(
        "rollout_turn",
        lambda **_: {"response_mask": [1, 1, 1], "ended": 0},
        generated_tokens=2,
        observation_tokens=1,
        response_length=4,
    )
    assert seen == {"response_mask": [1, 1, 1], "ended": False}


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


def test_samples_stand_with_their_prompt() -> None:
    seen = measured("prompt_expansion", prompts=2, samples_per_prompt=2)
    assert seen == {"prompt_of_sample": [0, 0, 1, 1], "shared_with_sibling": False, "shared_with_prompt": False}


def test_what_is_repeated_is_shared() -> None:
    def repeated(prompts: int, samples_per_prompt: int) -> dict[str, Any]:
        states = [[prompt] for prompt in range(prompts)]
        samples = [state for state in states for _ in range(samples_per_prompt)]
        return {"prompt_of_sample": [s[0] for s in samples], "sample_states": samples, "prompt_states": states}

    seen = measured("prompt_expansion", repeated, prompts=1, samples_per_prompt=2)
    assert (seen["shared_with_sibling"], seen["shared_with_prompt"]) == (True, True)
    assert measured("prompt_expansion", repeated, prompts=2, samples_per_prompt=1)["shared_with_sibling"] is False


# -- batches of rollouts -----------------------------------------------------------------------------------------------


def test_what_is_not_taken_is_left() -> None:
    seen = measured("rollout_collection", completed=3, needed=2)
    assert seen == {"times": [1, 1, 1], "size": 2, "taken": [0, 1], "left": [2]}


@pytest.mark.parametrize(
    ("taken", "left", "times"), [([0, 1], [], [1, 1, 0]), ([0, 1], [1, 2], [1, 2, 1]), ([0, 0], [1, 2], [2, 1, 1])]
)
def test_rollouts_that_are_lost_or_doubled(taken: list[int], left: list[int], times: list[int]) -> None:
    seen = measured("rollout_collection", lambda **_: {"taken": taken, "left": left}, completed=3, needed=2)
    assert seen["times"] == times


@pytest.mark.parametrize(
    ("dynamic", "kept", "size"), [(False, 18, 6), (True, 16, 16)], ids=["as configured", "dynamic"]
)
def test_whole_batches_are_kept(dynamic: bool, kept: int, size: int) -> None:
    seen = measured("batch_trimming", samples=19, global_batch_size=6, dp_size=4, dynamic=dynamic)
    assert seen == {"kept": kept, "global_batch_size": size}
