"""Rollout baselines: rewards relative to those of the group, where one rollout may be several samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    return {"normalised": torch.as_tensor(call(**inputs)["normalised"])}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``r - mean(r_1 .. r_G)`` over the G rollouts of the prompt, each once however many samples it became."""
    rewards: dict[int, dict[int, float]] = {}
    rows = list(zip(inputs["group"], inputs["rollout"], inputs["rewards"]))
    for group, rollout, reward in rows:
        rewards.setdefault(group, {})[rollout] = reward
    means = {group: sum(found.values()) / len(found) for group, found in rewards.items()}
    return {"normalised": [reward - means[group] for group, _, reward in rows]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Rollouts of one prompt or two; each is cut into one sample or more, which all have its reward."""
    groups: list[int] = []
    rollouts: list[int] = []
    rewards: list[float] = []
    for rollout in range(choose.integer(1, 4)):
        group, pieces, reward = choose.integer(0, 1), choose.integer(1, 3), choose.one_of((0.0, 1.0, 0.5, -1.0))
        groups += [group] * pieces
        rollouts += [rollout] * pieces
        rewards += [reward] * pieces
    return {**inputs, "group": groups, "rollout": rollouts, "rewards": rewards}


ROLLOUT_BASELINE = rule(
    name="rollout_baseline",
    summary="rewards of samples relative to those of the rollouts that answer the same prompt",
    source="GRPO (arXiv:2402.03300), section 4.1.2: the baseline is the mean over the group's outputs",
    inputs=(
        Input("group", "any", "number of each sample's prompt", choices=([],)),
        Input("rollout", "any", "number of the rollout that each sample is a piece of", choices=([],)),
        Input("rewards", "any", "reward of that rollout, for each sample", choices=([],)),
    ),
    observes=(Observed("normalised", "reward of each sample, relative to the baseline", ("samples",)),),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
