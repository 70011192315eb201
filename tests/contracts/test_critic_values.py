"""The oracle of critic values against numbers by hand, which code the positions."""

import math
from functools import partial
from typing import Any

import pytest
from contract_kit import Oracle

#: What the value head says before each of three tokens, and after the last; the second row has a single token.
CODED: dict[str, Any] = {
    "outputs": [[1.0, 2.0, 3.0], [5.0, 6.0, math.nan]],
    "output_after": [4.0, 8.0],
    "response_mask": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
}


@pytest.fixture
def oracle(oracle: Oracle) -> Oracle:
    """``oracle(**inputs)``: what the float64 reference says."""
    return partial(oracle, "critic_values")


def test_a_value_is_that_of_the_state_before_its_token(oracle):
    assert oracle(**CODED) == {
        "values": [[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]],
        "outside": [0.0, 0.0],
        "per_token_gradient": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
        "gradient_after": [0.0, 0.0],
    }


@pytest.mark.parametrize("after", [-7.0, math.inf, math.nan])
def test_the_state_after_the_last_token_is_no_baseline(after, oracle):
    assert oracle(**{**CODED, "output_after": [after, after]}) == oracle(**CODED)


def test_a_boundary_may_leave_the_mask_to_its_callers(oracle):
    assert oracle(**CODED, outside_the_mask="any")["outside"] is None
