"""slime: which groups of samples are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import stand_in

from .shared import ARGS, TYPES

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


BINDINGS = tuple(
    Binding(f"{_FILTERS}.{name}", "group_filter", call=_kept, imports=(TYPES,), stand_ins=(ARGS,))
    for name in ("check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback")
)
