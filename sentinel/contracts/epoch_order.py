"""Epoch order: in which order a shuffled dataset is gone through, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` goes through a loader on torch's DistributedSampler (one rank, with this seed) and returns ``drawn``:
    the samples of all epochs, one after the other."""
    import torch

    drawn = torch.tensor([int(index) for index in call(**inputs)["drawn"]])
    orders = drawn.reshape(inputs["epochs"], inputs["size"])
    return {"orders": orders, "distinct_orders": len({tuple(order) for order in orders.tolist()})}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """torch.utils.data.DistributedSampler: "calling the set_epoch() method at the beginning of each epoch before
    creating the DataLoader iterator is necessary to make shuffling work properly across multiple epochs"."""
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
    summary="the order of a shuffled dataset, epoch after epoch",
    source="the documentation of torch.utils.data.DistributedSampler",
    inputs=(
        Input("size", "integer", "samples of the dataset", choices=(8, 2, 5)),
        Input("epochs", "integer", "how often it is gone through", choices=(3, 1, 2)),
        Input("seed", "integer", "of the sampler", default=0, choices=(0, 1, 7)),
    ),
    observes=(
        Observed("orders", "the samples in the order of each epoch", ("epochs", "samples")),
        Observed("distinct_orders", "how many of these orders differ", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
)
