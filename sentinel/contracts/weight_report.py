"""Weight reports: what is said about importance weights, beside the weights that are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import (
    AS_DEFINED,
    REQUIRED,
    TOKENS,
    Contract,
    DoesNotApply,
    Observed,
    dialect,
    knob,
    per_token,
    token_mask,
)

_METRICS = ("fraction_high", "sequence_fraction_high")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    outputs = call(**inputs)
    weights = torch.where(inputs["response_mask"] != 0, outputs["weights"], 0.0)
    return {"weights": weights, **{name: float(outputs[name]) for name in _METRICS}}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Weights are cut at the threshold; what is above it is counted before they are."""
    import torch

    valid, threshold = inputs["response_mask"] != 0, inputs["threshold"]
    if not valid.any():
        raise DoesNotApply("no token counts")
    bound = inputs["log_ratio_clamp"]
    logs = inputs["log_ratio"] if bound is None else inputs["log_ratio"].clamp(-bound, bound)
    ratios = torch.where(valid, logs.exp(), 0.0)
    lengths = valid.sum(-1)
    means = ratios.sum(-1) / lengths.clamp(min=1)
    sequences = lengths > 0 if inputs["empty_rows"] == "absent" else torch.ones_like(lengths, dtype=torch.bool)
    return {
        "weights": ratios.clamp(max=threshold),
        "fraction_high": (ratios[valid] > threshold).double().mean(),
        "sequence_fraction_high": (means[sequences] > threshold).double().mean(),
    }


WEIGHT_REPORT = Contract(
    name="weight_report",
    summary="how far off policy a batch is, as it is reported beside truncated importance weights",
    source="truncated importance sampling (Ionides, 2008); extreme weights are counted before they are cut",
    inputs=(
        per_token("log_ratio", "log-prob of the trained policy minus that of the rollout's", "log_ratio"),
        token_mask(dtypes=("int64",)),
        knob("threshold", "largest weight of a token", (2.0, 1.5, 5.0), REQUIRED),
        dialect("log_ratio_clamp", None, "bound of |log-ratio| before it is exponentiated"),
        dialect(
            "empty_rows", "absent", "whether rows without a valid token count among the sequences: absent or counted"
        ),
    ),
    observes=(
        Observed("weights", "weight of each token that counts; 0 elsewhere", TOKENS),
        Observed("fraction_high", "share of tokens whose ratio is above the threshold", role="metric"),
        Observed("sequence_fraction_high", "share of sequences whose mean ratio is above it", role="metric"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="metrics_tell_the_truth",
    laws=("masked_values_have_no_influence", "order_does_not_matter", "metrics_tell_the_truth", *AS_DEFINED),
)
