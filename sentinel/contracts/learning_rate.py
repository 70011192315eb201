"""Learning rate: what each update of a training is taken with, from the first to the last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, REQUIRED, Choose, Input, Observed, dialect, knob, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``rates``: of each update."""
    import torch

    return {"rates": torch.tensor([float(rate) for rate in call(**inputs)["rates"]], dtype=torch.float64)}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The rate goes up in a line, stays (for all the rest, for a share of it, or not at all), and goes down along half
    a cosine to its minimum, which it has when the training is over."""
    warmup, total, lowest = inputs["warmup_steps"], inputs["training_steps"], inputs["min_ratio"]
    first = lowest if inputs["warmup_from"] == "minimum" else inputs["initial_ratio"]
    stable = {"constant": 1.0, "wsd": inputs["stable_ratio"], "cosine": 0.0}[inputs["schedule"]]
    flat = math.floor((total - warmup) * stable)
    decay = max(total - warmup - flat, 1)

    def ratio(step: int) -> float:
        if step < warmup:
            return float(first + (1 - first) * step / warmup)
        if step < warmup + flat or inputs["schedule"] == "constant":
            return 1.0
        return float(lowest + (1 - lowest) * (1 + math.cos(math.pi * (step - warmup - flat) / decay)) / 2)

    return {"rates": [inputs["peak"] * ratio(inputs["first_step"] + update) for update in range(total)]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """More steps than the warm-up has."""
    inputs["training_steps"] = inputs["warmup_steps"] + choose.integer(1, 12)
    return inputs


LEARNING_RATE = rule(
    name="learning_rate",
    summary="the learning rate of each update of a training",
    source=(
        "linear warm-up and cosine annealing (arXiv:1608.03983, equation 5, without restarts) to a minimum; "
        "warmup-stable-decay (arXiv:2404.06395, section 4.2), whose decay is that cosine here"
    ),
    inputs=(
        Input("schedule", "string", "constant, cosine or wsd", choices=("constant", "cosine", "wsd")),
        knob("warmup_steps", "updates in which it goes up", (3, 0, 1, 10), REQUIRED),
        Input("training_steps", "integer", "updates of the training", default=10),
        knob("min_ratio", "the lowest rate by the peak", (0.0, 0.1, 1.0)),
        knob("initial_ratio", "the rate of step 0 by the peak", (0.0, 0.2)),
        knob("stable_ratio", "share of the rest at the peak", (0.5, 0.0, 0.9)),
        Input("peak", "number", "the highest rate", default=1.0, choices=(1.0, 1e-6)),
        knob("first_step", "what the first update is counted as", (0, 1)),
        dialect("warmup_from", "initial", "where the warm-up begins: at initial_ratio, or at the minimum"),
    ),
    observes=(Observed("rates", "the rate that each update is taken with", ("steps",)),),
    measure=_measure,
    oracle=_oracle,
    aliases={"num_warmup_steps": "warmup_steps", "num_training_steps": "training_steps", "min_lr_ratio": "min_ratio"},
    laws=(*AS_DEFINED, "every_knob_counts", "finite_in_finite_out"),
    arrange=_arrange,
)
