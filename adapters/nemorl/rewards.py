"""Bindings for NeMo-RL's rule-based reward functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.binding import kit
from sentinel.binding.families import rule_reward


def _verified(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    text, truth = inputs["response"], inputs["ground_truth"]
    if "final_answer" in boundary.parameters:
        return {"score": boundary.function(text) == boundary.function(truth)}
    if "pred_responses" in boundary.parameters and "VLM" in boundary.path:
        exact = boundary.imported[_REWARDS].exact_answer_alphanumeric_reward
        made = boundary.imported[_REWARDS].combine_reward_functions([(exact, 1.0)])
        return {"score": boundary.function(kit.make_unbuilt(boundary.owner, verify_func=made), [text], [truth])[0]}
    if boundary.path.endswith(("math_expression_reward", "geo3k_reward")):
        with kit.swap(boundary.module, "math_verify_func", lambda gold, answer: (float(gold == answer), None)):
            return {"score": boundary.function(truth, text)[0]}
    if "_calculate" in boundary.path:
        return {"score": boundary.function(boundary.owner(), text, truth)}
    if "pred_responses" in boundary.parameters:
        return {"score": boundary.function(boundary.owner(), [text], [truth])[0]}
    if "reward_functions" in boundary.parameters:
        exact = boundary.module.exact_answer_alphanumeric_reward
        return {"score": boundary.function([(exact, 1.0), (boundary.module.format_reward, 0.5)])(truth, text)[0]}
    return {
        "score": kit.score_of(
            boundary.invoke({}, solution_str=text, response=text, ground_truth=truth, gt=truth, answer=truth)
        )
    }


def _strict(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"score": boundary.function(inputs["response"], inputs["ground_truth"])[0] == 1}


_REWARDS = "nemo_rl.environments.rewards"
_CODE, _MATH = "nemo_rl.environments.code_jaccard_environment", "nemo_rl.environments.math_environment"
_ALPHANUMERIC = ("42", "7", "100")  # the rule compares only letters and digits
_LETTERS = {"ground_truth": ("A", "C"), "wrong_answer": ("B", "D")}
_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_DAPO = "nemo_rl.environments.dapo_math_verifier"
BINDINGS = (
    rule_reward(f"{_DAPO}.compute_score", *_LINES, notations="minerva", call=_verified),
    rule_reward(f"{_DAPO}.verify", *_LINES, notations="minerva", call=_verified),
    rule_reward(f"{_DAPO}.normalize_final_answer", "{answer}", notations="minerva", call=_verified),
    rule_reward(f"{_DAPO}.is_correct_strict_box", "boxed", call=_strict),
    *(
        rule_reward(
            f"{_REWARDS}.{rule}", wording, call=_verified, accepts={"ground_truth": rights, "wrong_answer": wrongs},
        )
        for rule, wording, rights, wrongs in (
            ("math_expression_reward", "So: <answer>{answer}</answer>", ("42", "7"), ("43", "8")),
            ("geo3k_reward", "Hm.</think>\\boxed{{1}} \\boxed{{{answer}}}", ("42", "7"), ("43", "8")),
            ("bbox_giou_reward", "So: <answer>{answer}</answer>", ("[0, 0, 2, 2]",), ("[0, 0, 1, 2]",)),
        )
    ),
    rule_reward(
        "nemo_rl.environments.vlm_environment.VLMVerifyWorker.verify", "I see. <answer> {answer} </answer>",
        call=_verified, imports=(_REWARDS,), accepts={"ground_truth": _ALPHANUMERIC},
    ),
    rule_reward(f"{_CODE}.CodeJaccardVerifyWorker._calculate_preference_score", "{answer}", call=_verified),
    rule_reward(f"{_DAPO}.is_correct_minerva", *_LINES, notations="minerva", call=_verified),
    *(
        rule_reward(
            f"nemo_rl.environments.rewards.{rule}", "I see. <answer> {answer} </answer>", call=_verified,
            accepts={"ground_truth": _ALPHANUMERIC},
        )
        for rule in ("exact_answer_alphanumeric_reward", "combine_reward_functions")
    ),
    rule_reward(f"{_CODE}.CodeJaccardVerifyWorker.verify", "{answer}", call=_verified),
    *(
        rule_reward(
            f"{worker}.verify", _LINES[0], call=_verified, requires=(worker,),
            accepts={**_LETTERS, "ground_truth": ("A", "C", "**A**") if "English" in worker else ("A", "C")},
            formerly=(f"{_MATH}.MultichoiceVerifyWorker.verify",),
        )
        for worker in (f"{_MATH}.{kind}MultichoiceVerifyWorker" for kind in ("Multilingual", "English"))
    ),
)  # fmt: skip
