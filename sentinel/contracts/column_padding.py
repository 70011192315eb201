"""Column padding: rows that are filled up to a length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.contract import Choose, Input, Observed, dialect, rule
from sentinel.values.literals import from_array

_DTYPES = ("float32", "int64", "bool", "float64", "int32")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    padded = call(**inputs)["padded"]
    return {
        "padded": padded,
        "dtype": str(padded.dtype).removeprefix("torch."),
        "dtype_kept": padded.dtype == inputs["values"].dtype,
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The values, and beside them as many columns of the padding value as they lack; of one dtype. What is cut off is
    at the side where padding would stand."""
    import torch

    values = inputs["values"]
    missing = max(inputs["length"] - values.shape[1], 0)
    beside = (missing, 0) if inputs["side"] == "left" else (0, missing)
    # Padding a boolean goes through integers, so that torch takes the value as it would for any other dtype.
    wide = torch.nn.functional.pad(values.to(torch.float64), beside, value=float(inputs["pad_value"]))
    if inputs["longer"] == "cut":
        wide = wide[:, -inputs["length"] :] if inputs["side"] == "left" else wide[:, : inputs["length"]]
    return {"padded": wide.to(values.dtype)}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """A matrix of any dtype; booleans are filled up with false."""
    dtype = choose.one_of(_DTYPES)
    shape = (choose.integer(1, 2), choose.integer(1, 4))
    numbers = np.arange(shape[0] * shape[1]).reshape(shape) % (2 if dtype == "bool" else 100)
    inputs["values"] = from_array(numbers, dtype)
    if dtype == "bool":
        inputs["pad_value"] = 0
    return inputs


COLUMN_PADDING = rule(
    name="column_padding",
    summary="rows that are filled up to a length with a value",
    source="padding adds columns and nothing else: values, order and dtype stay",
    inputs=(
        Input("values", "any", "tensor [rows, columns] of any dtype", choices=((),)),
        Input("length", "integer", "columns that there are to be at least", choices=(4, 2, 6)),
        Input("pad_value", "number", "what the new columns hold", choices=(0, 7)),
        Input("side", "string", "where they stand: right or left", default="right", choices=("right", "left")),
        dialect("longer", "kept", "rows that are longer: kept, or cut to the length"),
    ),
    observes=(
        Observed("padded", "the values with the new columns", ("rows", "columns")),
        Observed("dtype_kept", "whether it has the dtype of the values"),
        Observed("dtype", "the dtype that it has", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    arrange=_arrange,
)
