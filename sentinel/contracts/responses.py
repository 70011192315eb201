"""Define contracts of the tokens of a response: masks, log-probs and critic values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import CONTEXT_PARALLEL, gradient, leaf, replaced
from sentinel.contracts.contract import (
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
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


#: Ids of ordinary tokens; special tokens have smaller ids.
_WORDS = 10


def _measure_response_masks(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the response mask that the function returns for a padded batch.

    ``call`` receives the batch (``prompts`` padded left, ``responses`` padded right). It returns ``response_mask``,
    which covers the response columns, and may cover the prompt columns.
    """
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
    """Mark every token that the policy generated, including EOS, and nothing after it."""
    places = torch.arange(inputs["response_length"])
    return {"response_mask": (places[None, :] < inputs["lengths"][:, None]).to(torch.int64)}


def _arrange_response_masks(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw responses that end with EOS or fill the whole length, and have no other special token."""
    length, eos = inputs["response_length"], inputs["eos_token_id"]
    prompts, responses = [], []
    for _ in range(choose.integer(1, 3)):
        prompts.append([_WORDS + place for place in range(choose.integer(1, 3))])
        words = choose.integer(0, length)
        responses.append([_WORDS + 5 + place for place in range(words)] + [eos] * (words < length))
    return {**inputs, "prompt_token_ids": prompts, "response_token_ids": responses}


RESPONSE_MASKS = rule(
    name="response_masks",
    summary="the mask of the tokens that the policy generated, from the engine's output",
    source="REINFORCE (Williams, 1992): each action contributes to the gradient, and stopping is an action",
    inputs=(
        Input("prompt_token_ids", "any", "token ids of each prompt, ragged", choices=([],)),
        Input("response_token_ids", "any", "token ids of each response, ragged, including EOS", choices=([],)),
        drawn("response_length", "number of response columns", (4, 2, 6), REQUIRED),
        drawn("eos_token_id", "id of EOS", (1, 0)),
        drawn("pad_token_id", "id of padding, which is often the id of EOS", (0,)),
    ),
    observes=(
        Observed("response_mask", "1 for tokens that the policy generated, including EOS", ("batch", "columns")),
        Observed("counted_prompt_tokens", "number of prompt tokens in the mask"),
    ),
    measure=_measure_response_masks,
    oracle=_oracle_response_masks,
    arrange=_arrange_response_masks,
)


# -- token log-probs ---------------------------------------------------------------------------------------------------


def _measure_token_log_probs(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe log-probs and entropies, and their gradients, at valid tokens.

    ``call`` returns ``log_probs`` [batch, tokens], and ``entropy`` [batch, tokens] if the boundary computes it.
    Gradients are observed only if the boundary computes them.
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
    """Compute ``log p_t = log_softmax(z_t / T)[token t]``, and the entropy of the same distribution.

    Temperature 0 puts all probability on the likeliest token, so it has no usable log-probs. For a greedy rollout,
    log-probs are those of the unscaled distribution, ``T = 1``. With ``top_k`` or ``top_p``, tokens that are not
    sampled have no probability, and the distribution of the others is renormalised.
    """
    logits = inputs["logits"] / (inputs["temperature"] or 1.0)
    if inputs["top_k"] is not None or inputs["top_p"] < 1:
        kept, decided = _keep_likeliest(logits.detach().double().numpy(), inputs["top_k"], inputs["top_p"])
        if not decided[inputs["response_mask"].numpy() != 0].all():
            raise DoesNotApply("rounding decides which tokens remain after filtering by top_k or top_p")
        logits = torch.where(torch.from_numpy(kept), logits, float("-inf"))
    distribution = torch.log_softmax(logits, dim=-1)
    log_probs = distribution.gather(-1, inputs["token_ids"].long().unsqueeze(-1)).squeeze(-1)
    if not inputs["with_entropy"]:
        return {"log_probs": log_probs, "entropy": None}
    if inputs["entropy_of"] == "model":
        distribution = torch.log_softmax(inputs["logits"], dim=-1)
    return {"log_probs": log_probs, "entropy": -(distribution.exp() * distribution).sum(-1)}


def _keep_likeliest(logits: Any, top_k: int | None, top_p: float) -> tuple[Any, Any]:
    """Return flags of the tokens that are sampled, and whether they are clear at each position, as numpy arrays.

    First, the ``top_k`` likeliest tokens are kept. Of these, the likeliest tokens whose probabilities add up to at
    least ``top_p`` are kept (nucleus sampling, arXiv:1904.09751, section 3.1).
    """
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, -1)
    size = ranked.shape[-1]
    ranks = np.arange(size)
    inside = np.broadcast_to(ranks < (size if top_k is None else top_k), ranked.shape)
    powers = np.where(inside, np.exp(ranked - ranked[..., :1]), 0.0)
    shares = powers / powers.sum(-1, keepdims=True)
    before = np.cumsum(shares, -1) - shares
    inside = inside & (before < top_p) if top_p < 1 else inside
    count = inside.sum(-1, keepdims=True)
    following = np.take_along_axis(ranked, np.minimum(count, size - 1), -1)
    gap = np.take_along_axis(ranked, count - 1, -1) - following
    decided = ((gap > 1e-3) | (count == size))[..., 0] & ((top_p >= 1) | (np.abs(before - top_p) > 1e-3).all(-1))
    kept = np.empty(inside.shape, dtype=bool)
    np.put_along_axis(kept, order, inside, -1)
    return kept, decided


def _counted_up(inputs: Mapping[str, Any]) -> Tensor:
    """Return token ids that count up with the position, so that an off-by-one error is visible."""
    rows, tokens, vocabulary = inputs["logits"].shape
    return tensor(np.broadcast_to(np.arange(tokens) % vocabulary, (rows, tokens)).tolist(), "int64")


def _arrange_token_log_probs(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    rows, tokens, vocabulary = inputs["logits"].shape
    drawn = np.array(choose.integers(rows * tokens, 0, vocabulary - 1)).reshape(rows, tokens)
    if inputs["top_k"] is not None or inputs["top_p"] < 1:
        drawn = _draw_sampled_tokens(inputs, drawn)
    inputs["token_ids"] = tensor(drawn.tolist(), "int64")
    return inputs


def _draw_sampled_tokens(inputs: dict[str, Any], drawn: Any) -> Any:
    """Make the logits of a position differ, and return tokens that can be sampled with top_k and top_p."""
    logits = inputs["logits"].array().astype(np.float64)
    logits = logits + np.arange(logits.shape[-1]) / 16
    inputs["logits"] = replaced(inputs["logits"], logits)
    kept, _ = _keep_likeliest(logits / (inputs["temperature"] or 1.0), inputs["top_k"], inputs["top_p"])
    likeliest = np.argsort(~kept, axis=-1, kind="stable")
    return np.take_along_axis(likeliest, (drawn % kept.sum(-1))[..., None], -1)[..., 0]


TOKEN_LOG_PROBS = Contract(
    name="token_log_probs",
    summary="the log-probability of each response token, from the logits that predict it",
    source="the definition of a categorical distribution with temperature (arXiv:1503.02531, equation 1)",
    inputs=(
        Input(
            "logits",
            "tensor",
            "logits of each response token: the model's output one position before it",
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
            "1 for response tokens",
            default=lambda inputs: tensor(np.ones(inputs["logits"].shape[:2]).tolist(), "float32"),
        ),
        knob("temperature", "divisor of the logits; 0 (greedy rollouts) stands for 1", (1.0, 0.5, 2.0)),
        Input("top_k", "integer", "only this many of the likeliest tokens are sampled; default: all", default=None),
        Input(
            "top_p",
            "number",
            "only the likeliest tokens whose probabilities add up to this share are sampled; applies after top_k",
            default=1.0,
        ),
        CONTEXT_PARALLEL,
        Input("packed", "boolean", "whether the sequences are packed into one row without padding", default=False),
        dialect(
            "entropy_of",
            "sampled",
            "distribution of the entropy: sampled (with temperature), or model (without)",
        ),
        drawn("with_entropy", "whether the entropy is requested", (True, False)),
    ),
    observes=(
        Observed("log_probs", "value of each response token; 0 elsewhere", TOKENS),
        Observed("entropy", "entropy of the distribution at each response token; 0 elsewhere", TOKENS),
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
    """Observe critic values [batch, tokens], and gradients if the function computes them."""
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
    """Return each token's value: the output of the value head at the previous token.

    PPO (arXiv:1707.06347, equation 11). The output at the last token is no token's value: it depends on all tokens.
    """
    return {"values": torch.where(inputs["response_mask"] != 0, inputs["outputs"], 0.0)}


CRITIC_VALUES = Contract(
    name="critic_values",
    summary="the critic's value of each response token, from the outputs of its value head",
    source="PPO (arXiv:1707.06347), equations 10 and 11: advantages compare with V(s_t), of the state before action t",
    inputs=(
        per_token(
            "outputs",
            "value head outputs of each response token, one position before it",
            "value",
            differentiable=True,
        ),
        per_row(
            "output_after",
            "value head output at the last position of each row, after its last token",
            "value",
            differentiable=True,
        ),
        token_mask("1 for response tokens"),
        # A search varies it only for bindings that list its values in `accepts`.
        Input("max_tokens_per_microbatch", "integer", "token budget of a microbatch; default: one batch", default=None),
        CONTEXT_PARALLEL,
        dialect("outside_the_mask", "zero", "values on masked tokens: zero, or any"),
    ),
    observes=(
        Observed("values", "value of each response token; 0 elsewhere", TOKENS),
        Observed("outside", "largest magnitude of the values on the row's masked tokens", ("batch",)),
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


#: Labels of three groups, in each form that batches use: (values, numpy dtype).
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
    """Number groups by first appearance. Only the grouping is compared, not the numbers."""
    numbers: dict[Any, int] = {}
    return {"numbers": torch.tensor([numbers.setdefault(label, len(numbers)) for label in inputs["labels"].tolist()])}


def _arrange_group_numbers(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    pool, dtype = choose.one_of(_LABELS)
    rows = [choose.integer(0, 2) for _ in range(choose.integer(1, 5))]
    inputs["labels"] = Array(tuple(pool[row] for row in rows), dtype)
    return inputs


GROUP_NUMBERS = rule(
    name="group_numbers",
    summary="the group index of each row, 0 to G-1",
    source="rows are in the same group if and only if their labels are equal",
    inputs=(Input("labels", "any", "label of each row's group: a numpy array", choices=((),)),),
    observes=(
        Observed("numbers", "number of each row's group", role="other"),
        Observed("alike", "whether two rows have the same number", ("rows", "rows")),
        Observed("lowest", "the lowest number"),
        Observed("highest", "the highest number, which is the number of groups minus 1"),
    ),
    measure=_measure_group_numbers,
    oracle=_oracle_group_numbers,
    arrange=_arrange_group_numbers,
)
