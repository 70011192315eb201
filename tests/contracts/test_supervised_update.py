"""The oracle of supervised updates against numbers by hand, against a loop over tokens, and beside broken twins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from demo_kit import Consult

from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import Tensor, tensor

Oracle = Callable[..., Mapping[str, Any]]

#: Rows of 1 and 3 tokens to learn; what stands at the others is nobody's.
UNEVEN: dict[str, Any] = {
    "log_probs": [[-5.0, -1.0, math.nan], [-2.0, -0.5, -4.0]],
    "output_after": [-50.0, math.inf],
    "response_mask": [[0, 1, 0], [1, 1, 1]],
}


@pytest.fixture
def oracle(consult: Consult) -> Oracle:
    """``oracle(**inputs)``: what the float64 reference says."""

    def ask(**inputs: Any) -> dict[str, Any]:
        contract = bundled_catalog().contracts["supervised_update"]
        filled = {item.name: item.default for item in contract.inputs}
        filled |= {
            name: tensor(value, "float64") if isinstance(value, list) else value for name, value in inputs.items()
        }
        seen = consult(contract.name, {"": filled})[""]
        return {key: value.nested() if isinstance(value, Tensor) else value for key, value in seen.items()}

    return ask


CUTS: list[dict[str, Any]] = [{}, {"micro_batch_size": 1}, {"max_tokens_per_microbatch": 8}, {"dp_size": 2}]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_every_token_to_learn_has_the_same_weight(cut: Mapping[str, Any], oracle: Oracle) -> None:
    assert oracle(**UNEVEN, **cut) == {
        "loss": (1.0 + 2.0 + 0.5 + 4.0) / 4,
        "gradient": [[0.0, -1 / 4, 0.0], [-1 / 4, -1 / 4, -1 / 4]],
        "gradient_after": [0.0, 0.0],
    }


@pytest.mark.parametrize(("dialect", "count"), [("absent", 4), ("counted", 6)])
def test_nothing_predicts_the_first_token(dialect: str, count: int, oracle: Oracle) -> None:
    seen = oracle(**UNEVEN, first_counts=True, first_token=dialect)
    assert seen["loss"] == pytest.approx(7.5 / count)
    assert seen["gradient"][0] == [0.0, pytest.approx(-1 / count), 0.0]
    assert seen["gradient_after"] == [0.0, 0.0]


def test_a_batch_without_a_token_to_learn_has_no_loss(oracle: Oracle) -> None:
    seen = oracle(**{**UNEVEN, "response_mask": [[0, 0, 0], [0, 0, 0]]})
    assert (seen["loss"], seen["gradient"]) == (0.0, [[0.0] * 3] * 2)


def _rolled(marks: list[list[int]], per_row: bool) -> list[list[float]]:
    """A second derivation: positions that predict a token to learn, weighed by the marks. Rolled over the whole packed
    batch instead of each row it is the broken twin (verl #5797)."""
    total = sum(map(sum, marks))
    width = len(marks[0])
    packed = [mark for row in marks for mark in row]
    if per_row:
        flags = [[*row[1:], 0] for row in marks]
    else:
        rolled = [*packed[1:], packed[0]]
        flags = [rolled[at : at + width] for at in range(0, len(packed), width)]
    return [[-flag / total for flag in row] for row in flags]


@pytest.mark.parametrize(("per_row", "agrees"), [(True, True), (False, False)], ids=["each row", "across rows"])
def test_a_twin_that_shifts_the_packed_mask_does_not_agree(per_row: bool, agrees: bool, oracle: Oracle) -> None:
    seen = oracle(**UNEVEN, first_counts=True, first_token="counted")
    rows = [[*row, after] for row, after in zip(seen["gradient"], seen["gradient_after"])]
    expected = _rolled([[1, *row] for row in UNEVEN["response_mask"]], per_row)
    assert ([pytest.approx(row) for row in rows] == expected) == agrees


def test_a_twin_that_averages_microbatches_does_not_agree(oracle: Oracle) -> None:
    """verl #3994: the mean of the token means of two microbatches."""
    assert oracle(**UNEVEN, micro_batch_size=1)["gradient"] != [[0.0, -1 / 2, 0.0], [-1 / 6, -1 / 6, -1 / 6]]
