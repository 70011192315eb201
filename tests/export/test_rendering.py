"""Imports and tensors of what is exported."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from sentinel.export.program import Merged, Program
from sentinel.export.rendering import Body, Imports
from sentinel.values import tensor


def literal(values: Any, dtype: str) -> str:
    return Body(Merged(Program((), {})), Imports()).literal(tensor(values, dtype))


def test_numbers_have_the_digits_of_their_dtype() -> None:
    assert literal([0.1, -2.0, 1e-6], "float32") == "torch.tensor([0.1, -2, 1e-06], dtype=torch.float32)"
    assert literal([0.1], "float64") == "torch.tensor([0.1], dtype=torch.float64)"
    (shortest,) = ast.literal_eval(literal([0.1], "bfloat16").partition("(")[2].partition(", dtype")[0])
    assert np.float32(shortest) == tensor([0.1], "bfloat16").array()[0]


def test_many_equal_values_are_one_number() -> None:
    assert literal([[0.5] * 4] * 2, "float32") == "torch.full([2, 4], 0.5, dtype=torch.float32)"
    assert literal([[True] * 4] * 2, "bool") == "torch.full([2, 4], True, dtype=torch.bool)"
    assert "full" not in literal([[0.5] * 4, [0.5, 0.5, 0.5, 0.25]], "float32")


def test_rows_of_equal_values_are_short() -> None:
    text = literal([[0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]], "float32")
    assert text == "torch.tensor([[0] * 5, [0] * 4 + [1]], dtype=torch.float32)"


def test_modules_may_have_a_word() -> None:
    imports = Imports(modules={"a.b.losses", "a.c", "a.gone"}, short={"a.b.losses": "losses", "a.gone": "gone"})
    read = imports.read_by("losses.agg_loss(a.c.x, other.gone)")
    assert read.lines() == ["import a.b.losses as losses", "import a.c"]


def test_two_classes_of_one_name_are_told_apart() -> None:
    imports = Imports()
    assert imports.of("a.b", "Worker.run") == "Worker.run"
    assert imports.of("a.c", "Worker.stop") == "a.c.Worker.stop"
    assert imports.of("a.b", "Worker") == "Worker"
    assert imports.lines() == ["import a.c", "from a.b import Worker"]
