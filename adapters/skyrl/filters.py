"""SkyRL: which responses are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, Dialect
from sentinel.worker.kit import group_size

from .shared import CODE

_SAMPLING = "train.utils.trainer_utils"
_GENERATORS = "train.generators.utils"


def _sampled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What is collected of one batch, towards a batch that is never full; a response is its row's number."""
    rewards, labels = inputs["rewards"].tolist(), list(inputs["group"])
    rows: list[Any] = [[row] for row in range(len(labels))]
    batch = {
        "prompt_token_ids": rows,
        "response_ids": rows,
        "rewards": rewards,
        "loss_masks": [[1]] * len(rows),
        "stop_reasons": ["stop"] * len(rows),
        "rollout_metrics": None,
        "rollout_logprobs": None,
    }
    state: dict[str, Any] = {"sample_batch_count": 1}
    boundary.function(batch, labels, {"train_batch_size": 1_000_000, "n_samples_per_prompt": group_size(inputs)}, state)
    found = state["collected_generator_output"]
    return {"numbers": [row for (row,) in found["response_ids"]], "rewards": found["rewards"]}


def _without_variance(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Every trajectory is alive."""
    rewards, labels = inputs["rewards"].tolist(), list(inputs["group"])
    numbers = boundary.invoke({}, rewards, labels, loss_masks=[[1]] * len(labels))
    return {"numbers": numbers, "rewards": [rewards[row] for row in numbers]}


def _not_cut_off(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """They stop at their end, or at the last column, as the engine says; once it was their last token that said."""
    import torch

    mask = inputs["response_mask"] != 0
    rows = [[1] * int(row.sum()) for row in mask]
    full = [len(row) == mask.shape[1] for row in rows]
    if "stop_reasons" in boundary.parameters:
        kept = boundary.function(rows, ["length" if cut else "stop" for cut in full])
    else:
        ids = [[5] * (len(row) - 1) + [5 if cut else 2] for row, cut in zip(rows, full)]
        kept = boundary.function(rows, ids, 2)
    padded = [row + [0] * (mask.shape[1] - len(row)) for row in kept]
    return {"kept": torch.tensor(padded)}


def _alone(line: int) -> Dialect:
    return Dialect(
        "group_of_one",
        "kept",
        "with one response to each prompt there is no filter",
        f"{CODE}/{_SAMPLING.replace('.', '/')}.py#L{line}",
    )


BINDINGS = (
    Binding(
        f"skyrl.{_SAMPLING}.handle_filter_sampling",
        "group_filter",
        call=_sampled,
        fixed={"group_layout": "equal"},
        dialects=(_alone(556),),
    ),
    Binding(f"skyrl.{_SAMPLING}.zero_variance_filter", "group_filter", call=_without_variance, dialects=(_alone(663),)),
    Binding(
        f"skyrl.{_GENERATORS}.apply_overlong_filtering",
        "overlong_filter",
        call=_not_cut_off,
        accepts={"response_mask": ("full", "right")},
    ),
)

UNBOUND = {
    f"{package}.utils.trainer_utils.{name}": reason
    for package in ("skyrl.train", "skyrl_train")
    for name, reason in {
        "handle_dynamic_sampling": "it calls one of the two ways of sampling by its name",
        "handle_replace_sampling": "which group takes the place of another is drawn at random, out of a set of strings",
        "get_bad_sample_replacements": "the draw of handle_replace_sampling",
        "*": "nodes, checkpoints, rows by their index, and metrics",
    }.items()
}
