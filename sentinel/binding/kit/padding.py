"""Call functions that pad, pack and unpack rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentinel.binding.drift import AbsentError
from sentinel.binding.kit.calls import take_inputs
from sentinel.values.lazy import torch


def call_padding(boundary: Any, inputs: Mapping[str, Any], **upstream: Any) -> dict[str, Any]:
    """Call a function that pads a list of rows to the longest row.

    To make the function pad to ``length``, a row of this length is added to the list and removed from the result.
    """
    values = inputs["values"]
    rows = [*values, values.new_zeros(inputs["length"])]
    return {"padded": boundary.invoke(take_inputs(inputs, "pad_value", "side"), rows, **upstream)[:-1]}


def call_padding_to_multiple(
    pads: Callable[[Any, Any, int], Any], boundary: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Call a function that pads rows to the next multiple of a number: ``pads(boundary, values, number)``."""
    if inputs["values"].shape[1] > inputs["length"]:
        raise AbsentError("the scenario has rows longer than `length`; the function pads to a multiple of `length`")
    return {"padded": pads(boundary, inputs["values"], inputs["length"])}


def lay_out(rows: Sequence[Any], left: bool = False) -> tuple[Any, Any]:
    """Pad rows of tokens, and return a tensor and its mask, [rows, 1 + length of the longest row]."""
    width = 1 + max(map(len, rows))
    beside = [(width - len(row), 0) if left else (0, width - len(row)) for row in rows]
    values = [torch.nn.functional.pad(row, extra) for row, extra in zip(rows, beside)]
    mask = [torch.nn.functional.pad(torch.ones_like(row), extra) for row, extra in zip(rows, beside)]
    return torch.stack(values), torch.stack(mask)


def lengths_of(inputs: Mapping[str, Any], mask: str = "attention_mask") -> list[int]:
    """Return the number of valid tokens in each row."""
    return [int(length) for length in (inputs[mask] != 0).sum(-1)]


def pack_by_length(boundary: Any, inputs: Mapping[str, Any], **upstream: Any) -> dict[str, Any]:
    """Call a function that packs rows into microbatches by their lengths, with a token limit."""
    return {"parts": boundary.function(lengths_of(inputs), inputs["max_tokens_per_microbatch"], **upstream)}


def remove_padding(values: Any, mask: Any, *_: Any, **__: Any) -> Any:
    """Return the attended tokens of all rows as one sequence, as flash-attention's ``unpad_input`` does."""
    lengths, counts = mask.sum(-1), mask.bool()
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    return values[counts], counts.flatten().nonzero().flatten(), ends, int(lengths.max())


def restore_padding(values: Any, places: Any, rows: int, columns: int) -> Any:
    """Return packed tokens as padded rows, as flash-attention's ``pad_input`` does."""
    whole = values.new_zeros(rows * columns, *values.shape[1:])
    return whole.index_put((places,), values).reshape(rows, columns, *values.shape[1:])
