"""What calls of boundaries are made of, whatever the framework: adapters import it, exported runners contain it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

from sentinel.worker.drift import StandInNamespace


def stand_in(**attributes: Any) -> Any:
    """Make a namespace in the place of an object; it says what the boundary reads and it lacks."""
    return StandInNamespace(**attributes)


def swapped(owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    """Give another attribute for the length of a block, where there is one to swap."""
    return mock.patch.object(owner, name, value) if hasattr(owner, name) else nullcontext()


def taken(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: inputs[name] for name in names}


def group_size(inputs: Mapping[str, Any]) -> int:
    """Count the rows of a group, where all groups have as many."""
    return len(inputs["group"]) // len(set(inputs["group"]))


def two_token_logits(log_probs: Any) -> Any:
    """Make logits of a vocabulary of two tokens, the second of which has these log-probs."""
    import torch

    return torch.stack([torch.zeros_like(log_probs), log_probs - torch.log(-torch.expm1(log_probs))], -1)


# -- calls that several frameworks share -------------------------------------------------------------------------------


def along_rows(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call a statistic whose axis is a number of torch's."""
    return boundary.invoke({**inputs, "axis": None if inputs["axis"] is None else -1})


def unmasked(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call a function that knows no mask."""
    return boundary.invoke({name: value for name, value in inputs.items() if name != "response_mask"})


def log_probs_alone(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"log_probs": boundary.invoke({}, logits=inputs["logits"], labels=inputs["token_ids"]), "entropy": None}


def partitioned(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"parts": boundary.function(inputs["lengths"], inputs["parts"], equal_size=inputs["equal_size"])}


def score_of(found: Any) -> Any:
    """Read the score of what a rule answers: a number, a record, or the number before what it is made of."""
    found = found["score"] if isinstance(found, Mapping) else found
    return found[0] if isinstance(found, tuple) else found


def ruled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"score": score_of(boundary.function(inputs["response"], inputs["ground_truth"]))}


def ruled_of_answers(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the rule of a question that may have several right answers."""
    return {"score": boundary.function(inputs["response"], {"target": [inputs["ground_truth"], "another"]})}


def rates(inputs: Mapping[str, Any], schedule: Callable[[Any], Any]) -> dict[str, Any]:
    """Read the rate that an optimiser has, update after update; ``schedule(optimizer)`` is the boundary's."""
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=inputs["peak"])
    scheduler = schedule(optimizer)
    found = []
    for _ in range(inputs["training_steps"]):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"rates": found}


def coefficients(controller: Any, inputs: Mapping[str, Any], argument: str = "current") -> dict[str, Any]:
    """Read a controller's value, and that after each step."""
    found = [controller.value]
    for kl in inputs["kls"]:
        controller.update(**{argument: kl, "n_steps": inputs["samples_per_step"]})
        found.append(controller.value)
    return {"coefficients": found}


# -- containers of rows ------------------------------------------------------------------------------------------------

#: ``make(boundary, fields, meta) -> container``, ``read(container, inputs) -> columns, meta`` and
#: ``do(boundary, inputs, container) -> containers``.
Make = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]
Read = Callable[[Any, Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]
Surgery = Callable[[Any, Mapping[str, Any], Any], Sequence[Any]]


def container(path: str, boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Make a container of the target's class at ``path``; columns that are no tensors become arrays of objects."""
    import numpy
    import torch

    tensors = {name: column for name, column in fields.items() if isinstance(column, torch.Tensor)}
    objects = {}
    for name in fields.keys() - tensors.keys():
        objects[name] = numpy.empty(len(fields[name]), dtype=object)
        objects[name][:] = fields[name]
    module, _, owner = path.rpartition(".")
    made = getattr(boundary.imported[module], owner)
    return made.from_dict(tensors=tensors, non_tensors=objects, meta_info=dict(meta))


def columns(data: Any) -> dict[str, Any]:
    return {**dict(data.batch.items()), **{name: list(column) for name, column in data.non_tensor_batch.items()}}


def columns_and_meta(data: Any, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return columns(data), data.meta_info


def operated(make: Make, read: Read, do: Surgery, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Do a surgery to a container of the scenario's rows."""
    made = make(boundary, inputs["fields"], inputs["meta"])
    parts = [read(part, inputs) for part in do(boundary, inputs, made)]
    return {"parts": [part for part, _ in parts], "metas": [meta for _, meta in parts]}


def iterated(make: Make, read: Read, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Go through a container's minibatches."""
    made = boundary.function(
        make(boundary, inputs["fields"], {}),
        mini_batch_size=inputs["minibatch_size"],
        epochs=inputs["epochs"],
        seed=inputs["seed"],
        dataloader_kwargs={"shuffle": inputs["shuffle"]},
    )
    return {"parts": [read(part, inputs)[0] for part in made]}


def joined(make: Make, boundary: Any, inputs: Mapping[str, Any], _: Any) -> Sequence[Any]:
    """Join containers each of which was made for itself, as workers make them."""
    parts, start = [], 0
    for size in inputs["sizes"]:
        rows = {name: column[start : start + size] for name, column in inputs["fields"].items()}
        parts.append(make(boundary, rows, inputs["meta"]))
        start += size
    return [boundary.function(parts)]


def cut(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return list(boundary.function(data, inputs["count"]))


def counted(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["count"])]


def reordered(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    import torch

    boundary.function(data, torch.tensor(inputs["order"]))
    return [data]


def filled(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Fill up; what it says of the rows that it has added must be so."""
    made, added = boundary.function(data, inputs["count"])
    return [made] if added == len(made) - len(data) else []


def numbered_rows(lengths: Sequence[int]) -> dict[str, Any]:
    """Make fields of rows of these lengths, each with its number in a tensor and beside it."""
    import torch

    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return {"attention_mask": mask.long(), "row": torch.arange(len(lengths)), "label": [*range(len(lengths))]}


def dealt(data: Any, parts: int) -> dict[str, Any]:
    """Read the parts of a container whose rows stand in the order in which they are dealt out, as many to each. A row
    whose label is not its own is in no part."""
    found = columns(data)
    rows = [row if row == label else -1 for row, label in zip(found["row"].tolist(), found["label"])]
    size = len(rows) // parts
    return {"parts": [[row for row in rows[rank * size :][:size] if row >= 0] for rank in range(parts)]}
