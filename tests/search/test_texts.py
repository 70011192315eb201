"""Strings and lengths of a grader's code reach the responses that a search draws."""

import re

import pytest

from sentinel.binding.families import rule_reward
from sentinel.contracts.conversations import CONVERSATION, chat
from sentinel.contracts.rewards import RULE_REWARD
from sentinel.deciding.law_session import Subject
from sentinel.laws.effects import nothing_else_is_touched
from sentinel.laws.oracle import the_oracle_agrees
from sentinel.search.boundary_search import glimpses
from sentinel.search.guards import Constants
from sentinel.search.scenarios import narrow
from sentinel.targets import Binding


def after_hashes(text):
    found = re.findall(r"#### (\S+)", text)
    return found[-1] if found else None


def first_hashes(text):
    return after_hashes(text[:300])


def of_a_box_or_hashes(text):
    found = re.search(r"\\fbox\{(.*?)\}x?", text)
    return found[1] + "0" if found else after_hashes(text)


def subject_of(contract, binding, *laws):
    return Subject(binding, narrow(contract, binding), laws, "", "grader")


def judged(read, constants):
    """Return whether a grader agrees with the oracle in all scenarios that the oracle judges."""
    subject = subject_of(RULE_REWARD, rule_reward("pkg.grade", "#### {answer}"), the_oracle_agrees)

    def call(response, ground_truth, **_):
        return {"score": float(read(response) == ground_truth)}

    plans = glimpses(subject, 0, subject.laws, constants)
    answers = [RULE_REWARD.measure(call, inputs[""]) for _, inputs in plans]
    return all(answer["right_above_wrong"] == 1 for answer in answers)


@pytest.mark.parametrize("read", [after_hashes, first_hashes, of_a_box_or_hashes])
def test_a_bug_behind_a_string_or_length_needs_the_constants(read):
    assert judged(read, Constants())
    assert judged(read, Constants(lengths=(300,), texts=("\\fbox", "####"))) == (read is after_hashes)


def test_texts_are_drawn_around_the_lengths_in_the_code():
    subject = subject_of(RULE_REWARD, rule_reward("pkg.grade", "#### {answer}"), the_oracle_agrees)
    plans = glimpses(subject, 0, subject.laws, Constants(lengths=(300,)))
    texts = {len(inputs[""]["wording"].format(answer=inputs[""]["ground_truth"])) for _, inputs in plans}
    assert {299, 300, 301, 600} <= texts


def test_the_oracle_does_not_judge_answers_marked_only_by_a_string():
    laws = the_oracle_agrees, nothing_else_is_touched
    subject = subject_of(RULE_REWARD, rule_reward("pkg.grade", "#### {answer}"), *laws)
    plans = glimpses(subject, 0, laws, Constants(texts=("\\fbox",)))
    alone = [law for law, inputs in plans if inputs[""]["wording"] == "\\fbox{{{answer}}}"]
    assert alone == [nothing_else_is_touched]


def test_the_oracle_does_not_judge_answers_before_the_end_of_a_response():
    laws = the_oracle_agrees, nothing_else_is_touched
    subject = subject_of(RULE_REWARD, rule_reward("pkg.grade", "#### {answer}"), *laws)
    plans = glimpses(subject, 0, laws, Constants(lengths=(300,)))
    early = [law for law, inputs in plans if inputs[""]["wording"].startswith("#### {answer}\nso so")]
    assert early
    assert the_oracle_agrees not in early


def test_messages_contain_the_strings_of_the_code():
    subject = subject_of(CONVERSATION, Binding("pkg.mask", "trained_tokens"), the_oracle_agrees)
    usual, drawn = (glimpses(subject, 0, subject.laws, each) for each in (Constants(), Constants(texts=("</think>",))))
    [(_, inputs)] = [plan for plan in drawn if plan not in usual]
    tokenizer, messages = chat(inputs[""])
    assert all("</think>" in message["content"] for message in messages)
    outputs = CONVERSATION.reference({**inputs[""], "max_tokens": None})
    trained = [token for token, counts in zip(outputs["token_ids"], outputs["loss_mask"]) if counts]
    assert tokenizer.encode("</think>")[0] in trained
    special = Constants(texts=("<|im_end|>", "<|im_start|>assistant", "system"))
    assert glimpses(subject, 0, subject.laws, special) == usual
