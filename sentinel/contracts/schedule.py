"""Define contracts of quantities that change during training: learning rate, KL coefficient, order of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import (
    AS_DEFINED,
    REQUIRED,
    Choose,
    Input,
    Observed,
    dialect,
    drawn,
    knob,
    returned,
    rule,
)
from sentinel.values.lazy import torch

# -- KL coefficient ----------------------------------------------------------------------------------------------------


def _oracle_kl_coefficient(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the adaptive KL coefficient after each step.

    ``e = clip((KL - target) / target, -0.2, 0.2)``, ``beta <- beta (1 + e n / horizon)``: section 2.2 of the paper. As
    in the paper's code, the gain is ``n / horizon`` with the step's ``n`` samples, instead of 0.1.
    """
    coefficients = [inputs["initial"]]
    for kl in inputs["kls"]:
        gain = inputs["samples_per_step"] / inputs["horizon"] if inputs["adaptive"] else 0.0
        error = min(max((kl - inputs["target_kl"]) / inputs["target_kl"], -0.2), 0.2)
        coefficients.append(coefficients[-1] * (1 + gain * error))
    return {"coefficients": coefficients}


def _arrange_kl_coefficient(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw the KL of each step: below, near or above the target, or negative, because estimates may be negative."""
    shares = [choose.one_of((3.0, 1.1, 1.0, 0.9, 0.0, -1.0)) for _ in range(choose.integer(1, 4))]
    inputs["kls"] = [share * inputs["target_kl"] for share in shares]
    return inputs


KL_COEFFICIENT = rule(
    name="kl_coefficient",
    summary="the coefficient of the KL penalty at each step",
    source="arXiv:1909.08593, section 2.2, and its code: github.com/openai/lm-human-preferences, AdaptiveKLController",
    inputs=(
        drawn("adaptive", "whether the coefficient is adapted to the target", (True, False), REQUIRED),
        drawn("initial", "the coefficient of the first step", (0.2, 0.001, 0.0), REQUIRED),
        knob("target_kl", "target KL of a step, in nats", (0.5, 6.0), REQUIRED),
        knob("horizon", "number of samples over which the coefficient is corrected", (100, 7, 10000), REQUIRED),
        knob("samples_per_step", "samples of one step", (8, 1, 64), REQUIRED),
        Input("kls", "any", "the KL of each step, in nats", choices=((),)),
    ),
    observes=(Observed("coefficients", "the first coefficient, and the coefficient after each step", ("steps",)),),
    measure=returned(coefficients="numbers"),
    oracle=_oracle_kl_coefficient,
    laws=(*AS_DEFINED, "every_knob_counts", "finite_in_finite_out"),
    arrange=_arrange_kl_coefficient,
)


# -- learning rate -----------------------------------------------------------------------------------------------------


def _oracle_learning_rate(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the learning rate of each update: linear warm-up, a constant part, and cosine decay to the minimum.

    The constant part covers all steps after the warm-up (constant), a share of them (wsd), or none (cosine).
    """
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


def _arrange_learning_rate(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    inputs["training_steps"] = inputs["warmup_steps"] + choose.integer(1, 12)
    return inputs


LEARNING_RATE = rule(
    name="learning_rate",
    summary="the learning rate of each update in a training run",
    source=(
        "linear warm-up and cosine annealing (arXiv:1608.03983, equation 5, without restarts) to a minimum; "
        "warmup-stable-decay (arXiv:2404.06395, section 4.2), whose decay here is the cosine"
    ),
    inputs=(
        drawn("schedule", "constant, cosine or wsd", ("constant", "cosine", "wsd"), REQUIRED),
        knob("warmup_steps", "updates of the warm-up", (3, 0, 1, 10), REQUIRED),
        Input("training_steps", "integer", "updates in the training run", default=10),
        knob("min_ratio", "the minimum rate divided by the peak rate", (0.0, 0.1, 1.0)),
        knob("initial_ratio", "the rate of step 0 divided by the peak rate", (0.0, 0.2)),
        knob("stable_ratio", "share of the updates after the warm-up at the peak rate, for wsd", (0.5, 0.0, 0.9)),
        drawn("peak", "the highest rate", (1.0, 1e-6)),
        knob("first_step", "the step number of the first update", (0, 1)),
        dialect("warmup_from", "initial", "start of the warm-up: at initial_ratio, or at the minimum"),
    ),
    observes=(Observed("rates", "the rate of each update", ("steps",)),),
    measure=returned(rates="numbers"),
    oracle=_oracle_learning_rate,
    aliases={"num_warmup_steps": "warmup_steps", "num_training_steps": "training_steps", "min_lr_ratio": "min_ratio"},
    laws=(*AS_DEFINED, "every_knob_counts", "finite_in_finite_out"),
    arrange=_arrange_learning_rate,
)


# -- length of a schedule ----------------------------------------------------------------------------------------------


def _oracle_schedule_length(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Count how often a training run steps its schedule: once per update, per training step or per sample (``unit``).
    Each training step trains on all samples of its prompts, batch after batch."""
    planned = inputs["steps_per_epoch"] * inputs["epochs"]
    steps = planned if inputs["max_steps"] is None else min(planned, inputs["max_steps"])
    samples = inputs["prompts_per_step"] * inputs["samples_per_prompt"] * inputs["turns"] * inputs["update_epochs"]
    counted = {"updates": samples // inputs["batch_size"], "steps": 1, "samples": samples}
    length = sum(counted[inputs["unit"]] for _ in range(steps))
    return {"length": length, "warmup": length * inputs["warmup_ratio"]}


def _arrange_schedule_length(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw counts that divide each other, so that no batch is incomplete and nothing depends on rounding."""
    inputs["batch_size"] = 4 * choose.integer(1, 2)
    inputs["prompts_per_step"] = inputs["batch_size"] * choose.integer(1, 3)
    inputs["steps_per_epoch"] = 4 * choose.integer(1, 3)
    if inputs["max_steps"] is not None:
        inputs["max_steps"] = 4 * choose.integer(1, 4)
    return inputs


SCHEDULE_LENGTH = rule(
    name="schedule_length",
    summary="how often a learning-rate schedule is stepped, in the training run and in its warm-up",
    source="a schedule ends with the training run, which trains on each sample of each step update_epochs times",
    inputs=(
        Input("steps_per_epoch", "integer", "steps of one pass over the prompts", default=4),
        knob("epochs", "passes over the prompts", (1, 2, 3)),
        knob("max_steps", "maximum number of training steps; null: no limit", (None, 8), kind="any"),
        drawn("prompts_per_step", "number of prompts in a step, which trains on their responses", (8, 4), REQUIRED),
        knob("samples_per_prompt", "responses to each prompt", (1, 2, 4)),
        knob("turns", "training samples of each response: the turns of a conversation", (1, 3)),
        drawn("batch_size", "number of samples in an update, on all devices", (8, 4), REQUIRED),
        knob("update_epochs", "passes over the samples of one step", (1, 2)),
        knob("warmup_ratio", "share of the schedule that is warm-up", (0.0, 0.25)),
        dialect("unit", "updates", "the unit that steps the schedule once: updates, steps or samples"),
    ),
    observes=(
        Observed("length", "how often the schedule is stepped until its end"),
        Observed("warmup", "how often the schedule is stepped in its warm-up; null if the boundary does not decide it"),
    ),
    measure=returned(length="number", warmup="number?"),
    oracle=_oracle_schedule_length,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_schedule_length,
)


# -- epoch order -------------------------------------------------------------------------------------------------------


def _measure_epoch_order(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the samples that a data loader draws in all epochs.

    ``call`` iterates over a loader with torch's DistributedSampler (one rank, this seed) and returns ``drawn``: the
    samples of all epochs, concatenated.
    """
    drawn = torch.tensor([int(index) for index in call(**inputs)["drawn"]])
    orders = drawn.reshape(inputs["epochs"], inputs["size"])
    return {"orders": orders, "distinct_orders": len({tuple(order) for order in orders.tolist()})}


def _oracle_epoch_order(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the samples that torch's DistributedSampler draws if ``set_epoch`` is called in each epoch.

    Its documentation: "calling the set_epoch() method at the beginning of each epoch before creating the DataLoader
    iterator is necessary to make shuffling work properly across multiple epochs".
    """
    from torch.utils.data import DistributedSampler

    samples: Any = range(inputs["size"])
    sampler: Any = DistributedSampler(samples, num_replicas=1, rank=0, shuffle=True, seed=inputs["seed"])
    drawn: list[int] = []
    for epoch in range(inputs["epochs"]):
        sampler.set_epoch(epoch)
        drawn += sampler
    return {"drawn": drawn}


EPOCH_ORDER = rule(
    name="epoch_order",
    summary="the order of a shuffled dataset in each epoch",
    source="the documentation of torch.utils.data.DistributedSampler",
    inputs=(
        drawn("size", "samples of the dataset", (8, 2, 5), REQUIRED),
        drawn("epochs", "number of epochs", (3, 1, 2), REQUIRED),
        drawn("seed", "seed of the sampler", (0, 1, 7)),
    ),
    observes=(
        Observed("orders", "the samples of each epoch, in order", ("epochs", "samples")),
        Observed("distinct_orders", "number of distinct orders", role="other"),
    ),
    measure=_measure_epoch_order,
    oracle=_oracle_epoch_order,
)
