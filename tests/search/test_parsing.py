"""Source files are parsed in a process that has threads and collects garbage."""

import ast
import gc

import pytest

from sentinel.search.bindings import syntax_of

TEXT = "f(a, [b, (c, d)])\n" * 50


class Garbage:
    """An object in a cycle. When it is collected, it parses a text and creates another such object."""

    alive = True

    def __init__(self):
        self.own = self

    def __del__(self):
        if Garbage.alive:
            ast.parse("1")
            Garbage()


@pytest.fixture
def constant_collection():
    before = gc.get_threshold()
    gc.set_threshold(1)
    Garbage()
    yield
    Garbage.alive = False
    gc.set_threshold(*before)
    gc.collect()


def test_a_collection_that_parses_does_not_disturb_the_parser(constant_collection):
    assert len(syntax_of(TEXT).body) == 50
    assert gc.isenabled()


@pytest.mark.parametrize(
    "text", ["x = (", "x = 1\0", "\ud800", "(" * 10_000], ids=["open", "null", "surrogate", "deep"]
)
def test_invalid_text_is_a_syntax_error(text):
    with pytest.raises(SyntaxError):
        syntax_of(text)
    assert gc.isenabled()
