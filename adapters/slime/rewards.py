"""slime: rule-based rewards, and which groups of samples are trained on."""

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


_REWARDS = (
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


# -- which groups of samples are trained on ----------------------------------------------------------------------------

_FILTERS = "slime.rollout.filter_hub.dynamic_sampling_filters"


def _kept(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of the groups that the filter keeps; it is asked for one group at a time, and once answered a tensor."""
    rewards, labels = inputs["rewards"].tolist(), inputs["group"]
    sample = boundary.imported[TYPES].Sample
    numbers = []
    for group in dict.fromkeys(labels):
        rows = [row for row, label in enumerate(labels) if label == group]
        answer = boundary.function(stand_in(reward_key=None), [sample(reward=rewards[row]) for row in rows])
        numbers += rows if getattr(answer, "keep", answer) else []
    numbers.sort()
    return {"numbers": numbers, "rewards": [rewards[row] for row in numbers]}


_FILTERS = tuple(
    Binding(f"{_FILTERS}.{name}", "group_filter", call=_kept, imports=(TYPES,), stand_ins=(ARGS,))
    for name in ("check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback")
)


BINDINGS = (*_REWARDS, *_FILTERS)
