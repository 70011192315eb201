"""Define the contract of the supervised loss: the mean negative log-likelihood of a batch's labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import cut_token_mean, differentiated
from sentinel.contracts.contract import (
    AS_DEFINED,
    TOKENS,
    Choose,
    Contract,
    Input,
    Observed,
    drawn,
    laws,
    token_mask,
)
from sentinel.values.lazy import torch
from sentinel.values.literals import Tensor, from_array

#: The label of a token without a loss, as in torch's cross_entropy.
IGNORED = -100


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the mean negative log-likelihood of the labels, ``- sum log softmax(z_(t - 1))[y_t] / n``.

    The sum is over the n tokens t >= 1 whose mask is not 0, because a causal model's logits at a position predict the
    next token, and nothing predicts the first. The loss is 0 if n = 0.
    """
    counts = inputs["response_mask"][:, 1:] != 0
    likelihoods = torch.log_softmax(inputs["logits"][:, :-1], -1)
    picked = likelihoods.gather(-1, inputs["token_ids"][:, 1:].long().unsqueeze(-1)).squeeze(-1)
    total = inputs["batch_num_tokens"]
    return {"loss": -torch.where(counts, picked, 0.0).sum() / max(int(counts.sum()) if total is None else total, 1)}


def _ones(inputs: Mapping[str, Any]) -> Tensor:
    return from_array(np.ones(inputs["logits"].shape[:2]), "float32")


def _ids(inputs: Mapping[str, Any]) -> Tensor:
    """Return token ids in which neighbouring tokens differ, so that an off-by-one error is visible."""
    rows, tokens, vocabulary = inputs["logits"].shape
    return from_array((np.arange(tokens) + np.arange(rows)[:, None]) % vocabulary, "int64")


def _labels(inputs: Mapping[str, Any]) -> Tensor:
    kept = inputs["response_mask"].array() != 0
    return from_array(np.where(kept, inputs["token_ids"].array(), IGNORED), "int64")


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Set the labels according to the mask, and add the batch's trained tokens to ``batch_num_tokens``."""
    inputs["labels"] = _labels(inputs)
    if inputs["batch_num_tokens"] is not None:
        inputs["batch_num_tokens"] += max(int((inputs["response_mask"].array()[:, 1:] != 0).sum()), 1)
    return inputs


SUPERVISED_LOSS = Contract(
    name="supervised_loss",
    summary="the loss of supervised fine-tuning, from logits and labels that are not shifted",
    source="maximum likelihood of each token given the tokens before it (GPT-2; InstructGPT, arXiv:2203.02155, 3.5)",
    inputs=(
        Input(
            "logits",
            "tensor",
            "logits; those at position t predict token t + 1",
            shape=("batch", "tokens", "vocabulary"),
            differentiable=True,
            domain="value",
        ),
        token_mask("1 for tokens that are trained on", default=_ones),
        Input("token_ids", "tensor", "token ids", dtype="int64", shape=TOKENS, default=_ids),
        Input(
            "labels",
            "tensor",
            f"token ids, {IGNORED} for tokens that are not trained on",
            dtype="int64",
            shape=TOKENS,
            default=_labels,
        ),
        drawn("batch_num_tokens", "trained tokens of the whole step", (None, 0, 3), kind="number"),
    ),
    observes=(
        Observed("loss", "the mean over trained tokens"),
        Observed("logits_gradient", "d loss / d logits", ("batch", "tokens", "vocabulary"), "gradient"),
    ),
    measure=differentiated(logits="logits_gradient"),
    oracle=_oracle,
    aliases={"loss_mask": "response_mask", "num_items_in_batch": "batch_num_tokens"},
    laws=laws("order_does_not_matter parts_add_up finite_in_finite_out", *AS_DEFINED),
    arrange=_arrange,
    parts=cut_token_mean,
)
