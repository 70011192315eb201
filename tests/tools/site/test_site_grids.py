"""Values as tables: masked cells, differences, number formats."""

from typing import Any

import pytest

from sentinel.tools.site.grids import MOST_COLUMNS, MOST_ROWS, close, differing, grid, number, rows_of, written


def tensor(values: Any, *shape: int) -> dict[str, Any]:
    return {"dtype": "float32", "shape": list(shape), "tensor": values}


@pytest.mark.parametrize(
    ("item", "text"),
    [(0.1 + 0.2, "0.3"), (-0.0, "0"), (1e-08, "1e-8"), (2.5e10, "2.5e+10"), (-3.0, "-3"), (7, "7"), (True, "true"),
     (None, "null"), ("NaN", "NaN"), ("-Infinity", "-∞"), ("p", "p")],
)  # fmt: skip
def test_numbers_are_shortened(item, text):
    assert number(item) == text


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (tensor([[1.0, 2.0]], 1, 2), [[1.0, 2.0]]),
        (tensor([1.0, 2.0], 2), [[1.0, 2.0]]),
        (tensor(1.0), None),
        (tensor([[[1.0]]], 1, 1, 1), None),
        ([tensor([1.0], 1), tensor([1.0, 2.0], 2)], [[1.0], [1.0, 2.0]]),  # packed sequences
        (["p", "q"], [["p", "q"]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[[1]]], None),
        ([], None),
        ({"a": 1}, None),
        ("text", None),
    ],
)
def test_tensors_and_nested_lists_become_tables(value, rows):
    assert rows_of(value) == rows


def test_masked_cells_and_rejected_rows_are_marked():
    drawn = grid("x", tensor([[1.0, 2.0], [3.0, 4.0]], 2, 2), mask=[[1.0, 0.0], [0.0, 0.0]])
    assert [[cell.masked for cell in line.cells] for line in drawn.lines] == [[False, True], [True, True]]
    assert [line.rejected for line in drawn.lines] == [False, True]


def test_a_mask_of_another_shape_is_ignored():
    drawn = grid("x", tensor([[1.0, 2.0, 3.0]], 1, 3), mask=[[0, 0]])
    assert not any(cell.masked for line in drawn.lines for cell in line.cells)


def test_one_number_per_row_is_drawn_as_a_column():
    drawn = grid("group", ["p", "q"], mask=[[1, 0], [0, 0]], upright=True, marks={(0, 1): "leak"})
    assert [[cell.text for cell in line.cells] for line in drawn.lines] == [["p"], ["q"]]
    assert [line.rejected for line in drawn.lines] == [False, True]
    assert [line.cells[0].mark for line in drawn.lines] == ["", "leak"]  # by its place in the value as it is written


def test_large_values_are_truncated_with_a_note():
    drawn = grid("x", [[0.0] * 40] * 30)
    assert (len(drawn.lines), max(len(line.cells) for line in drawn.lines)) == (MOST_ROWS, MOST_COLUMNS)
    assert drawn.left == "18 more rows, 24 more columns"
    assert len(written({"key": "x" * 5000})) < 700


def test_equal_numbers_are_not_marked():
    assert close(1.0, 1.0 + 1e-7)
    assert close("NaN", "NaN")
    assert not close(1.0, 1.001)
    assert not close("NaN", 0.0)
    assert not close("Infinity", 1e30)
    assert not close(0.0, "Infinity")
    assert differing(tensor([[1.0, 2.0]], 1, 2), [[1.0, 3.0]]) == {(0, 1)}
    assert differing([[1.0]], [[1.0], [1.0]]) == {(0, 0)}  # of another shape: everywhere
    assert differing(1.0, 2.0) == frozenset()
