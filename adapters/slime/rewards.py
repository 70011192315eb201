"""slime: rule-based rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import ruled, stand_in

from .shared import ARGS, TYPES


def _rule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's entry, by the name of the rule."""
    sample = boundary.imported[TYPES].Sample(response=inputs["response"], label=inputs["ground_truth"])
    args = stand_in(custom_rm_path=None, rm_type=inputs["rule"])
    return {"score": asyncio.run(boundary.invoke({}, args, sample))}


def _graded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"score": boundary.invoke({"ground_truth": inputs["ground_truth"]}, inputs["response"])}


BINDINGS = (
    Binding(
        "slime.rollout.rm_hub.async_rm",
        "rule_reward",
        call=_rule,
        imports=(TYPES,),
        stand_ins=(ARGS,),
        # Rules of one dataset each want the wording of that dataset.
        accepts={"rule": ("math", "boxed_math"), "wording": ("boxed",)},
    ),
    Binding("slime.rollout.rm_hub.math_utils.grade_answer_verl", "rule_reward", call=_graded),
    *(
        Binding(f"slime.rollout.rm_hub.{name}", "rule_reward", call=ruled, accepts=accepts)
        for name, accepts in {
            "math_dapo_utils.compute_score": {"wording": ("Answer: {answer}", "So it is.\nAnswer: {answer}")},
            "deepscaler.get_deepscaler_rule_based_reward": {"wording": ("Let me see.</think>\\boxed{{{answer}}}",)},
            "f1.f1_score": {"wording": ("bare", "it is {answer}")},
            "gpqa.compute_gpqa_reward": {
                "wording": ("Answer: {answer}", "bare"),
                "ground_truth": ("B", "A", "D"),
                "wrong_answer": ("C", "E"),
            },
        }.items()
    ),
)
