"""Python as it is read: what ``ast.unparse`` writes, with the usual quotes, brackets and width."""

from __future__ import annotations

import ast

import pytest

from sentinel.export.layout import data, formatted, is_data

LONG = "a_long_name_" * 4


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("x = 'a'", 'x = "a"'),
        ("x = 'say \"a\"'", "x = 'say \"a\"'"),
        ("return (a, b)", "return a, b"),
        ("return (a, b)[0]", "return (a, b)[0]"),
        ("return (a, b) + (c, d)", "return (a, b) + (c, d)"),
        ("x = any((y for y in z))", "x = any(y for y in z)"),
        ("x = f'{a}'", "x = f'{a}'" if "FSTRING_START" in dir(__import__("tokenize")) else 'x = f"{a}"'),
    ],
)
def test_lines(written: str, read: str) -> None:
    text = f"def f():\n    {written}"
    assert formatted(text) == f"def f():\n    {read}"


@pytest.mark.parametrize(
    "line",
    [
        f"x = [{LONG}(row) for row, other in zip({LONG}, {LONG}) if row not in {LONG}]",
        f"with {LONG}({LONG}, 1), {LONG}({LONG}) as name, {LONG}():\n        pass",
        f"x = {LONG}({', '.join(f'{LONG[:12]}{n}={n}' for n in range(12))})",
        f"x = {LONG}(*((1000,) if {LONG} in {LONG[:24]} else ()))",
        f"x = {LONG}(a=1, b={LONG}({LONG}={LONG}), c=2, d={{'a': {LONG}, 'b': {LONG}, 'c': {LONG}}}, e=3)",
    ],
)
def test_long_lines_are_broken_and_mean_the_same(line: str) -> None:
    text = f"def f():\n    {line}"
    broken = formatted(text)
    assert max(map(len, broken.split("\n"))) <= 120
    assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(text))


def test_methods_stand_apart() -> None:
    text = "class A:\n    x = 1\n    def f(self):\n        pass\n    @property\n    def g(self):\n        pass"
    assert formatted(text) == text.replace("    def f", "\n    def f").replace("    @", "\n    @")


def test_data_is_written_as_literals() -> None:
    value = {"a": [1, 2.5, None], "b": (True,), "c": {"x"}}
    assert is_data(value)
    assert ast.literal_eval(data(value)) == value
    assert not is_data({"a": object()})
