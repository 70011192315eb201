from typing import Any

import pytest
import torch
from contract_kit import measured

from sentinel.contracts.partition import MICROBATCH_PACKING

#: Rows of 3, 2 and 4 tokens.
MASK = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]


def observed(parts: list[list[int]], budget: int) -> dict[str, Any]:
    inputs = {"attention_mask": torch.tensor(MASK), "max_tokens_per_microbatch": budget}
    seen = MICROBATCH_PACKING.measure(lambda **_: {"parts": parts}, inputs)
    assert (seen.pop("short"), seen.pop("contents").tolist()) == (0, [])
    return {**seen, "times": seen["times"].tolist()}


@pytest.mark.parametrize(
    ("parts", "budget", "times", "excess"),
    [
        ([[0, 1], [2]], 5, [1, 1, 1], 0),
        ([[2], [1, 0]], 5, [1, 1, 1], 0),
        ([[0, 1, 2]], 9, [1, 1, 1], 0),
        ([[0, 2], [1]], 5, [1, 1, 1], 2),  # too full
        ([[0, 1]], 5, [1, 1, 0], 0),  # a row is lost
        ([[0, 1], [2], [1]], 5, [1, 2, 1], 0),  # a row is trained on twice
    ],
)
def test_packings_equal_hand_made_ones(parts, budget, times, excess):
    assert observed(parts, budget) == {"times": times, "excess": excess, "microbatches": len(parts), "uneven": 0}


def test_one_row_per_microbatch_is_a_valid_packing():
    parts = MICROBATCH_PACKING.oracle({"attention_mask": torch.tensor(MASK)})["parts"]
    assert observed(parts, 4) == {"times": [1, 1, 1], "excess": 0, "microbatches": 3, "uneven": 0}


def test_the_number_of_microbatches_is_a_multiple_of_the_stages():
    inputs = {"attention_mask": torch.tensor(MASK), "max_tokens_per_microbatch": 9, "stages": 2}
    assert MICROBATCH_PACKING.measure(lambda **_: {"parts": [[0], [1], [2]]}, inputs)["uneven"] == 1


@pytest.mark.parametrize(
    ("algorithm", "contents"),
    [
        ("any", []),
        ("next_fit", [2, 0, 4, 2, 0, 5, 0]),
        ("first_fit_decreasing", [4, 2, 0, 5, 2, 0]),
        ("modified_first_fit_decreasing", [4, 2, 0, 5, 2, 0]),
    ],
)
def test_an_algorithm_defines_the_microbatches(algorithm, contents):
    mask = torch.tensor([[int(place < length) for place in range(7)] for length in (5, 4, 2, 2)])
    seen = measured("microbatch_packing", attention_mask=mask, max_tokens_per_microbatch=7, algorithm=algorithm)
    assert seen["contents"] == contents


def test_missing_microbatches_are_counted():
    mask = torch.tensor([[1, 1], [1, 0]])
    seen = measured(
        "microbatch_packing",
        lambda **_: {"parts": [[0, 1], []]},
        attention_mask=mask,
        max_tokens_per_microbatch=9,
        least=2,
    )
    assert seen["short"] == 1
