"""Prompt losses: one scalar from per-token losses, in which every prompt weighs the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import detached, gradient, leaf
from sentinel.contracts.contract import TOKENS, Choose, Contract, DoesNotApply, Input, Observed, per_token, token_mask
from sentinel.contracts.normalisation import rows_of


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    losses = leaf(inputs["loss_mat"])
    loss = call(**{**inputs, "loss_mat": losses})["loss"]
    return {"loss": detached(loss), "per_token_gradient": gradient(loss, losses)}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``mean_p sum_{i in p, t} m_it l_it / sum_{i in p, t} m_it``."""
    import torch

    losses, valid = inputs["loss_mat"], inputs["response_mask"] != 0
    prompts = [torch.tensor(rows) for rows in rows_of(inputs["group"]).values()]
    if not all(valid[rows].any() for rows in prompts):
        raise DoesNotApply("a prompt has no token that counts")
    return {"loss": torch.stack([losses[rows][valid[rows]].mean() for rows in prompts]).mean()}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Prompts with one and the same number of responses, which stand together."""
    rows = inputs["response_mask"].shape[0]
    size = choose.one_of([size for size in range(1, rows + 1) if rows % size == 0])
    inputs["group"] = [f"prompt {row // size}" for row in range(rows)]
    return inputs


PROMPT_LOSS = Contract(
    name="prompt_loss",
    summary="the mean over the prompts of a batch of the mean loss of a prompt's tokens",
    source="a mean over prompts: a loss that is the same everywhere is the loss of the batch",
    inputs=(
        per_token("loss_mat", "per-token losses", "loss", differentiable=True),
        token_mask(dtypes=()),
        Input("group", "labels", "the prompt that each row answers", shape=("batch",)),
    ),
    observes=(
        Observed("loss", "the loss of the batch"),
        Observed("per_token_gradient", "d loss / d loss_mat", TOKENS, "gradient"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=("masked_values_have_no_influence", "the_oracle_agrees", "nothing_else_is_touched", "finite_in_finite_out"),
    group="group",
    arrange=_arrange,
)
