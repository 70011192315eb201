"""Define the contract of a whole training run: its steps, validations and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, Choose, Input, Observed, dialect, drawn, returned, rule
from sentinel.values.lazy import torch

#: Rows of a training step. Two adjacent rows are the responses to one prompt.
ROWS = 4


def _oracle_training_loop(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run that the options define: train on one batch after another; validate and save every n-th step.

    The last step is saved too, and validated if ``validates_last`` is set. A response's advantage is its reward minus
    the mean reward of its prompt's responses (Dr. GRPO, arXiv:2503.20783, section 3.2). A reported validation value is
    the mean over all validation samples.
    """
    rewards, planned = inputs["rewards"], len(inputs["rewards"]) * inputs["epochs"]
    steps = range(1, 1 + (planned if inputs["max_steps"] is None else min(planned, inputs["max_steps"])))
    batches = [(step - 1) % len(rewards) for step in steps]
    pairs = [torch.tensor(rewards[batch], dtype=torch.float64).reshape(-1, 2) for batch in batches]
    every, save, last = inputs["validation_period"], inputs["save_period"], len(steps)
    validated = [step for step in steps if (every and step % every == 0) or (inputs["validates_last"] and step == last)]
    validated = [0] * inputs["validates_first"] + validated
    samples = [value for part in inputs["validation"] for value in part]
    return {
        "trained": [ROWS * batch + row for batch in batches for row in range(ROWS)],
        "versions": [max(0, step - 1 - inputs["ahead"]) for step in steps],
        "advantages": [
            value for each in pairs for value in (each - inputs["centred"] * each.mean(-1, keepdim=True)).flatten()
        ],
        "reward": [each.mean() for each in pairs],
        "validated": validated,
        "validation": [sum(samples) / len(samples)] * len(validated),
        "saved": [step for step in steps if step % save == 0 or step == last],
    }


def _arrange_training_loop(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    inputs["rewards"] = [choose.integers(ROWS, 0, 1) for _ in range(choose.integer(1, 2))]
    inputs["validation"] = [choose.integers(size, 0, 1) for size in (4, choose.integer(0, 3)) if size]
    return inputs


TRAINING_LOOP = rule(
    name="training_loop",
    summary="a training loop: what its steps train on and report, and when it validates and saves",
    source="the meaning of the options: epochs, a limit of steps, and periods of validation and of checkpoints",
    inputs=(
        Input("rewards", "any", f"for each batch, the reward of each of {ROWS} rows, two to a prompt", choices=((),)),
        Input("validation", "any", "for each validation batch, the value of each sample", choices=((),)),
        drawn("epochs", "passes over the batches", (1, 2)),
        drawn("max_steps", "maximum number of steps; null: no limit", (None, 1, 3), kind="any"),
        drawn("validation_period", "steps between validations; 0: no validation", (1, 0, 2)),
        drawn("validates_first", "whether the run validates before the first step", (False, True)),
        drawn("validates_last", "whether the run validates after the last step", (False, True)),
        drawn("save_period", "steps between checkpoints", (1, 2)),
        dialect("ahead", 0, "number of steps by which rollouts are collected ahead"),
        dialect("centred", True, "whether an advantage is relative to the prompt's mean reward"),
    ),
    observes=(
        Observed("trained", "the rows that each step trains on, in order"),
        Observed("versions", "for each step, the number of updates before its rollouts; null if there are no rollouts"),
        Observed("advantages", "the advantage of each response, in order; null if there are none"),
        Observed("reward", "the reported mean reward of each step; null if there is none", role="metric"),
        Observed("validated", "the steps after which the run validates"),
        Observed("validation", "the reported mean of each validation; null if there is none", role="metric"),
        Observed("saved", "the steps after which the run saves a checkpoint"),
    ),
    measure=returned(
        trained="integers", versions="integers?", advantages="singles?", reward="singles?",
        validated="integers", validation="singles?", saved="integers",
    ),
    oracle=_oracle_training_loop,
    laws=(*AS_DEFINED, "metrics_tell_the_truth"),
    arrange=_arrange_training_loop,
)  # fmt: skip
