"""Token log-probs: what a model's logits say of the tokens of a response, one log-probability a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import gradient, leaf
from sentinel.contracts.contract import (
    TOKENS,
    Choose,
    Contract,
    Input,
    Observed,
    dialect,
    knob,
    laws_of_tokens,
    per_token,
    token_mask,
)
from sentinel.values.literals import Tensor, tensor


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One forward and one backward pass; what stands at tokens that do not count is left out on both sides.

    ``call`` returns ``log_probs`` [batch, tokens], and ``entropy`` [batch, tokens] where the boundary has it. Where it
    takes no gradients there are none to observe.
    """
    import torch

    valid = inputs["response_mask"] != 0
    logits = leaf(inputs["logits"])
    outputs = call(**{**inputs, "logits": logits})
    log_probs, entropy = torch.where(valid, outputs["log_probs"], 0.0), outputs.get("entropy")
    return {
        "log_probs": log_probs.detach(),
        "entropy": None if entropy is None else torch.where(valid, entropy.detach(), 0.0),
        "logits_gradient": gradient(log_probs.sum(), logits) if log_probs.requires_grad else None,
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``log p_t = log_softmax(z_t / T)[token t]`` and the entropy ``-sum_v p_v log p_v`` of the same distribution.

    At the temperature 0 all of the probability is on the likeliest token, which leaves no log-probs to train with;
    those of a greedy rollout are of the distribution itself, ``T = 1``.
    """
    import torch

    logits = inputs["logits"] / (inputs["temperature"] or 1.0)
    distribution = torch.log_softmax(logits, dim=-1)
    log_probs = distribution.gather(-1, inputs["token_ids"].long().unsqueeze(-1)).squeeze(-1)
    if not inputs["with_entropy"]:
        return {"log_probs": log_probs, "entropy": None}
    if inputs["entropy_of"] == "model":
        distribution = torch.log_softmax(inputs["logits"], dim=-1)
    return {"log_probs": log_probs, "entropy": -(distribution.exp() * distribution).sum(-1)}


def _counted_up(inputs: Mapping[str, Any]) -> Tensor:
    """Each token its position, as far as the vocabulary goes: a neighbour's token shows."""
    rows, tokens, vocabulary = inputs["logits"].shape
    return tensor(np.broadcast_to(np.arange(tokens) % vocabulary, (rows, tokens)).tolist(), "int64")


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Token ids that the vocabulary has."""
    rows, tokens, vocabulary = inputs["logits"].shape
    drawn = np.array(choose.integers(rows * tokens, 0, vocabulary - 1)).reshape(rows, tokens)
    inputs["token_ids"] = tensor(drawn.tolist(), "int64")
    return inputs


TOKEN_LOG_PROBS = Contract(
    name="token_log_probs",
    summary="the log-probability of each response token, from the logits that predict it",
    source="the definition of a categorical distribution with temperature (arXiv:1503.02531, equation 1)",
    inputs=(
        Input(
            "logits",
            "tensor",
            "of each response token: the model's output where that token is predicted, one position before it",
            shape=("batch", "tokens", "vocabulary"),
            differentiable=True,
            domain="value",
        ),
        per_token(
            "token_ids",
            "the response tokens, each below the size of the vocabulary",
            dtype="int64",
            default=_counted_up,
        ),
        token_mask(
            "1 where there is a response token",
            default=lambda inputs: tensor(np.ones(inputs["logits"].shape[:2]).tolist(), "float32"),
        ),
        knob("temperature", "what the logits are divided by; 0 (greedy rollouts) stands for 1", (1.0, 0.5, 2.0)),
        Input(
            "context_parallel_size",
            "integer",
            "over how many ranks each sequence is cut; the answer is that of one rank",
            default=1,
        ),
        dialect(
            "entropy_of",
            "sampled",
            "which distribution's entropy it is: sampled (with the temperature), or model (without)",
        ),
        Input("with_entropy", "boolean", "whether the entropy is asked for", default=True, choices=(True, False)),
    ),
    observes=(
        Observed("log_probs", "of each response token; 0 elsewhere", TOKENS),
        Observed("entropy", "of the distribution of each response token; 0 elsewhere", TOKENS),
        Observed("logits_gradient", "d sum(log_probs) / d logits", ("batch", "tokens", "vocabulary"), "gradient"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    aliases={"labels": "token_ids", "loss_mask": "response_mask"},
    laws=laws_of_tokens(
        "masked_values_have_no_influence",
        "parts_add_up",
        "a_sequence_decision_is_one_decision",
        "metrics_tell_the_truth",
        "normalisation_laws",
    ),
    arrange=_arrange,
)
