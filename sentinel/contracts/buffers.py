"""Define the contract of buffers between asynchronous rollouts and training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import REQUIRED, Choose, Input, Observed, dialect, drawn, rule
from sentinel.values.lazy import torch


def _measure_rollout_buffer(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe which rollouts a step gets (``taken``), in order, and which stay in the buffer (``left``).

    ``call`` also returns, if the buffer knows them: ``missing``, ``age`` (None while the step waits), ``open_targets``
    and ``done_until``.
    """
    outputs = call(**inputs)
    targets = outputs.get("open_targets")
    return {
        "taken": torch.tensor([int(number) for number in outputs["taken"]], dtype=torch.int64),
        "left": torch.tensor([int(number) for number in outputs["left"]], dtype=torch.int64),
        "missing": outputs.get("missing"),
        "age": outputs.get("age"),
        "open_targets": None if targets is None else torch.tensor(sorted(targets), dtype=torch.int64),
        "done_until": outputs.get("done_until"),
    }


def _oracle_rollout_buffer(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the rollouts of a step, as ``selects`` defines it, and discard those that no later step may use.

    The age of a rollout is the number of updates between the weights that generated it and the step.
    """
    step, needed, versions = inputs["step"], inputs["needed"], inputs["versions"]
    held, targets = _restored(inputs), list(inputs["targets"])
    ready = [number for number in held if number not in inputs["unfinished"]]
    later = [number for number in ready if targets[number] > step]
    if inputs["borrows"] and later:
        targets[max(later, key=lambda number: (targets[number], -number))] = step
    fresh = [number for number in held if step - inputs["max_age"] <= versions[number] <= step]
    due = [number for number in fresh if targets[number] == step]
    eligible: Mapping[str, Callable[[], list[int]]] = {
        "due": lambda: due,
        "step": lambda: [number for number in held if targets[number] == step],
        "arrival": lambda: fresh,
        "newest": lambda: sorted(fresh, key=lambda number: -versions[number]),
        "oldest": lambda: [each for each in fresh if versions[each] == min(versions[other] for other in fresh)],
        "ready": lambda: [number for number in held if versions[number] <= step],
    }
    usable = [number for number in eligible[inputs["selects"]]() if number in ready]
    least = needed if inputs["least"] is None else min(inputs["least"], needed)
    taken = usable[:needed] if len(usable) >= least else []
    stale: list[int] = []
    if inputs["selects"] == "step":
        stale = [number for number in ready if targets[number] < step]
    elif inputs["selects"] != "ready":
        stale = [number for number in ready if versions[number] < step - inputs["max_age"]]
    left = [number for number in held if number not in (*taken, *stale)]
    before = step - 1 if inputs["restored"] == "resumed" else -1
    return {
        "taken": taken,
        "left": left,
        "missing": max(needed - len(due), 0),
        "age": sum(step - versions[number] for number in taken) / len(taken) if taken else None,
        "open_targets": {targets[number] for number in left},
        "done_until": step if taken else before,
    }


def _restored(inputs: Mapping[str, Any]) -> list[int]:
    """Return the rollouts that the buffer holds before the step."""
    held, targets, capacity = list(range(len(inputs["versions"]))), inputs["targets"], inputs["capacity"]
    if inputs["restored"] == "no":
        return held[:capacity]
    held = [number for number in held if number not in inputs["unfinished"]]
    if inputs["restored"] == "resumed":
        ages = {number: targets[number] - inputs["versions"][number] for number in held}
        held = [
            number for number in held if 0 <= ages[number] <= inputs["max_age"] and targets[number] >= inputs["step"]
        ]
    if inputs["restored"] == "complete" or (inputs["restored"] == "resumed" and inputs["drops_incomplete"]):
        made = [targets[number] for number in held]
        held = [number for number in held if made.count(targets[number]) >= inputs["needed"]]
    if inputs["restored"] == "resumed":
        return sorted(sorted(held, key=lambda number: targets[number])[:capacity])
    if inputs["keeps"] == "newest":
        held = sorted(held, key=lambda number: inputs["versions"][number])
    return sorted(held[max(len(held) - capacity, 0) :])


def _arrange_rollout_buffer(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw rollouts of several versions. Most of them are made for the current step or for a later one."""
    count, step = choose.integer(1, 6), choose.integer(0, 3)
    versions = [max(step + 1 - offset, 0) for offset in choose.integers(count, 1, 4)]
    ahead = choose.integers(count, 0, 4)
    inputs["step"], inputs["versions"] = step, versions
    # Two of five rollouts are made for the current step, if their version is not newer.
    inputs["targets"] = [max(step, version) if more > 2 else version + more for version, more in zip(versions, ahead)]
    if inputs["may_be_unfinished"]:
        inputs["unfinished"] = [number for number, flag in enumerate(choose.integers(count, 0, 3)) if flag == 1]
    return inputs


ROLLOUT_BUFFER = rule(
    name="rollout_buffer",
    summary="the rollouts that a buffer gives to a training step, by the weights that generated them",
    source=(
        "asynchronous training with bounded staleness (AReaL, arXiv:2505.24298, section 5.1): a step never trains on "
        "rollouts that are more than max_age updates old, and each rollout is trained on at most once"
    ),
    inputs=(
        Input("versions", "any", "number of updates of the weights that generated each rollout", choices=([],)),
        Input("targets", "any", "the step for which each rollout was generated", default=[]),
        Input("step", "integer", "the current step, which follows as many updates", default=0),
        drawn("needed", "rollouts that a step takes", (2, 1, 3), REQUIRED),
        Input("least", "integer", "a step waits if there are fewer rollouts than this; default: needed", default=None),
        drawn("max_age", "maximum age of a rollout, in updates", (1, 0, 2), REQUIRED),
        Input(
            "selects",
            "string",
            "the rollouts that a step may take: due (made for this step, and not too old), step (made for this step), "
            "arrival (all that are not too old, in order), newest (the same, the newest version first), oldest (those "
            "of the oldest version that is not too old), ready (all)",
            default="due",
        ),
        # A search varies the following inputs only for bindings that list their values in ``accepts``.
        Input("may_be_unfinished", "boolean", "whether some rollouts may still be generated", default=False),
        Input("unfinished", "any", "numbers of the rollouts that are still generated", default=[]),
        Input("borrows", "boolean", "whether a rollout made for the latest step is moved to this step", default=False),
        Input(
            "restored",
            "string",
            "whether the buffer was saved and restored: no, saved, complete (steps without enough rollouts are "
            "removed), resumed (too old rollouts and those of earlier steps are removed)",
            default="no",
        ),
        Input(
            "drops_incomplete", "boolean", "whether resumed also removes steps without enough rollouts", default=False
        ),
        Input("capacity", "integer", "maximum number of rollouts; a resumed buffer keeps those due first", default=100),
        dialect("keeps", "last", "what a restored buffer keeps that is too small: last, or newest (version)"),
    ),
    observes=(
        Observed("taken", "numbers of the rollouts that the step gets; none if it waits", ("taken",)),
        Observed("left", "numbers of the rollouts that stay in the buffer", ("left",)),
        Observed("missing", "rollouts that must still be generated for the step, before it takes any"),
        Observed("age", "mean age of the step's rollouts", role="metric"),
        Observed("open_targets", "the steps for which the remaining rollouts were made", ("steps",)),
        Observed("done_until", "the last step that got its rollouts; -1 if there is none"),
    ),
    measure=_measure_rollout_buffer,
    oracle=_oracle_rollout_buffer,
    arrange=_arrange_rollout_buffer,
)
