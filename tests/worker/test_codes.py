"""Digests of code: the same from the same source, another wherever something that runs is another."""

import subprocess
import sys
from types import CodeType

import pytest

from sentinel.worker.codes import digest, within

SOURCE = """
def f(a, *, b=1):
    \"\"\"Words.\"\"\"
    try:
        return [x for x in a if x in {"p", "q", "r"}] + [b, 1.0, -0.0]
    except ValueError:
        return (lambda: b)()
"""


def digests(source: str, file: str = "a.py") -> dict[str, str]:
    return {code.co_name: digest(code) for code in within(compile(source, file, "exec", dont_inherit=True))}


def test_where_a_file_lies_does_not_count():
    assert digests(SOURCE, "a.py") == digests(SOURCE, "/elsewhere/b.py")
    assert {"<module>", "f", "<lambda>"} <= set(digests(SOURCE))


def test_another_process_says_the_same():
    """Sets of strings have another order in each."""
    lines = f"from sentinel.worker.codes import *; print(digest(compile({SOURCE!r}, 'c.py', 'exec')))"
    said = {
        subprocess.run(
            [sys.executable, "-c", lines], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert said == {digests(SOURCE)["<module>"]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[b, 1.0, -0.0]", "[b, 1, -0.0]"),
        ("[b, 1.0, -0.0]", "[b, True, -0.0]"),
        ("[b, 1.0, -0.0]", "[b, 1.0, 0.0]"),
        ('"r"', '"s"'),
        ("ValueError", "KeyError"),
        ("def f(", "\ndef f("),
        ("(lambda: b)", "(lambda: a)"),
        ("Words.", "Other words."),
    ],
)
def test_what_counts(old, new):
    assert old in SOURCE
    assert digests(SOURCE)["f"] != digests(SOURCE.replace(old, new))["f"]


def test_what_was_replaced_in_place():
    def honest() -> int:
        return 1

    def other() -> int:
        return 2

    disguised: CodeType = other.__code__.replace(co_name="honest", co_firstlineno=honest.__code__.co_firstlineno)
    assert digest(disguised) != digest(honest.__code__)
