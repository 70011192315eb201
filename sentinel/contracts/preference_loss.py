"""Preference losses: of pairs of a chosen and a rejected response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import detached, leaf, replaced
from sentinel.contracts.contract import REQUIRED, TOKENS, Choose, Contract, Input, Observed, knob, per_token

_SIDES = ("chosen", "rejected")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    given = {f"{side}_log_probs": leaf(inputs[f"{side}_log_probs"]) for side in _SIDES}
    loss = call(**{**inputs, **given})["loss"]
    slopes = torch.autograd.grad(loss, list(given.values()))
    return {"loss": detached(loss), **{f"{side}_gradient": slope for side, slope in zip(_SIDES, slopes)}}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """DPO, equation 7: ``-log sigmoid(beta h)``, ``h`` the log-ratio of the chosen response minus that of the rejected
    one, each a sum over its tokens. IPO, equation 17: ``(h - 1 / (2 beta))^2``, each an average over its tokens."""
    import torch

    margins: Any = 0.0
    for sign, side in ((1, "chosen"), (-1, "rejected")):
        valid = inputs[f"{side}_mask"] != 0
        ratios = torch.where(valid, inputs[f"{side}_log_probs"] - inputs[f"{side}_ref_log_probs"], 0.0)
        tokens = valid.sum(-1) if inputs["loss_type"] == "ipo" else 1
        margins = margins + sign * ratios.sum(-1) / tokens
    beta = inputs["beta"]
    if inputs["loss_type"] == "ipo":
        return {"loss": (margins - 1 / (2 * beta)).square().mean()}
    return {"loss": -torch.nn.functional.logsigmoid(beta * margins).mean()}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Every response has a token."""
    for side in _SIDES:
        mask = inputs[f"{side}_mask"]
        filled = mask.array() != 0
        filled[:, 0] |= ~filled.any(-1)
        inputs[f"{side}_mask"] = replaced(mask, filled.astype(int))
    return inputs


def _of(side: str) -> tuple[Input, ...]:
    return (
        per_token(f"{side}_log_probs", f"of the {side} response's tokens, in nats", "log_prob", differentiable=True),
        per_token(f"{side}_ref_log_probs", "of the reference, for the same tokens", "log_prob"),
        per_token(f"{side}_mask", "1 where a token is of the response", "mask", dtype="int64"),
    )


PREFERENCE_LOSS = Contract(
    name="preference_loss",
    summary="the loss of pairs of a chosen and a rejected response",
    source=(
        "DPO (arXiv:2305.18290), equation 7; IPO (arXiv:2310.12036), equation 17, averaged over tokens as its authors "
        "say in https://github.com/huggingface/trl/pull/1164"
    ),
    inputs=(
        *_of("chosen"),
        *_of("rejected"),
        knob("beta", "strength of the regularisation", (0.1, 0.5), REQUIRED),
        knob("loss_type", "sigmoid (DPO) or ipo", ("sigmoid", "ipo"), REQUIRED),
    ),
    observes=(
        Observed("loss", "the mean over pairs"),
        Observed("chosen_gradient", "d loss / d chosen_log_probs", TOKENS, "other"),
        Observed("rejected_gradient", "d loss / d rejected_log_probs", TOKENS, "other"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=("order_does_not_matter", "the_oracle_agrees", "nothing_else_is_touched", "every_knob_counts"),
    mask="chosen_mask",
    arrange=_arrange,
)
