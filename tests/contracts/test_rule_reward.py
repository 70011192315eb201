from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import REQUIRED
from sentinel.contracts.rewards import NOTATIONS, worded
from sentinel.recipes.catalog import bundled_catalog

CONTRACT = bundled_catalog().contracts["rule_reward"]
Grader = Callable[[str, str], Any]


def measured(grader: Grader, **inputs: Any) -> Mapping[str, Any]:
    filled = {item.name: inputs.get(item.name, item.default) for item in CONTRACT.inputs}
    assert REQUIRED not in filled.values()
    return CONTRACT.measure(lambda response, ground_truth, **_: {"score": grader(response, ground_truth)}, filled)


def by_definition(response: str, ground_truth: str) -> float:
    return float(CONTRACT.oracle({"response": response, "ground_truth": ground_truth})["score"])


def test_answers_are_written_in_each_wording():
    assert worded("42", "boxed").endswith("\\boxed{42}.")
    assert worded("42", "bare") == "42"
    assert worded("42", "Answer: {answer}") == "Answer: 42"


@pytest.mark.parametrize("wording", ["boxed", "bare"])
def test_right_answers_score_1_and_wrong_ones_0(wording):
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
def test_custom_wordings_are_accepted(wording):
    seen = measured(by_definition_worded(wording), ground_truth="42", wording=wording)
    assert seen == {"right": 1.0, "wrong": 0.0, "right_above_wrong": 1}


def by_definition_worded(wording: str) -> Grader:
    assert CONTRACT.oracle is not None
    oracle = CONTRACT.oracle
    return lambda response, truth: oracle({"response": response, "ground_truth": truth, "wording": wording})["score"]


def test_answers_may_be_words():
    assert measured(by_definition, ground_truth="yes", wrong_answer="no")["right_above_wrong"] == 1


def in_notation(grader: Grader, name: str) -> int:
    drawn = {"ground_truth": "7", "right_answer": None, "wrong_answer": "8", "notation": name}
    assert CONTRACT.arrange is not None
    seen = measured(grader, **CONTRACT.arrange(drawn, Choices(b"")), wording="Answer: {answer}.")
    return int(seen["right_above_wrong"])


@pytest.mark.parametrize("name", NOTATIONS)
def test_a_notation_has_a_right_and_a_wrong_answer(name):
    assert in_notation(by_definition_worded("Answer: {answer}."), name) == 1


def test_as_is_changes_no_notation():
    assert in_notation(lambda response, truth: response == f"Answer: {truth}." == "Answer: 7.", "as_is") == 1


@pytest.mark.parametrize("name", [name for name, (true, right, _) in NOTATIONS.items() if true != right])
def test_a_text_comparison_fails_for_a_notation(name):
    assert in_notation(lambda response, truth: truth == response[len("Answer: ") : -1], name) == 0
