"""Imports, literals and long lines of what is exported."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from sentinel.export.program import Merged, Program
from sentinel.export.rendering import Body, Imports, row, wrapped
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


def test_arguments_stand_side_by_side_where_they_are_many() -> None:
    line = f"x = f({', '.join(f'{name}={name * 12}' for name in 'abcdefghij')}, long={'k' * 100})"
    broken = wrapped(line)
    assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(line))
    assert broken.count("\n") == 4
    assert max(map(len, broken.split("\n"))) <= 120


def test_two_classes_of_one_name_are_told_apart() -> None:
    imports = Imports()
    assert imports.of("a.b", "Worker.run") == "Worker.run"
    assert imports.of("a.c", "Worker.stop") == "a.c.Worker.stop"
    assert imports.of("a.b", "Worker") == "Worker"
    assert imports.lines() == ["import a.c", "from a.b import Worker"]


def test_a_comprehension_is_broken_between_its_clauses() -> None:
    name = "a_long_name_" * 4
    line = f"x = {{{name}: row for {name}, row in {name}.items() if row not in {name}}}"
    broken = wrapped(line)
    assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(line))
    assert [row.strip().split()[0] for row in broken.split("\n")[2:-1]] == ["for", "if"]


def test_a_row_of_two_runs_says_how_long_they_are() -> None:
    assert row(["0"] * 4 + ["1"] * 2) == "[0] * 4 + [1] * 2"
    assert row(["0", "0", "1", "1"]) == "[0, 0, 1, 1]"
    assert row(["0", "0", "1", "0", "0"]) == "[0, 0, 1, 0, 0]"


def test_a_display_that_is_all_that_a_call_is_given_hugs_its_brackets() -> None:
    items = ", ".join(f'"{letter * 20}": 1' for letter in "abcdef")
    assert wrapped(f"x = f({{{items}}})").split("\n")[0] == "x = f({"
    assert wrapped(f"x = f(**{{{items}}})").split("\n")[-1] == "})"
    assert wrapped(f"x = f({{{items}}}, y)").split("\n")[0] == "x = f("
