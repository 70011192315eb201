"""Values as people write them."""

from __future__ import annotations

from sentinel.export.literals import nested, row, scalar


def test_what_python_has_no_literal_for_is_made() -> None:
    assert scalar(float("nan")) == 'float("nan")'
    assert nested([1.0, float("-inf")], short=True) == '[1, float("-inf")]'
    assert nested([-0.0], short=True) == "[-0.0]", "its sign is not lost"


def test_a_string_hides_nothing() -> None:
    assert scalar('a"b\\') == '"a\\"b\\\\"'
    assert "\u202e" not in scalar("\u202e")


def test_a_row_of_two_runs_says_how_long_they_are() -> None:
    assert row(["0"] * 4 + ["1"] * 2) == "[0] * 4 + [1] * 2"
    assert row(["0", "0", "1", "1"]) == "[0, 0, 1, 1]"
    assert row(["0", "0", "1", "0", "0"]) == "[0, 0, 1, 0, 0]"
