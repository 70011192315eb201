"""Define the contract of a whole training run: its steps, validations and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    The run ends early after a validation whose mean reaches ``stop_value``, or if the time is over. DAPO
    (arXiv:2503.14476) skips prompts whose responses all have the same reward (section 3.2), and gives truncated
    responses no weight in the loss (section 3.4).
    """
    samples, first = [value for part in inputs["validation"] for value in part], inputs["validates_first"]
    mean, least = sum(samples) / len(samples), inputs["stop_value"]
    reached = least is not None and mean >= least
    planned, ends = _plan_steps(inputs)
    rows: list[list[int]] = []
    validated, saved = [0] * first, []
    every, save = inputs["validation_period"], inputs["save_period"]
    for step, batch in enumerate([] if first and reached else planned, start=1):
        rows.append(batch)
        last = step == len(planned) and ends
        validates = bool(every and step % every == 0) or (inputs["validates_last"] and last)
        validates |= inputs["validates_epochs"] and step % len(inputs["rewards"]) == 0
        over = (validates and reached) or step == inputs["time_limit"]
        validated += [step] * validates
        saved += [step] * (step % save == 0 or last or over)
        if over:
            break
    pairs = [_rewards_of(batch, inputs).reshape(-1, 2) for batch in rows]
    counted = [1 - _flag(row, inputs) for batch in rows for row in batch]
    relative = [each - inputs["centred"] * each.mean(-1, keepdim=True) for each in pairs]
    return {
        "trained": [row for batch in rows for row in batch],
        "counted": counted,
        "versions": [max(0, place - inputs["ahead"]) for place in range(len(rows))],
        "advantages": [
            weight * value for weight, value in zip(counted, (value for each in relative for value in each.flatten()))
        ],
        "reward": [each.mean() for each in pairs],
        "validated": validated,
        "validation": [mean] * len(validated),
        "saved": saved,
    }


def _plan_steps(inputs: Mapping[str, Any]) -> tuple[list[list[int]], bool]:
    """Return the rows of each step that the data and ``max_steps`` allow, and whether the last of them is known to be
    the last.

    With ``filters_constant_groups``, a step consists of the next two prompts whose rewards differ, and further prompts
    of the same batch are dropped. Nothing remains at the end of an epoch, and nobody knows then which step is the last.
    """
    numbers = [[ROWS * batch + row for row in range(ROWS)] for batch in range(len(inputs["rewards"]))]
    steps, most = numbers * inputs["epochs"], inputs["max_steps"]
    if inputs["filters_constant_groups"]:
        steps = [step for _ in range(inputs["epochs"]) for step in _fill_steps(numbers, inputs)]
    limited = steps if most is None else steps[:most]
    return limited, not inputs["filters_constant_groups"] or most == len(limited)


def _fill_steps(batches: Sequence[Sequence[int]], inputs: Mapping[str, Any]) -> list[list[int]]:
    steps, kept = [], list[int]()
    for batch in batches:
        one, other = batch[:2], batch[2:]
        kept += [row for pair in (one, other) if len(_rewards_of(pair, inputs).unique()) > 1 for row in pair]
        if len(kept) >= ROWS:
            steps.append(kept[:ROWS])
            kept = []
    return steps


def _rewards_of(rows: Sequence[int], inputs: Mapping[str, Any]) -> Any:
    return torch.tensor([inputs["rewards"][row // ROWS][row % ROWS] for row in rows], dtype=torch.float64)


def _flag(row: int, inputs: Mapping[str, Any]) -> int:
    """Return 1 if a row's response is truncated and therefore filtered, else 0."""
    return inputs["truncated"][row // ROWS][row % ROWS] if inputs["filters_truncated"] else 0


def _arrange_training_loop(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    fewest, most = (1, 2)
    if inputs["filters_constant_groups"]:
        fewest, most = (2, 4)
    elif inputs["filters_truncated"]:
        fewest, most = (2, 2)
    inputs["rewards"] = [choose.integers(ROWS, 0, 1) for _ in range(choose.integer(fewest, most))]
    inputs["validation"] = [choose.integers(size, 0, 1) for size in (4, choose.integer(0, 3)) if size]
    if inputs["filters_truncated"]:  # at most one of the two responses to a prompt, so that each step has a token
        pairs = [[choose.one_of(((0, 0), (1, 0), (0, 1))) for _ in range(ROWS // 2)] for _ in inputs["rewards"]]
        inputs["truncated"] = [[flag for pair in batch for flag in pair] for batch in pairs]
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
        Input("stop_value", "number", "the run ends after a validation with at least this mean", default=None),
        Input(
            "time_limit",
            "integer",
            "the number of steps for which there is time, at least 2: the run saves and ends if another step of "
            "average duration would take too long; default: no limit",
            default=None,
        ),
        Input(
            "filters_constant_groups",
            "boolean",
            "whether only prompts with different rewards are trained on, and further batches replace the others",
            default=False,
        ),
        Input(
            "filters_truncated", "boolean", "whether truncated responses have no weight in the loss", default=False
        ),
        Input("truncated", "any", "with filters_truncated: for each batch, 1 for each truncated row", default=None),
        Input(
            "equivalent_options",
            "integer",
            "number of a set of the framework's options that must not change the run; 0: the usual options",
            default=0,
        ),
        dialect("ahead", 0, "number of steps by which rollouts are collected ahead"),
        dialect("validates_epochs", False, "whether the run also validates after each pass over the batches"),
        dialect("centred", True, "whether an advantage is relative to the prompt's mean reward"),
    ),
    observes=(
        Observed("trained", "the rows that each step trains on, in order", ("rows",)),
        Observed("counted", "1 for each of these rows with a weight in the loss; null if unknown", ("rows",)),
        Observed("versions", "for each step, the number of updates before its rollouts; null if none", ("steps",)),
        Observed("advantages", "the advantage of each response; 0 without a weight; null if there are none", ("rows",)),
        Observed("reward", "the reported mean reward of each step; null if none", ("steps",), "metric"),
        Observed("validated", "the steps after which the run validates", ("validations",)),
        Observed("validation", "the reported mean of each validation; null if none", ("validations",), "metric"),
        Observed("saved", "the steps after which the run saves a checkpoint", ("checkpoints",)),
    ),
    measure=returned(
        trained="integers", counted="integers?", versions="integers?", advantages="singles?", reward="singles?",
        validated="integers", validation="singles?", saved="integers",
    ),
    oracle=_oracle_training_loop,
    laws=(*AS_DEFINED, "metrics_tell_the_truth"),
    arrange=_arrange_training_loop,
)  # fmt: skip
