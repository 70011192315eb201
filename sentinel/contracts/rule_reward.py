"""Rule-based rewards: graders that compare the answer in a response with the ground truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, Contract, Input, Observed

#: How a response says its answer.
WORDINGS = {"boxed": "I think that it is \\boxed{{{answer}}}.", "bare": "{answer}"}


def worded(answer: str, wording: str) -> str:
    """The response that says an answer; an unknown wording is the response itself, with ``{answer}`` in it."""
    return WORDINGS.get(wording, wording).format(answer=answer)


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of two responses that differ in their answer. ``call`` returns ``score``, a number or a boolean."""

    given = {name: inputs[name] for name in ("ground_truth", "rule", "wording")}

    def score(answer: str) -> float:
        return float(call(response=worded(answer, inputs["wording"]), **given)["score"])

    right, wrong = score(inputs["right_answer"] or inputs["ground_truth"]), score(inputs["wrong_answer"])
    return {"right": right, "wrong": wrong, "right_above_wrong": int(right > wrong)}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """1 for a response that says what the ground truth says, else 0. Of answers that are written differently this
    knows numbers alone."""
    said = _said(inputs["response"], inputs.get("wording") or "boxed")
    return {"score": float(_value(said) == _value(inputs["ground_truth"]))}


def _said(response: str, wording: str) -> str:
    """The answer in a response: the last one in a box, or what stands where the wording has ``{answer}``."""
    if wording in WORDINGS:
        last = response.split("\\boxed{")[-1]
        depth = list(accumulate((letter == "{") - (letter == "}") for letter in last))
        return last[: depth.index(-1)] if -1 in depth else last
    before, after = worded("\0", wording).split("\0", 1)
    return response[len(before) :].split(after.split("\0")[0] or "\0")[0]


def _value(answer: str) -> Any:
    try:
        return float(answer)
    except ValueError:
        return answer.strip()


RULE_REWARD = Contract(
    name="rule_reward",
    summary="the score of a response, by a rule that compares its answer with the ground truth",
    source="the definition of a verifiable reward (arXiv:2411.15124, section 6): positive exactly where it is verified",
    inputs=(
        Input("ground_truth", "string", "the answer that is right", choices=("42", "7", "-3", "100")),
        Input("wrong_answer", "string", "another answer", default="43", choices=("43", "8", "0")),
        Input(
            "right_answer",
            "string",
            "what the right response says, where the ground truth may be written in more than one way; left out, the "
            "ground truth itself",
            default=None,
        ),
        Input(
            "wording",
            "string",
            "how a response says its answer: boxed (in a sentence, in a \\boxed), bare (nothing else), or the response "
            "itself with {answer} in its place",
            default="boxed",
            choices=tuple(WORDINGS),
        ),
        Input("rule", "string", "the name of the rule, where a boundary has several", default=None),
    ),
    observes=(
        Observed("right", "the score of the right response", role="other"),
        Observed("wrong", "the score of the wrong response", role="other"),
        Observed("right_above_wrong", "1 where the right response has the higher score; scales differ"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=(*AS_DEFINED, "twins_agree", "finite_in_finite_out"),
)
