"""Filters: which responses and tokens are trained on."""

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


#: Rewards whose mean over some rows of them is not what floats make of it.
_ROUNDED = (0.1, 0.9)


def _measure_group_filter(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the rows that come out with those that went in.

    :param call: returns the ``numbers`` of the rows that come out, and the ``rewards`` next to them, which a framework
        may have rounded to float32.
    """
    outputs = call(**inputs)
    numbers = list(outputs["numbers"])
    rewards = torch.tensor(list(outputs["rewards"]), dtype=torch.float32)
    intact = numbers == sorted(set(numbers)) and torch.equal(rewards, inputs["rewards"][numbers].float())
    kept = torch.tensor([float(row in numbers) for row in range(len(inputs["group"]))])
    return {"kept": kept, "intact": intact}


def _oracle_group_filter(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All rows of a group of which two rewards differ: the others have an advantage of 0."""
    rewards = inputs["rewards"]
    parts = rows_of(inputs["group"]).values()
    kept = [part for part in parts if len(set(rewards[part].tolist())) > 1]
    kept += [part for part in parts if len(part) == 1 and inputs["group_of_one"] == "kept"]
    if not kept and inputs["none_left"] == "all":
        kept = list(parts)
    numbers = sorted(row for part in kept for row in part)
    return {"numbers": numbers, "rewards": rewards[numbers].tolist()}


def _arrange_group_filter(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Lay the groups out as the boundary needs; the last is often all alike, and then often no sum of halves."""
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
    summary="the responses that are trained on: those to prompts whose rewards are not all alike",
    source="DAPO (arXiv:2503.14476), section 3.2, equation 11: dynamic sampling leaves out what has no advantage",
    inputs=(
        per_row("rewards", "reward of each response", "reward", dtype="float64"),
        GROUP,
        GROUP_LAYOUT,
        dialect("group_of_one", "dropped", "a response without others to differ from: dropped, or kept"),
        dialect("none_left", "none", "what comes out where no group is kept: none, or all"),
    ),
    observes=(
        Observed("kept", "1 for a response that comes out", ("batch",), "decision"),
        Observed("intact", "whether those come out once each, in their order, beside their own rewards"),
    ),
    measure=_measure_group_filter,
    oracle=_oracle_group_filter,
    group="group",
    laws=("groups_are_isolated", "order_does_not_matter", "twins_agree", *AS_DEFINED),
    arrange=_arrange_group_filter,
)


# -- difficulty filters ------------------------------------------------------------------------------------------------


def _oracle_difficulty_filter(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """1 for each row of a group with ``low < mean reward < high``."""
    kept = torch.zeros(len(inputs["group"]), dtype=torch.float64)
    for rows in rows_of(inputs["group"]).values():
        unfiltered = len(rows) == 1 and inputs["group_of_one"] == "kept"
        kept[rows] = float(unfiltered or inputs["low"] < inputs["rewards"][rows].mean() < inputs["high"])
    return {"kept": kept}


DIFFICULTY_FILTER = rule(
    name="difficulty_filter",
    summary="the responses that are trained on: those to prompts of medium difficulty",
    source="PRIME (arXiv:2502.01456), online prompt filtering: prompts whose accuracy is within a range",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        GROUP,
        GROUP_LAYOUT,
        knob("low", "a prompt whose mean is not above is too hard", (0.125, 0.375), REQUIRED),
        knob("high", "one whose mean is not below is too easy", (0.875, 0.625), REQUIRED),
        dialect("group_of_one", "filtered", "a response without others to the same prompt: filtered, or kept"),
    ),
    observes=(Observed("kept", "1 for a response that is trained on", ("batch",), "decision"),),
    measure=returned(kept="as_is"),
    oracle=_oracle_difficulty_filter,
    group="group",
    laws=("groups_are_isolated", "order_does_not_matter", "twins_agree", "every_knob_counts", *AS_DEFINED),
    arrange=lay_out_groups,
)


# -- overlong filtering ------------------------------------------------------------------------------------------------


def _measure_overlong_filter(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``kept`` [batch, tokens]: the mask that training sees."""
    kept = call(**inputs)["kept"]
    return {"kept": kept, "kept_outside": int(((kept != 0) & (inputs["response_mask"] == 0)).sum())}


def _oracle_overlong_filter(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The mask, with 0 in every column of a response that has as many tokens as there is room for."""
    valid = inputs["response_mask"] != 0
    return {"kept": (valid & ~valid.all(-1, keepdim=True)).double()}


OVERLONG_FILTER = Contract(
    name="overlong_filter",
    summary="the mask of a batch of responses, without those that were cut off at the limit",
    source="DAPO (arXiv:2503.14476), section 3.4: overlong filtering masks the loss of truncated samples",
    inputs=(
        token_mask(
            "1 where a token is of the response; one that fills all columns was cut off", dtype="int64", dtypes=()
        ),
    ),
    observes=(
        Observed("kept", "1 where a token is trained on", TOKENS, "decision"),
        Observed("kept_outside", "how many tokens are kept that do not count"),
    ),
    measure=_measure_overlong_filter,
    oracle=_oracle_overlong_filter,
    laws=("order_does_not_matter", "twins_agree", "the_oracle_agrees", "nothing_else_is_touched"),
    arrange=with_a_token,
)


# -- second-moment masks -----------------------------------------------------------------------------------------------


def _measure_second_moment_mask(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``kept`` [batch, tokens]: the mask that the loss sees."""
    kept = call(**inputs)["kept"]
    valid = inputs["response_mask"] != 0
    return {
        "kept": kept,
        "kept_count": int(((kept != 0) & valid).sum()),
        "kept_outside": int((kept[~valid] != 0).sum()),
    }


def _oracle_second_moment_mask(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fewest tokens such that the mean over the others of ``(log p_behaviour - log p)^2`` is below the
    threshold: those are the tokens with the largest.

    :raises DoesNotApply: where the last token that is left out is as far off as the first that is kept.
    """
    valid = inputs["response_mask"] != 0
    moments = (inputs["behaviour_log_probs"] - inputs["proximal_log_probs"]).square()
    rising = moments[valid].sort().values
    below = [count for count in range(1, len(rising) + 1) if rising[:count].mean() < inputs["threshold"]]
    most = max(below, default=1 if inputs["none_left"] == "closest" else 0)
    if 0 < most < len(rising) and rising[most - 1] == rising[most]:
        raise DoesNotApply("which of two tokens that are as far off is left out is nobody's business")
    kept = torch.zeros_like(moments)
    if len(rising) and most:
        kept = (valid & (moments <= rising[most - 1])).double()
    return {"kept": kept}


SECOND_MOMENT_MASK = Contract(
    name="second_moment_mask",
    summary="the tokens whose log-ratio is trained on, so that the second moment of all of them is bounded",
    source="M2PO (arXiv:2510.01161), section 4: the fewest tokens are masked that bring the second moment below it",
    inputs=(
        per_token("proximal_log_probs", "of the policy before the step, in nats", "log_prob"),
        per_token("behaviour_log_probs", "of the policy that sampled, in nats", "log_ratio"),
        token_mask(dtype="bool", dtypes=()),
        knob("threshold", "of the mean squared log-ratio", (0.04, 0.2, 1.1), REQUIRED),
        dialect(
            "none_left",
            "none",
            "what is kept where every token is too far off: none, or closest (the one that is least)",
        ),
    ),
    observes=(
        Observed("kept", "1 where a token is trained on", TOKENS, "decision"),
        Observed("kept_count", "how many of the tokens that count", role="other"),
        Observed("kept_outside", "how many are kept that do not count"),
    ),
    measure=_measure_second_moment_mask,
    oracle=_oracle_second_moment_mask,
    laws=("masked_values_have_no_influence", "padding_is_invisible", "twins_agree", "every_knob_counts", *AS_DEFINED),
    arrange=spreading("proximal_log_probs", "behaviour_log_probs"),
)
