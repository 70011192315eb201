"""Group (outcome) advantages: one score a response, centred (and scaled) within the responses to one prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {"advantages": outputs["advantages"], "returns": outputs["returns"]}


GROUP_ADVANTAGE = Contract(
    name="group_advantage",
    summary="token-level advantages of responses, relative to the other responses to the same prompt",
    source=(
        "GRPO (arXiv:2402.03300), section 4.1.2; RLOO (arXiv:2402.14740); REINFORCE++ "
        "(arXiv:2501.03262); OPO (arXiv:2505.23585)"
    ),
    inputs=(
        Input(
            "token_level_rewards",
            "tensor",
            "reward of each token; an outcome reward stands on one",
            shape=("batch", "tokens"),
        ),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts; a rejected row is all 0",
            dtype="float32",
            shape=("batch", "tokens"),
        ),
        Input("group", "labels", "the prompt that each row answers", shape=("batch",)),
        Input("epsilon", "number", "added to the standard deviation", default=None),
        Input("norm_by_std", "boolean", "whether to divide by the group's standard deviation", default=None),
    ),
    observes=(
        Observed("advantages", "advantage of each token", ("batch", "tokens")),
        Observed("returns", "return of each token", ("batch", "tokens")),
    ),
    measure=_measure,
    law="a_rejected_row_is_an_absent_row",
    aliases={"index": "group", "uid": "group", "norm_adv_by_std_in_grpo": "norm_by_std"},
)
