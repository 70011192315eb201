"""slime: rule-based rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding

from .shared import ARGS, TYPES, stand_in


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
    Binding(
        "slime.rollout.rm_hub.math_utils.grade_answer_verl",
        "rule_reward",
        call=_graded,
    ),
)
