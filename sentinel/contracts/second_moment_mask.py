"""Second-moment masks: the tokens that moved most are left out, until the rest is close enough to the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import spread
from sentinel.contracts.contract import (
    AS_DEFINED,
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Observed,
    dialect,
    knob,
    per_token,
    token_mask,
)


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


SECOND_MOMENT_MASK = Contract(
    name="second_moment_mask",
    summary="the tokens whose log-ratio is trained on, so that the second moment of all of them is bounded",
    source="M2PO (arXiv:2510.01161), section 4: the fewest tokens are masked that bring the second moment below it",
    inputs=(
        per_token("proximal_log_probs", "of the policy before the step, in nats", "log_prob"),
        per_token("behaviour_log_probs", "of the policy that sampled, in nats", "log_ratio"),
        token_mask(dtype="bool", dtypes=()),
        knob("threshold", "of the mean squared log-ratio", (0.04, 0.2, 1.1), REQUIRED),
        dialect(
            "none_left",
            "none",
            "what is kept where every token is too far off: none, or closest (the one that is least)",
        ),
    ),
    observes=(
        Observed("kept", "1 where a token is trained on", TOKENS, "decision"),
        Observed("kept_count", "how many of the tokens that count", role="other"),
        Observed("kept_outside", "how many are kept that do not count"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=("masked_values_have_no_influence", "padding_is_invisible", "twins_agree", "every_knob_counts", *AS_DEFINED),
    arrange=_arrange,
)
