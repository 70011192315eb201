"""What normalisations share: statistics of groups and batches, whitening, and scenarios of outcome rewards.

Formulas are in float64 torch, from the papers named; what frameworks honestly choose differently is a dialect input.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import replaced
from sentinel.contracts.contract import (
    GROUP,
    GROUP_LAYOUT,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    laws_of_tokens,
    per_row,
    per_token,
    returned,
    rule,
    token_mask,
)
from sentinel.values.lazy import torch

#: How rewards or advantages are normalised: ``(x - mean) / (std + epsilon)``.
NORMALISATION_INPUTS = (
    GROUP,
    GROUP_LAYOUT,
    knob("mean_level", "over what the subtracted mean is: group, batch, or None for no mean", ("group", "batch", None)),
    knob(
        "std_level",
        "over what the dividing standard deviation is: group, batch, or None for no division",
        (None, "group", "batch"),
        "group",
    ),
    knob("leave_one_out", "whether the mean leaves out what it is subtracted from", (False, True)),
    knob("epsilon", "added to the standard deviation", (1e-6, 0.5)),
    dialect("std", "unbiased", "unbiased (n - 1) or biased (n)"),
    dialect("epsilon_placement", "outside", "outside (std + epsilon) or inside (sqrt(variance + epsilon)) of the root"),
    dialect(
        "std_about",
        "mean",
        "mean (of what std_level says: a standard deviation proper) or subtracted (the root mean square of what is "
        "left after the subtraction)",
    ),
    dialect("group_of_one", "zero", "what has no other to compare with: zero, or score (no mean is subtracted)"),
)

#: Laws of every boundary that takes tokens with a mask to tokens.
LAWS_OF_TOKENS = laws_of_tokens(
    "parts_add_up",
    "a_sequence_decision_is_one_decision",
    "metrics_tell_the_truth",
    "gradients_stay_where_they_belong",
)


# -- oracle ------------------------------------------------------------------------------------------------------------


def rows_of(labels: Iterable[Hashable]) -> dict[Hashable, list[int]]:
    """Number the rows of each group, in the order of their first row."""
    groups: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(label, []).append(row)
    return groups


def runs(flags: Sequence[bool]) -> list[slice]:
    """List the runs of True, from left to right."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(flags, dtype=int), [0]])))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2])]


def mean(values: Any, count_epsilon: float = 0.0) -> Any:
    """Compute ``sum_i x_i / (n + count_epsilon)`` of ``values`` [n]; 0 of none.

    The count is a sum over the mask: it has single precision, whatever the values have, so that an epsilon below half
    its unit in the last place is not seen.
    """
    count = torch.tensor(float(len(values) or 1), dtype=torch.float32) + count_epsilon
    return values.sum() / count.double()


def variance(values: Any, unbiased: bool = True, count_epsilon: float = 0.0) -> Any:
    """Compute ``n / (n - 1)`` (or 1) times the mean of ``(x_i - mean)^2`` of ``values`` [n]; 0 of fewer than two."""
    count = len(values)
    var = mean((values - mean(values, count_epsilon)).square(), count_epsilon)
    return var * count / max(count - 1, 1) if unbiased else var


def squares(deviations: Any, unbiased: bool) -> Any:
    """Compute ``sum_i d_i^2 / (n - 1)`` of ``deviations`` [n], or ``/ n``."""
    return deviations.square().sum() / max(len(deviations) - unbiased, 1)


def root(var: Any, epsilon: float, placement: str) -> Any:
    """Compute what a normalisation divides by: see ``epsilon_placement``."""
    if placement == "inside":
        return torch.sqrt(var + epsilon)
    if placement == "outside":
        return torch.sqrt(var) + epsilon
    if placement == "floor":
        return torch.sqrt(var.clamp(min=epsilon))
    raise DoesNotApply(f"no definition of the epsilon placement {placement!r}")


def whitened(values: Any, valid: Any, unbiased: bool = True) -> Any:
    """Compute ``(x - mean) / sqrt(variance + 1e-8)`` over tokens that count; 0 elsewhere."""
    tokens = values[valid]
    return torch.where(valid, (values - mean(tokens)) / root(variance(tokens, unbiased), 1e-8, "inside"), 0.0)


def normalised(values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute ``(x - mean) / (std + epsilon)`` of the ``values`` that are ``valid`` (both [batch, ...]); 0 elsewhere.

    ``mean`` and ``std`` are of the group's or the batch's valid values: GRPO (arXiv:2402.03300, section 4.1.2) has
    both of the group, Dr. GRPO (arXiv:2503.20783, section 3.2) only the mean, RLOO (arXiv:2402.14740, section 3.3) the
    mean of the others, ``(sum_j x_j - x_i) / (n - 1)``. A value without others is its own mean. A standard deviation
    of one value with n - 1 is no number; nothing is divided by it but ``1 + epsilon``.
    """
    centre, scale = torch.zeros_like(values), torch.ones_like(values)
    for part in _parts(inputs["mean_level"], valid, inputs):
        x = values[part]
        if len(x) == 1:
            centre[part] = x if inputs["group_of_one"] == "zero" else 0.0
        elif len(x):
            centre[part] = (x.sum() - x) / (len(x) - 1) if inputs["leave_one_out"] else x.mean()
    unbiased = inputs["std"] == "unbiased"
    for part in _parts(inputs["std_level"], valid, inputs):
        x = values[part]
        if not len(x):
            continue
        about = x.mean() if inputs["std_about"] == "mean" else centre[part]
        # One value has no spread to be measured with n - 1.
        var = torch.ones_like(x[0]) if unbiased and len(x) == 1 else squares(x - about, unbiased)
        scale[part] = root(var, inputs["epsilon"], inputs["epsilon_placement"])
    return torch.where(valid, (values - centre) / scale, 0.0)


def _parts(level: str | None, valid: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Mark the valid places of each group, of the batch, or none: boolean tensors of the shape of ``valid``."""
    if level is None:
        return []
    if level == "batch":
        return [valid]
    if level != "group":
        raise DoesNotApply(f"no definition of the level {level!r}")
    parts = []
    for rows in rows_of(inputs["group"]).values():
        part = valid.clone()
        part[[row for row in range(len(valid)) if row not in set(rows)]] = False
        parts.append(part)
    return parts


# -- scenarios ---------------------------------------------------------------------------------------------------------


def lay_out_groups(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Give the groups the layout that the boundary needs: see ``group_layout``."""
    labels, layout = list(inputs["group"]), inputs["group_layout"]
    if layout == "equal":
        rows = len(labels)
        sizes = [size for size in range(rows, 0, -1) if rows % size == 0]
        size = choose.one_of([*sizes, *sizes[1:-1] * 2])  # of several groups of several there is the most to see
        labels = ["pqrstuvw"[row // size] for row in range(rows)]
    elif layout == "consecutive":
        labels.sort()
    inputs["group"] = labels
    return inputs


#: Where rewards stand, the plainest first: on the last token that counts of each row; also on that of rejected rows,
#: which is their last token of all; also on tokens that do not count; on every token.
REWARD_STYLES = ("outcome", "rejected", "masked", "every")


def place_rewards(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Turn a reward of every token into outcome rewards, in place: see :data:`REWARD_STYLES`."""
    rewards, valid = inputs["token_level_rewards"], inputs["response_mask"].array() != 0
    style = REWARD_STYLES[0] if inputs["reward_layout"] == "outcome" else choose.one_of(REWARD_STYLES)
    if style == "every":
        return inputs
    tokens = valid.shape[-1]
    last = np.where(valid.any(-1), tokens - 1 - np.argmax(valid[:, ::-1], axis=-1), tokens - 1)
    kept = np.arange(tokens)[None, :] == last[:, None]
    if style == "outcome":
        kept &= valid
    elif style == "masked":
        kept |= ~valid
    inputs["token_level_rewards"] = replaced(rewards, np.where(kept, rewards.array().astype(np.float64), 0.0))
    return inputs


#: An input of contracts whose scenarios :func:`place_rewards` arranges.
REWARD_LAYOUT = Input(
    "reward_layout",
    "string",
    "which rewards the boundary can be given: any (each token its own), or outcome (one a response, on its last token "
    "that counts)",
    default="any",
)


# -- reward normalisation ----------------------------------------------------------------------------------------------


def _oracle_reward_normalisation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``clip((r_i - mean) / (std + epsilon))``: see :func:`sentinel.contracts.normalisation.normalised`."""
    rewards = inputs["rewards"]
    result = normalised(rewards, torch.ones_like(rewards, dtype=torch.bool), inputs)
    clip = inputs["clip"]
    return {"normalised": result if clip is None else result.clamp(-clip, clip)}


#: Laws about a mask, which rewards do not have.
_OF_MASKS = ("masked_values_have_no_influence", "a_rejected_row_is_an_absent_row", "padding_is_invisible")

REWARD_NORMALISATION = rule(
    name="reward_normalisation",
    summary="the rewards that training sees, from those of the task, relative to the group or the batch",
    source="GRPO (arXiv:2402.03300), section 4.1.2; Dr. GRPO (arXiv:2503.20783); RLOO (arXiv:2402.14740), section 3.3",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        *NORMALISATION_INPUTS,
        knob("clip", "bound of the |normalised reward|; left out, none", (None, 1.0, 0.25)),
    ),
    observes=(Observed("normalised", "reward of each response, normalised", ("batch",)),),
    measure=returned(normalised="as_is"),
    oracle=_oracle_reward_normalisation,
    group="group",
    aliases={"scores": "rewards", "uid": "group", "index": "group"},
    laws=tuple(law for law in LAWS_OF_TOKENS if law not in _OF_MASKS),
    arrange=lay_out_groups,
)


# -- advantage normalisation -------------------------------------------------------------------------------------------


def _measure_advantage_normalisation(
    call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """A token that does not count has no advantage; where a boundary means to leave something there, it is left out."""
    output = call(**inputs)["normalised"]
    valid = inputs["response_mask"] != 0
    left = 0.0 if inputs["masked_output"] == "any" else float(torch.where(valid, 0.0, output).abs().sum())
    return {"normalised": torch.where(valid, output, 0.0), "left_on_masked": left}


def _oracle_advantage_normalisation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``(A_it - mean) / (std + epsilon)`` over the group's or the batch's tokens that count."""
    return {"normalised": normalised(inputs["advantages"], inputs["response_mask"] != 0, inputs)}


ADVANTAGE_NORMALISATION = Contract(
    name="advantage_normalisation",
    summary="token-level advantages relative to those of the group's or the batch's tokens that count",
    source="What Matters in On-Policy RL (arXiv:2006.05990), section 3.3; REINFORCE++ (arXiv:2501.03262), equation 7",
    inputs=(
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(),
        *NORMALISATION_INPUTS,
        dialect(
            "masked_output", "zero", "what a token that does not count comes out with: zero, or any (nobody reads it)"
        ),
    ),
    observes=(
        Observed("normalised", "advantage of each token that counts, normalised; 0 elsewhere", TOKENS),
        Observed("left_on_masked", "sum of magnitudes that tokens that do not count come out with"),
    ),
    measure=_measure_advantage_normalisation,
    oracle=_oracle_advantage_normalisation,
    group="group",
    aliases={"loss_mask": "response_mask", "uid": "group", "index": "group"},
    laws=LAWS_OF_TOKENS,
    arrange=lay_out_groups,
)


# -- masked statistics -------------------------------------------------------------------------------------------------


def _measure_masked_statistics(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns one output, under any name. It is a scalar, one number a row, or one a token.

    What stands at tokens that do not count is nobody's meaning: it is left out on both sides.
    """
    (result,) = call(**inputs).values()
    mask = inputs["response_mask"]
    whitened = row_statistic = statistic = None
    if inputs["statistic"] in ("whiten", "segment_mean"):
        whitened = torch.where(mask != 0, result.reshape(mask.shape), 0.0)
    elif inputs["axis"] == "token":
        row_statistic = result.reshape(mask.shape[0])
    else:
        statistic = result.reshape(())
    return {"statistic": statistic, "row_statistic": row_statistic, "whitened": whitened}


def _oracle_masked_statistics(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Over the tokens that count of the batch, or of each row: ``sum x``, ``mean = sum x / n``, ``var = sum (x -
    mean)^2 / (n - 1)`` (or ``/ n``), and ``whiten = (x - mean) / sqrt(var + epsilon)``, plus ``mean`` without
    ``shift_mean``. Of no token, all of them are 0; so is the variance of one token."""
    values, valid, statistic = inputs["values"], inputs["response_mask"] != 0, inputs["statistic"]
    if statistic == "segment_mean":
        return {"result": _segment_means(values, valid, inputs)}
    rows = list(zip(values, valid)) if inputs["axis"] == "token" else [(values, valid)]
    results = [_statistic(statistic, x, counts, inputs) for x, counts in rows]
    return {"result": torch.stack(results) if inputs["axis"] == "token" else results[0]}


def _statistic(statistic: str, values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    x = values[valid]
    centre = mean(x, inputs["count_epsilon"])
    var = variance(x, inputs["unbiased"], inputs["count_epsilon"])
    if statistic == "sum":
        return x.sum()
    if statistic == "mean":
        return centre
    if statistic == "var":
        return var
    if statistic == "whiten":
        scale = root(var, inputs["epsilon"], inputs["epsilon_placement"])
        return torch.where(valid, (values - centre) / scale + (0.0 if inputs["shift_mean"] else centre), 0.0)
    raise DoesNotApply(f"no definition of the statistic {statistic!r}")


def _segment_means(values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    means = torch.zeros_like(values)
    for x, counts, result in zip(values, valid, means):
        for run in runs(counts.tolist()):
            result[run] = mean(x[run], inputs["count_epsilon"])
    return means


MASKED_STATISTICS = Contract(
    name="masked_statistics",
    summary="statistics of the tokens that count",
    source="the definitions of the sample mean and the sample variance; whitening as in PPO (arXiv:2006.05990, C67)",
    inputs=(
        per_token("values", "a value of each token", "value"),
        token_mask(),
        Input(
            "statistic",
            "string",
            "mean, sum, var, whiten (centred, divided by the standard deviation), or segment_mean (each token has the "
            "mean of the run of tokens that count in which it stands)",
        ),
        knob("axis", "over what: None for all tokens of the batch, token for those of each row", (None, "token")),
        knob("unbiased", "whether the variance has n - 1 (or n) in its denominator", (True, False)),
        knob("shift_mean", "whiten: whether the result is centred at 0, or at the mean it had", (True, False)),
        knob("epsilon", "whiten: see epsilon_placement", (1e-8, 0.5)),
        dialect(
            "epsilon_placement",
            "inside",
            "inside (sqrt(variance + epsilon)), outside (sqrt(variance) + epsilon), floor (sqrt(max(variance, "
            "epsilon)))",
        ),
        dialect("count_epsilon", 0.0, "added to the number of tokens that a mean divides by"),
    ),
    observes=(
        Observed("statistic", "mean, sum or var over the batch; else None"),
        Observed("row_statistic", "mean, sum or var of each row; else None", ("batch",)),
        Observed("whitened", "whiten and segment_mean, at each token that counts; 0 elsewhere", TOKENS),
    ),
    measure=_measure_masked_statistics,
    oracle=_oracle_masked_statistics,
    aliases={"loss_mask": "response_mask", "mask": "response_mask"},
    laws=LAWS_OF_TOKENS,
)
