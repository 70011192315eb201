"""SkyRL: log-probs and entropies of a model's logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import log_probs_alone

from .shared import FORMER_TORCH, TORCH

#: SkyRL divides logits by the temperature in the model's wrapper, before it calls these.
_LOG_PROBS = {"temperature": 1.0, "with_entropy": False}
_ENTROPY = {"temperature": 1.0, "with_entropy": True, "entropy_of": "sampled"}


def _entropy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """With the log-probs of the function beside it, so that a gradient has something to come from."""
    log_probs = boundary.module.logprobs_from_logits_v2(inputs["logits"], inputs["token_ids"])
    masked = "attention_mask" in boundary.parameters
    given = {"attention_mask": inputs["response_mask"]} if masked else {}
    return {"log_probs": log_probs, "entropy": boundary.invoke({}, inputs["logits"].detach(), **given)}


def _bound(function: str, call: Any, fixed: Mapping[str, Any]) -> Binding:
    return Binding(f"{TORCH}.{function}", "token_log_probs", call=call, fixed=fixed)


BINDINGS = (
    _bound("logprobs_from_logits", log_probs_alone, _LOG_PROBS),
    _bound("logprobs_from_logits_v2", log_probs_alone, _LOG_PROBS),
    _bound("chunked_entropy_from_logits", _entropy, _ENTROPY),
)

UNBOUND = {
    f"{module}.{function}": reason
    for module in (TORCH, FORMER_TORCH)
    for function, reason in (
        ("chunked_cross_entropy_from_log_probs", "nothing calls it"),
        ("safe_exp_delta", "one exponential; it runs in the losses that are bound"),
        ("logprobs_from_logits_flash_attn", "it needs a kernel of another device"),
    )
}
