"""Bindings for slime's reward rules, and for its filters of sample groups."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import NORMALISERS, rule_reward

from .shared import ARGS, TYPES, Session

_HUB = "slime.rollout.rm_hub"


def _rule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with the slime reward rule that the scenario names."""
    sample = boundary.imported[TYPES].Sample(response=inputs["response"], label=inputs["ground_truth"])
    args = kit.stand_in(custom_rm_path=None, rm_type=inputs["rule"])
    return {"score": asyncio.run(boundary.invoke({}, args, sample))}


_CHOICES = ("wombat", "ibex", "otter", "lynx", "heron")


def _chosen(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score the answer to a multiple-choice question with slime.

    The rule is the form of the question: the label is a letter, the text of a choice or its number, or metadata name
    the right letter. The response is a letter. With rules that begin with ``said``, it has the text of the choice.
    """
    letters, truth, response, rule = "ABCDE", inputs["ground_truth"], inputs["response"], inputs["rule"]
    number = letters.index(truth)
    if rule.startswith("said"):
        *_, letter = re.findall(rf"\b[{letters}]\b", response)
        response = f"it is the {_CHOICES[letters.index(letter)]}"
    named = {
        "choices": dict(zip(letters, _CHOICES)),
        "valid_letters": [*letters.lower()],
        "correct_letter": truth.lower(),
    }
    label, metadata = {
        "letters": (truth, {}),
        "texts": (_CHOICES[number], {"choices": _CHOICES}),
        "numbers": (number, {"choices": _CHOICES}),
        "named": (_CHOICES[number], named),
        "said": (_CHOICES[number], {}),
        "said_of_choices": (truth, {"choices": _CHOICES}),
        "said_elsewhere": (None, {"answer_text": _CHOICES[number]}),
    }[rule]
    return {"score": boundary.function(response, label, metadata)}


_QUESTIONS = ("letters", "texts", "numbers", "named", "said", "said_of_choices", "said_elsewhere")


async def _graded(_: Any, sample: Any) -> Any:
    """Score a sample, or each sample of a batch, with a rule of the user."""
    several = isinstance(sample, list)
    scores = [float(f"{{{one.label}}}" in one.response) for one in (sample if several else [sample])]
    return scores if several else scores[0]


def _batched(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score the scenario's response in a batch whose first response is empty.

    The rule ``own`` is a function of the user for all samples, and ``own_of_sample`` is one that the samples name. The
    stand-in server of ``remote_rm`` returns the request.
    """
    made, rule = boundary.imported[TYPES].Sample, inputs["rule"]
    if rule == "own_of_sample" and "custom_rm_path" not in made.__dataclass_fields__:
        raise AbsentError("in this version, a sample cannot name its own rule")
    if rule == "remote_rm" and not hasattr(boundary.module, "_get_shared_session"):
        raise AbsentError("in this version, requests to the server of a reward model share no session")
    samples = [made(response=inputs["response"] * n, label=inputs["ground_truth"]) for n in range(2)]
    if rule == "own_of_sample":
        for sample in samples:
            sample.custom_rm_path = rule
    args = kit.stand_in(custom_rm_path=rule if rule == "own" else None, rm_type=rule, rm_url="")
    with kit.swap_all(boundary.module, load_function=lambda _: _graded, _get_shared_session=Session):
        try:
            score = asyncio.run(boundary.invoke({}, args, samples))[1]
        except NotImplementedError as error:
            raise AbsentError(f"this version does not have the rule: {error}") from error
    if rule == "remote_rm":
        return {"score": float(f"{{{score['label']}}}" in score["response"])}
    return {"score": kit.score_of(score)}


def _sides(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compare an answer with the ground truth. slime's function compares both, or normalises each of them."""
    answer, truth = inputs["response"], inputs["ground_truth"]
    if len(boundary.parameters) == 1:
        return {"score": boundary.function(answer) == boundary.function(truth)}
    if "valid_letters" in boundary.parameters:
        return {"score": boundary.function(answer, "ABCDE") == truth}
    options: dict[str, Any] = {}
    if "gt_need_extract" in boundary.parameters:
        options["gt_need_extract"] = "boxed" in truth
    if "strict_box_verify" in boundary.parameters:
        options["strict_box_verify"] = "boxed" in answer
    elif "pause_tokens_index" in boundary.parameters and len(answer) % 2:
        options["pause_tokens_index"] = [0, 0, 0, 100]  # reads a response of at most 100 letters from its beginning
    return {"score": kit.score_of(boundary.function(answer, truth, **options)) == 1}


_LETTERS = {"ground_truth": ("B", "A", "D"), "wrong_answer": ("C", "E")}
_EXPRESSIONS = f"{NORMALISERS['expressions']} true_box"
#: slime's rules for batches. A box, which is also after ``Answer:`` and ``</think>``, suits all of them.
_RULES = ("math", "dapo", "deepscaler", "boxed_f1", "gpqa", "remote_rm", "own", "own_of_sample")
_USERS = StandIn("load_function", "returns a rule of the user, which compares the box with the label")
_SERVER = StandIn("session", "the server of a reward model, which returns the request")
_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_REWARDS = (
    *(
        rule_reward(f"{_HUB}.{name}", *wordings, notations=notations, call=_sides, requires=(f"{_HUB}.{name}",))
        for name, wordings, notations in (
            ("math_dapo_utils.is_correct_minerva", _LINES, f"{NORMALISERS['integers']} true_box"),
            ("math_dapo_utils.verify", (*_LINES, "boxed"), ""),
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
    rule_reward(
        f"{_HUB}.batched_async_rm", "</think>\nAnswer: \\boxed{{{answer}}}", call=_batched, imports=(TYPES,),
        stand_ins=(ARGS, _USERS, _SERVER), accepts={"rule": _RULES, "ground_truth": ("42", "7", "100")},
    ),
    rule_reward(
        f"{_HUB}.async_rm", "boxed", notations=_EXPRESSIONS, call=_rule, imports=(TYPES,), stand_ins=(ARGS,),
        # Rules for a single dataset are left out, because they require the wording of that dataset.
        accepts={"rule": ("math", "boxed_math")},
    ),
    rule_reward(f"{_HUB}.math_utils.grade_answer_verl", notations=_EXPRESSIONS),
    rule_reward(
        f"{_HUB}.math_dapo_utils.compute_score", "Answer: {answer}", "So it is.\nAnswer: {answer}",
        notations="integers",
    ),
    rule_reward(
        f"{_HUB}.deepscaler.get_deepscaler_rule_based_reward", "Let me see.</think>\\boxed{{{answer}}}",
        notations=_EXPRESSIONS,
    ),
    rule_reward(f"{_HUB}.f1.f1_score", "bare", "it is {answer}", notations="questions"),
    rule_reward(
        f"{_HUB}.gpqa.compute_gpqa_reward", "Answer: {answer}", "bare", notations="choices", call=_chosen,
        accepts={"ground_truth": ("B", "A", "D"), "wrong_answer": ("C", "E"), "rule": _QUESTIONS},
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
