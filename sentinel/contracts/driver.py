"""Define contracts of the driver and its workers: the training batch, router replay, and one step of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.contract import REQUIRED, TOKENS, Choose, Contract, Input, Observed, drawn, rule
from sentinel.values.lazy import torch
from sentinel.values.literals import from_array

# -- from rollouts to the training batch -------------------------------------------------------------------------------


def _measure_training_input(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    refusal = outputs["refusal"]
    return {
        "accepted": refusal is None,
        "refusal": refusal,
        "names_the_option": refusal is not None and inputs["option"] in refusal["message"],
        "rollout_log_probs": outputs["rollout_log_probs"],
    }


def _arrange_training_input(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw rollouts with or without log-probs, and a configuration that may or may not need log-probs."""
    rows = choose.integer(1, 3)
    lengths = [(choose.integer(1, 3), choose.integer(1, 4)) for _ in range(rows)]
    inputs["prompt_token_ids"] = [[10 + place for place in range(prompt)] for prompt, _ in lengths]
    inputs["response_token_ids"] = [[20 + place for place in range(response)] for _, response in lengths]
    inputs["rewards"] = [[0.0] * (response - 1) + [1.0] for _, response in lengths]
    inputs["loss_masks"] = [[1] * response for _, response in lengths]
    if choose.integer(0, 1):
        inputs["rollout_log_probs"] = [[-0.25 * (1 + place) for place in range(length)] for _, length in lengths]
    inputs["configuration"] = {**inputs["configuration"], **inputs["needing"]}
    return inputs


def _oracle_training_input(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Reject a configuration that needs missing log-probs. Otherwise align the log-probs to the right, like the
    responses."""
    log_probs = inputs["rollout_log_probs"]
    if not log_probs:
        missed = {"type": "", "message": inputs["option"]} if inputs["needing"] else None
        return {"refusal": missed, "rollout_log_probs": None}
    tokens = max(map(len, log_probs))
    rows = [[0.0] * (tokens - len(row)) + list(row) for row in log_probs]
    return {"refusal": None, "rollout_log_probs": torch.tensor(rows, dtype=torch.float64)}


TRAINING_INPUT = Contract(
    name="training_input",
    summary="the training batch that the driver builds from rollouts, or its error",
    source=("if rollouts lack data that an option needs, the driver names the option before a worker fails"),
    inputs=(
        Input("prompt_token_ids", "any", "token ids of each prompt, ragged", choices=([],)),
        Input("response_token_ids", "any", "token ids of each response, ragged", choices=([],)),
        Input("rewards", "any", "reward of each response token, ragged", choices=([],)),
        Input("loss_masks", "any", "1 for response tokens that count, ragged", choices=([],)),
        Input("rollout_log_probs", "any", "null, or rollout log-prob of each response token, ragged", default=None),
        Input("configuration", "mapping", "dotted option -> value", default={}),
        Input(
            "needing",
            "mapping",
            "options that a search adds to the configuration because they need rollout log-probs; empty: none",
            default={},
        ),
        Input("option", "string", "the option that the error message must name", default=""),
    ),
    observes=(
        Observed("accepted", "whether a batch was made"),
        Observed("refusal", "type and message of the error, if no batch was made", role="other"),
        Observed("names_the_option", "whether the message names the option", role="other"),
        Observed("rollout_log_probs", "rollout log-probs of the batch; null if it has none", TOKENS),
    ),
    measure=_measure_training_input,
    oracle=_oracle_training_input,
    laws=("the_oracle_agrees", "nothing_else_is_touched"),
    arrange=_arrange_training_input,
)


# -- router replay -----------------------------------------------------------------------------------------------------


def _measure_router_replay(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe, for each microbatch, whether a router replays another microbatch's routes, or a wrong number of routes.

    The adapter returns ``model_calls``, one per microbatch in order: ``{"tokens": int, "routers": [{"action": str |
    None, "routes_of": microbatch whose routes are set, or None, "rows": number of routes}]}``.
    """
    outputs = call(**inputs)
    calls = outputs["model_calls"]
    stale, wrong = _stale(calls), _wrong_size(calls)
    return {
        "stale_replay": stale,
        "wrong_size": wrong,
        "stale_microbatches": sum(stale),
        "wrong_size_microbatches": sum(wrong),
        "actions": [sorted({router["action"] or "none" for router in one["routers"]}) for one in calls],
        "left_over": outputs["left_over"],
    }


def _replaying(call: Mapping[str, Any]) -> list[Any]:
    return [router for router in call["routers"] if router["action"] is not None]


def _stale(calls: list[Any]) -> list[bool]:
    return [any(router["routes_of"] != index for router in _replaying(one)) for index, one in enumerate(calls)]


def _wrong_size(calls: list[Any]) -> list[bool]:
    return [any(router["rows"] != one["tokens"] for router in _replaying(one)) for one in calls]


def _oracle_router_replay(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step in which no model call replays wrong routes and no router stays in replay mode.

    A router must replay the routes of the tokens that it receives (R3, section 3).
    """
    return {"model_calls": [], "left_over": False}


def _arrange_router_replay(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    shape = [choose.integer(1, 3), choose.integer(2, 4), choose.integer(1, 2), choose.integer(1, 2)]
    experts = np.array(choose.integers(int(np.prod(shape)), 0, 7), np.int64).reshape(shape)
    inputs["expert_indices"] = from_array(experts, "int64")
    return inputs


ROUTER_REPLAY = Contract(
    name="router_replay",
    summary="the routes that routers replay for each microbatch, including padding microbatches",
    source="R3, Rollout Routing Replay (arXiv:2510.11370): a token is trained on the experts of its own rollout",
    inputs=(
        Input(
            "expert_indices",
            "tensor",
            "expert that the rollout chose",
            dtype="int64",
            shape=("batch", "tokens", "layers", "top-k"),
            choices=(None,),  # the contract's ``arrange`` draws the experts, because no domain has expert numbers
        ),
        drawn("max_tokens_per_microbatch", "token budget of one microbatch", (4, 8, 100), REQUIRED),
        drawn(
            "padding_microbatches",
            "number of microbatches by which the slowest data-parallel rank exceeds this rank",
            (0, 1, 2),
            REQUIRED,
        ),
    ),
    observes=(
        Observed(
            "stale_replay",
            "for each microbatch, padding last: whether a router replays another microbatch's routes",
            role="other",
        ),
        Observed(
            "wrong_size",
            "for each microbatch: whether a router replays routes for more or fewer tokens than it receives",
            role="other",
        ),
        Observed("stale_microbatches", "number of microbatches in which a router replays another microbatch's routes"),
        Observed(
            "wrong_size_microbatches",
            "number of microbatches in which a router replays routes for more or fewer tokens than it receives",
        ),
        Observed("actions", "for each microbatch: the mode of the routers", role="other"),
        Observed("left_over", "whether a router is still in replay mode after the step"),
    ),
    measure=_measure_router_replay,
    oracle=_oracle_router_replay,
    laws=("the_oracle_agrees",),
    arrange=_arrange_router_replay,
)


# -- a trainer and one of its training steps ---------------------------------------------------------------------------


#: Smaller differences of a logged loss are ignored, because trainers log it rounded to four decimals.
_ROUNDED = 1e-4


def _measure_constructed_trainer(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe one training step of a trainer that its own constructor has built.

    ``call`` returns ``attributes`` (the trainer's plain attributes by name), ``losses`` (of the step's micro-batches,
    already divided by their number), ``steps``, ``logged`` (one mapping per log), ``update`` (the change of all
    weights) and ``batches`` (one mapping per micro-batch, from column to tensor).
    """
    run = call(**inputs)
    had, losses, logs = run["attributes"], run["losses"], run["logged"]
    numbers = {f"{place} {name}": value for place, log in enumerate(logs) for name, value in log.items()}
    told = next((log["loss"] for log in logs if "loss" in log), None)
    columns = [(name, column) for batch in run["batches"] for name, column in sorted(batch.items())]
    flat = [column.detach().double().flatten() for _, column in columns]
    return {
        "other_settings": len([name for name, value in inputs["options"].items() if had.get(name, value) != value]),
        "steps": run["steps"],
        "loss_gap": 0.0 if told is None or not losses or abs(told - sum(losses)) < _ROUNDED else told - sum(losses),
        "update": run["update"],
        "update_norm": None if run["update"] is None else float(run["update"].double().norm()),
        "logged": torch.tensor([float(value) for value in numbers.values()]) if numbers else None,
        "names": ", ".join([*numbers, *(f"{name} {list(column.shape)}" for name, column in columns)]),
        "batches": torch.cat(flat) if flat else None,
    }


def _oracle_constructed_trainer(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results that are defined for every trainer: the configured options, one step, and a log of the
    minimised loss."""
    return {"attributes": {}, "losses": [], "steps": 1, "logged": [], "update": None, "batches": []}


CONSTRUCTED_TRAINER = rule(
    name="constructed_trainer",
    summary="a trainer: its constructor, and a training step on a small random model and four rows of text",
    source="an option has the value that the configuration gives it; the logged loss is the loss that was minimised",
    inputs=(
        Input(
            "options",
            "mapping",
            "options of the trainer's configuration, besides those that limit the run to one step; {}: the defaults",
            choices=({},),
        ),
        drawn("form", "the form of the rows: text, or messages of a chat", ("text", "chat")),
        drawn("micro_batch_size", "rows of one forward pass", (2, 4)),
    ),
    observes=(
        Observed("other_settings", "number of options whose value differs from the trainer's attribute of that name"),
        Observed("steps", "number of optimizer steps"),
        Observed("loss_gap", "the logged loss minus the sum of the minimised losses"),
        Observed("update", "change of all weights, per unit of the learning rate", ("weights",), "metric"),
        Observed("update_norm", "Euclidean norm of this change", role="metric"),
        Observed("logged", "the logged metrics, without times", ("metrics",), "metric"),
        Observed("names", "the names of these metrics, and the columns of the batches with their shapes", role="other"),
        Observed("batches", "the numbers in all columns of the batches", ("numbers",), "other"),
    ),
    measure=_measure_constructed_trainer,
    oracle=_oracle_constructed_trainer,
    laws=("the_oracle_agrees",),
)
