"""Bindings for the metrics that ROLL reports about a batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import Binding
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .containers import CONTAINER, PROTOCOL, RECENT

_METRICS = "roll.utils.metrics.metrics_manager.MetricsManager"
_QUANTITIES = ("advantages", "returns", "values")
_STATISTICS = ("mean", "max", "min")


def _batch(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return a batch with the columns that ROLL's metrics read. No two columns are equal, and scores alternate."""
    mask, advantages = inputs["response_mask"], inputs["advantages"]
    rows, width = mask.shape
    whole = kit.prepend_prompt(mask.long())
    columns = {name: inputs[name] for name in _QUANTITIES if inputs[name] is not None}
    columns.setdefault("returns", advantages * 3)
    made = {
        **columns,
        "raw_advantages": advantages * 2 + 1,
        "token_level_rewards": advantages * 0.5 - 1,
        "scores": 1.0 - torch.arange(rows) % 2,
        "response_mask": whole,
        "final_response_mask": mask.long(),
        "prompt_mask": 1 - whole,
        "responses": torch.zeros(rows, width, dtype=torch.long),
    }
    return CONTAINER(boundary, made, {"agg_entropy": torch.tensor(0.375)})


def _reported(method: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ROLL's metrics for advantages, returns, values and response lengths."""
    rows, manager = len(inputs["advantages"]), boundary.owner()
    batch = _batch(boundary, inputs)
    if method == "add_all_metrics":
        boundary.function(manager, 3, batch, n_sample=rows if rows % 2 else rows // 2)
    else:
        boundary.function(manager, batch)
    return _found(inputs, manager.get_metrics())


def _of_training_data(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that ROLL reports about the training data of agents. Each row is an episode of its own."""
    batch = _batch(boundary, inputs)
    labels = {"traj_id": [f"episode {row}" for row in range(len(batch))], "episode_scores": [*range(len(batch))]}
    columns = {**kit.read_columns(batch), "attention_mask": torch.ones_like(batch.batch["response_mask"]), **labels}
    return _found(inputs, boundary.function(CONTAINER(boundary, columns, {})), "tokens")


def _of_a_domain(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ROLL's metrics for one of two domains. The other domain has other advantages."""
    manager, one = boundary.owner(), _batch(boundary, inputs)
    other = _batch(boundary, {**inputs, "advantages": inputs["advantages"] * 2 + 1})
    boundary.function(manager, 3, {"other": other, "math": one, "last": other})
    told = manager.get_metrics()
    return _found(inputs, {name.removeprefix("math/"): value for name, value in told.items() if "math/" in name})


def _found(inputs: Mapping[str, Any], told: Mapping[str, Any], lengths: str = "token") -> dict[str, Any]:
    found = {f"{name}_{one}": told.get(f"critic/{name}/{one}") for name in _QUANTITIES for one in _STATISTICS}
    found |= {f"response_length_{one}": told.get(f"{lengths}/response_length/{one}") for one in _STATISTICS}
    without = [name for name in _QUANTITIES if inputs[name] is None]
    return {key: None if key.rpartition("_")[0] in without else value for key, value in found.items()}


# -- statistics of samples ---------------------------------------------------------------------------------------------


def _samples(inputs: Mapping[str, Any]) -> list[float]:
    return [value for part in inputs["parts"] for value in part]


def _of_episodes(name: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statistic of one value per episode, as ROLL reports it. Episodes have one to three rows."""
    values = _samples(inputs)
    rows = [number for number in range(len(values)) for _ in range(1 + number % 3)]
    mask = torch.ones(len(rows), 3, dtype=torch.long)
    labels = {"traj_id": [f"episode {row}" for row in rows], name: [values[row] for row in rows]}
    columns = {"response_mask": mask, "prompt_mask": 1 - mask, "attention_mask": mask, **labels}
    told = boundary.function(CONTAINER(boundary, columns, {}))
    if isinstance(told, torch.Tensor):
        return {"mean": getattr(told, inputs["statistic"])()}
    return {"mean": told[f"rollout/score/{inputs['statistic']}"]}


def _of_lengths(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statistic of the lengths of partitions, as ROLL logs it. Each partition has one sequence."""
    lengths = [1 + 4 * int(value) for value in _samples(inputs)]
    told = boundary.function(lengths, [[row] for row in range(len(lengths))], "x")
    whole = inputs["statistic"]
    key = {"range": "minmax_diff"}.get(whole, whole)
    same = whole in ("mean", "range") or told[f"x/{key}"] == told[f"x/balanced_{key}"]
    return {"mean": (told[f"x/{key}"] - (whole != "range")) / 4 if same else float("nan")}


def _of_groups(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statistic over groups of two responses, as ROLL reports it: of the difference of their lengths.

    The difference of the advantages is twice that of the lengths. The first response is right if the lengths differ,
    and the second is always wrong. If these reports disagree with the lengths, the result is NaN.
    """
    values = _samples(inputs)
    longer = [int(value) for value in values for value in (value, 0)]
    mask = torch.tensor([[1, 1, extra] for extra in longer])
    batch = CONTAINER(boundary, {
        "response_mask": kit.prepend_prompt(mask), "advantages": 2.0 * torch.tensor(longer)[:, None].expand(-1, 3),
        "scores": torch.tensor(longer).float(),
    }, {})  # fmt: skip
    told, statistic = boundary.function(boundary.owner(), batch, n_sample=2), inputs["statistic"]
    mean = sum(values) / len(values)
    right = [
        (told[f"group/advantage_diff/{statistic}"] / 2, told[f"group/response_length_diff/{statistic}"]),
        (told["group/correct_ratio/mean"] * 2, mean),
        (told["group/mixed_groups_ratio"], mean), (told["group/all_incorrect_groups_ratio"], 1 - mean),
    ]  # fmt: skip
    same = all(abs(one - other) < 1e-5 for one, other in right)
    return {"mean": told[f"group/response_length_diff/{statistic}"] if same else float("nan")}


def _of_manager(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statistic that ROLL's manager reduces, under a prefix or for a domain, next to other metrics."""
    manager, key = boundary.owner(), f"loss@{inputs['statistic']}"
    manager.add_metric("loss", 7.0)
    if "domain" in boundary.path:
        reduced = boundary.module.reduce_metrics({key: _samples(inputs)})
        boundary.function(manager, "first", {key: 9.0})
        boundary.function(manager, "x", {"other": 8.0})
        boundary.function(manager, "x", reduced)
    else:
        manager.add_reduced_metrics({key: _samples(inputs)}, prefix="x")
        manager.add_domain_metrics("first", {key: 9.0})
    if not boundary.path.endswith("clear_metrics"):
        return {"mean": manager.get_metrics()[f"x/{key}"]}
    told = manager.get_metrics()[f"x/{key}"]
    boundary.function(manager)
    return {"mean": float("nan") if manager.get_metrics() else told}


_AGENTS = "roll.pipeline.agentic.agentic_pipeline"


def _statistic(path: str, call: Any, *statistics: str, **more: Any) -> Binding:
    return Binding(
        path, "mean_of_parts", call=call, imports=(PROTOCOL,), fixed={"missing": False},
        accepts={"statistic": statistics or _STATISTICS}, **more,
    )  # fmt: skip


BINDINGS = (
    *(
        Binding(f"{_METRICS}.{name}", "batch_report", call=partial(_reported, name), imports=(PROTOCOL,))
        for name in ("add_values_metrics", "add_token_metrics", "add_all_metrics")
    ),
    Binding(f"{_METRICS}.add_domain_all_metrics", "batch_report", call=_of_a_domain, imports=(PROTOCOL,)),
    Binding(
        f"{_AGENTS}.compute_train_data_metrics", "batch_report", call=_of_training_data, imports=(PROTOCOL,),
        requires=RECENT,
    ),
    *(
        _statistic(f"{_AGENTS}.{function}", partial(_of_episodes, name))
        for function, name in (
            ("compute_rollout_traj_metrics", "episode_scores"), ("get_episode_scores", "episode_scores"),
            ("get_traj_rollout_time", "traj_rollout_time"), ("get_traj_env_time", "traj_env_time"),
        )
    ),
    _statistic("roll.utils.functionals.log_seqlen_unbalance", _of_lengths, *_STATISTICS, "range"),
    _statistic(f"{_METRICS}.add_group_metrics", _of_groups),
    *(
        _statistic(f"{_METRICS}.{name}", _of_manager, *_STATISTICS, "sum")
        for name in ("add_reduced_metrics", "add_domain_metrics", "get_metrics", "clear_metrics", "add_metric")
    ),
)  # fmt: skip
