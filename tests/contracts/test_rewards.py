from typing import Any

import pytest
import torch
from contract_kit import measured

MASK = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])

SCORES: dict[str, Any] = {"rewards": torch.tensor([1.0, -0.5, 2.0]), "response_mask": MASK}
LANDED = [[0.0, 0.0, 0.0, 1.0], [0.0, -0.5, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]


def test_a_score_is_on_the_last_valid_token():
    assert measured("token_reward", **SCORES) == {"token_level_rewards": LANDED, "rewards_outside": 0}


def test_the_last_valid_token_may_follow_a_gap():
    seen = measured("token_reward", rewards=torch.tensor([3.0]), response_mask=torch.tensor([[1.0, 0.0, 1.0]]))
    assert seen["token_level_rewards"] == [[0.0, 0.0, 3.0]]


LENGTHS: dict[str, Any] = {"rewards": torch.tensor([1.0, 1.0, 1.0]), "response_mask": MASK}


@pytest.mark.parametrize(
    ("options", "rewards"),
    [
        # At most four tokens: the first two are free, each further one costs half a point.
        ({"max_length": 4, "buffer": 2, "factor": 1.0}, [0.0, 1.0, 1.0]),
        ({"max_length": 4, "buffer": 4, "factor": 1.0}, [0.0, 0.5, 0.75]),
        ({"max_length": 4, "buffer": 4, "factor": 0.5}, [0.5, 0.75, 0.875]),
        ({"max_length": 5, "buffer": 2, "factor": 1.0}, [0.5, 1.0, 1.0]),
        # Longer than the limit: at most the whole penalty, or more with each token.
        ({"max_length": 2, "buffer": 1, "factor": 1.0}, [0.0, 0.0, 1.0]),
        ({"max_length": 2, "buffer": 1, "factor": 1.0, "beyond_limit": "linear"}, [-2.0, 0.0, 1.0]),
    ],
)
def test_a_response_near_the_limit_loses_some_of_its_reward(options, rewards):
    assert measured("overlong_penalty", **LENGTHS, **options) == {"rewards": rewards}
