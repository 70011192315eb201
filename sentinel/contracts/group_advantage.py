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
        "GRPO (arXiv:2402.03300), section 4.1.2; Dr. GRPO (arXiv:2503.20783); RLOO (arXiv:2402.14740); REINFORCE++ "
        "(arXiv:2501.03262); ReMax (arXiv:2310.10505); OPO (arXiv:2505.23585); GPG (arXiv:2504.02546); GDPO "
        "(arXiv:2601.05242); GRPO-PassK (arXiv:2503.19595); MaxRL (arXiv:2602.02710)"
    ),
    inputs=(
        Input(
            "token_level_rewards",
            "tensor",
            "reward of each token; an outcome reward stands on one",
            shape=("batch", "tokens"),
            domain="reward",
        ),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts; a rejected row is all 0",
            dtype="float32",
            shape=("batch", "tokens"),
            domain="mask",
            dtypes=("bool", "int64"),
        ),
        Input("group", "labels", "the prompt that each row answers", shape=("batch",)),
        Input(
            "epsilon",
            "number",
            "added to the standard deviation; left out, the boundary's own (1e-6)",
            default=None,
            choices=(1e-6, 0.5),
            knob=True,
        ),
        Input(
            "norm_by_std",
            "boolean",
            "whether to divide by the group's standard deviation; left out, as the estimator's paper does",
            default=None,
            choices=(True, False),
            knob=True,
        ),
        Input(
            "estimator",
            "string",
            "whose advantage: grpo, rloo, opo, gpg, passk, reinforce_plus_plus_baseline, gdpo, remax, maxrl; left out, "
            "none in particular, and the contract has no oracle",
            default=None,
        ),
        Input(
            "reward_baselines",
            "tensor",
            "remax: the reward of the greedy response to the row's prompt",
            shape=("batch",),
            default=None,
        ),
        Input("std", "string", "unbiased (n - 1) or biased (n)", default="unbiased", dialect=True),
        Input(
            "epsilon_placement",
            "string",
            "outside (std + epsilon) or inside (sqrt(variance + epsilon)) of the root",
            default="outside",
            dialect=True,
        ),
        Input(
            "group_of_one",
            "string",
            "the advantage of a response that has no other in its group: zero, or score (no baseline)",
            default="zero",
            dialect=True,
        ),
        Input(
            "rejected",
            "string",
            "whether rows without a token that counts are in the statistics: absent or counted",
            default="absent",
            dialect=True,
        ),
        Input(
            "masked_rewards",
            "string",
            "whether a reward on a token that does not count is part of its response's score: ignored or counted",
            default="ignored",
            dialect=True,
        ),
        Input(
            "whiten",
            "boolean",
            "whether the advantages of all tokens of the batch that count are centred and divided by sqrt(variance + "
            "1e-8), the variance with n - 1; left out, as the estimator's paper does",
            default=None,
            dialect=True,
        ),
    ),
    observes=(
        Observed("advantages", "advantage of each token", ("batch", "tokens")),
        Observed("returns", "return of each token", ("batch", "tokens")),
    ),
    measure=_measure,
    law="a_rejected_row_is_an_absent_row",
    group="group",
    aliases={"index": "group", "uid": "group", "norm_adv_by_std_in_grpo": "norm_by_std"},
)
