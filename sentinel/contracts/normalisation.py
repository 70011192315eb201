"""What normalisations share: statistics of groups and batches, whitening, and scenarios of outcome rewards.

Formulas are in float64 torch, from the papers named; what frameworks honestly choose differently is a dialect input.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import replaced
from sentinel.contracts.contract import Choose, DoesNotApply, Input

#: How rewards or advantages are normalised: ``(x - mean) / (std + epsilon)``.
NORMALISATION_INPUTS = (
    Input("group", "labels", "the prompt that each row answers", shape=("batch",)),
    Input(
        "group_layout",
        "string",
        "which labels the boundary can be given: any, consecutive (the rows of a group stand together), equal "
        "(consecutive, and every group has the same number of rows)",
        default="any",
    ),
    Input(
        "mean_level",
        "string",
        "over what the subtracted mean is: group, batch, or None for no mean",
        default="group",
        choices=("group", "batch", None),
        knob=True,
    ),
    Input(
        "std_level",
        "string",
        "over what the dividing standard deviation is: group, batch, or None for no division",
        default="group",
        choices=(None, "group", "batch"),
        knob=True,
    ),
    Input(
        "leave_one_out",
        "boolean",
        "whether the mean leaves out what it is subtracted from",
        default=False,
        choices=(False, True),
        knob=True,
    ),
    Input("epsilon", "number", "added to the standard deviation", default=1e-6, choices=(1e-6, 0.5), knob=True),
    Input("std", "string", "unbiased (n - 1) or biased (n)", default="unbiased", dialect=True),
    Input(
        "epsilon_placement",
        "string",
        "outside (std + epsilon) or inside (sqrt(variance + epsilon)) of the root",
        default="outside",
        dialect=True,
    ),
    Input(
        "std_about",
        "string",
        "mean (of what std_level says: a standard deviation proper) or subtracted (the root mean square of what is "
        "left after the subtraction)",
        default="mean",
        dialect=True,
    ),
    Input(
        "group_of_one",
        "string",
        "what has no other to compare with: zero, or score (no mean is subtracted)",
        default="zero",
        dialect=True,
    ),
)

#: Laws of every boundary that takes tokens with a mask to tokens.
LAWS_OF_TOKENS = (
    "masked_values_have_no_influence",
    "a_rejected_row_is_an_absent_row",
    "groups_are_isolated",
    "order_does_not_matter",
    "padding_is_invisible",
    "twins_agree",
    "the_oracle_agrees",
    "nothing_else_is_touched",
    "representation_is_invisible",
    "every_knob_counts",
    "finite_in_finite_out",
    "normalisation_laws",
)


# -- oracle ------------------------------------------------------------------------------------------------------------


def rows_of(labels: Iterable[Hashable]) -> dict[Hashable, list[int]]:
    """The rows of each group, in the order of their first row."""
    found: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        found.setdefault(label, []).append(row)
    return found


def runs(flags: Sequence[bool]) -> list[slice]:
    """The runs of True, from left to right."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(flags, dtype=int), [0]])))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2])]


def mean(values: Any, count_epsilon: float = 0.0) -> Any:
    """``sum_i x_i / (n + count_epsilon)`` of ``values`` [n]; 0 of none.

    The count is a sum over the mask: it has single precision, whatever the values have, so that an epsilon below half
    its unit in the last place is not seen.
    """
    import torch

    count = torch.tensor(float(len(values) or 1), dtype=torch.float32) + count_epsilon
    return values.sum() / count.double()


def variance(values: Any, unbiased: bool = True, count_epsilon: float = 0.0) -> Any:
    """``n / (n - 1)`` (or 1) times the mean of ``(x_i - mean)^2`` of ``values`` [n]; 0 where that says nothing."""
    count = len(values)
    var = mean((values - mean(values, count_epsilon)).square(), count_epsilon)
    return var * count / max(count - 1, 1) if unbiased else var


def squares(deviations: Any, unbiased: bool) -> Any:
    """``sum_i d_i^2 / (n - 1)`` of ``deviations`` [n], or ``/ n``; 0 where that says nothing."""
    return deviations.square().sum() / max(len(deviations) - unbiased, 1)


def root(var: Any, epsilon: float, placement: str) -> Any:
    """What a normalisation divides by: see ``epsilon_placement``."""
    import torch

    if placement == "inside":
        return torch.sqrt(var + epsilon)
    if placement == "outside":
        return torch.sqrt(var) + epsilon
    if placement == "floor":
        return torch.sqrt(var.clamp(min=epsilon))
    raise DoesNotApply(f"no definition of the epsilon placement {placement!r}")


def whitened(values: Any, valid: Any, count_epsilon: float = 0.0) -> Any:
    """``(x - mean) / sqrt(variance + 1e-8)`` over all tokens that count, the variance with n - 1; 0 elsewhere."""
    import torch

    tokens = values[valid]
    scale = root(variance(tokens, count_epsilon=count_epsilon), 1e-8, "inside")
    return torch.where(valid, (values - mean(tokens, count_epsilon)) / scale, 0.0)


def normalised(values: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    """``(x - mean) / (std + epsilon)`` of the ``values`` that are ``valid`` (both [batch, ...]); 0 elsewhere.

    ``mean`` and ``std`` are of the group's or the batch's valid values: GRPO (arXiv:2402.03300, section 4.1.2) has
    both of the group, Dr. GRPO (arXiv:2503.20783, section 3.2) only the mean, RLOO (arXiv:2402.14740, section 3.3) the
    mean of the others, ``(sum_j x_j - x_i) / (n - 1)``. A value without others is its own mean. A standard deviation
    of one value with n - 1 is no number; nothing is divided by it but ``1 + epsilon``.
    """
    import torch

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
    """The valid places of each group, of the batch, or none, as boolean tensors of the shape of ``valid``."""
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


def place_rewards(inputs: dict[str, Any], choose: Choose) -> None:
    """Turn a reward of every token into outcome rewards, in place: see :data:`REWARD_STYLES`."""
    rewards, valid = inputs["token_level_rewards"], inputs["response_mask"].array() != 0
    style = REWARD_STYLES[0] if inputs["reward_layout"] == "outcome" else choose.one_of(REWARD_STYLES)
    if style == "every":
        return
    tokens = valid.shape[-1]
    last = np.where(valid.any(-1), tokens - 1 - np.argmax(valid[:, ::-1], axis=-1), tokens - 1)
    kept = np.arange(tokens)[None, :] == last[:, None]
    if style == "outcome":
        kept &= valid
    elif style == "masked":
        kept |= ~valid
    inputs["token_level_rewards"] = replaced(rewards, np.where(kept, rewards.array().astype(np.float64), 0.0))


#: An input of contracts whose results may be whitened.
COUNT_EPSILON = Input(
    "count_epsilon",
    "number",
    "added to the number of tokens that a mean divides by",
    default=0.0,
    dialect=True,
)

#: An input of contracts whose scenarios :func:`place_rewards` arranges.
REWARD_LAYOUT = Input(
    "reward_layout",
    "string",
    "which rewards the boundary can be given: any (each token its own), or outcome (one a response, on its last token "
    "that counts)",
    default="any",
)
