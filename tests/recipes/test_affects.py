import json
from typing import Any

import pytest

from sentinel.recipes.affects import Affected, can_both_hold, holds, in_text, read_affected, settings_in_words
from sentinel.recipes.json_schema import JsonSchema
from sentinel.recipes.structure import schema


@pytest.mark.parametrize(
    ("condition", "those", "not_those"),
    [
        ("grpo", ("grpo", "rloo,grpo"), ("rloo", "grpo_vectorized", "null")),
        (["grpo", "rloo"], ("grpo", "rloo"), ("gae",)),
        (True, ("true", "1", "yes", "On"), ("false", "null", "0", "2")),
        (False, ("false", "0", "no"), ("true", "1")),
        (1, ("1", "1.0"), ("2", "true", "null")),
        ("set", ("1", "grpo", "{…}", "0"), ("null", "false", "")),
        ("unset", ("null", "false", ""), ("true", "x")),
        ("> 1", ("2", "1.5"), ("1", "0", "null", "word")),
        ("<= 0", ("0", "-1"), ("1",)),
        ("!= 1", ("0.7", "null"), ("1", "1.0")),
        ("!= k1,k2", ("k3",), ("k1", "k2")),
    ],
)
def test_a_condition_holds_for_matching_values(condition, those, not_those):
    assert all(holds(condition, value) for value in those)
    assert not any(holds(condition, value) for value in not_those)


@pytest.mark.parametrize(
    ("one", "other", "possible"),
    [
        (True, False, False),
        ("set", "unset", False),
        ("set", ["grpo", "rloo"], True),
        ("unset", False, True),
        ("opo", ["grpo", "rloo"], False),
        ("!= k1,k2", ["k1", "k3"], True),
        ("!= k1", "k1", False),
        ("> 1", "< 2", True),
        ("> 1", "<= 1", False),
        ("> 1", "!= 2,3", True),
        ("> 1", "set", True),
        ("< another.setting", 3, True),
    ],
)
def test_two_conditions_can_both_hold_for_one_value(one, other, possible):
    assert can_both_hold(one, other) is possible
    assert can_both_hold(other, one) is possible


def test_a_condition_is_written_as_text():
    entry = {"when": {"a.b": ["x", 2], "c": "set", "d": "unset", "e": "> 1", "f": True}, "where": "it rains"}
    assert str(read_affected(entry)) == "a.b=x or 2, c set, d not set, e > 1, f=true, if it rains"
    assert str(read_affected("only words")) == "only words"
    assert str(Affected({"a": 1})) == "a=1"
    assert str(read_affected({"when": ["no", "recipe"]})).startswith("{")  # foreign evidence is shown as it is
    assert settings_in_words({"a": in_text(None), "b": in_text([1, "x"])}) == "a=null, b=1,x"


def valid(entry: Any) -> bool:
    """Return True if the schema accepts an entry of ``affects``."""
    whole = schema()
    return JsonSchema({**whole["$defs"]["affected"], "$defs": whole["$defs"]}).accepts(entry)


@pytest.mark.parametrize(
    "entry",
    ["prose", {"when": {"a.b_c.0": "x"}}, {"when": {"a": [1, "x", True]}, "where": "w"}, {"when": {"a": ">= 1e-6"}}],
)
def test_valid_affects_entries_are_accepted(entry):
    assert valid(json.loads(json.dumps(entry)))


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"when": {}},
        {"wehn": {"a": 1}},
        {"when": {"a": ">1"}},
        {"when": {"a": None}},
        {"when": {"a b": 1}},
        {"when": {"a": ["> 1"]}},
        {"when": {"a": 1}, "where": ""},
    ],
)
def test_invalid_affects_entries_are_rejected(entry):
    assert not valid(entry)
