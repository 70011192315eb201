"""Call reward rules, which score a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def score_of(answer: Any) -> Any:
    """Return the score in a reward rule's result: a number, a mapping with ``score``, or a tuple whose first item is
    the score or the mapping."""
    answer = answer["score"] if isinstance(answer, Mapping) else answer
    return answer[0] if isinstance(answer, tuple) else answer


def apply_rule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"score": score_of(boundary.function(inputs["response"], inputs["ground_truth"]))}


def apply_normaliser(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with a function that normalises an answer: 1 if the normal forms of the response and of the
    ground truth are equal, otherwise 0.
    """
    return {"score": float(boundary.function(inputs["response"]) == boundary.function(inputs["ground_truth"]))}


def apply_extractor(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with a function that extracts an answer: 1 if the extracted answer equals the ground truth,
    otherwise 0.
    """
    return {"score": float(boundary.function(inputs["response"]) == inputs["ground_truth"])}


def apply_rule_to_answers(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a reward rule that accepts a list of right answers: the ground truth and one more."""
    return {"score": boundary.function(inputs["response"], {"target": [inputs["ground_truth"], "another"]})}
