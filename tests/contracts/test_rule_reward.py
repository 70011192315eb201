"""Rule-based rewards: the oracle by hand, and what the measurement makes of graders that are broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sentinel.contracts.contract import REQUIRED
from sentinel.contracts.rewards import worded
from sentinel.recipes.catalog import bundled_catalog

CONTRACT = bundled_catalog().contracts["rule_reward"]
Grader = Callable[[str, str], Any]


def measured(grader: Grader, **inputs: Any) -> Mapping[str, Any]:
    filled = {item.name: inputs.get(item.name, item.default) for item in CONTRACT.inputs}
    assert REQUIRED not in filled.values()
    return CONTRACT.measure(lambda response, ground_truth, **_: {"score": grader(response, ground_truth)}, filled)


def by_definition(response: str, ground_truth: str) -> float:
    return float(CONTRACT.oracle({"response": response, "ground_truth": ground_truth})["score"])


def test_wordings():
    assert worded("42", "boxed").endswith("\\boxed{42}.")
    assert worded("42", "bare") == "42"
    assert worded("42", "Answer: {answer}") == "Answer: 42"


@pytest.mark.parametrize("wording", ["boxed", "bare"])
def test_right_scores_1_and_wrong_0(wording):
    seen = measured(by_definition, ground_truth="42", wording=wording)
    assert seen == {"right": 1.0, "wrong": 0.0, "right_above_wrong": 1}


@pytest.mark.parametrize("right", ["42", "42.0", "4.2e1"])
def test_a_number_may_be_written_in_more_than_one_way(right):
    assert measured(by_definition, ground_truth="42", right_answer=right)["right"] == 1.0


def test_the_last_box_counts():
    assert by_definition("\\boxed{1}, no: \\boxed{2}", "2") == 1.0
    assert by_definition("\\boxed{1}, no: \\boxed{2}", "1") == 0.0


def test_a_box_ends_with_its_own_brace():
    assert by_definition("\\boxed{5 \\sqrt{3}} is it", "5 \\sqrt{3}") == 1.0
    assert by_definition("\\boxed{2 \\sqrt{3}} is it", "5 \\sqrt{3}") == 0.0


@pytest.mark.parametrize("wording", ["#### {answer}", "<answer> {answer} </answer>", "Answer: {answer}\n#### {answer}"])
def test_other_wordings(wording):
    seen = measured(by_definition_worded(wording), ground_truth="42", wording=wording)
    assert seen == {"right": 1.0, "wrong": 0.0, "right_above_wrong": 1}


def by_definition_worded(wording: str) -> Grader:
    assert CONTRACT.oracle is not None
    oracle = CONTRACT.oracle
    return lambda response, truth: oracle({"response": response, "ground_truth": truth, "wording": wording})["score"]


def test_answers_may_be_words():
    assert measured(by_definition, ground_truth="yes", wrong_answer="no")["right_above_wrong"] == 1
