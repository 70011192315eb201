"""The oracle of critic values against numbers by hand, which code the positions, and beside broken twins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from demo_kit import Consult

from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import tensor

Oracle = Callable[..., Mapping[str, Any]]

#: What the value head says before each of three tokens, and after the last; the second row has a single token.
CODED: dict[str, Any] = {
    "outputs": [[1.0, 2.0, 3.0], [5.0, 6.0, math.nan]],
    "output_after": [4.0, 8.0],
    "response_mask": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
}


@pytest.fixture
def oracle(consult: Consult) -> Oracle:
    """``oracle(**inputs)``: what the float64 reference says."""

    def ask(**inputs: Any) -> dict[str, Any]:
        contract = bundled_catalog().contracts["critic_values"]
        filled = {item.name: item.default for item in contract.inputs}
        filled |= {
            name: tensor(value, "float64") if isinstance(value, list) else value for name, value in inputs.items()
        }
        seen = consult(contract.name, {"": filled})[""]
        return {key: None if value is None else value.nested() for key, value in seen.items()}

    return ask


def test_a_value_is_that_of_the_state_before_its_token(oracle: Oracle) -> None:
    assert oracle(**CODED) == {
        "values": [[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]],
        "outside": [0.0, 0.0],
        "per_token_gradient": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
        "gradient_after": [0.0, 0.0],
    }


@pytest.mark.parametrize("after", [-7.0, math.inf, math.nan])
def test_the_state_after_the_last_token_is_no_baseline(after: float, oracle: Oracle) -> None:
    assert oracle(**{**CODED, "output_after": [after, after]}) == oracle(**CODED)


@pytest.mark.parametrize(
    ("shift", "agrees"), [(0, True), (1, False), (-1, False)], ids=["right", "one late", "one early"]
)
def test_a_twin_one_off_does_not_agree(shift: int, agrees: bool, oracle: Oracle) -> None:
    heads = [[*row, after] for row, after in zip(CODED["outputs"], CODED["output_after"])]
    twin = [
        [row[(at + shift) % 4] if counts else 0.0 for at, counts in enumerate(mask)]
        for row, mask in zip(heads, CODED["response_mask"])
    ]
    assert (oracle(**CODED)["values"] == twin) == agrees


def test_a_boundary_may_leave_the_mask_to_its_callers(oracle: Oracle) -> None:
    assert oracle(**CODED, outside_the_mask="any")["outside"] is None
