"""Responses: what a model and an engine say of the tokens of a response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import CONTEXT_PARALLEL, gradient, leaf
from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    Input,
    Observed,
    dialect,
    drawn,
    knob,
    laws_of_tokens,
    per_row,
    per_token,
    rule,
    token_mask,
)
from sentinel.values.lazy import torch
from sentinel.values.literals import Array, Tensor, tensor

# -- response masks ----------------------------------------------------------------------------------------------------


#: Ids of ordinary tokens; the special ones are below.
_WORDS = 10


def _measure_response_masks(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` gets the batch padded as frameworks have it (``prompts`` on the left, ``responses`` on the right) and
    returns ``response_mask`` of the response columns, and of the prompt columns if it has them."""
    pad = inputs["pad_token_id"]
    prompts, responses = inputs["prompt_token_ids"], inputs["response_token_ids"]
    before = max(map(len, prompts))
    left = [[pad] * (before - len(row)) + list(row) for row in prompts]
    right = [list(row) + [pad] * (inputs["response_length"] - len(row)) for row in responses]
    outputs = call(
        prompts=torch.tensor(left),
        prompt_mask=torch.tensor([[0] * (before - len(row)) + [1] * len(row) for row in prompts]),
        responses=torch.tensor(right),
        lengths=torch.tensor([len(row) for row in responses]),
        **{name: inputs[name] for name in ("eos_token_id", "pad_token_id", "response_length")},
    )
    mask = outputs["response_mask"]
    return {
        "response_mask": mask[:, -inputs["response_length"] :].to(torch.int64),
        "counted_prompt_tokens": int(mask[:, : -inputs["response_length"]].sum()),
    }


def _oracle_response_masks(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Every token that the policy chose, its EOS too, and nothing behind it."""
    places = torch.arange(inputs["response_length"])
    return {"response_mask": (places[None, :] < inputs["lengths"][:, None]).to(torch.int64)}


def _arrange_response_masks(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw responses that end with EOS, or fill the whole length; no other token of them is special."""
    length, eos = inputs["response_length"], inputs["eos_token_id"]
    prompts, responses = [], []
    for _ in range(choose.integer(1, 3)):
        prompts.append([_WORDS + place for place in range(choose.integer(1, 3))])
        words = choose.integer(0, length)
        responses.append([_WORDS + 5 + place for place in range(words)] + [eos] * (words < length))
    return {**inputs, "prompt_token_ids": prompts, "response_token_ids": responses}


RESPONSE_MASKS = rule(
    name="response_masks",
    summary="the mask of the tokens that the policy chose, from what an engine generated",
    source="REINFORCE (Williams, 1992): every action has a term, and the decision to stop is an action",
    inputs=(
        Input("prompt_token_ids", "any", "token ids of each prompt, ragged", choices=([],)),
        Input(
            "response_token_ids", "any", "token ids of each response, ragged, with the EOS that ends it", choices=([],)
        ),
        drawn("response_length", "columns that responses have", (4, 2, 6), REQUIRED),
        drawn("eos_token_id", "id of the end of a response", (1, 0)),
        drawn("pad_token_id", "id of padding; many tokenizers have one id for both", (0,)),
    ),
    observes=(
        Observed("response_mask", "1 where the policy chose a token, its EOS among them", ("batch", "columns")),
        Observed("counted_prompt_tokens", "how many tokens of prompts the mask counts"),
    ),
    measure=_measure_response_masks,
    oracle=_oracle_response_masks,
    arrange=_arrange_response_masks,
)


# -- token log-probs ---------------------------------------------------------------------------------------------------


def _measure_token_log_probs(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One forward and one backward pass; what stands at tokens that do not count is left out on both sides.

    ``call`` returns ``log_probs`` [batch, tokens], and ``entropy`` [batch, tokens] where the boundary has it. Where it
    takes no gradients there are none to observe.
    """
    valid = inputs["response_mask"] != 0
    logits = leaf(inputs["logits"])
    outputs = call(**{**inputs, "logits": logits})
    log_probs, entropy = torch.where(valid, outputs["log_probs"], 0.0), outputs.get("entropy")
    return {
        "log_probs": log_probs.detach(),
        "entropy": None if entropy is None else torch.where(valid, entropy.detach(), 0.0),
        "logits_gradient": gradient(log_probs.sum(), logits) if log_probs.requires_grad else None,
    }


def _oracle_token_log_probs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``log p_t = log_softmax(z_t / T)[token t]`` and the entropy ``-sum_v p_v log p_v`` of the same distribution.

    At the temperature 0 all of the probability is on the likeliest token, which leaves no log-probs to train with;
    those of a greedy rollout are of the distribution itself, ``T = 1``.
    """
    logits = inputs["logits"] / (inputs["temperature"] or 1.0)
    distribution = torch.log_softmax(logits, dim=-1)
    log_probs = distribution.gather(-1, inputs["token_ids"].long().unsqueeze(-1)).squeeze(-1)
    if not inputs["with_entropy"]:
        return {"log_probs": log_probs, "entropy": None}
    if inputs["entropy_of"] == "model":
        distribution = torch.log_softmax(inputs["logits"], dim=-1)
    return {"log_probs": log_probs, "entropy": -(distribution.exp() * distribution).sum(-1)}


def _counted_up(inputs: Mapping[str, Any]) -> Tensor:
    """Give each token the id of its position, as far as the vocabulary goes: a neighbour's token shows."""
    rows, tokens, vocabulary = inputs["logits"].shape
    return tensor(np.broadcast_to(np.arange(tokens) % vocabulary, (rows, tokens)).tolist(), "int64")


def _arrange_token_log_probs(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw token ids that the vocabulary has."""
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
        CONTEXT_PARALLEL,
        dialect(
            "entropy_of",
            "sampled",
            "which distribution's entropy it is: sampled (with the temperature), or model (without)",
        ),
        drawn("with_entropy", "whether the entropy is asked for", (True, False)),
    ),
    observes=(
        Observed("log_probs", "of each response token; 0 elsewhere", TOKENS),
        Observed("entropy", "of the distribution of each response token; 0 elsewhere", TOKENS),
        Observed("logits_gradient", "d sum(log_probs) / d logits", ("batch", "tokens", "vocabulary"), "gradient"),
    ),
    measure=_measure_token_log_probs,
    oracle=_oracle_token_log_probs,
    aliases={"labels": "token_ids", "loss_mask": "response_mask"},
    laws=laws_of_tokens(
        "masked_values_have_no_influence",
        "parts_add_up",
        "a_sequence_decision_is_one_decision",
        "metrics_tell_the_truth",
        "normalisation_laws",
    ),
    arrange=_arrange_token_log_probs,
)


# -- critic values -----------------------------------------------------------------------------------------------------


def _measure_critic_values(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``values`` [batch, tokens]. Where it takes no gradients there are none to observe."""
    valid = inputs["response_mask"] != 0
    outputs, after = leaf(inputs["outputs"]), leaf(inputs["output_after"])
    values = call(**{**inputs, "outputs": outputs, "output_after": after})["values"]
    counted = torch.where(valid, values, 0.0)
    outside = torch.where(valid, 0.0, values.detach()).abs().amax(-1)
    slopes: tuple[Any, ...] = (None, None)
    if counted.requires_grad:
        slopes = torch.autograd.grad(counted.sum(), (outputs, after), allow_unused=True, materialize_grads=True)
    return {
        "values": counted.detach(),
        "outside": outside if inputs["outside_the_mask"] == "zero" else None,
        "per_token_gradient": slopes[0],
        "gradient_after": slopes[1],
    }


def _oracle_critic_values(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``V(s_t)`` of the state in which token t is chosen (PPO, arXiv:1707.06347, equation 11): what the head says at
    the token before it. What it says of the state after the last token is no baseline of any token: it has seen them
    all."""
    return {"values": torch.where(inputs["response_mask"] != 0, inputs["outputs"], 0.0)}


CRITIC_VALUES = Contract(
    name="critic_values",
    summary="the critic's value of each response token, from the outputs of its value head",
    source="PPO (arXiv:1707.06347), equations 10 and 11: advantages compare with V(s_t), of the state before action t",
    inputs=(
        per_token(
            "outputs",
            "of each response token: what the value head says one position before it",
            "value",
            differentiable=True,
        ),
        per_row(
            "output_after",
            "what the value head says at the last position of each row, after its last token",
            "value",
            differentiable=True,
        ),
        token_mask("1 where there is a response token"),
        CONTEXT_PARALLEL,
        dialect("outside_the_mask", "zero", "what stands at tokens that do not count: zero, or any number"),
    ),
    observes=(
        Observed("values", "of each response token; 0 elsewhere", TOKENS),
        Observed("outside", "the largest magnitude at a token of the row that does not count", ("batch",)),
        Observed("per_token_gradient", "d sum(values) / d outputs", TOKENS, "gradient"),
        Observed("gradient_after", "d sum(values) / d output_after", ("batch",), "gradient"),
    ),
    measure=_measure_critic_values,
    oracle=_oracle_critic_values,
    aliases={"loss_mask": "response_mask"},
    laws=laws_of_tokens(
        "parts_add_up",
        "a_sequence_decision_is_one_decision",
        "every_knob_counts",
        "metrics_tell_the_truth",
        "normalisation_laws",
    ),
)


# -- group numbers -----------------------------------------------------------------------------------------------------


#: Three labels of each kind, as batches carry them: (values, numpy dtype).
_LABELS = (
    (("p", "q", "r"), "object"),
    ((0, 1, 2), "int64"),
    ((7, 100, 3), "int64"),
    ((-5, 3, 0), "int64"),
    ((2.0, 5.0, -1.0), "float64"),
    (("7", "100", "3"), "object"),
)


def _measure_group_numbers(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    numbers = call(**inputs)["numbers"]
    return {
        "numbers": numbers,
        "alike": numbers[:, None] == numbers[None, :],
        "lowest": int(numbers.min()),
        "highest": int(numbers.max()),
    }


def _oracle_group_numbers(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers in the order of the first row of each group; which group has which number is nobody's meaning."""
    numbers: dict[Any, int] = {}
    return {"numbers": torch.tensor([numbers.setdefault(label, len(numbers)) for label in inputs["labels"].tolist()])}


def _arrange_group_numbers(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    pool, dtype = choose.one_of(_LABELS)
    rows = [choose.integer(0, 2) for _ in range(choose.integer(1, 5))]
    inputs["labels"] = Array(tuple(pool[row] for row in rows), dtype)
    return inputs


GROUP_NUMBERS = rule(
    name="group_numbers",
    summary="the numbers 0 to G-1 of the G groups that rows belong to",
    source="a label is a name: rows are of one group where their labels are equal, and of no other",
    inputs=(Input("labels", "any", "label of each row's group: a numpy array", choices=((),)),),
    observes=(
        Observed("numbers", "number of each row's group", role="other"),
        Observed("alike", "whether two rows have one number", ("rows", "rows")),
        Observed("lowest", "the lowest number"),
        Observed("highest", "the highest number, one less than there are groups"),
    ),
    measure=_measure_group_numbers,
    oracle=_oracle_group_numbers,
    arrange=_arrange_group_numbers,
)
