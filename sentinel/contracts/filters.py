"""Define contracts of filters, which select the responses and tokens for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import spreading, with_a_token
from sentinel.contracts.contract import (
    AS_DEFINED,
    GROUP,
    GROUP_LAYOUT,
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    per_row,
    per_token,
    returned,
    rule,
    token_mask,
)
from sentinel.contracts.normalisation import lay_out_groups, rows_of
from sentinel.values.lazy import torch
from sentinel.values.literals import tensor

# -- dynamic sampling --------------------------------------------------------------------------------------------------


#: Rewards that floats represent inexactly, so that the computed deviation of equal rewards may differ from 0.
_ROUNDED = (0.1, 0.9)


def _measure_group_filter(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe which rows are kept, and whether they are unchanged and in order.

    ``call`` returns the ``numbers`` of the kept rows and their ``rewards``, which a framework may round to float32.
    """
    outputs = call(**inputs)
    numbers = list(outputs["numbers"])
    rewards = torch.tensor(list(outputs["rewards"]), dtype=torch.float32)
    intact = numbers == sorted(set(numbers)) and torch.equal(rewards, inputs["rewards"][numbers].float())
    kept = torch.tensor([float(row in numbers) for row in range(len(inputs["group"]))])
    return {"kept": kept, "intact": intact}


def _oracle_group_filter(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the groups with at least two different rewards, because the advantages of other groups are 0."""
    rewards = inputs["rewards"]
    parts = rows_of(inputs["group"]).values()
    kept = [part for part in parts if len(set(rewards[part].tolist())) > 1]
    kept += [part for part in parts if len(part) == 1 and inputs["group_of_one"] == "kept"]
    if not kept and inputs["none_left"] == "all":
        kept = list(parts)
    numbers = sorted(row for part in kept for row in part)
    return {"numbers": numbers, "rewards": rewards[numbers].tolist()}


def _arrange_group_filter(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Arrange the groups as ``group_layout`` requires. In two of three scenarios, the last group has equal rewards."""
    inputs = lay_out_groups(inputs, choose)
    rewards = inputs["rewards"]
    if choose.integer(0, 2) < 2:
        values = rewards.array().tolist()
        last = rows_of(inputs["group"])[inputs["group"][-1]]
        same = choose.one_of((values[last[0]], *_ROUNDED))
        alike = [same if row in last else value for row, value in enumerate(values)]
        inputs["rewards"] = tensor(alike, rewards.dtype)
    return inputs


GROUP_FILTER = rule(
    name="group_filter",
    summary="the selection of responses to prompts whose rewards differ",
    source="DAPO (arXiv:2503.14476), section 3.2, equation 11: dynamic sampling drops prompts without advantage",
    inputs=(
        per_row("rewards", "reward of each response", "reward", dtype="float64"),
        GROUP,
        GROUP_LAYOUT,
        dialect("group_of_one", "dropped", "a group of one response: dropped, or kept"),
        dialect("none_left", "none", "the result if no group is kept: none, or all"),
    ),
    observes=(
        Observed("kept", "1 for responses that are kept", ("batch",), "decision"),
        Observed("intact", "whether each of these responses is returned once, in order, with its own reward"),
    ),
    measure=_measure_group_filter,
    oracle=_oracle_group_filter,
    group="group",
    laws=("groups_are_isolated", "order_does_not_matter", "twins_agree", *AS_DEFINED),
    arrange=_arrange_group_filter,
)


# -- difficulty filters ------------------------------------------------------------------------------------------------


def _oracle_difficulty_filter(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return 1 for each row of a group whose mean reward is between ``low`` and ``high``, else 0."""
    kept = torch.zeros(len(inputs["group"]), dtype=torch.float64)
    for rows in rows_of(inputs["group"]).values():
        unfiltered = len(rows) == 1 and inputs["group_of_one"] == "kept"
        kept[rows] = float(unfiltered or inputs["low"] < inputs["rewards"][rows].mean() < inputs["high"])
    return {"kept": kept}


DIFFICULTY_FILTER = rule(
    name="difficulty_filter",
    summary="the selection of responses to prompts of medium difficulty",
    source="PRIME (arXiv:2502.01456), online prompt filtering: prompts whose accuracy is within a range",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        GROUP,
        GROUP_LAYOUT,
        knob("low", "prompts with a mean reward up to this are too hard", (0.125, 0.375), REQUIRED),
        knob("high", "prompts with a mean reward from this on are too easy", (0.875, 0.625), REQUIRED),
        dialect("group_of_one", "filtered", "a group of one response: filtered, or kept"),
    ),
    observes=(Observed("kept", "1 for responses that are trained on", ("batch",), "decision"),),
    measure=returned(kept="as_is"),
    oracle=_oracle_difficulty_filter,
    group="group",
    laws=("groups_are_isolated", "order_does_not_matter", "twins_agree", "every_knob_counts", *AS_DEFINED),
    arrange=lay_out_groups,
)


# -- overlong filtering ------------------------------------------------------------------------------------------------


def _measure_overlong_filter(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    kept = call(**inputs)["kept"]
    return {"kept": kept, "kept_outside": int(((kept != 0) & (inputs["response_mask"] == 0)).sum())}


def _oracle_overlong_filter(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask with 0 in the rows of responses that fill all columns."""
    valid = inputs["response_mask"] != 0
    return {"kept": (valid & ~valid.all(-1, keepdim=True)).double()}


OVERLONG_FILTER = Contract(
    name="overlong_filter",
    summary="the response mask without the responses that were truncated at the limit",
    source="DAPO (arXiv:2503.14476), section 3.4: overlong filtering masks the loss of truncated samples",
    inputs=(
        token_mask("1 for response tokens; a response that fills all columns was truncated", dtype="int64", dtypes=()),
    ),
    observes=(
        Observed("kept", "1 for tokens that are trained on", TOKENS, "decision"),
        Observed("kept_outside", "number of kept tokens that are masked in the input"),
    ),
    measure=_measure_overlong_filter,
    oracle=_oracle_overlong_filter,
    laws=("order_does_not_matter", "twins_agree", "the_oracle_agrees", "nothing_else_is_touched"),
    arrange=with_a_token,
)


# -- second-moment masks -----------------------------------------------------------------------------------------------


def _measure_second_moment_mask(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    kept = call(**inputs)["kept"]
    valid = inputs["response_mask"] != 0
    return {
        "kept": kept,
        "kept_count": int(((kept != 0) & valid).sum()),
        "kept_outside": int((kept[~valid] != 0).sum()),
    }


def _oracle_second_moment_mask(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Mask the fewest tokens such that the mean of ``(log p_behaviour - log p)^2`` over the remaining tokens is below
    the threshold.

    The masked tokens are those with the largest values.

    :raises DoesNotApply: if the last masked token and the first kept token have equal values.
    """
    valid = inputs["response_mask"] != 0
    moments = (inputs["behaviour_log_probs"] - inputs["proximal_log_probs"]).square()
    rising = moments[valid].sort().values
    below = [count for count in range(1, len(rising) + 1) if rising[:count].mean() < inputs["threshold"]]
    most = max(below, default=1 if inputs["none_left"] == "closest" else 0)
    if 0 < most < len(rising) and rising[most - 1] == rising[most]:
        raise DoesNotApply("two tokens have equal values at the threshold, and either may be masked")
    kept = torch.zeros_like(moments)
    if len(rising) and most:
        kept = (valid & (moments <= rising[most - 1])).double()
    return {"kept": kept}


SECOND_MOMENT_MASK = Contract(
    name="second_moment_mask",
    summary="the tokens that are trained on, such that the second moment of their log-ratios is bounded",
    source="M2PO (arXiv:2510.01161), section 4: mask the fewest tokens such that the second moment is below the bound",
    inputs=(
        per_token("proximal_log_probs", "log-probs of the policy before the step, in nats", "log_prob"),
        per_token("behaviour_log_probs", "log-probs of the policy that sampled, in nats", "log_ratio"),
        token_mask(dtype="bool", dtypes=()),
        knob("threshold", "threshold of the mean squared log-ratio", (0.04, 0.2, 1.1), REQUIRED),
        dialect(
            "none_left",
            "none",
            "the tokens that are kept if all are above the threshold: none, or closest (the smallest)",
        ),
    ),
    observes=(
        Observed("kept", "1 for tokens that are trained on", TOKENS, "decision"),
        Observed("kept_count", "number of valid tokens that are kept", role="other"),
        Observed("kept_outside", "number of kept tokens that are masked in the input"),
    ),
    measure=_measure_second_moment_mask,
    oracle=_oracle_second_moment_mask,
    laws=("masked_values_have_no_influence", "padding_is_invisible", "twins_agree", "every_knob_counts", *AS_DEFINED),
    arrange=spreading("proximal_log_probs", "behaviour_log_probs"),
)


# -- penalised turns ---------------------------------------------------------------------------------------------------


def _oracle_turn_penalty(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return each token's advantage. A response's own advantage is its number; that of a faulty turn is the penalty."""
    penalties = {"invalid": inputs["invalid_advantage"], "malformed": inputs["malformed_advantage"]}
    found = []
    for number, turns in enumerate(inputs["turns"], start=1):
        for length, kind in turns:
            penalty = penalties.get(kind)
            found += [float(number) if penalty is None else penalty] * length
    return {"advantages": found}


def _arrange_turn_penalty(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    kinds = ("said", "heard", "invalid", "malformed")
    inputs["turns"] = [
        [(choose.integer(1, 3), choose.one_of(kinds)) for _ in range(choose.integer(1, 3))]
        for _ in range(choose.integer(1, 3))
    ]
    return inputs


TURN_PENALTY = rule(
    name="turn_penalty",
    summary="the advantages of a policy's turns, of which faulty turns have a fixed advantage",
    source="the meaning of the options: the advantage of a faulty turn replaces that of the response",
    inputs=(
        Input(
            "turns",
            "any",
            "for each response, its turns as (number of tokens, kind); kinds: said (by the policy), heard (from the "
            "environment), invalid (a tool call) and malformed (thinking)",
            choices=((),),
        ),
        knob("invalid_advantage", "advantage of invalid tool calls; null: that of the response", (None, -1.0, -2.5)),
        knob("malformed_advantage", "advantage of malformed thinking; null: that of the response", (None, -0.5)),
    ),
    observes=(Observed("advantages", "the advantage of each token of each response", ("tokens",)),),
    measure=returned(advantages="numbers"),
    oracle=_oracle_turn_penalty,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_turn_penalty,
)
