"""Make and read the containers in which frameworks store the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentinel.values.lazy import torch

#: The types of three functions. ``make(boundary, fields, meta)`` returns a container; ``read(container, inputs)``
#: returns its columns and its meta; ``do(boundary, inputs, container)`` returns the containers after an operation.
Make = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]
Read = Callable[[Any, Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]
Surgery = Callable[[Any, Mapping[str, Any], Any], Sequence[Any]]


def make_container(path: str, boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Make a batch container of the framework's class at ``path``. Non-tensor columns become object arrays."""
    import numpy

    tensors = {name: column for name, column in fields.items() if isinstance(column, torch.Tensor)}
    objects = {}
    for name in fields.keys() - tensors.keys():
        objects[name] = numpy.empty(len(fields[name]), dtype=object)
        objects[name][:] = fields[name]
    module, _, owner = path.rpartition(".")
    kind = getattr(boundary.imported[module], owner)
    return kind.from_dict(tensors=tensors, non_tensors=objects, meta_info=dict(meta))


def read_columns(data: Any) -> dict[str, Any]:
    return {**dict(data.batch.items()), **{name: list(column) for name, column in data.non_tensor_batch.items()}}


def read_columns_and_meta(data: Any, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return read_columns(data), data.meta_info


def operate(make: Make, read: Read, do: Surgery, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make a batch container from the rows of the scenario, run one operation on it, and return the rows of each
    resulting container.
    """
    data = make(boundary, inputs["fields"], inputs["meta"])
    parts = [read(part, inputs) for part in do(boundary, inputs, data)]
    return {"parts": [part for part, _ in parts], "metas": [meta for _, meta in parts]}


def iterate_minibatches(make: Make, read: Read, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make a batch container from the rows of the scenario, and return the rows of each of its minibatches."""
    batches = boundary.function(
        make(boundary, inputs["fields"], {}),
        mini_batch_size=inputs["minibatch_size"],
        epochs=inputs["epochs"],
        seed=inputs["seed"],
        dataloader_kwargs={"shuffle": inputs["shuffle"]},
    )
    return {"parts": [read(part, inputs)[0] for part in batches]}


def join_parts(make: Make, boundary: Any, inputs: Mapping[str, Any], _: Any) -> Sequence[Any]:
    """Make several batch containers, one per worker, from the rows of the scenario, and join them."""
    parts, start = [], 0
    for size in inputs["sizes"]:
        rows = {name: column[start : start + size] for name, column in inputs["fields"].items()}
        parts.append(make(boundary, rows, inputs["meta"]))
        start += size
    return [boundary.function(parts)]


def cut_parts(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return list(boundary.function(data, inputs["count"]))


def apply_count(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["count"])]


def reorder_rows(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    boundary.function(data, torch.tensor(inputs["order"]))
    return [data]


def fill_rows(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Pad a batch container to a multiple of ``count`` rows. Return it in a list, or an empty list if the function
    reports a wrong number of added rows."""
    longer, added = boundary.function(data, inputs["count"])
    return [longer] if added == len(longer) - len(data) else []


def numbered_rows(lengths: Sequence[int]) -> dict[str, Any]:
    """Make rows with these numbers of tokens. The number of each row is stored twice: in the tensor ``row`` and the
    list ``label``."""
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return {"attention_mask": mask.long(), "row": torch.arange(len(lengths)), "label": [*range(len(lengths))]}


def read_dealt_rows(data: Any, parts: int) -> dict[str, Any]:
    """Split the rows of a container into equal, consecutive parts, and return the row numbers of each part.

    A row whose two numbers (:func:`numbered_rows`) differ is left out: its tensors and lists are from different rows.
    """
    fields = read_columns(data)
    rows = [row if row == label else -1 for row, label in zip(fields["row"].tolist(), fields["label"])]
    size = len(rows) // parts
    return {"parts": [[row for row in rows[rank * size :][:size] if row >= 0] for rank in range(parts)]}


class Rows(list[dict[str, Any]]):
    """A list of rows with the methods of Hugging Face's ``Dataset`` that data loaders use."""

    @property
    def column_names(self) -> list[str]:
        return [*self[0]] if self else []

    def map(
        self,
        function: Callable[..., Any],
        fn_kwargs: Mapping[str, Any] | None = None,
        remove_columns: Any = None,
        batched: bool = False,
        with_indices: bool = False,
        **_: Any,
    ) -> Rows:
        outdated = {remove_columns} if isinstance(remove_columns, str) else {*(remove_columns or ())}
        keywords = fn_kwargs or {}
        rest = [{name: value for name, value in row.items() if name not in outdated} for row in self]
        if batched:
            columns = function({name: self[name] for name in self.column_names}, **keywords)
            rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        else:
            rows = [function(dict(row), *[place] * with_indices, **keywords) for place, row in enumerate(self)]
        whole = [{**before, **after} for before, after in zip(rest, rows)] if len(rest) == len(rows) else rows
        return type(self)(whole)

    def filter(self, function: Callable[..., bool], fn_kwargs: Mapping[str, Any] | None = None, **_: Any) -> Rows:
        return type(self)([row for row in self if function(dict(row), **(fn_kwargs or {}))])

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def named_tokens(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make rows with a one-token prompt, and a response that ends at the last valid token of the mask.

    Each token has its own id: its index in the flattened table [rows, prompt and response tokens]. The row's reward is
    on its last token.
    """
    mask = (inputs["response_mask"] != 0).long()
    rows, width = mask.shape
    ends = (mask * torch.arange(1, width + 1)).amax(-1, keepdim=True).clamp(min=1)
    there = torch.arange(width + 1)[None] <= ends
    rewards = torch.zeros(rows, width)
    if "rewards" in inputs:
        rewards = rewards.scatter(1, ends - 1, inputs["rewards"][:, None].float())
    ids = torch.arange(rows * (width + 1)).reshape(rows, width + 1)
    return {"number": torch.arange(rows), "input_ids": ids, "attention_mask": there, "rewards": rewards}
