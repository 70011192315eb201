"""Provide functions that the contracts of losses share: aggregation to a scalar, log-ratios, gradients, scenarios.

Oracles compute in float64 with torch, by the formulas of the cited papers. Where frameworks legitimately differ, the
choice is a dialect input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sentinel.contracts.contract import Choose, DoesNotApply, Input, Measure, dialect, drawn
from sentinel.values.lazy import torch
from sentinel.values.literals import Tensor, tensor

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

#: The inputs of :func:`aggregate` in addition to the per-token losses and the mask.
#:
#: A search draws ``batch_num_tokens`` and ``global_batch_size`` as the tokens and sequences of *other* microbatches
#: and ranks; :func:`count_globally` adds those of the batch itself.
AGGREGATION_INPUTS = (
    drawn("loss_agg_mode", "how per-token losses are reduced to a scalar", LOSS_AGG_MODES, "token-mean", kind="string"),
    drawn("batch_num_tokens", "valid tokens of the global batch", (None, 0, 3), kind="number"),
    drawn("global_batch_size", "valid sequences of the global batch", (None, 0, 2), kind="number"),
    drawn("dp_size", "data-parallel ranks whose losses are averaged", (None, 1, 2), kind="number"),
    drawn(
        "loss_scale_factor",
        "constant divisor of seq-mean-token-sum-norm; default: the number of columns",
        (None, 8),
        kind="number",
    ),
    dialect(
        "empty_rows",
        "absent",
        "whether a mean over sequences counts rows without a valid token: absent or counted",
    ),
    dialect(
        "sequence_norm",
        "mean",
        "whether seq-mean-token-sum-norm takes the mean or the sum over sequences before it divides by the constant",
    ),
)


def aggregated(mode: str) -> dict[str, Any]:
    """Return the fixed inputs of a boundary that has only this aggregation mode and no parameters for global counts."""
    counts = ("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")
    return {"loss_agg_mode": mode, **dict.fromkeys(counts)}


RATIO_PRECISION = dialect(
    "ratio_precision",
    "float64",
    "dtype in which the log-ratio is exponentiated, whatever dtype the log-probs have: float64 (exact) or float32",
)

#: The number of simulated context-parallel ranks. The result does not depend on it.
CONTEXT_PARALLEL = Input(
    "context_parallel_size",
    "integer",
    "number of ranks that each sequence is split over; the result covers the whole sequence",
    default=1,
)


# -- oracle ------------------------------------------------------------------------------------------------------------


def aggregate(loss_mat: Any, inputs: Mapping[str, Any], weights: Any = None) -> Any:
    """Reduce per-token losses ``l`` [batch, tokens] with mask ``m`` to one scalar.

    With ``T = sum_it m_it``, ``B`` = sequences with a valid token, ``R`` = data-parallel ranks, ``w_i`` a sequence's
    weight, and ``batch_num_tokens`` and ``global_batch_size`` replacing ``T`` and ``B`` if they are given:

    * token-mean (DAPO, arXiv:2503.14476, section 3.3): ``R / T * sum_it w_i m_it l_it``;
    * token-sum: ``R * sum_it w_i m_it l_it``;
    * seq-mean-token-sum: ``R / B * sum_i w_i sum_t m_it l_it``;
    * seq-mean-token-mean (GRPO, arXiv:2402.03300, equation 3): ``R / B * sum_i w_i / |m_i| * sum_t m_it l_it``;
    * seq-mean-token-sum-norm (Dr. GRPO, arXiv:2503.20783, section 3.1): ``R / (B L) * sum_i w_i
      sum_t m_it l_it`` with a constant ``L``.

    The factor ``R`` is needed because gradients are averaged over ranks. A batch without valid tokens has loss 0.
    """
    valid = inputs["response_mask"] != 0
    per_row = torch.where(valid, loss_mat, 0.0).sum(-1)
    if weights is not None:
        per_row = per_row * weights
    lengths = valid.sum(-1)
    mode, ranks = inputs["loss_agg_mode"], inputs["dp_size"] or 1
    if mode == "token-sum":
        return per_row.sum() * ranks
    if mode == "token-mean":
        return per_row.sum() * ranks / _count(inputs["batch_num_tokens"], int(lengths.sum()))
    rows = len(lengths) if inputs["empty_rows"] == "counted" else int((lengths > 0).sum())
    mean = ranks / _count(inputs["global_batch_size"], rows)
    if mode == "seq-mean-token-sum":
        return per_row.sum() * mean
    if mode == "seq-mean-token-mean":
        return (per_row / lengths.clamp(min=1)).sum() * mean
    if mode == "seq-mean-token-sum-norm":
        scale = inputs["loss_scale_factor"] or valid.shape[-1]
        return per_row.sum() * (mean if inputs["sequence_norm"] == "mean" else ranks) / scale
    raise DoesNotApply(f"the contract does not define the loss aggregation mode {mode!r}")


def _count(whole: float | None, counted: int) -> float:
    return max(counted if whole is None else whole, 1)


def log_ratio(log_probs: Any, old_log_probs: Any, mask: Any, level: str = "token") -> Any:
    """Compute ``log (p / p_old)`` for each token, [batch, tokens]: of the token itself, its sequence or its segment.

    ``token``: each token's log-ratio. ``sequence``: the sum over the sequence's valid tokens, which gives the ratio of
    whole responses. ``geometric``: the mean over these tokens (GSPO, arXiv:2507.18071, equation 7). ``segment``: the
    mean over the run of valid tokens around the token. Masked tokens have no gradient.
    """
    valid = mask != 0
    ratio = torch.where(valid, log_probs, 0.0) - torch.where(valid, old_log_probs, 0.0)
    if level in ("sequence", "geometric"):
        ratio = ratio.sum(-1, keepdim=True).expand_as(ratio)
        if level == "geometric":
            ratio = ratio / valid.sum(-1, keepdim=True).clamp(min=1)
    elif level == "segment":
        run = torch.cumsum(~valid, -1)  # one number per run of valid tokens; 0 on masked tokens
        same = (run[:, :, None] == run[:, None, :]) & valid[:, None, :]
        ratio = (same * ratio[:, None, :]).sum(-1) / same.sum(-1).clamp(min=1)
    elif level != "token":
        raise DoesNotApply(f"the contract does not define the ratio level {level!r}")
    return ratio


def exponential(logs: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute ``exp`` of log-ratios, in single precision if ``ratio_precision`` is ``float32``."""
    return torch.exp(logs.float()).double() if inputs["ratio_precision"] == "float32" else torch.exp(logs)


def row_mean(values: Any, mask: Any) -> Any:
    """Return the mean over valid tokens of each row, at every token of the row; 0 for a row without valid tokens."""
    valid = mask != 0
    total = torch.where(valid, values, 0.0).sum(-1, keepdim=True)
    return (total / valid.sum(-1, keepdim=True).clamp(min=1)).expand_as(values)


def fraction(flags: Any, mask: Any) -> float:
    """Return the mean of flags [batch, tokens] over valid tokens. A scalar is returned as a float.

    Some boundaries return a scalar; others return a flag per token, and their caller computes the mean.
    """
    if not isinstance(flags, torch.Tensor):
        return float(flags)
    if flags.numel() == 1 and flags.shape != mask.shape:
        return float(flags)
    valid = mask.reshape(flags.shape) != 0
    return float(torch.where(valid, flags.double(), 0.0).sum() / valid.sum().clamp(min=1))


# -- measure -----------------------------------------------------------------------------------------------------------


def leaf(value: Any) -> Any:
    """Return a copy of a tensor that is a leaf, requires gradients and has the same memory layout."""
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    try:
        copy.copy_(value.detach())
    except RuntimeError:  # an expanded tensor: several elements share memory
        copy = value.detach().clone()
    return copy.requires_grad_(True)


def gradient(loss: Any, of: Any) -> Any:
    """Compute ``d loss / d of``; zeros if the loss does not depend on ``of``."""
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        return torch.zeros_like(of)
    (slope,) = torch.autograd.grad(loss, of, allow_unused=True)
    return torch.zeros_like(of) if slope is None else slope


def detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def metric(value: Any, mask: Any) -> float | None:
    """Return a reported metric as a number; of values per token, return the mean. Return None if the metric is
    missing."""
    return None if value is None else fraction(detached(value), mask)


def differentiated(*metrics: str, **gradients: str) -> Measure:
    """Return a ``measure`` function that calls a loss and computes its gradients.

    :param metrics: keys of the metrics that the loss function returns, each a number or one number per token.
    :param gradients: input -> key of its gradient.
    """
    return partial(_differentiated, metrics=metrics, gradients=gradients)


def _differentiated(
    call: Callable[..., Mapping[str, Any]],
    inputs: Mapping[str, Any],
    metrics: Sequence[str],
    gradients: Mapping[str, str],
) -> dict[str, Any]:
    leaves = {name: leaf(inputs[name]) for name in gradients}
    outputs = call(**{**inputs, **leaves})
    loss = outputs["loss"]
    slopes: Sequence[Any] = [torch.zeros_like(value) for value in leaves.values()]
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        slopes = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True, materialize_grads=True)
    return {
        "loss": detached(loss),
        **dict(zip(gradients.values(), slopes)),
        **{name: metric(outputs.get(name), inputs["response_mask"]) for name in metrics},
    }


# -- scenarios ---------------------------------------------------------------------------------------------------------


def replaced(value: Tensor, array: Any) -> Tensor:
    """Return a copy of a tensor literal with other values."""
    return tensor(np.asarray(array).tolist(), value.dtype, value.requires_grad)


def spread(inputs: dict[str, Any], current: str, other: str) -> dict[str, Any]:
    """Replace a drawn log-prob ``current`` and log-ratio ``other``, in place, by two log-probs with this log-ratio.

    A search draws ``current`` from the domain ``log_prob`` and ``other`` from ``log_ratio``. The drawn log-prob becomes
    the larger of the two results, so that neither is positive.
    """
    top, ratio = inputs[current], inputs[other]
    values, ratios = top.array().astype(np.float64), ratio.array().astype(np.float64)
    inputs[current] = replaced(top, values + np.minimum(ratios, 0))
    inputs[other] = replaced(ratio, values - np.maximum(ratios, 0))
    return inputs


def spreading(current: str, other: str) -> Callable[[dict[str, Any], Choose], dict[str, Any]]:
    """Return an ``arrange`` function that only applies :func:`spread`."""
    return lambda inputs, choose: spread(inputs, current, other)


def place_behind(current: Tensor, ratios: Any) -> Tensor:
    """Return log-probs that are smaller than ``current`` by the log-ratios ``ratios``, but at most 0."""
    return replaced(current, np.minimum(current.array().astype(np.float64) - ratios, 0))


def draw_behind(current: Tensor, ratios: Sequence[float], choose: Choose) -> Tensor:
    """Like :func:`place_behind`, with a log-ratio for each token that is drawn from ``ratios``."""
    drawn = np.array(choose.integers(current.array().size, 0, len(ratios) - 1)).reshape(current.shape)
    return place_behind(current, np.array(ratios)[drawn])


def with_a_token(inputs: dict[str, Any], choose: Choose, name: str = "response_mask") -> dict[str, Any]:
    """Make at least one token of every response valid, because no policy samples a response without tokens."""
    filled = inputs[name].array() != 0
    filled[:, 0] |= ~filled.any(-1)
    inputs[name] = replaced(inputs[name], filled.astype(int))
    return inputs


#: Aggregation mode -> the global count that is its divisor. Other modes need no count.
_DIVISORS = {
    "token-mean": "batch_num_tokens",
    "seq-mean-token-sum": "global_batch_size",
    "seq-mean-token-mean": "global_batch_size",
    "seq-mean-token-sum-norm": "global_batch_size",
}


def count_globally(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Convert the drawn counts of the other microbatches and ranks, in place, to counts of the global batch.

    A global count is at least 1, even for a single empty batch. If the scenario omits the global count by which its
    aggregation mode divides, there are no other ranks: ``dp_size`` becomes 1.
    """
    lengths = (inputs["response_mask"].array() != 0).sum(-1)
    for name, own in (("batch_num_tokens", int(lengths.sum())), ("global_batch_size", int((lengths > 0).sum()))):
        if inputs[name] is not None:
            inputs[name] = max(inputs[name] + own, 1)
    divisor = _DIVISORS.get(inputs["loss_agg_mode"])
    if divisor is not None and inputs[divisor] is None and inputs["dp_size"] is not None:
        inputs["dp_size"] = 1
    return inputs


def cut_rows(inputs: Mapping[str, Any], choose: Choose) -> list[dict[str, Any]]:
    """Split the batch into two microbatches of consecutive rows, whose losses must add up to that of the whole batch.

    Both parts have the batch's global counts, so the scenario must set the count by which its aggregation mode divides.

    :raises DoesNotApply: if the batch has a single row, or if the scenario does not set that count.
    """
    rows = inputs["response_mask"].shape[0]
    if rows < 2:
        raise DoesNotApply("a batch of one row cannot be split")
    divisor = _DIVISORS.get(inputs["loss_agg_mode"])
    if divisor is not None and inputs[divisor] is None and inputs.get("sequence_norm") != "sum":
        raise DoesNotApply(f"a batch with {inputs['loss_agg_mode']} can be split only if {divisor} is set")
    cut = choose.integer(1, rows - 1)
    return [{name: _rows(value, part, rows) for name, value in inputs.items()} for part in _parts(cut, rows)]


def cut_token_mean(inputs: Mapping[str, Any], choose: Choose) -> list[dict[str, Any]]:
    """Split the batch as :func:`cut_rows` does, for a contract whose loss is always the mean over the step's tokens."""
    parts = cut_rows({**inputs, "loss_agg_mode": "token-mean"}, choose)
    return [{name: value for name, value in part.items() if name != "loss_agg_mode"} for part in parts]


def _parts(cut: int, rows: int) -> Sequence[slice]:
    return (slice(0, cut), slice(cut, rows))


def _rows(value: Any, part: slice, rows: int) -> Any:
    if isinstance(value, Tensor) and value.shape and value.shape[0] == rows:
        return Tensor(
            value.dtype,
            (len(range(rows)[part]), *value.shape[1:]),
            value.data[part.start * len(value.data) // rows : part.stop * len(value.data) // rows],
            value.requires_grad,
        )
    return value
