"""Define contracts of rewards: the score of a response, and the token that receives it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from string import Formatter
from typing import Any

from sentinel.contracts.aggregation import with_a_token
from sentinel.contracts.contract import (
    AS_DEFINED,
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    Input,
    Observed,
    dialect,
    drawn,
    knob,
    laws,
    per_row,
    returned,
    token_mask,
)
from sentinel.values.lazy import torch

# -- rule-based rewards ------------------------------------------------------------------------------------------------


#: Name of a wording -> template of the response's text.
WORDINGS = {"boxed": "I think that it is \\boxed{{{answer}}}.", "bare": "{answer}"}


def worded(answer: str, wording: str) -> str:
    """Return a response with this answer. ``wording`` is a key of :data:`WORDINGS`, or a template with ``{answer}``."""
    return WORDINGS.get(wording, wording).format(answer=answer)


def _unusable(wording: str) -> str:
    """Return why a wording cannot be used; empty if it can."""
    try:
        fields = [field[1:] for field in Formatter().parse(WORDINGS.get(wording, wording)) if field[1] is not None]
    except ValueError:  # a single brace
        fields = []
    if fields and all(field == ("answer", "", None) for field in fields):
        return ""
    return (
        f"{wording!r} has no {{answer}}, or has another field; write {{answer}} for the answer and double "
        f"other braces, as in \\boxed{{{{{{answer}}}}}}, or name one of {', '.join(WORDINGS)}"
    )


#: Notation -> (ground truth, right answer in this notation, wrong answer in this notation). A grader that normalises
#: the notation must accept the right answer; each grader's binding lists the notations that the grader normalises.
#: Answers are simple, because some graders leave LaTeX to another package.
NOTATIONS = {
    "negative": ("-3", "-3", "3"),
    "decimal": ("0.5", "0.5", "0.05"),
    "bare_point": ("0.5", ".5", "5"),
    "true_bare_point": (".5", "0.5", "5"),
    "zeros": ("2.5", "2.50", "2.05"),
    "whole": ("42", "42.0", "4.2"),
    "plus": ("42", "+42", "43"),
    "thousands": ("1234", "1,234", "1,235"),
    "true_thousands": ("1,234", "1234", "1235"),
    "latex_thousands": ("1234", "1{,}234", "1235"),
    "spaces": ("42", " 42 ", " 43 "),
    "stop": ("42", "42.", "43."),
    "dollars": ("42", "$42$", "$43$"),
    "price": ("42", "\\$42", "43"),
    "percent": ("42", "42\\%", "43"),
    "true_percent": ("42\\%", "42", "43"),
    "plain_percent": ("42", "42%", "43%"),
    "degrees": ("42", "42^\\circ", "43"),
    "braced_degrees": ("42", "42^{\\circ}", "43"),
    "unit": ("42", "42\\text{ cm}", "43"),
    "true_unit": ("42\\text{ cm}", "42", "43"),
    "square_unit": ("42", "42\\text{ cm}^2", "43"),
    "boxed_unit": ("42", "42\\mbox{ cm}", "43"),
    "plain_unit": ("42", "42 dollars", "43 dollars"),
    "slash": ("3/4", "\\frac{3}{4}", "4/3"),
    "true_slash": ("\\frac{3}{4}", "3/4", "4/3"),
    "dfrac": ("3/4", "\\dfrac{3}{4}", "4/3"),
    "tfrac": ("3/4", "\\tfrac{3}{4}", "4/3"),
    "short_fraction": ("3/4", "\\frac34", "4/3"),
    "half_short_fraction": ("3/4", "\\frac3{4}", "4/3"),
    "true_fraction": ("-\\frac{3}{4}", "-\\frac{3}{4}", "\\frac{3}{4}"),
    "true_short_fraction": ("\\frac{3}{4}", "\\frac34", "\\frac43"),
    "half": ("1/2", "0.5", "0.6"),
    "true_half": ("\\frac{1}{2}", "0.5", "0.6"),
    "value": ("3/4", "0.75", "0.74"),
    "mixed": ("1 1/2", "3/2", "5/2"),
    "root": ("\\sqrt{3}", "\\sqrt3", "\\sqrt2"),
    "factored_root": ("5\\sqrt{3}", "5\\sqrt3", "3\\sqrt5"),
    "power": ("x^2", "x^{2}", "x^3"),
    "terms": ("x+1", "1+x", "1-x"),
    "spread": ("x+1", "x + 1", "x + 2"),
    "equation": ("42", "x=42", "x=43"),
    "true_equation": ("x=42", "42", "43"),
    "pair": ("(1,2)", "(1, 2)", "(2, 1)"),
    "longer_pair": ("(1,2)", "(1, 2)", "(1, 2, 3)"),
    "tall_pair": ("(1,2)", "\\left(1,2\\right)", "(2,1)"),
    "pair_of_values": ("(1/2,3)", "(0.5, 3)", "(0.5, 2)"),
    "interval": ("[0,1)", "[0, 1)", "(0, 1)"),
    "list": ("1,2", "1, 2", "1, 3"),
    "set": ("\\{1,2\\}", "\\{1, 2\\}", "\\{1, 3\\}"),
    "thin_space": ("10", "1\\!0", "11"),
    "latex_space": ("42", "\\ 42", "43"),
    "text": ("yes", "\\text{yes}", "no"),
    "true_text": ("\\text{yes}", "yes", "no"),
    "bold": ("yes", "\\textbf{yes}", "no"),
    "words": ("New York", "New York", "York"),
    "capitals": ("New York", "new york", "old york"),
    "article": ("the cat", "cat", "the dog"),
    "punctuation": ("New York", "New York.", "York."),
    "true_box": ("\\boxed{42}", "42", "43"),
    "bracketed_letter": ("B", "(B)", "(C)"),
    "letter_stop": ("B", "B.", "C."),
    "text_letter": ("B", "\\text{B}", "\\text{C}"),
    "bracketed_text_letter": ("B", "\\text{(B)}", "\\text{(C)}"),
}

_MEAN_THE_SAME = {(true, written) for true, written, _ in NOTATIONS.values()}


def _measure_rule_reward(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score two responses that differ only in their answer, and observe both scores."""

    question = {name: inputs[name] for name in ("ground_truth", "rule", "wording")}

    def score(answer: str) -> float:
        return float(call(response=worded(answer, inputs["wording"]), **question)["score"])

    right, wrong = score(inputs["right_answer"] or inputs["ground_truth"]), score(inputs["wrong_answer"])
    return {"right": right, "wrong": wrong, "right_above_wrong": int(right > wrong)}


def _oracle_rule_reward(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return 1 if the response's answer equals the ground truth, else 0.

    Two notations of the same answer count as equal if they are numbers or pairs in :data:`NOTATIONS`.
    """
    answer, true = _answer_in(inputs["response"], inputs.get("wording") or "boxed"), inputs["ground_truth"]
    return {"score": float(_value(answer) == _value(true) or (true, answer) in _MEAN_THE_SAME)}


def _answer_in(response: str, wording: str) -> str:
    """Return the answer in a response: the last box, or the text at ``{answer}`` in the wording."""
    if wording in WORDINGS:
        last = response.split("\\boxed{")[-1]
        depth = list(accumulate((letter == "{") - (letter == "}") for letter in last))
        return last[: depth.index(-1)] if -1 in depth else last
    before, *others = worded("\0", wording).split("\0")
    length = (len(response) - len(worded("", wording))) // len(others)
    return response[len(before) : len(before) + length]


def _value(answer: str) -> Any:
    try:
        return float(answer)
    except ValueError:
        return answer.strip()


def _arrange_rule_reward(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Set a ground truth, and a right and a wrong answer, in the drawn notation."""
    answers = ("ground_truth", "right_answer", "wrong_answer")
    return {**inputs, **dict(zip(answers, NOTATIONS.get(inputs["notation"], ())))}


def _form(text: str) -> str:
    """Return a template in which ``text`` precedes the answer: with braces, as a tag, or followed by a blank."""
    escaped = text.replace("{", "{{").replace("}", "}}")
    if re.fullmatch("<[^/].*>", text):
        return f"{escaped}{{answer}}</{escaped[1:]}"
    if text.endswith("{"):
        return f"{escaped}{{answer}}}}}}"
    return f"{escaped}{{{{{{answer}}}}}}" if text.startswith("\\") else f"{escaped} {{answer}}"


def _put_text(inputs: Mapping[str, Any], text: str, length: int) -> list[tuple[Mapping[str, Any], bool]]:
    """Put a string into a response. Without a string, put plain words before the answer, or after it.

    The string is followed by the same answer, so that all answers in the response are right or all are wrong. The score
    is undefined if only the string marks the answer, or if the string comes after the usual wording: some graders read
    the answer there (for example, everything after ``</think>``), others do not. The score is also undefined if words
    follow the answer, because some graders read only the end of a response.
    """
    inputs = {**inputs, "notation": "as_is", "right_answer": None}
    usual = WORDINGS.get(inputs["wording"], inputs["wording"])
    if usual == WORDINGS["bare"]:
        return []
    if not text:
        room = length - 1 - len(worded(inputs["ground_truth"], usual))
        words = ("so " * room)[:room]
        wordings = [(f"{words}\n{usual}", True), (f"{usual}\n{words}", False)] if room > 0 else []
    else:
        stated = _form(text)
        wordings = [(f"{stated}\n{usual}", True), (f"{usual}\n{stated}", False), (stated, False)]
    return [({**inputs, "wording": wording}, defined) for wording, defined in wordings]


RULE_REWARD = Contract(
    name="rule_reward",
    summary="the score of a response, by a rule that compares its answer with the ground truth",
    source="the definition of a verifiable reward (arXiv:2411.15124, section 6): positive for right answers only",
    inputs=(
        drawn("ground_truth", "the answer that is right", ("42", "7", "-3", "100"), REQUIRED),
        drawn("wrong_answer", "a wrong answer", ("43", "8", "0")),
        Input(
            "right_answer",
            "string",
            "the answer of the right response, if it is written in another way than the ground truth; default: the "
            "ground truth",
            default=None,
        ),
        replace(
            drawn(
                "wording",
                "wording of the response: boxed (a sentence with \\boxed), bare (the answer only), or a template that "
                "contains {answer}",
                tuple(WORDINGS),
                "boxed",
                kind="string",
            ),
            problem=_unusable,
        ),
        drawn(
            "notation",
            "notation in which the right answer differs from the ground truth; as_is: use the other inputs",
            ("as_is",),
        ),
        Input("rule", "string", "name of the rule, if a boundary has several", default=None),
    ),
    observes=(
        Observed("right", "the score of the right response", role="other"),
        Observed("wrong", "the score of the wrong response", role="other"),
        Observed("right_above_wrong", "1 if the right response has the higher score; scales differ"),
    ),
    measure=_measure_rule_reward,
    oracle=_oracle_rule_reward,
    laws=(*AS_DEFINED, "twins_agree", "finite_in_finite_out"),
    arrange=_arrange_rule_reward,
    put_text=_put_text,
)


# -- token rewards -----------------------------------------------------------------------------------------------------


def _measure_token_reward(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    rewards = call(**inputs)["token_level_rewards"]
    outside = (rewards != 0) & (inputs["response_mask"] == 0)
    return {"token_level_rewards": rewards, "rewards_outside": int(outside.sum())}


def _oracle_token_reward(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Put the score on the last valid token, so that the return of every valid token is the score."""
    valid = inputs["response_mask"] != 0
    rewards = torch.zeros(valid.shape, dtype=torch.float64)
    last = valid.shape[1] - 1 - valid.flip(-1).int().argmax(-1)
    rewards[torch.arange(len(valid)), last] = inputs["rewards"].double()
    return {"token_level_rewards": rewards}


TOKEN_REWARD = Contract(
    name="token_reward",
    summary="token rewards: the score of each response, on one token",
    source="InstructGPT (arXiv:2203.02155), equation 2: the score of a response is the reward of its last token",
    inputs=(
        per_row("rewards", "score of each response", "reward"),
        token_mask(dtypes=()),
        drawn(
            "score_as",
            "result of a rule: number, or record (the score with further results); null if no rule is called",
            ("number", "record"),
        ),
    ),
    observes=(
        Observed("token_level_rewards", "reward of each token", TOKENS),
        Observed("rewards_outside", "number of masked tokens with a reward"),
    ),
    measure=_measure_token_reward,
    oracle=_oracle_token_reward,
    laws=laws(
        "groups_are_isolated order_does_not_matter padding_is_invisible twins_agree finite_in_finite_out", *AS_DEFINED
    ),
    aliases={"scores": "rewards"},
    arrange=with_a_token,
)


# -- soft overlong punishment ------------------------------------------------------------------------------------------


def _oracle_overlong_penalty(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the reward with a penalty for length that falls linearly from 0 to -1 near the length limit.

    ``r + f R(y)``, where ``R`` is 0 up to ``|y| = L_max - L_cache``, falls linearly to -1 at ``L_max``, and stays -1.
    """
    lengths = (inputs["response_mask"] != 0).sum(-1).double()
    share = (lengths - (inputs["max_length"] - inputs["buffer"])) / inputs["buffer"]
    share = share.clamp(min=0.0, max=1.0 if inputs["beyond_limit"] == "flat" else None)
    return {"rewards": inputs["rewards"] - inputs["factor"] * share}


def _arrange_overlong_penalty(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Make at least one token of every response valid, and the buffer at most as large as the limit."""
    inputs["buffer"] = min(inputs["buffer"], inputs["max_length"])
    return with_a_token(inputs, choose)


OVERLONG_PENALTY = Contract(
    name="overlong_penalty",
    summary="rewards of responses minus the penalty for lengths near the limit",
    source="DAPO (arXiv:2503.14476), equation 13: soft overlong punishment",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        token_mask("1 for response tokens; their number is the length", dtypes=()),
        knob("max_length", "L_max: maximum tokens of a response", (5, 4, 3), REQUIRED),
        knob("buffer", "L_cache: number of tokens before the limit in which the penalty grows", (4, 2, 1), REQUIRED),
        knob("factor", "f: penalty at the limit", (1.0, 0.5)),
        dialect(
            "beyond_limit",
            "flat",
            "penalty beyond the limit: flat (as at the limit), linear (grows with each token)",
        ),
    ),
    observes=(Observed("rewards", "reward of each response, with the penalty", ("batch",)),),
    measure=returned(rewards="as_is"),
    oracle=_oracle_overlong_penalty,
    laws=laws(
        "groups_are_isolated order_does_not_matter padding_is_invisible twins_agree every_knob_counts "
        "finite_in_finite_out",
        *AS_DEFINED,
    ),
    arrange=_arrange_overlong_penalty,
)
