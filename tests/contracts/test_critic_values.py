import math
from functools import partial
from typing import Any

import pytest
from contract_kit import Oracle

#: The value head's output before each of three tokens and after the last. The second row has one token.
CODED: dict[str, Any] = {
    "outputs": [[1.0, 2.0, 3.0], [5.0, 6.0, math.nan]],
    "output_after": [4.0, 8.0],
    "response_mask": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
}


@pytest.fixture
def oracle(oracle: Oracle) -> Oracle:
    """Return a function that computes the contract's float64 reference."""
    return partial(oracle, "critic_values")


def test_a_tokens_value_is_that_of_the_state_before_it(oracle):
    assert oracle(**CODED) == {
        "values": [[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]],
        "outside": [0.0, 0.0],
        "per_token_gradient": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
        "gradient_after": [0.0, 0.0],
    }


@pytest.mark.parametrize("after", [-7.0, math.inf, math.nan])
def test_the_state_after_the_last_token_is_not_a_baseline(after, oracle):
    assert oracle(**{**CODED, "output_after": [after, after]}) == oracle(**CODED)


def test_a_boundary_may_leave_the_mask_to_its_callers(oracle):
    assert oracle(**CODED, outside_the_mask="any")["outside"] is None
