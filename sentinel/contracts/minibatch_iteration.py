"""Minibatch iteration: the rows of a batch in minibatches, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Input, Observed, rule
from sentinel.contracts.row_surgery import LAYOUTS, drawn_fields, rows_of, taken


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``parts``: the minibatches of all epochs, each a mapping from a field to its column."""
    import torch

    seen = rows_of(inputs["fields"], list(call(**inputs)["parts"]))
    rows, size, epochs = seen.pop("rows"), len(inputs["fields"]["number"]), inputs["epochs"]
    every = torch.arange(size).repeat(epochs)
    times = torch.zeros(epochs, size, dtype=torch.int64)
    if len(rows) == len(every) and bool((rows >= 0).all()):
        times = torch.stack([torch.bincount(order, minlength=size) for order in rows.reshape(epochs, size)])
    return {**seen, "times": times, "in_order": inputs["shuffle"] or torch.equal(rows, every)}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Each epoch is a permutation of the rows: the identity, or any other where they are shuffled."""
    size, rows = inputs["minibatch_size"], list(range(len(inputs["fields"]["number"])))
    starts = range(0, len(rows), size)
    return {"parts": [taken(inputs["fields"], rows[at : at + size]) for _ in range(inputs["epochs"]) for at in starts]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """As many rows as come out even."""
    rows = inputs["minibatch_size"] * choose.one_of((2, 1, 3))
    inputs["fields"] = drawn_fields(inputs["layouts"], rows, choose)
    return inputs


MINIBATCH_ITERATION = rule(
    name="minibatch_iteration",
    summary="the rows of a batch in minibatches, epoch after epoch",
    source=(
        "PPO (arXiv:1707.06347, algorithm 1) optimises its surrogate on the whole batch for K epochs in minibatches: "
        "each row once an epoch; an order that is drawn is drawn from the seed alone"
    ),
    inputs=(
        Input("minibatch_size", "integer", "rows of a minibatch", choices=(2, 1, 3)),
        Input("epochs", "integer", "how often the batch is gone through", choices=(2, 1, 3)),
        Input("shuffle", "boolean", "whether each epoch has an order of its own", default=False, choices=(False, True)),
        Input("seed", "integer", "of the order", default=0, choices=(0, 1, 7)),
        Input("layouts", "mapping", "what a search makes fields of, as in row_surgery", default=LAYOUTS),
        Input("fields", "any", "field -> column: a tensor [rows, ...], or a list of one entry a row", choices=({},)),
    ),
    observes=(
        Observed("times", "how often each row comes in each epoch", ("epochs", "rows")),
        Observed("sizes", "how many rows each minibatch has", ("minibatches",)),
        Observed("in_order", "whether rows that are not shuffled come in their order"),
        Observed("intact", "how many fields of all rows that come out are those of the row"),
        Observed("dropped", "fields that some minibatch has no more"),
        Observed("dtype_changed", "fields whose dtype is another one"),
        Observed("shape_changed", "fields whose shape behind the rows is another one"),
    ),
    measure=_measure,
    oracle=_oracle,
    laws=("the_oracle_agrees", "fields_survive_surgery", "nothing_else_is_touched"),
    arrange=_arrange,
)
