"""Long lines of what is exported."""

from __future__ import annotations

import ast

from sentinel.export.wrapping import packed, wrapped


def test_arguments_stand_side_by_side_where_they_are_many() -> None:
    line = f"x = f({', '.join(f'{name}={name * 12}' for name in 'abcdefghij')}, long={'k' * 100})"
    broken = wrapped(line)
    assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(line))
    assert broken.count("\n") == 4
    assert max(map(len, broken.split("\n"))) <= 120


def test_a_comprehension_is_broken_between_its_clauses() -> None:
    name = "a_long_name_" * 4
    line = f"x = {{{name}: row for {name}, row in {name}.items() if row not in {name}}}"
    broken = wrapped(line)
    assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(line))
    assert [row.strip().split()[0] for row in broken.split("\n")[2:-1]] == ["for", "if"]


def test_a_display_that_is_all_that_a_call_is_given_hugs_its_brackets() -> None:
    items = ", ".join(f'"{letter * 20}": 1' for letter in "abcdef")
    assert wrapped(f"x = f({{{items}}})").split("\n")[0] == "x = f({"
    assert wrapped(f"x = f(**{{{items}}})").split("\n")[-1] == "})"
    assert wrapped(f"x = f({{{items}}}, y)").split("\n")[0] == "x = f("


def test_items_fill_lines_and_a_long_one_stands_alone() -> None:
    lines = packed(["1"] * 30 + ["x" * 60] + ["2"] * 3, 50, 4)
    assert [len(line) <= 60 for line in lines] == [True, True, False, True]
    assert lines[2] == "x" * 60 + ","
