"""Importance weights: what makes up for tokens that another policy than the trained one has generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import detached, gradient, leaf, metric, spread
from sentinel.contracts.contract import Choose, Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``weights``, ``kept``, or both, [batch, tokens] or [batch, 1]; and ``clip_fraction``."""
    mask = inputs["response_mask"]
    old_log_probs = leaf(inputs["old_log_probs"])
    outputs = call(**{**inputs, "old_log_probs": old_log_probs})
    weights, kept = (
        None if outputs.get(key) is None else outputs[key].expand(mask.shape) for key in ("weights", "kept")
    )
    decision = None if kept is None else (detached(kept) != 0).to(inputs["old_log_probs"].dtype)
    return {
        "weights": None if weights is None else detached(weights),
        "weight_gradient": None if weights is None else gradient(weights[mask != 0].sum(), old_log_probs),
        "kept": decision,
        "sequence_kept": None if inputs["level"] == "token" else decision,
        "clip_fraction": metric(outputs.get("clip_fraction"), mask),
    }


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "old_log_probs", "rollout_log_probs")
    return inputs


IMPORTANCE_WEIGHT = Contract(
    name="importance_weight",
    summary="the weight of each token for what the old policy differs from the rollout policy, and which are left out",
    source=(
        "truncated importance sampling (Ionides 2008; for LLMs Yao et al. 2025, fengyao.notion.site/off-policy-rl), "
        "IcePop (arXiv:2510.18855), masked importance sampling of sequences (Liu et al. 2025, "
        "richardli.xyz/rl-collapse)"
    ),
    inputs=(
        Input(
            "old_log_probs",
            "tensor",
            "of the trained policy when the tokens were scored, in nats, <= 0",
            shape=("batch", "tokens"),
            differentiable=True,
            domain="log_prob",
        ),
        Input(
            "rollout_log_probs",
            "tensor",
            "of the policy that generated the tokens",
            shape=("batch", "tokens"),
            domain="log_ratio",
        ),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts",
            shape=("batch", "tokens"),
            domain="mask",
            dtypes=("bool", "int64"),
        ),
        Input(
            "level",
            "string",
            "of what the ratio is: token; sequence (product over its valid tokens); geometric (their geometric mean); "
            "every_token (a sequence is kept where each of its valid tokens is; weights as for token)",
            default="token",
            choices=("token", "sequence", "geometric"),
            knob=True,
        ),
        Input(
            "mode",
            "string",
            "truncate (cut the weight to the thresholds, keep all) or mask (weight 0, not kept, outside of them)",
            default="truncate",
            choices=("truncate", "mask"),
            knob=True,
        ),
        Input("threshold_low", "number", "lower, included", default=None, choices=(None, 0.5, 0.9), knob=True),
        Input("threshold_high", "number", "upper, included", default=2.0, choices=(2.0, 1.25, 5.0), knob=True),
        Input(
            "statistic",
            "string",
            "what mask compares with the thresholds: ratio, or its distance from 1 as k2 or k3 (only the upper one; "
            "sequence: their sum, geometric: their mean)",
            default="ratio",
        ),
        Input(
            "normalise",
            "boolean",
            "whether the weights are divided by their mean over the valid tokens (over the sequences, where the level "
            "is one of sequences)",
            default=None,
        ),
        Input(
            "log_ratio_clamp",
            "number",
            "the logarithm of the ratio is cut to [-clamp, clamp]",
            default=None,
            dialect=True,
        ),
        Input(
            "detached",
            "boolean",
            "whether the weights stop gradients; if not, the caller must hand in constants",
            default=True,
            dialect=True,
        ),
    ),
    observes=(
        Observed("weights", "weight of each token; None where only a decision is returned", ("batch", "tokens")),
        Observed("weight_gradient", "d sum(weights) / d old_log_probs", ("batch", "tokens"), "gradient"),
        Observed("kept", "1 where a token is kept, 0 where it is left out", ("batch", "tokens")),
        Observed("sequence_kept", "the same, where the level is one of sequences", ("batch", "tokens"), "decision"),
        Observed("clip_fraction", "share of the valid tokens whose weight is cut or left out", role="metric"),
    ),
    measure=_measure,
    law="the_oracle_agrees",
    aliases={
        "train_log_probs": "old_log_probs",
        "rollout_logprobs": "rollout_log_probs",
        "loss_mask": "response_mask",
    },
    arrange=_arrange,
)
