"""Saved findings: what a scenario holds, in the recipe language."""

from __future__ import annotations

from sentinel.search.saving import written
from sentinel.values import tensor


def test_tensors_inside_of_other_values_stay_tensors() -> None:
    value = {"ids": tensor([1, 2], "int64"), "rows": [{"weights": tensor([[0.5]], "float32")}], "name": "a"}
    assert written(value) == {
        "ids": {"tensor": [1, 2], "dtype": "int64"},
        "rows": [{"weights": {"tensor": [[0.5]], "dtype": "float32"}}],
        "name": "a",
    }
