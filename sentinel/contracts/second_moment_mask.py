"""Second-moment masks: the tokens that moved most are left out, until the rest is close enough to the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import spread
from sentinel.contracts.contract import Choose, Contract, DoesNotApply, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``kept`` [batch, tokens]: the mask that the loss sees."""
    kept = call(**inputs)["kept"]
    valid = inputs["response_mask"] != 0
    return {
        "kept": kept,
        "kept_count": int(((kept != 0) & valid).sum()),
        "kept_outside": int((kept[~valid] != 0).sum()),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fewest tokens such that the mean over the others of ``(log p_behaviour - log p)^2`` is below the
    threshold: those are the tokens with the largest.

    :raises DoesNotApply: where the last token that is left out is as far off as the first that is kept.
    """
    import torch

    valid = inputs["response_mask"] != 0
    moments = (inputs["behaviour_log_probs"] - inputs["proximal_log_probs"]).square()
    rising = moments[valid].sort().values
    below = [count for count in range(1, len(rising) + 1) if rising[:count].mean() < inputs["threshold"]]
    most = max(below, default=1 if inputs["none_left"] == "closest" else 0)
    if 0 < most < len(rising) and rising[most - 1] == rising[most]:
        raise DoesNotApply("which of two tokens that are as far off is left out is nobody's business")
    kept = torch.zeros_like(moments)
    if len(rising) and most:
        kept = (valid & (moments <= rising[most - 1])).double()
    return {"kept": kept}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "proximal_log_probs", "behaviour_log_probs")
    return inputs


_TOKENS = ("batch", "tokens")

SECOND_MOMENT_MASK = Contract(
    name="second_moment_mask",
    summary="the tokens whose log-ratio is trained on, so that the second moment of all of them is bounded",
    source="M2PO (arXiv:2510.01161), section 4: the fewest tokens are masked that bring the second moment below it",
    inputs=(
        Input(
            "proximal_log_probs", "tensor", "of the policy before the step, in nats", shape=_TOKENS, domain="log_prob"
        ),
        Input(
            "behaviour_log_probs", "tensor", "of the policy that sampled, in nats", shape=_TOKENS, domain="log_ratio"
        ),
        Input("response_mask", "tensor", "1 where a token counts", dtype="bool", shape=_TOKENS, domain="mask"),
        Input("threshold", "number", "of the mean squared log-ratio", choices=(0.04, 0.2, 1.1), knob=True),
        Input(
            "none_left",
            "string",
            "what is kept where every token is too far off: none, or closest (the one that is least)",
            default="none",
            dialect=True,
        ),
    ),
    observes=(
        Observed("kept", "1 where a token is trained on", _TOKENS, "decision"),
        Observed("kept_count", "how many of the tokens that count", role="other"),
        Observed("kept_outside", "how many are kept that do not count"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=(
        "masked_values_have_no_influence",
        "padding_is_invisible",
        "twins_agree",
        "the_oracle_agrees",
        "nothing_else_is_touched",
        "every_knob_counts",
    ),
    arrange=_arrange,
)
