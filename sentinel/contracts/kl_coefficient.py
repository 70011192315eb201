"""KL coefficient: the weight of the KL penalty over the steps of a training, fixed or steered towards a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, REQUIRED, Choose, Input, Observed, knob, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``coefficients``: the first one, and the one after each update."""
    import torch

    found = call(**inputs)["coefficients"]
    return {"coefficients": torch.tensor([float(value) for value in found], dtype=torch.float64)}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``e = clip((KL - target) / target, -0.2, 0.2)``, ``beta <- beta (1 + e n / horizon)``: section 2.2 of the paper,
    whose gain is 0.1, with the gain that its code has: the share of the horizon that the step's samples are."""
    coefficients = [inputs["initial"]]
    for kl in inputs["kls"]:
        gain = inputs["samples_per_step"] / inputs["horizon"] if inputs["adaptive"] else 0.0
        error = min(max((kl - inputs["target_kl"]) / inputs["target_kl"], -0.2), 0.2)
        coefficients.append(coefficients[-1] * (1 + gain * error))
    return {"coefficients": coefficients}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """A few steps, whose KL is below, near or above the target; an estimate may be negative."""
    shares = [choose.one_of((3.0, 1.1, 1.0, 0.9, 0.0, -1.0)) for _ in range(choose.integer(1, 4))]
    inputs["kls"] = [share * inputs["target_kl"] for share in shares]
    return inputs


KL_COEFFICIENT = rule(
    name="kl_coefficient",
    summary="the weight of the KL penalty, step after step",
    source="arXiv:1909.08593, section 2.2, and its code: github.com/openai/lm-human-preferences, AdaptiveKLController",
    inputs=(
        Input("adaptive", "boolean", "whether it is steered towards the target", choices=(True, False)),
        Input("initial", "number", "the coefficient of the first step", choices=(0.2, 0.001, 0.0)),
        knob("target_kl", "what the KL of a step is to be, in nats", (0.5, 6.0), REQUIRED),
        knob("horizon", "samples over which the coefficient is corrected", (100, 7, 10000), REQUIRED),
        knob("samples_per_step", "samples of one step", (8, 1, 64), REQUIRED),
        Input("kls", "any", "the KL of each step, in nats", choices=((),)),
    ),
    observes=(Observed("coefficients", "the first coefficient, and the one after each step", ("steps",)),),
    measure=_measure,
    oracle=_oracle,
    laws=(*AS_DEFINED, "every_knob_counts", "finite_in_finite_out"),
    arrange=_arrange,
)
