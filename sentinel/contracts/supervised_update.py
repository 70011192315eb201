"""Supervised updates: what reaches the optimiser from sequences some of whose tokens are to be learned.

The model is a table, as in :mod:`sentinel.contracts.policy_update`. A row is a sequence: a first token, which nothing
predicts, and ``tokens`` more. What the model says of a token stands one position before it, so a row of the table is
``log_probs`` and, at the last position, ``output_after``: of a token that is not in the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import detached, leaf
from sentinel.contracts.contract import (
    AS_DEFINED,
    TOKENS,
    Choose,
    Contract,
    Input,
    Observed,
    dialect,
    per_row,
    per_token,
    token_mask,
)
from sentinel.contracts.policy_update import CUTTING, cut_otherwise, fitting


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    tables = {name: leaf(inputs[name]) for name in ("log_probs", "output_after")}
    outputs = call(**{**inputs, **tables})
    return {
        "loss": float(outputs["loss"]),
        "gradient": detached(outputs["gradient"]),
        "gradient_after": detached(outputs["gradient_after"]),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Maximum likelihood: ``- sum_it m_it log p_it / sum_it m_it``, over the tokens of all rows that count."""
    import torch

    valid = inputs["response_mask"] != 0
    count = int(valid.sum())
    if inputs["first_counts"] and inputs["first_token"] == "counted":
        count += len(valid)
    count = max(count, 1)
    return {
        "loss": -torch.where(valid, inputs["log_probs"], 0.0).sum().detach() / count,
        "gradient": -valid.to(inputs["log_probs"]) / count,
        "gradient_after": torch.zeros_like(inputs["output_after"]),
    }


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    return fitting(inputs)


SUPERVISED_UPDATE = Contract(
    name="supervised_update",
    summary="an update towards given tokens: from a batch, through ranks and microbatches, to the optimiser",
    source=(
        "maximum likelihood of a token given those before it (Bengio et al., A Neural Probabilistic Language Model, "
        "2003, section 2), averaged over the tokens of the batch"
    ),
    inputs=(
        per_token(
            "log_probs",
            "of each token after the first, in nats, <= 0: the model's parameters, which its forward pass returns",
            "log_prob",
            differentiable=True,
        ),
        per_row(
            "output_after",
            "what the model says at the last position of each row, of whatever stands there in the labels",
            "log_prob",
            differentiable=True,
        ),
        token_mask("1 where a token after the first is to be learned", dtype="int64", dtypes=()),
        Input(
            "first_counts",
            "boolean",
            "whether the mask marks the first token of each row too, which nothing predicts",
            default=False,
            choices=(False, True),
        ),
        *CUTTING,
        dialect(
            "first_token",
            "absent",
            "whether a first token that the mask marks is among those that the loss is divided by: absent or counted",
        ),
    ),
    observes=(
        Observed("loss", "what is minimised"),
        Observed("gradient", "what the optimiser is handed for log_probs", TOKENS, "gradient"),
        Observed("gradient_after", "what it is handed for output_after", ("batch",), "gradient"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"loss_mask": "response_mask"},
    laws=(
        "masked_values_have_no_influence",
        "groups_are_isolated",
        "order_does_not_matter",
        "padding_is_invisible",
        "parts_add_up",
        "finite_in_finite_out",
        *AS_DEFINED,
    ),
    arrange=_arrange,
    parts=cut_otherwise,
)
