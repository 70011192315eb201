"""Define contracts of normalisation: whitening, and statistics of groups and batches.

Oracles compute in float64 with torch, by the formulas of the cited papers. Where frameworks legitimately differ, the
choice is a dialect input.
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
    knob(
        "mean_level",
        "set over which the subtracted mean is computed: group, batch, or None for no mean",
        ("group", "batch", None),
    ),
    knob(
        "std_level",
        "set over which the dividing standard deviation is computed: group, batch, or None for no division",
        (None, "group", "batch"),
        "group",
    ),
    knob("leave_one_out", "whether the mean excludes the value that it is subtracted from", (False, True)),
    knob("epsilon", "added to the standard deviation", (1e-6, 0.5)),
    dialect("std", "unbiased", "unbiased (n - 1) or biased (n)"),
    dialect("epsilon_placement", "outside", "outside (std + epsilon) or inside (sqrt(variance + epsilon)) the root"),
    dialect(
        "std_about",
        "mean",
        "centre of the std: mean (the mean of std_level) or subtracted (the std is the root mean square of the values "
        "after the subtraction)",
    ),
    dialect(
        "group_of_one",
        "zero",
        "the result for a group of one: zero, or score (no mean is subtracted, and the std of the group is 1)",
    ),
)

#: How ``whiten`` computes its divisor.
WHITENING = (
    dialect("std", "unbiased", "whiten: the variance is unbiased (n - 1) or biased (n)"),
    dialect("epsilon", 1e-8, "whiten: added to the variance or the standard deviation, see epsilon_placement"),
    dialect(
        "epsilon_placement",
        "inside",
        "whiten: inside (sqrt(variance + epsilon)), outside (std + epsilon), or floor (sqrt(max(variance, epsilon)))",
    ),
)

#: The laws of every boundary that maps masked tokens to tokens.
LAWS_OF_TOKENS = laws_of_tokens(
    "parts_add_up",
    "a_sequence_decision_is_one_decision",
    "metrics_tell_the_truth",
    "gradients_stay_where_they_belong",
)


# -- oracle ------------------------------------------------------------------------------------------------------------


def rows_of(labels: Iterable[Hashable]) -> dict[Hashable, list[int]]:
    """Return the row indices of each group, in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(label, []).append(row)
    return groups


def runs(flags: Sequence[bool]) -> list[slice]:
    """Return the longest slices of ``flags`` in which all flags are True, from left to right."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(flags, dtype=int), [0]])))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2])]


def mean(values: Any, count_epsilon: float = 0.0) -> Any:
    """Compute ``sum_i x_i / (n + count_epsilon)`` of ``values`` [n]; 0 for n = 0.

    Frameworks sum the mask in single precision, so an epsilon below half a unit in the last place of n has no effect.
    """
    count = torch.tensor(float(len(values) or 1), dtype=torch.float32) + count_epsilon
    return values.sum() / count.double()


def variance(values: Any, unbiased: bool = True, count_epsilon: float = 0.0) -> Any:
    """Compute the variance of ``values`` [n], times ``n / (n - 1)`` if it is unbiased; 0 for fewer than two values."""
    count = len(values)
    var = mean((values - mean(values, count_epsilon)).square(), count_epsilon)
    return var * count / max(count - 1, 1) if unbiased else var


def squares(deviations: Any, unbiased: bool) -> Any:
    """Return ``sum_i d_i^2 / (n - 1)`` of ``deviations`` [n] if ``unbiased``, otherwise ``sum_i d_i^2 / n``."""
    return deviations.square().sum() / max(len(deviations) - unbiased, 1)


def root(var: Any, epsilon: float, placement: str) -> Any:
    """Compute the divisor of a normalisation from its variance and epsilon: see ``epsilon_placement``."""
    if placement == "inside":
        return torch.sqrt(var + epsilon)
    if placement == "outside":
        return torch.sqrt(var) + epsilon
    if placement == "floor":
        return torch.sqrt(var.clamp(min=epsilon))
    raise DoesNotApply(f"the contract does not define the epsilon placement {placement!r}")


def whitened(values: Any, valid: Any, unbiased: bool = True, epsilon: float = 1e-8, placement: str = "inside") -> Any:
    """Compute ``(x - mean) / sqrt(variance + epsilon)`` over valid tokens; 0 elsewhere."""
    tokens = values[valid]
    return torch.where(valid, (values - mean(tokens)) / root(variance(tokens, unbiased), epsilon, placement), 0.0)


def whitened_as_stated(values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    """Whiten values over valid tokens, with the divisor that the scenario's :data:`WHITENING` inputs select."""
    return whitened(values, valid, inputs["std"] == "unbiased", inputs["epsilon"], inputs["epsilon_placement"])


def normalised(values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute ``(x - mean) / (std + epsilon)`` of the ``values`` that are ``valid`` (both [batch, ...]); 0 elsewhere.

    ``mean`` and ``std`` are statistics of the group's or the batch's valid values. GRPO (arXiv:2402.03300, section
    4.1.2) uses the mean and the std of the group, and Dr. GRPO (arXiv:2503.20783, section 3.2) only the mean. RLOO
    (arXiv:2402.14740, section 3.3) uses the mean of the group's other values, ``(sum_j x_j - x_i) / (n - 1)``.

    A single value is its own mean. Its unbiased standard deviation is undefined; the divisor is then ``1 + epsilon``.
    The divisor is the same if a group of one keeps its score (``group_of_one``).
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
        # The unbiased deviation of one value is undefined. A group of one that keeps its score has a deviation of 1.
        scored = inputs["group_of_one"] == "score" and inputs["std_level"] == "group"
        var = torch.ones_like(x[0]) if len(x) == 1 and (unbiased or scored) else squares(x - about, unbiased)
        scale[part] = root(var, inputs["epsilon"], inputs["epsilon_placement"])
    return torch.where(valid, (values - centre) / scale, 0.0)


def _parts(level: str | None, valid: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the sets of values that share a statistic, as masks in the shape of ``valid``: one per group, one for the
    whole batch, or none, depending on ``level``."""
    if level is None:
        return []
    if level == "batch":
        return [valid]
    if level != "group":
        raise DoesNotApply(f"the contract does not define the level {level!r}")
    parts = []
    for rows in rows_of(inputs["group"]).values():
        part = valid.clone()
        part[[row for row in range(len(valid)) if row not in set(rows)]] = False
        parts.append(part)
    return parts


# -- scenarios ---------------------------------------------------------------------------------------------------------


def lay_out_groups(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Arrange the group labels as the input ``group_layout`` requires."""
    labels, layout = list(inputs["group"]), inputs["group_layout"]
    if layout == "equal":
        rows = len(labels)
        sizes = [size for size in range(rows, 0, -1) if rows % size == 0]
        size = choose.one_of([*sizes, *sizes[1:-1] * 2])  # prefer several groups of several rows
        names = (*"pqrstuvw", *map(str, range(rows)))
        labels = [names[row // size] for row in range(rows)]
    elif layout == "consecutive":
        labels.sort()
    inputs["group"] = labels
    return inputs


#: Positions that have a reward, the simplest style first. ``outcome``: the last valid token of each row. ``rejected``:
#: in addition, the last token of each rejected row. ``masked``: in addition, all masked tokens. ``every``: all tokens.
REWARD_STYLES = ("outcome", "rejected", "masked", "every")


def place_rewards(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Set rewards to 0, in place, except at the positions of one of :data:`REWARD_STYLES`."""
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


REWARD_LAYOUT = Input(
    "reward_layout",
    "string",
    "rewards that the boundary accepts: any (one per token), or outcome (one per response, on its last valid token)",
    default="any",
)


# -- reward normalisation ----------------------------------------------------------------------------------------------


def _oracle_reward_normalisation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute normalised rewards, ``clip((r_i - mean) / (std + epsilon))``."""
    rewards = inputs["rewards"]
    result = normalised(rewards, torch.ones_like(rewards, dtype=torch.bool), inputs)
    clip = inputs["clip"]
    return {"normalised": result if clip is None else result.clamp(-clip, clip)}


#: Laws about a mask, which sequence rewards do not have.
_OF_MASKS = ("masked_values_have_no_influence", "a_rejected_row_is_an_absent_row", "padding_is_invisible")

REWARD_NORMALISATION = rule(
    name="reward_normalisation",
    summary="rewards for training from task rewards, normalised over the group or the batch",
    source="GRPO (arXiv:2402.03300), section 4.1.2; Dr. GRPO (arXiv:2503.20783); RLOO (arXiv:2402.14740), section 3.3",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        *NORMALISATION_INPUTS,
        knob("clip", "bound of |normalised reward|; default: none", (None, 1.0, 0.25)),
        # A search varies this input only for bindings that list its values in ``accepts``.
        Input(
            "rewards_of",
            "string",
            "what a row's reward belongs to: episode, step (of an agent's episode), or both (a weighted sum)",
            default="episode",
        ),
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
    """Observe advantages at valid tokens, and their sum of magnitudes at masked tokens if it must be 0."""
    output = call(**inputs)["normalised"]
    valid = inputs["response_mask"] != 0
    left = 0.0 if inputs["masked_output"] == "any" else float(torch.where(valid, 0.0, output).abs().sum())
    return {"normalised": torch.where(valid, output, 0.0), "left_on_masked": left}


def _oracle_advantage_normalisation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute normalised advantages, ``(A_it - mean) / (std + epsilon)``, with statistics of the group or batch."""
    return {"normalised": normalised(inputs["advantages"], inputs["response_mask"] != 0, inputs)}


ADVANTAGE_NORMALISATION = Contract(
    name="advantage_normalisation",
    summary="token-level advantages, normalised over the valid tokens of the group or the batch",
    source="What Matters in On-Policy RL (arXiv:2006.05990), section 3.3; REINFORCE++ (arXiv:2501.03262), equation 7",
    inputs=(
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(),
        *NORMALISATION_INPUTS,
        dialect("masked_output", "zero", "the result on masked tokens: zero, or any (it is not used)"),
    ),
    observes=(
        Observed("normalised", "normalised advantage of each valid token; 0 elsewhere", TOKENS),
        Observed("left_on_masked", "sum of magnitudes on masked tokens"),
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
    """Observe the output of a statistic: a scalar, a number per row, or a number per token.

    Values on masked tokens are undefined, so they are set to 0, in the oracle's outputs too.
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
    """Compute a statistic over the valid tokens of the batch or of each row.

    ``sum x``, ``mean = sum x / n``, ``var = sum (x - mean)^2 / (n - 1)`` (or ``/ n``), and ``whiten = (x - mean) /
    sqrt(var + epsilon)``, plus ``mean`` if ``shift_mean`` is false. Every statistic of no tokens is 0, and so is the
    variance of one token.
    """
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
    raise DoesNotApply(f"the contract does not define the statistic {statistic!r}")


def _segment_means(values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    means = torch.zeros_like(values)
    for x, counts, result in zip(values, valid, means):
        for run in runs(counts.tolist()):
            result[run] = mean(x[run], inputs["count_epsilon"])
    return means


MASKED_STATISTICS = Contract(
    name="masked_statistics",
    summary="statistics of the valid tokens",
    source="the definitions of the sample mean and the sample variance; whitening as in PPO (arXiv:2006.05990, C67)",
    inputs=(
        per_token("values", "a value of each token", "value"),
        token_mask(),
        Input(
            "statistic",
            "string",
            "mean, sum, var, whiten (centred, divided by the standard deviation), or segment_mean (each token gets the "
            "mean of its run of valid tokens)",
        ),
        knob("axis", "axis: None for all tokens of the batch, token for each row", (None, "token")),
        knob("unbiased", "whether the variance divides by n - 1 (otherwise n)", (True, False)),
        knob("shift_mean", "whiten: whether the result is centred at 0, or keeps its mean", (True, False)),
        knob("epsilon", "whiten: added to the variance or the standard deviation, see epsilon_placement", (1e-8, 0.5)),
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
        Observed("whitened", "result of whiten and segment_mean at each valid token; 0 elsewhere", TOKENS),
    ),
    measure=_measure_masked_statistics,
    oracle=_oracle_masked_statistics,
    aliases={"loss_mask": "response_mask", "mask": "response_mask"},
    laws=LAWS_OF_TOKENS,
)
