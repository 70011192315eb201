"""Balanced partitions: the oracle has every required property, and each missing property is reported."""

import random
from typing import Any

import pytest
from contract_kit import measured

GIVEN: dict[str, Any] = {"lengths": [1, 9, 3, 3, 2, 2], "parts": 2, "equal_size": True}
#: Loads of 12 and 8.
KEPT = {"times": [1] * 6, "parts": 2, "empty": 0, "uneven": 0, "torn": 0, "strayed": 0, "excess": 0, "spread": 4}


def test_the_oracle_partitions_a_hand_made_example():
    """Rows are sorted by length and assigned in pairs, (1, 2), (2, 3), (3, 9): the longer one to the smaller part."""
    assert measured("balanced_partition", **GIVEN) == {**KEPT, "spread": 6}


@pytest.mark.parametrize(
    ("parts", "given", "seen"),
    [
        ([[0, 1, 4], [2, 3, 5]], {}, {}),
        ([[0, 1, 4], [2, 3]], {"equal_size": False}, {"times": [1, 1, 1, 1, 1, 0], "spread": 6}),
        ([[0, 1, 4], [2, 3, 3]], {}, {"times": [1, 1, 1, 2, 1, 0], "spread": 3}),
        ([[0, 1], [2, 3, 4, 5]], {}, {"uneven": 2, "spread": 0}),
        ([[0, 1], [2, 3, 4, 5]], {"equal_size": False}, {"spread": 0}),
        ([[0, 1, 2, 3, 4, 5], []], {"equal_size": False}, {"empty": 1, "excess": 11, "spread": 20}),
        ([[0, 1], [2, 3], [4, 5]], {}, {"parts": 3, "spread": 6}),
        ([[0, 1, 4], [2, 3, 5]], {"prompts": ["p", "p", "p", "q", "q", "q"]}, {"torn": 2}),
        ([[1, 2, 0], [3, 4, 5]], {"prompts": ["p", "p", "p", "q", "q", "q"]}, {"spread": 6}),
        # With minibatches of four, each part trains on two rows at a time: first 0 to 3, then 4 and 5.
        ([[1, 0, 5], [2, 3, 4]], {"minibatch_size": 4}, {}),
        ([[5, 1, 0], [2, 3, 4]], {"minibatch_size": 4}, {"strayed": 2}),
    ],
)
def test_a_partition_that_breaks_a_rule_is_detected(parts, given, seen):
    assert measured("balanced_partition", lambda **_: {"parts": parts}, **{**GIVEN, **given}) == {**KEPT, **seen}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["plain", "equal", "grouped", "minibatches"])
def test_the_oracle_obeys_every_rule(seed, kind):
    generator = random.Random(seed)
    parts, turns = generator.randint(1, 4), generator.randint(1, 4)
    count = parts * turns * 2 + (generator.randint(0, parts - 1) if kind == "plain" else 0)
    seen = measured(
        "balanced_partition",
        lengths=[generator.randint(1, 50) for _ in range(count)],
        parts=parts,
        equal_size=kind != "plain",
        prompts=[place // 2 for place in range(count)] if kind == "grouped" else None,
        minibatch_size=parts * turns if kind == "minibatches" else None,
    )
    assert seen == {**KEPT, "times": [1] * count, "parts": parts, "spread": seen["spread"]}
