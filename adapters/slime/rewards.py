"""Bindings for slime's reward rules, and for its filters of sample groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sentinel import Binding
from sentinel.binding import kit
from sentinel.binding.families import rule_reward

from .shared import ARGS, TYPES

_HUB = "slime.rollout.rm_hub"


def _rule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with the slime reward rule that the scenario names."""
    sample = boundary.imported[TYPES].Sample(response=inputs["response"], label=inputs["ground_truth"])
    args = kit.stand_in(custom_rm_path=None, rm_type=inputs["rule"])
    return {"score": asyncio.run(boundary.invoke({}, args, sample))}


def _chosen(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score the answer to a multiple-choice question with slime."""
    letters, truth = "ABCDE", inputs["ground_truth"]
    if inputs["rule"] != "texts":
        return {"score": boundary.function(inputs["response"], truth)}
    choices = [f"the {letter}th of them" for letter in letters]
    return {"score": boundary.function(inputs["response"], choices[letters.index(truth)], {"choices": choices})}


def _batched(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score the scenario's response in a batch whose first response is empty."""
    made = boundary.imported[TYPES].Sample
    samples = [made(response=inputs["response"] * n, label=inputs["ground_truth"]) for n in range(2)]
    args = kit.stand_in(custom_rm_path=None, rm_type="math")
    return {"score": asyncio.run(boundary.invoke({}, args, samples))[1]}


def _sides(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compare an answer with the ground truth. slime's function compares both, or normalises each of them."""
    answer, truth = inputs["response"], inputs["ground_truth"]
    if len(boundary.parameters) == 1:
        return {"score": boundary.function(answer) == boundary.function(truth)}
    if "valid_letters" in boundary.parameters:
        return {"score": boundary.function(answer, "ABCDE") == truth}
    return {"score": kit.score_of(boundary.function(answer, truth)) == 1}


_LETTERS = {"ground_truth": ("B", "A", "D"), "wrong_answer": ("C", "E")}
_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_REWARDS = (
    *(
        rule_reward(f"{_HUB}.{name}", *wordings, notations=notations, call=_sides, requires=(f"{_HUB}.{name}",))
        for name, wordings, notations in (
            ("math_dapo_utils.is_correct_minerva", _LINES, "integers"), ("math_dapo_utils.verify", _LINES, "integers"),
            ("math_dapo_utils.normalize_final_answer", ("{answer}",), "minerva"),
            ("math_dapo_utils.is_correct_strict_box", ("boxed",), ""),
            ("math_utils.grade_answer_sympy", ("{answer}",), "sympy"),
            ("math_utils.grade_answer_mathd", ("{answer}",), "math"),
            ("math_utils.mathd_normalize_answer", ("{answer}",), "math"),
            ("math_utils.are_equal_under_sympy", ("{answer}",), ""),
            ("f1.normalize_answer", ("{answer}",), "questions"),
        )
    ),
    rule_reward(
        f"{_HUB}.gpqa._extract_letter_from_response", "Answer: {answer}", "bare", notations="choices", call=_sides,
        accepts=_LETTERS,
    ),
    rule_reward(f"{_HUB}.batched_async_rm", "boxed", call=_batched, imports=(TYPES,), stand_ins=(ARGS,)),
    rule_reward(
        f"{_HUB}.async_rm", "boxed", notations="expressions", call=_rule, imports=(TYPES,), stand_ins=(ARGS,),
        # Rules for a single dataset are left out, because they require the wording of that dataset.
        accepts={"rule": ("math", "boxed_math")},
    ),
    rule_reward(f"{_HUB}.math_utils.grade_answer_verl", notations="expressions"),
    rule_reward(
        f"{_HUB}.math_dapo_utils.compute_score", "Answer: {answer}", "So it is.\nAnswer: {answer}",
        notations="integers",
    ),
    rule_reward(
        f"{_HUB}.deepscaler.get_deepscaler_rule_based_reward", "Let me see.</think>\\boxed{{{answer}}}",
        notations="expressions",
    ),
    rule_reward(f"{_HUB}.f1.f1_score", "bare", "it is {answer}", notations="questions"),
    rule_reward(
        f"{_HUB}.gpqa.compute_gpqa_reward", "Answer: {answer}", "bare", notations="choices", call=_chosen,
        accepts={"ground_truth": ("B", "A", "D"), "wrong_answer": ("C", "E"), "rule": ("letters", "texts")},
    ),
)  # fmt: skip


_FILTERS = "slime.rollout.filter_hub.dynamic_sampling_filters"


def _kept(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row numbers and rewards of the groups that slime's filter keeps."""
    rewards = inputs["rewards"].tolist()
    sample = boundary.imported[TYPES].Sample
    numbers = []
    for rows in kit.rows_of_groups(inputs["group"]):
        answer = boundary.function(kit.stand_in(reward_key=None), [sample(reward=rewards[row]) for row in rows])
        numbers += rows if getattr(answer, "keep", answer) else []
    numbers.sort()
    return {"numbers": numbers, "rewards": [rewards[row] for row in numbers]}


_FILTERS = tuple(
    Binding(f"{_FILTERS}.{name}", "group_filter", call=_kept, imports=(TYPES,), stand_ins=(ARGS,))
    for name in ("check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback")
)


BINDINGS = (*_REWARDS, *_FILTERS)
