"""What normalisations share: group and batch statistics, whitening, and scenarios of outcome rewards.

Formulas are in float64 torch, from the papers named; what frameworks honestly choose differently is a dialect input.
"""

from __future__ import annotations

from sentinel.contracts.contract import Input

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
